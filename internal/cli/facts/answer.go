package facts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/jsonid"
)

// Answer is what is known of a key: first in the place that says most, and in Others in
// the further ones that have a record.
type Answer struct {
	Key      json.RawMessage `json:"key,omitempty"`
	Scope    *string         `json:"scope,omitempty"`
	Pipeline string          `json:"pipeline,omitempty"`
	Store    string          `json:"store,omitempty"`
	Record   *keyrecord.Line `json:"record,omitempty"`
	// Elsewhere are the other scopes of the store that have the key, if this one lacks it.
	Elsewhere []string `json:"elsewhere,omitempty"`
	// Parked, Events and Looked are those of all places.
	Parked []Parked `json:"parked,omitempty"`
	Events []Event  `json:"events,omitempty"`
	Next   string   `json:"next,omitempty"`
	// Now are the messages of the key that a running pipeline has read and not settled, and
	// Troubles say why pipelines of the key deliver nothing now.
	Now      []admin.UnderWay `json:"now,omitempty"`
	Troubles []string         `json:"troubles,omitempty"`
	Commands []string         `json:"commands,omitempty"`
	Looked   []string         `json:"looked,omitempty"`
	Others   []*Answer        `json:"others,omitempty"`

	record   semel.Record
	commands []keyrecord.Command
	parked   bool // its pipeline has parked messages of the key
	trouble  string
	failed   bool // a place could not be asked
	filtered bool // the filter of its pipeline made the key done
}

// Parked is a parked message of the key.
type Parked struct {
	ID       string `json:"id"`
	Reason   string `json:"reason"`
	Place    string `json:"place"`
	Time     string `json:"time"`
	Error    string `json:"error,omitempty"`
	Attempts int    `json:"attempts,omitempty"`
	Queued   bool   `json:"queued,omitempty"`

	// By is the pipeline that parked it.
	By string `json:"-"`
}

// Since says when the message was parked.
func (m *Parked) Since() string {
	at, err := time.Parse(time.RFC3339Nano, m.Time)
	if err != nil {
		return m.Time
	}
	return term.DisplayTime(at)
}

// Why says why the message is parked, and whether it is redriven.
func (m *Parked) Why() string {
	said := m.Reason
	if m.Error != "" {
		said += ": " + term.JoinLines(m.Error)
	}
	if m.Queued {
		said += " (to be redriven)"
	}
	return said
}

// Event is one thing that happened to the key.
type Event struct {
	Time  string `json:"time,omitempty"`
	Place string `json:"place"`
	What  string `json:"what"`

	// At is zero if the time is not known.
	At time.Time `json:"-"`
}

// findings are what the places said.
type findings struct {
	answers []*Answer
	parked  []Parked
	retries []keyrecord.Command // of parked messages
	events  []Event
	seen    map[Event]bool // without their At
	looked  []string       // the places, and how far each was read
	now     []admin.UnderWay
}

// add notes an event, once.
func (f *findings) add(at time.Time, place, what string) {
	e := Event{Time: term.JSONTime(at), Place: place, What: what}
	if f.seen[e] {
		return
	}
	f.seen[e] = true
	e.At = at
	f.events = append(f.events, e)
}

// Remark says where the verb looked, once.
func (f *findings) Remark(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(f.looked, text) { // two pipelines may use one topic
		f.looked = append(f.looked, text)
	}
}

// weight orders answers: those with a record come first.
func (a *Answer) weight() int {
	switch {
	case a.record.State != semel.Absent:
		return 3
	case a.parked:
		return 2
	case len(a.Elsewhere) > 0:
		return 1
	case a.Record != nil:
		return 0
	}
	return -1 // nothing could be seen there
}

// whole makes one answer out of those of all places. ids are the readings of the key, and
// failed says that a place could not be asked.
func (f *findings) whole(app *term.App, ids []string, failed bool) *Answer {
	slices.SortStableFunc(f.answers, func(a, b *Answer) int { return b.weight() - a.weight() })
	slices.SortStableFunc(f.events, func(a, b Event) int { // those without a time come last
		if a.At.IsZero() != b.At.IsZero() {
			return cmp.Compare(b.Time, a.Time)
		}
		return a.At.Compare(b.At)
	})
	all := &Answer{}
	if len(f.answers) > 0 {
		all = f.answers[0]
	}
	all.Parked, all.commands = f.parked, append(all.commands, f.retries...)
	for i, a := range f.answers {
		a.Key, _ = jsonid.Format(a.record.Key.ID) // the record has the others, in base64
		if a.Record != nil {
			a.Scope = a.Record.Scope
		}
		for j := range a.commands {
			c := &a.commands[j]
			c.Line = app.Redact(c.Line)
			a.Commands = append(a.Commands, c.Line)
		}
		if i > 0 && a.record.State != semel.Absent {
			all.Others = append(all.Others, a)
		}
	}
	for i := range f.events {
		f.events[i].What = app.Redact(f.events[i].What)
	}
	for i := range f.looked {
		f.looked[i] = app.Redact(f.looked[i])
	}
	all.Events, all.Looked, all.Now = f.events, f.looked, f.now
	for _, a := range f.answers {
		if a.trouble != "" && (a == all || a.weight() > 1 || all.Nothing()) { // not of a pipeline whose scope lacks the key
			all.Troubles = append(all.Troubles, app.Redact(a.trouble))
		}
	}
	if all.Key == nil && len(ids) > 0 {
		all.Key, _ = jsonid.Format(ids[0]) // without one, the member is left out
	}
	all.failed = failed
	return all
}

// Nothing reports whether no place knows the key.
func (a *Answer) Nothing() bool { return a.weight() <= 0 && len(a.Events)+len(a.Now) == 0 }

// Failed reports whether a place could not be asked.
func (a *Answer) Failed() bool { return a.failed }

// Filtered reports whether the key is known to be done because the filter of its pipeline left its
// message out.
func (a *Answer) Filtered() bool { return a.filtered }

// Known returns the record, or nil if the place has none that can be seen.
func (a *Answer) Known() *semel.Record {
	if a.Record == nil {
		return nil
	}
	return &a.record
}

// Cases returns the commands, each with the case that it is for.
func (a *Answer) Cases() []keyrecord.Command { return a.commands }

// Doing says where a message is that a pipeline has read and not settled.
func Doing(at *admin.UnderWay, now time.Time) string {
	text := at.Pipeline + " has a message of this key: " + at.State
	if !at.NextRetry.IsZero() {
		text += fmt.Sprintf(" in %s", about(max(at.NextRetry.Sub(now), 0).Seconds()))
	}
	return text
}

// Print prints an answer, for people or as JSON.
func (all *Answer) Print(app *term.App) error {
	if app.JSON {
		return app.PrintJSON(all)
	}
	var text strings.Builder
	if all.Nothing() {
		text.WriteString("nothing is known of this key")
		if all.failed {
			text.WriteString(" in the places that could be asked")
		}
		text.WriteString("\n")
	}
	for i, a := range append([]*Answer{all}, all.Others...) {
		if i > 0 {
			text.WriteString("\n")
		}
		if err := a.write(&text, app.Redact); err != nil {
			return err
		}
	}
	text.WriteString("\nlooked in\n")
	for _, place := range all.Looked {
		fmt.Fprintf(&text, "  %s\n", term.DisplayText(place))
	}
	_, err := app.Stdout.Write([]byte(text.String()))
	return err
}

// write writes an answer for people.
func (a *Answer) write(text *strings.Builder, redact func(string) string) error {
	fact := func(name, value string) {
		if value != "" {
			fmt.Fprintf(text, "%-12s %s\n", name, term.DisplayText(redact(value)))
		}
	}
	fact("pipeline", a.Pipeline)
	fact("store", a.Store)
	if a.Record != nil {
		if err := keyrecord.Write(text, &a.record); err != nil {
			return err
		}
	}
	if len(a.Elsewhere) > 0 {
		fact("elsewhere", "it is in "+keyrecord.InScopes(a.Elsewhere)+": "+keyrecord.ChooseScope(a.Elsewhere))
	}
	for _, m := range a.Parked {
		by := ""
		if m.By != a.Pipeline {
			by = " by " + m.By
		}
		fact("parked", fmt.Sprintf("%s%s, since %s, after %s: %s", m.ID, by, m.Since(), term.Plural(m.Attempts, "attempt"), m.Why()))
	}
	if len(a.Events) > 0 {
		text.WriteString("\n")
	}
	for _, e := range a.Events {
		when := "(no time)"
		if !e.At.IsZero() {
			when = e.At.UTC().Format("2006-01-02 15:04:05.000 MST")
		}
		fmt.Fprintf(text, "%-27s  %s: %s\n", when, term.DisplayText(e.Place), term.DisplayText(e.What))
	}
	if len(a.Events) > 0 && (a.Next != "" || len(a.Now) > 0 || len(a.Troubles) > 0) {
		text.WriteString("\n")
	}
	fact("next time", a.Next)
	for i := range a.Now {
		fact("now", Doing(&a.Now[i], time.Now()))
	}
	for _, trouble := range a.Troubles {
		fact("trouble", trouble)
	}
	return keyrecord.WriteCommands(text, a.commands)
}
