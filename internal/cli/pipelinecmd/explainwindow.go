package pipelinecmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	kafkakind "github.com/semel-dev/semel/internal/kind/kafka"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/windows"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// WindowAnswer is the information about a window of a key in one pipeline.
type WindowAnswer struct {
	Pipeline string `json:"pipeline"`
	Key      string `json:"key"`
	Start    string `json:"start,omitempty"`
	End      string `json:"end,omitempty"`
	// Closes and Late are the times up to which a partition must have come until the
	// window is closed, and until a further message of it is late.
	Closes     string                  `json:"closes,omitempty"`
	Late       string                  `json:"late,omitempty"`
	Partitions []WindowPartitionAnswer `json:"partitions,omitempty"`
	Results    []WindowResultAnswer    `json:"results,omitempty"`
	Unseen     string                  `json:"unseen,omitempty"`

	when []string // sentences about the time at which it closes
}

// WindowPartitionAnswer is what one partition knows of a window.
type WindowPartitionAnswer struct {
	Topic     string      `json:"topic"`
	Partition int32       `json:"partition"`
	State     string      `json:"state"`
	Watermark string      `json:"watermark,omitempty"`
	SoFar     string      `json:"so_far,omitempty"`
	Held      *originLine `json:"held,omitempty"`
	Next      string      `json:"next"`
}

// WindowResultAnswer is a result in the topic of the sink.
type WindowResultAnswer struct {
	originLine
	Final    bool   `json:"final"`
	Revision string `json:"revision,omitempty"`
	Body     string `json:"body"`
}

// windows answers about the windows of a key that have a time.
func (q *keyQuestion) windows(ctx context.Context, set func(name string) bool, wrong term.Problems) error {
	when, err := time.Parse(time.RFC3339, q.window)
	if err != nil {
		wrong.Addf("--window %q: expected a time as in RFC 3339, such as 2026-01-31T12:00:00Z", q.window)
	}
	for _, name := range []string{"digest", "scope", "store-name", "admin"} {
		if set(name) {
			wrong.Addf("--window and --%s exclude each other: windows are in Kafka", name)
		}
	}
	ids := q.choice.Keys("", q.ids, &wrong)
	conf := open.Config(q.App, q.file, &wrong)
	if conf != nil && !slices.ContainsFunc(conf.Pipelines, kafkakind.HasWindows) {
		wrong.Addf("%s: no pipeline has windows (aggregate, or key.keep with last): leave out --window", conf.Name)
	}
	if err := wrong.Err(); err != nil {
		return err
	}
	var failures []error
	printed := 0
	for _, p := range conf.Pipelines {
		if !kafkakind.HasWindows(p) {
			continue
		}
		answers, err := lookAtWindows(ctx, conf, p, ids, when)
		if err != nil {
			failures = append(failures, fmt.Errorf("read the windows of %s: %w", p.Name, err))
		}
		for i := range answers {
			if err := q.printWindow(&answers[i], printed > 0); err != nil {
				return err
			}
			printed++
		}
	}
	return errors.Join(failures...)
}

func lookAtWindows(ctx context.Context, conf *config.File, p *config.Pipeline, keys []semel.Key, when time.Time) (answers []WindowAnswer, err error) {
	var ids []string
	for _, k := range keys {
		ids = append(ids, k.ID)
	}
	answer := WindowAnswer{Pipeline: p.Name, Key: string(key.AppendText(nil, []byte(ids[0])))}
	found, left, err := kafkakind.LookWindow(ctx, conf, p, ids, when)
	switch {
	case errors.Is(err, kafkatxn.ErrNoChangelog):
		answer.Unseen = p.Name + " has never run: " + err.Error()
		return []WindowAnswer{answer}, nil
	case err != nil:
		return nil, err
	case len(found) == 0:
		answer.Unseen = p.Name + " has read no message"
		return []WindowAnswer{answer}, nil
	}
	for i := range found {
		answers = append(answers, windowAnswer(p, &found[i], left))
	}
	return answers, nil
}

// windowAnswer describes a window.
func windowAnswer(p *config.Pipeline, w *kafkakind.KnownWindow, left bool) WindowAnswer {
	a := WindowAnswer{
		Pipeline: p.Name, Key: string(key.AppendText(nil, []byte(w.Key))), Start: term.JSONTime(w.Start), End: term.JSONTime(w.End),
		Closes: term.JSONTime(w.Closes), Late: term.JSONTime(w.Late),
	}
	closed := false
	for _, part := range w.Parts {
		line := WindowPartitionAnswer{
			Topic: part.Topic, Partition: part.Partition, State: string(part.Fate), Watermark: term.JSONTime(part.Watermark),
			SoFar: string(part.Result), Next: nextInWindow(p, part.Fate),
		}
		if part.Held != nil {
			line.Held = &originLine{part.Topic, part.Partition, part.Held.Offset}
		}
		closed = closed || part.Fate != windows.Open
		a.Partitions = append(a.Partitions, line)
	}
	for _, r := range w.Results {
		a.Results = append(a.Results, WindowResultAnswer{originLine{r.Topic, r.Partition, r.Offset}, r.Final == "true", r.Revision, string(r.Body)})
	}
	t := timesOf(p)
	a.when = append(a.when, whenReached(t, w.Closes))
	if !w.Late.Equal(w.Closes) {
		a.when = append(a.when, whenReached(t, w.Late))
	}
	if left && len(a.Results) == 0 && closed {
		a.Unseen = "results older than the newest 1,000,000 messages of a partition of the output"
	}
	return a
}

// windowTimes are the settings of time of a pipeline with windows.
type windowTimes struct {
	grace, idle time.Duration
	late        pipeline.Then
	// newer says which messages close a window.
	newer string
}

func timesOf(p *config.Pipeline) windowTimes {
	newer := "its partition has a message"
	if kafkakind.Repartitions(p) {
		newer = "every partition of the input has had a message"
	}
	if a := p.Aggregate; a != nil {
		return windowTimes{a.Grace, a.WithDefaults().Idle, a.Late, newer}
	}
	k := p.Key.Keep
	return windowTimes{k.Grace, k.WithDefaults().Idle, k.Late, newer}
}

// whenReached says when the watermark of a partition reaches a time.
func whenReached(t windowTimes, at time.Time) string {
	text := "when " + t.newer + " of " + term.JSONTime(at.Add(t.grace)) + " or later"
	if t.grace > 0 {
		text += " (grace " + schema.Duration(t.grace) + ")"
	}
	if t.idle < semel.Forever {
		text += ", or without new messages at " + term.JSONTime(at.Add(t.grace+t.idle+stream.ClockMargin)) + " (idle " + schema.Duration(t.idle) + ")"
	}
	return text
}

// nextInWindow says what becomes of a further message of a window.
func nextInWindow(p *config.Pipeline, fate windows.Fate) string {
	late := [...]string{pipeline.Park: "it is late, and parked", pipeline.Drop: "it is late, and dropped", pipeline.Stop: "it is late, and stops the pipeline"}[timesOf(p).late]
	switch {
	case p.Aggregate == nil && fate == windows.Open:
		return "it is held, and the last message of the window takes effect; the others are superseded"
	case fate == windows.Open:
		return "it counts, unless its key (" + p.Key.Rule.String() + ") is known"
	case fate == windows.Corrected:
		return "it counts, unless its key (" + p.Key.Rule.String() + ") is known, and the result is written again"
	case p.Aggregate != nil && p.Aggregate.Over.Every() < p.Aggregate.Over.Size():
		return "it does not count in this window; if all windows of its time are closed, " + late
	}
	return late
}

// printWindow writes an answer.
func (q *keyQuestion) printWindow(a *WindowAnswer, further bool) error {
	if q.JSON {
		return q.PrintJSON(a)
	}
	var text strings.Builder
	fact := q.facts(&text)
	if further {
		text.WriteString("\n")
	}
	fact("pipeline", a.Pipeline)
	fact("key", a.Key)
	if a.Start != "" {
		fact("window", a.Start+" to "+a.End)
	}
	for i := range a.Partitions {
		part := &a.Partitions[i]
		at := part.Topic + "/" + strconv.Itoa(int(part.Partition))
		upTo := "no message was read"
		if part.Watermark != "" {
			upTo = "windows are closed up to " + part.Watermark
		}
		fact("state", part.State+" in "+at+", where "+upTo)
		fact("so far", part.SoFar)
		if h := part.Held; h != nil {
			fact("held", fmt.Sprintf("%s %d/%d", h.Topic, h.Partition, h.Offset))
		}
		fact("next message", part.Next)
	}
	for i, name := range []string{"closes", "late"} {
		if i < len(a.when) {
			fact(name, a.when[i])
		}
	}
	for _, r := range a.Results {
		kind := "early result"
		if r.Final {
			kind = "result"
		}
		if r.Revision != "" {
			kind += " (revision " + r.Revision + ")"
		}
		fact("result", fmt.Sprintf("%s %d/%d, %s: %s", r.Topic, r.Partition, r.Offset, kind, r.Body))
	}
	fact("not seen", a.Unseen)
	_, err := q.Stdout.Write([]byte(text.String()))
	return err
}
