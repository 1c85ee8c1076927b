package kafka

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/internal/changes"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kept"
	"github.com/semel-dev/semel/internal/localcopy"
	"github.com/semel-dev/semel/internal/windows"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
)

// KnownWindow is what is known of a window of one key.
type KnownWindow struct {
	// Key is the id of the group key, or of the key.
	Key        string
	Start, End time.Time
	// Closes is when the window is closed, and Late is the time from which another message
	// is late, both by the watermark of a partition.
	Closes, Late time.Time
	Parts        []WindowPart
	Results      []WindowResult
}

// WindowPart is what one partition of an input knows of a window.
type WindowPart struct {
	Topic     string
	Partition int32
	Watermark time.Time // zero before the first message
	Fate      windows.Fate
	// Result is the body of the result so far, or nil if there is none.
	Result []byte
	// Held is the record that is held, or nil.
	Held *HeldRecord

	known bool
}

// HeldRecord is a record that key.keep holds.
type HeldRecord struct {
	Offset int64
	Time   time.Time
}

// WindowResult is a result in the topic of the sink.
type WindowResult struct {
	Topic           string
	Partition       int32
	Offset          int64
	Final, Revision string // its headers
	Body            []byte
}

// mostResults is how many of the newest messages of each partition are searched for
// results.
const mostResults = 1_000_000

// HasWindows reports whether LookWindow can answer for a pipeline.
func HasWindows(p *config.Pipeline) bool {
	_, ok := p.Source.(*Source)
	return ok && (p.Aggregate != nil || p.Key.Keep != nil && p.Key.Keep.First == nil && p.Key.Keep.Newest == nil)
}

// Repartitions reports whether a pipeline brings the records of a key to one partition
// before it decides them. A key is then always decided in that partition, and all partitions
// of the input decide which windows are closed.
func Repartitions(p *config.Pipeline) bool {
	source, ok := p.Source.(*Source)
	return ok && source.Repartition
}

// LookWindow returns what is known of the windows that have a time, for the first of some
// readings of a key that has any. It reads what is committed, and writes nothing. An error
// that wraps kafkatxn.ErrNoChangelog says that the pipeline has never run. left reports
// that older results were not searched.
func LookWindow(ctx context.Context, f *config.File, p *config.Pipeline, ids []string, when time.Time) (list []KnownWindow, left bool, err error) {
	source, sink := p.Source.(*Source), p.Sink.(*Sink) // HasWindows
	client, err := source.options()
	if err != nil {
		return nil, false, err
	}
	states := map[windowPartition]*lookedWindows{}
	inputs := source.Topics
	if source.Repartition {
		inputs = []string{source.RepartitionTopic()}
	}
	for i, topic := range source.Windows(p) {
		if err := readWindows(ctx, client, p, topic, inputs[i], ids, states); err != nil {
			return nil, false, f.RedactError(err)
		}
	}
	for _, id := range ids {
		found, known, err := windowsAt(p, states, id, when)
		if err != nil {
			return nil, false, err
		}
		if known || list == nil {
			list = found
		}
		if known {
			break
		}
	}
	if p.Aggregate != nil {
		left, err = findResults(ctx, client, sink.Topic.Name, p.Aggregate, list, ids, when)
	}
	return list, left, f.RedactError(err)
}

type windowPartition struct {
	topic  string // the input, or that of its copies
	number int32
}

// lookedWindows are the windows, or held records, of the ids in one partition.
type lookedWindows struct {
	state interface {
		Watermark() int64
		Parse(value []byte) (changes.Record, error)
		Apply(r *changes.Record, at int64, place localcopy.Place)
	}
	definition changes.ID
	agg        *windows.State // or nil
	kept       *kept.State    // or nil
}

// readWindows reads the topic that has the windows of an input.
func readWindows(ctx context.Context, client []kgo.Opt, p *config.Pipeline, topic, input string, ids []string, states map[windowPartition]*lookedWindows) error {
	var wrong error
	err := kafka.ReadAll(ctx, client, []string{topic}, func(r *kgo.Record) bool {
		at := windowPartition{input, r.Partition}
		if states[at] == nil {
			states[at] = newLookedWindows(p)
		}
		if err := states[at].apply(r.Value, ids); err != nil {
			wrong = fmt.Errorf("kafka: %s/%d at %d: %w", r.Topic, r.Partition, r.Offset, err)
		}
		return wrong == nil
	})
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("topic %s: %w", topic, kafkatxn.ErrNoChangelog)
	}
	return errors.Join(err, wrong)
}

func newLookedWindows(p *config.Pipeline) *lookedWindows {
	if p.Aggregate != nil {
		st := windows.New(p.Aggregate.WithDefaults())
		return &lookedWindows{state: st, definition: changes.Definition(p.Aggregate.String()), agg: st}
	}
	k := p.Key.Keep
	st := kept.New(kept.RuleOf(k, p.Window))
	return &lookedWindows{state: st, definition: changes.Definition(k.String()), kept: st}
}

var errOtherWindows = errors.New("it was written with other settings than those of the configuration")

// apply adds what a record says about the ids.
func (l *lookedWindows) apply(value []byte, ids []string) error {
	r, err := l.state.Parse(value)
	switch {
	case err != nil || r.Nonce != changes.ID{}:
		return err
	case r.Definition != l.definition:
		return errOtherWindows
	}
	r.Only(ids)
	l.state.Apply(&r, 0, localcopy.Place{})
	return nil
}

// windowsAt returns the windows of an id. Partitions that know nothing of it are left out,
// unless none does.
func windowsAt(p *config.Pipeline, states map[windowPartition]*lookedWindows, id string, when time.Time) (list []KnownWindow, known bool, err error) {
	type found struct {
		part    WindowPart
		windows []KnownWindow
	}
	var all []found
	for at, l := range states {
		all = append(all, found{})
		of := &all[len(all)-1]
		of.windows, err = l.at(p, id, when)
		if err != nil {
			return nil, false, fmt.Errorf("pipeline %s: %s/%d: %w", p.Name, at.topic, at.number, err)
		}
		for i := range of.windows {
			part := &of.windows[i].Parts[0]
			part.Topic, part.Partition = at.topic, at.number
			if watermark := l.state.Watermark(); watermark > 0 {
				part.Watermark = time.UnixMilli(watermark).UTC()
			}
			of.part.known = of.part.known || part.known
		}
		known = known || of.part.known
	}
	for _, of := range all {
		if known && !of.part.known {
			continue
		}
		for _, w := range of.windows {
			i := slices.IndexFunc(list, func(o KnownWindow) bool { return o.Start.Equal(w.Start) && o.Closes.Equal(w.Closes) })
			if i < 0 {
				list = append(list, w)
			} else {
				list[i].Parts = append(list[i].Parts, w.Parts...)
			}
		}
	}
	slices.SortFunc(list, func(a, b KnownWindow) int { return cmp.Or(a.Closes.Compare(b.Closes), a.Start.Compare(b.Start)) })
	for _, w := range list {
		slices.SortFunc(w.Parts, func(a, b WindowPart) int {
			return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
		})
	}
	return list, known, nil
}

// at returns the windows of an id in one partition.
func (l *lookedWindows) at(p *config.Pipeline, id string, when time.Time) (list []KnownWindow, err error) {
	if l.kept != nil {
		for _, h := range l.kept.At(id, when.UnixMilli()) {
			closes := time.UnixMilli(h.Deadline).UTC()
			part := WindowPart{Fate: windows.Open, known: h.Known}
			if h.Known {
				part.Held = &HeldRecord{h.Offset, time.UnixMilli(h.When).UTC()}
			}
			if h.Deadline <= l.kept.Watermark() {
				part.Fate = windows.Final
				if h.Known {
					part.Fate = windows.Closing
				}
			}
			list = append(list, KnownWindow{Key: id, Start: time.UnixMilli(h.First).UTC(), End: time.UnixMilli(h.Last).UTC(), Closes: closes, Late: closes, Parts: []WindowPart{part}})
		}
		return list, nil
	}
	found, err := l.agg.At(id, when.UnixMilli())
	for _, w := range found {
		part := WindowPart{Fate: w.Fate, known: w.Result != nil}
		if w.Result != nil && err == nil {
			part.Result, err = p.Aggregate.Func.Result(w.Result)
		}
		list = append(list, KnownWindow{Key: id, Start: w.Start, End: w.End, Closes: w.Closes, Late: w.Late, Parts: []WindowPart{part}})
	}
	return list, err
}

// findResults finds the results of windows that were written. A result has the time of its
// window, or of its writing, which may be MaxAhead before the end of the window.
func findResults(ctx context.Context, client []kgo.Opt, topic string, agg *stream.Aggregate, list []KnownWindow, ids []string, when time.Time) (left bool, err error) {
	if len(list) == 0 || !slices.ContainsFunc(list, func(w KnownWindow) bool { return agg.Early > 0 || w.written() }) {
		return false, nil
	}
	var keys [][]byte
	for _, id := range ids {
		keys = append(keys, key.AppendText(nil, []byte(id)))
	}
	once, found := agg.Early == 0 && agg.Correct == 0 && agg.Over.Gap() == 0, 0
	return kafka.ReadNewest(ctx, client, []string{topic}, when.Add(-agg.WithDefaults().MaxAhead-time.Second), mostResults, func(r *kgo.Record) bool {
		result := WindowResult{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Body: r.Value}
		var window string
		for _, h := range r.Headers {
			switch h.Key {
			case "semel-window":
				window = string(h.Value)
			case "semel-final":
				result.Final = string(h.Value)
			case "semel-revision":
				result.Revision = string(h.Value)
			}
		}
		if !slices.ContainsFunc(keys, func(key []byte) bool { return bytes.Equal(key, r.Key) }) {
			return true
		}
		from, to, _ := strings.Cut(window, "/")
		start, err := time.Parse(time.RFC3339Nano, from)
		end, err2 := time.Parse(time.RFC3339Nano, to)
		if err != nil || err2 != nil {
			return true
		}
		for i := range list {
			w := &list[i]
			same := w.Start.Equal(start) && w.End.Equal(end)
			if gap := agg.Over.Gap(); gap > 0 && !w.known() { // the session of that time, whichever it was
				if same = !start.Add(-gap).After(when) && !end.Add(gap).Before(when); same {
					w.Start, w.End, w.Closes = start, end, end.Add(gap+time.Millisecond)
					w.Late = w.Closes
				}
			}
			if same {
				w.Results = append(w.Results, result)
				found++
			}
		}
		return !once || found < len(list)
	})
}

// written reports whether the window may have a result.
func (w *KnownWindow) written() bool {
	return slices.ContainsFunc(w.Parts, func(p WindowPart) bool { return p.Fate != windows.Open })
}

func (w *KnownWindow) known() bool {
	return slices.ContainsFunc(w.Parts, func(p WindowPart) bool { return p.known })
}
