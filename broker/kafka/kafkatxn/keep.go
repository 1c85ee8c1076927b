package kafkatxn

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keystate"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/kept"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

func (o *TransactorOptions) validateKeep(wrong *invalid.List) {
	wrong.Join(o.Keep.Validate())
	if o.Aggregate != nil {
		wrong.Add("Keep: it cannot be combined with Aggregate: keep messages with one pipeline, and aggregate its output with another")
	}
	if o.Keep.First != nil && o.EventTime != nil {
		wrong.Add("EventTime: Keep.First has the times by which keys are remembered, and a Grace and a policy of its own: leave it out")
	}
	if !o.Keep.Holds() {
		return
	}
	switch {
	case o.Repartition != nil:
		wrong.Add("Keep: with Repartition, a partition has messages of several partitions with different progress, and messages would take effect too early. Write the messages to a topic that is partitioned by the key with one pipeline, and keep that topic's with another")
	case o.Transform != nil:
		wrong.Add("Keep: messages that are held have no Transform. Transform them with a pipeline behind it")
	}
}

// ruleOf returns the rule by which records are kept.
func ruleOf(k *stream.Keep, window time.Duration) kept.Rule {
	rule := kept.Rule{Grace: k.Grace.Milliseconds(), MaxAhead: k.MaxAhead.Milliseconds()}
	switch {
	case k.First != nil:
		rule.First = true
	case k.Newest != nil:
		if rule.Window = math.MaxInt64; window < semel.Forever {
			rule.Window = max(window.Milliseconds(), 1)
		}
	default:
		rule.Size, rule.Gap, rule.Most = k.Last.Size().Milliseconds(), k.Last.Gap().Milliseconds(), k.Last.Most().Milliseconds()
	}
	return rule
}

// timing returns the time by which keys are remembered.
func (o *TransactorOptions) timing() *EventTime {
	if k := o.Keep; k != nil && k.First != nil {
		return &EventTime{Grace: k.Grace, OnLate: k.Late}
	}
	return o.EventTime
}

// keep decides a record by the rule that says which record of a key is kept.
func (w *worker) keep(ctx context.Context, p *part, r *kgo.Record, offset int64, d *semel.Digest, now int64) error {
	k, st := w.opts.Keep, p.slot.windows.kept
	w.fill(r)
	id, _ := w.keyOf() // the record has a key
	if k.Newest != nil {
		return w.newest(ctx, p, r, id.ID, now)
	}
	when := timeOf(r)
	if k.First != nil {
		var err error
		if when, err = readBy(w, kept.ParseTime); err != nil {
			return w.fail(ctx, r, 1, semel.Permanent(fmt.Errorf("keep: the time %s: %w", k.First, err)))
		}
	}
	if !st.See(when, now) {
		return w.park(ctx, r, pipeline.Park, pipeline.ReasonPermanent, 1, fmt.Errorf("its time %s is more than %v ahead of the clock, which is at %s", text(when), k.MaxAhead, text(now)))
	}
	if k.First != nil {
		switch p.slot.state.Decide(d, when, offset) {
		case keystate.Duplicate:
			w.counts.duplicate++
			return nil
		case keystate.Again:
			w.counts.again++
			return nil
		}
	}
	value := appendHeld(nil, r)
	name := w.opts.windowsOf(p.id.Topic)
	if room := w.s.limits.Of(name) - cluster.BatchOverhead - 16 - kept.HeaderSize - kept.EntrySize; len(value)+len(id.ID) > room {
		return w.fail(ctx, r, 1, semel.Permanent(fmt.Errorf("keep: the record has %d bytes with its key and headers, and topic %s, which holds it, takes %d: raise max.message.bytes of that topic", len(value), name, room)))
	}
	verdict, replaced := st.Add(id.ID, when, r.Offset, value)
	w.counts.superseded += replaced
	switch verdict {
	case kept.Held:
		w.counts.held++
	case kept.Superseded:
		w.counts.superseded++
	case kept.Late:
		return w.lateToKeep(ctx, p, r, d, when, offset, now)
	}
	return nil
}

// lateToKeep treats a record that is older than the watermark allows.
func (w *worker) lateToKeep(ctx context.Context, p *part, r *kgo.Record, d *semel.Digest, when, offset, now int64) error {
	k, st := w.opts.Keep, p.slot.windows.kept
	if k.First != nil && w.isRedriven(r) {
		// A redriven record is never late, if no other one of its key took effect.
		w.counts.fresh++
		delivered, err := w.effect(ctx, p, r, now)
		if delivered {
			p.slot.state.Learn(d, p.slot.state.StreamTime, offset)
		}
		return err
	}
	w.counts.late++
	return w.park(ctx, r, k.Late, pipeline.ReasonLate, 0, fmt.Errorf("its time is %s, and records up to %s have taken effect (grace %v): %w",
		text(when), text(st.Watermark()), k.Grace, semel.ErrLate))
}

// newest delivers a record whose version is newer than all before.
func (w *worker) newest(ctx context.Context, p *part, r *kgo.Record, id string, now int64) error {
	k, st := w.opts.Keep, p.slot.windows.kept
	when := now
	if w.opts.EventTime != nil {
		when = min(timeOf(r), now)
	}
	st.See(when, now)
	version, err := readBy(w, kept.ParseVersion)
	newer := false
	if err == nil {
		newer, err = kept.Newer(version, st.Version(id))
	}
	if err != nil {
		return w.fail(ctx, r, 1, semel.Permanent(fmt.Errorf("keep: the version %s: %w", k.Newest, err)))
	}
	if !newer {
		w.counts.superseded++
		return nil
	}
	w.counts.fresh++
	delivered, err := w.effect(ctx, p, r, now)
	if delivered {
		st.SetVersion(id, version, max(when, st.Watermark()))
	}
	return err
}

// readBy reads the time or version of the message w.message.
func readBy[T any](w *worker, parse func([]byte) (T, error)) (value T, err error) {
	found, err := w.kept.AppendID(w.keptID[:0], &w.message)
	w.keptID = found
	switch {
	case err != nil:
		return value, err
	case len(found) == 0:
		return value, key.ErrMissing
	}
	text, isNumber := bytes.CutPrefix(found, numberID)
	if _, err := strconv.ParseInt(string(text), 10, 64); isNumber && err != nil {
		return value, fmt.Errorf("%s is no whole number of at most 64 bits", text)
	}
	if text[0] == 0 {
		return value, errors.New("it is neither a text nor a number")
	}
	return parse(text)
}

// numberID is the start of the id that a rule finds in a JSON number.
var numberID = key.AppendNumber(nil, "")

// appendHeld appends a record as it is held. All numbers are varints:
//
//	offset, time in milliseconds since the Unix epoch
//	key, value: length plus one, or 0 if it is null; bytes
//	number of headers; for each its name and its value
func appendHeld(dst []byte, r *kgo.Record) []byte {
	dst = binary.AppendVarint(binary.AppendVarint(dst, r.Offset), r.Timestamp.UnixMilli())
	dst = appendNullable(appendNullable(dst, r.Key), r.Value)
	dst = binary.AppendUvarint(dst, uint64(len(r.Headers)))
	for _, h := range r.Headers {
		dst = appendNullable(appendNullable(dst, []byte(h.Key)), h.Value)
	}
	return dst
}

func appendNullable(dst, value []byte) []byte {
	if value == nil {
		return binary.AppendUvarint(dst, 0)
	}
	return append(binary.AppendUvarint(dst, uint64(len(value))+1), value...)
}

var errHeld = errors.New("kafka: no record that is held")

// parseHeld reads a record of a partition. It shares the bytes.
func parseHeld(id cluster.Partition, b []byte) (*kgo.Record, error) {
	wrong := false
	number := func() uint64 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			wrong, b = true, nil
			return 0
		}
		b = b[size:]
		return n
	}
	signed := func() int64 {
		n := number()
		return int64(n>>1) ^ -int64(n&1)
	}
	nullable := func() []byte {
		n := number()
		if n == 0 {
			return nil
		}
		if n-1 > uint64(len(b)) {
			wrong, n = true, 1
		}
		part := b[: n-1 : n-1]
		b = b[n-1:]
		return part
	}
	r := &kgo.Record{Topic: id.Topic, Partition: id.Number, Offset: signed(), Timestamp: time.UnixMilli(signed())}
	r.Key, r.Value = nullable(), nullable()
	for n := number(); n > 0 && !wrong; n-- {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: string(nullable()), Value: nullable()})
	}
	if wrong || len(b) > 0 {
		return nil, errHeld
	}
	return r, nil
}

// releaseHeld delivers a record that was held, unless another of its key took effect.
func (w *worker) releaseHeld(ctx context.Context, p *part, id string, when int64, value []byte) error {
	r, err := parseHeld(p.id, value)
	if err != nil {
		return fmt.Errorf("%w: of %s/%d", err, p.id.Topic, p.id.Number)
	}
	w.body = r.Value
	st, offset := p.slot.state, r.Offset
	first := w.opts.Keep.First != nil
	d := st.Digest([]byte(id))
	if first {
		if v := st.Decide(&d, when, offset); v == keystate.Duplicate || v == keystate.Again {
			w.counts.superseded++
			return nil
		}
	}
	w.counts.fresh++
	delivered, err := w.effect(ctx, p, r, w.s.t.now())
	if delivered && first {
		st.Learn(&d, when, offset)
	}
	return err
}
