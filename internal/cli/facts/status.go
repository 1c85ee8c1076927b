// Package facts says in words what is known of a running process, of a key and of a parked
// message. The verbs print these words and the page shows them, so that both say the same.
package facts

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/term"
)

// freshFor is how long an answer, a lag or a count is shown without its age.
const freshFor = 5 * time.Second

// NeedsPerson reports whether a person must look at something.
func NeedsPerson(now *admin.Status) bool {
	for i := range now.Pipelines {
		p := &now.Pipelines[i]
		if troubled(p) || p.Waiting != nil && *p.Waiting > 0 {
			return true
		}
	}
	if now.Service != nil && now.Service.State != admin.StateReady {
		return true
	}
	for i := range now.Stores {
		s := &now.Stores[i]
		if s.State != admin.StateReady || s.Unknown != nil && *s.Unknown > 0 {
			return true
		}
	}
	return false
}

// Kind is what a detail is about.
type Kind uint8

// These are the kinds of details.
const (
	AboutPipeline Kind = iota
	AboutService
	AboutParked
	AboutStore
	AboutUnknown
)

// Detail is one thing to know about a part of a process.
type Detail struct {
	Kind Kind
	// Name is that of the pipeline, the service or the store.
	Name string
	Text string
	// Command is the command line that shows more, or "".
	Command string
	// Person: a person must look at it.
	Person bool
}

// String returns the detail as a line.
func (d *Detail) String() string {
	if d.Command == "" {
		return d.Text
	}
	return d.Text + ": " + d.Command
}

// Details returns the facts that the tables of a status have no place for: reasons, errors, the
// lag of partitions, and the commands for states that need a person. file names the configuration
// in command lines; it is "" if it is not known, or if flags describe the service.
func Details(now *admin.Status, file string) (list []Detail) {
	add := func(kind Kind, name string, person bool, format string, args ...any) *Detail {
		list = append(list, Detail{Kind: kind, Name: name, Person: person, Text: fmt.Sprintf(format, args...)})
		return &list[len(list)-1]
	}
	for i := range now.Pipelines {
		p := &now.Pipelines[i]
		if p.Settled > 0 {
			add(AboutPipeline, p.Name, false, "%s", accounts(p))
		}
		if text := trouble(p, now.Time); text != "" {
			add(AboutPipeline, p.Name, troubled(p), "%s", text)
		} else if isOld(now.Time, p.Answered) {
			add(AboutPipeline, p.Name, false, notYet, p.Name, Ago(now.Time, p.Answered))
		}
		if e := p.LastError; e != nil {
			text := inWords(e.Event)
			if e.Cause != "" {
				text += ": " + e.Cause
			}
			if e.Over {
				add(AboutPipeline, p.Name, false, "%s failed last %s, which is over: %s", p.Name, Ago(now.Time, e.At), text)
			} else {
				add(AboutPipeline, p.Name, false, "%s failed last %s: %s: the log has the error", p.Name, Ago(now.Time, e.At), text)
			}
		}
		if p.Retrying > 0 || p.ReadAhead > 0 && (p.Pace != nil || troubled(p)) {
			add(AboutPipeline, p.Name, false, "%s", underWay(p, now.Time))
		}
		if p.Pace != nil {
			add(AboutPipeline, p.Name, false, "%s", behind(p))
		}
		for _, at := range p.Lags {
			if len(p.Lags) > 1 && (at.Messages != nil && *at.Messages > 0 || at.Bytes != nil && *at.Bytes > 0) {
				add(AboutPipeline, p.Name, false, "%s: %s/%d has lag %s", p.Name, at.Source, at.Partition, LagOf(&at))
			}
		}
	}
	switch s := now.Service; {
	case s == nil:
	case s.Reason != "":
		add(AboutService, s.Name, true, "%s is not ready: %s", s.Name, term.Trouble(said(s.Reason, s.Answered, now.Time), s.NextAttempt, now.Time))
	case isOld(now.Time, s.Answered):
		add(AboutService, s.Name, false, notYet, s.Name, Ago(now.Time, s.Answered))
	}
	flags := now.Service != nil && file == ""
	if file == "" {
		file = "FILE"
	}
	for i := range now.Stores { // before parked messages: those of unknown keys are settled after their keys
		s := &now.Stores[i]
		if s.Reason != "" {
			add(AboutStore, s.Name, true, "store %s is not ready: %s", s.Name, said(s.Reason, s.Answered, now.Time))
		} else if isOld(now.Time, s.Answered) {
			add(AboutStore, s.Name, false, notYet, "store "+s.Name, Ago(now.Time, s.Answered))
		}
		if s.Unknown != nil && *s.Unknown > 0 {
			named := []string{"--config", file, "--store-name", s.Name}
			if flags { // they named the directory
				named = []string{"--store", s.Name}
			}
			add(AboutUnknown, s.Name, true, "store %s has %s", s.Name, many(*s.Unknown, "unknown key")).Command = term.ShellLine(append([]string{"semel", "keys", "ls", "--state", "unknown"}, named...)...)
		}
	}
	for i := range now.Pipelines {
		if p := &now.Pipelines[i]; p.Waiting != nil && *p.Waiting > 0 {
			add(AboutParked, p.Name, true, "%s has %s", p.Name, aged(many(*p.Waiting, "parked message"), p.WaitingMeasured, now.Time)).Command = term.ShellLine("semel", "parked", "ls", "--config", file, "--pipeline", p.Name)
		}
	}
	return list
}

// notYet says that the state of a part is an old one.
const notYet = "%s was ready %s, and has not answered yet"

// inWords says what event an error came with.
func inWords(event string) string {
	what, reason, _ := strings.Cut(event, ":")
	if words := map[string]string{"store_error": "the store failed", "failed_open": "delivered without a decision of the store", "source_changed": "the source changed"}[what]; words != "" {
		return words + strings.TrimSuffix(":"+reason, ":")
	}
	return event
}

// many formats a number of things.
func many(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return term.FormatCount(n) + " " + what
}

// trouble says what keeps a pipeline from working, or returns "" if nothing does, or if only its
// state is known.
func trouble(p *admin.PipelineStatus, now time.Time) string {
	switch {
	case p.State == admin.StateNotSeen:
		return fmt.Sprintf("no process that runs %s answered: %s", p.Name, p.Reason)
	case p.Reason != "":
		return fmt.Sprintf("%s is not ready: %s", p.Name, term.Trouble(said(p.Reason, p.Answered, now), p.NextAttempt, now))
	case p.WaitingFor != "":
		return fmt.Sprintf("%s is stalled, waiting for %s", p.Name, p.WaitingFor)
	}
	return ""
}

// TroubleOf says why a pipeline delivers nothing now, or returns "".
func TroubleOf(now *admin.Status, pipeline string) string {
	for i := range now.Pipelines {
		if p := &now.Pipelines[i]; p.Name == pipeline && troubled(p) {
			return cmp.Or(trouble(p, now.Time), p.Name+" is "+string(p.State))
		}
	}
	return ""
}

// troubled reports whether a pipeline neither works nor has ended, or is not seen.
func troubled(p *admin.PipelineStatus) bool { return !Well(p.State) }

// Well reports whether a part of a process in a state needs no person.
func Well(s admin.State) bool {
	return s == admin.StateReady || s == admin.StateEnded
}

// accounts says what became of the messages since the start of the program.
func accounts(p *admin.PipelineStatus) string {
	line := fmt.Sprintf("%s: %d settled", p.Name, p.Settled)
	if p.Held < 0 {
		line += fmt.Sprintf(" + %d settled earlier or in flight", -p.Held)
	}
	line += fmt.Sprintf(" = %d fresh", p.Fresh)
	for _, of := range []struct {
		n    int64
		name string
	}{{p.Duplicate, "duplicate"}, {p.Superseded, "superseded"}, {p.Filtered, "filtered"}, {p.Parked, "parked"}, {p.Dropped, "dropped"}, {p.Held, "held"}} {
		if of.n > 0 {
			line += fmt.Sprintf(" + %d %s", of.n, of.name)
		}
	}
	if p.Differ > 0 {
		line += fmt.Sprintf("; %d of the duplicates differ in content from the message of their key that took effect: is the key too coarse?", p.Differ)
	}
	return line
}

// underWay says where the messages are that were read and are not settled.
func underWay(p *admin.PipelineStatus, now time.Time) string {
	line := fmt.Sprintf("%s: %s in flight", p.Name, term.FormatCount(int64(p.InFlight)))
	if p.Retrying > 0 {
		line += ", " + term.FormatCount(int64(p.Retrying)) + " to be tried again"
		if next := p.NextRetry; !next.IsZero() {
			line += fmt.Sprintf(" (the first in %s)", about(max(next.Sub(now), 0).Seconds()))
		}
	}
	if p.ReadAhead > 0 {
		line += ", " + term.FormatCount(int64(p.ReadAhead)) + " read ahead"
	}
	return line
}

// Work says how long claim and sink of a pipeline take, or "-".
func Work(p *admin.PipelineStatus) (claim, sink string) {
	of := p.Work
	if of == nil {
		of = p.Pace
	}
	if of == nil || of.ClaimSeconds == nil || of.SinkSeconds == nil {
		return "-", "-"
	}
	return milliseconds(*of.ClaimSeconds), milliseconds(*of.SinkSeconds)
}

// Left says how long the lag of a pipeline takes, or "-" if it is not behind or that is not known.
func Left(p *admin.PipelineStatus) string {
	if p.Pace == nil || p.Pace.LeftSeconds == nil {
		return "-"
	}
	if p.LagMore {
		return "more than " + about(*p.Pace.LeftSeconds)
	}
	return about(*p.Pace.LeftSeconds)
}

// behind says of a pipeline that is behind how far, how long that takes, and what limits it.
func behind(p *admin.PipelineStatus) string {
	pace, line := p.Pace, fmt.Sprintf("%s is lagging: %s behind, ", p.Name, lag(p.Lag, p.LagBytes, p.LagMore))
	if pace.LeftSeconds == nil {
		line += "and nothing was settled in the last ten seconds"
	} else {
		at := "about "
		if p.LagMore {
			at = "more than "
		}
		line += fmt.Sprintf("%s%s at %s/s", at, about(*pace.LeftSeconds), term.FormatRate(p.Rate))
	}
	if pace.BatchSeconds == nil {
		return line
	}
	what := "a message takes"
	if pace.Messages >= 1.5 {
		what = fmt.Sprintf("a batch of %s messages takes", term.FormatCount(int64(pace.Messages+0.5)))
	}
	line += fmt.Sprintf("; %s %s", what, milliseconds(*pace.BatchSeconds))
	if pace.ClaimSeconds != nil && pace.SinkSeconds != nil {
		line += fmt.Sprintf(" (claim %s, sink %s)", milliseconds(*pace.ClaimSeconds), milliseconds(*pace.SinkSeconds))
	}
	line += fmt.Sprintf(", %d at a time", pace.Workers)
	switch pace.Limit {
	case admin.LimitSource:
		line += ": most of the time they wait for the source"
	case admin.LimitParking:
		line += ": most messages are parked, and that limits it"
	case admin.LimitStore:
		line += ": the store limits it; raise parallel, or look at the store with semel doctor"
	case admin.LimitSink, admin.LimitWorkers:
		line += ": raise parallel"
		if pace.MoreProcesses {
			line += ", or start more processes"
		}
	}
	return line
}

// about formats a time that is estimated.
func about(seconds float64) string {
	const year = 365 * 24 * time.Hour
	d := time.Duration(min(seconds, year.Seconds()) * float64(time.Second))
	switch {
	case d >= year:
		return "a year or more"
	case d >= time.Hour:
		return term.FormatElapsed(d.Round(time.Minute))
	case d >= time.Minute:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}

// milliseconds formats a short time.
func milliseconds(seconds float64) string {
	switch ms := 1000 * seconds; {
	case ms < 0.05:
		return "0 ms"
	case ms < 9.95:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return term.FormatElapsed(time.Duration(seconds * float64(time.Second)))
}

// Rate formats the rate of a pipeline, or "-" if no process is seen that runs it.
func Rate(p *admin.PipelineStatus) string {
	if p.State == admin.StateNotSeen {
		return "-"
	}
	return term.FormatRate(p.Rate) + "/s"
}

// InFlight formats the number of messages in flight, or "-" if no process is seen that has them.
func InFlight(p *admin.PipelineStatus) string {
	if p.State == admin.StateNotSeen {
		return "-"
	}
	return term.FormatCount(int64(p.InFlight))
}

// Share formats the share of fresh messages.
func Share(p *admin.PipelineStatus) string {
	if p.Fresh+p.Duplicate == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(p.Fresh)/float64(p.Fresh+p.Duplicate))
}

// Count formats a count that may not be known.
func Count(n *int64) string {
	if n == nil {
		return "-"
	}
	return term.FormatCount(*n)
}

// CleanUp says what became of the expired keys of a store, or returns "" if its process does not
// delete them.
func CleanUp(now *admin.Status, s *admin.StoreStatus) string {
	switch c := s.CleanUp; {
	case c == nil:
		return ""
	case c.Error != "":
		return fmt.Sprintf("%s: %s", Ago(now.Time, c.At), c.Error)
	case c.At.IsZero():
		return "not yet"
	default:
		return fmt.Sprintf("%s, %s deleted", Ago(now.Time, c.At), many(c.Keys, "key"))
	}
}

// LagOf formats the lag of a partition.
func LagOf(p *admin.PartitionLag) string { return lag(p.Messages, p.Bytes, p.More) }

// lag formats a lag in messages or bytes. more: it is only a part.
func lag(messages, size *int64, more bool) string {
	text := Count(messages)
	if messages == nil && size != nil {
		text = term.FormatBytes(*size)
	}
	if more {
		return "more than " + text
	}
	return text
}

// Lagged formats the lag of a pipeline, with its age if it is old.
func Lagged(now *admin.Status, p *admin.PipelineStatus) string {
	return aged(lag(p.Lag, p.LagBytes, p.LagMore), p.LagMeasured, now.Time)
}

// Waiting formats the number of parked messages of a pipeline, with its age if it is old.
func Waiting(now *admin.Status, p *admin.PipelineStatus) string {
	return aged(Count(p.Waiting), p.WaitingMeasured, now.Time)
}

// said adds to the reason of a part that is not ready how old it is, if it is old.
func said(reason string, answered, now time.Time) string {
	if !isOld(now, answered) {
		return reason
	}
	return fmt.Sprintf("%s (its last answer was %s)", reason, Ago(now, answered))
}

// Silent returns why a store should not be asked now, or nil: it does not answer, and people would wait for it.
func Silent(now *admin.Status, store string) error {
	for i := range now.Stores {
		if s := &now.Stores[i]; s.Name == store && s.State == admin.StateNotReady && !s.Answered.IsZero() {
			return fmt.Errorf("store %s is not asked, because it does not answer: %s", store, said(s.Reason, s.Answered, now.Time))
		}
	}
	return nil
}

// aged adds to a text how old it is, if it is old.
func aged(text string, at, now time.Time) string {
	if !isOld(now, at) {
		return text
	}
	return text + " (" + Ago(now, at) + ")"
}

// isOld reports whether something was known before, and not now.
func isOld(now, at time.Time) bool { return !at.IsZero() && now.Sub(at) >= freshFor }

// Ago formats how long ago something was.
func Ago(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	return term.FormatElapsed(max(now.Sub(then), 0)) + " ago"
}
