package operator

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/fields"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keep"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/repartition"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// keepFirst lets the record of each key with the smallest time take effect. It holds records until
// no other record of their key can replace them.
var keepFirst = Kind{
	On:    func(o *Options) bool { return o.Keep != nil && o.Keep.First != nil },
	State: newKeep, Text: keepText, Holds: "held records", Gauge: keepGauge, Releases: true,
	Times: func(o *Options, t *Times) {
		holdTimes(o, t)
		t.Keys, t.Grace = true, o.Keep.Grace
	},
	New: func(p *Partition, next Operator) Operator {
		p.leaps = true
		return &earliest{holder{keeping: keepingOf(p, next)}}
	},
}

// keepLast lets the last record of each key in a window take effect. It holds records, too.
var keepLast = Kind{
	On:    func(o *Options) bool { return o.Keep != nil && o.Keep.Last != stream.Window{} },
	State: newKeep, Text: keepText, Holds: "held records", Gauge: keepGauge, Releases: true,
	Times: holdTimes,
	New:   func(p *Partition, next Operator) Operator { return &latest{holder{keeping: keepingOf(p, next)}} },
}

// keepNewest lets each record take effect whose version is newer than all before of its key.
var keepNewest = Kind{
	On:    func(o *Options) bool { return o.Keep != nil && o.Keep.Newest != nil },
	State: newKeep, Text: keepText, Holds: "newest versions", Loss: "older records would take effect", Gauge: keepGauge,
	Times: keepTimes,
	New: func(p *Partition, next Operator) Operator {
		return &newest{keepingOf(p, next), fields.New(p.Keep.Newest)}
	},
}

const keepGauge = "dedup.keep.open"

func newKeep(o *Options) Store   { return keep.New(keep.RuleOf(o.Keep, o.Window)) }
func keepText(o *Options) string { return o.Keep.String() }

func keepTimes(o *Options, t *Times) {
	k := o.Keep
	t.Rule, t.Unit, t.Ahead, t.Behind = k.TimeRule(), k.Unit, k.MaxAhead, k.MaxBehind
}

func holdTimes(o *Options, t *Times) {
	keepTimes(o, t)
	t.On, t.Closes, t.Idle = true, true, o.Keep.Idle
}

type keeping struct {
	remembering
	held *keep.State
}

func keepingOf(p *Partition, next Operator) keeping {
	return keeping{behind(p, next), p.Store.(*keep.State)}
}

type newest struct {
	keeping
	versions *fields.Reader
}

func (n *newest) Process(ctx context.Context, r *Record) (Outcome, error) {
	when, _ := n.times(r)
	n.held.See(when, r.Now)
	id := string(r.ID)
	version, err := n.versions.Version(n.Fill(r), keep.ParseVersion)
	newer := false
	if err == nil {
		newer, err = keep.Newer(version, n.held.Version(id))
	}
	if err != nil {
		return n.Fail(ctx, r, 1, semel.Permanent(fmt.Errorf("keep: the version %s: %w", n.Keep.Newest, err)))
	}
	if !newer {
		n.Counts.Superseded++
		return Aside, nil
	}
	outcome, err := n.fresh(ctx, r)
	if outcome == Done && err == nil {
		n.held.SetVersion(id, version, max(when, n.held.Watermark()))
	}
	return outcome, err
}

type earliest struct{ holder }

var _ Emitter = (*earliest)(nil)

// Process implements Operator. Records of the key that are due take effect first. Otherwise this
// one would be late, or superseded by a record that cannot replace it, if both are in one
// transaction.
func (e *earliest) Process(ctx context.Context, r *Record) (Outcome, error) {
	if !e.Clock.See(r.Record, r.When, r.Now) {
		return e.ahead(ctx, r)
	}
	if err := e.held.EmitOf(string(r.ID), e.release(ctx, e.take)); err != nil {
		return Aside, err
	}
	switch e.Keys.Decide(&r.Digest, e.Clock.Reached(r.When), r.When, r.At) {
	case keys.Duplicate:
		return e.duplicate(r)
	case keys.Again:
		return e.again()
	}
	return e.hold(ctx, r, e.late)
}

// late decides a record that is older than the watermark allows. A redriven record is never late,
// if no other one of its key took effect.
func (e *earliest) late(ctx context.Context, r *Record) (Outcome, error) {
	if e.redrives(r) > 0 {
		return e.remember(ctx, r, e.Keys.StreamTime, &e.Counts.Fresh)
	}
	return e.holder.late(ctx, r)
}

// take delivers a record that was held, unless another of its key took effect.
func (e *earliest) take(ctx context.Context, r *Record) (Outcome, error) {
	r.Digest = e.Keys.Digest(r.ID)
	if v := e.Keys.Decide(&r.Digest, r.When, r.When, r.At); v == keys.Duplicate || v == keys.Again {
		e.Counts.Superseded++
		return Aside, nil
	}
	return e.remember(ctx, r, r.When, &e.Counts.Fresh)
}

func (e *earliest) Emit(ctx context.Context, most int) (n int, err error) {
	return e.held.Emit(most, e.release(ctx, e.take))
}

// Foresee moves the watermark by a record that is decided next, and reports whether the records
// of its key that are due take effect before it.
func (p *Partition) Foresee(of *kgo.Record, now int64) bool {
	if !p.leaps {
		return false
	}
	next := *of
	r := p.Open(&next)
	if r.Now = now; p.Identify(p.Keys, &r) != nil || r.Key != KeyKnown {
		return false
	}
	when, err := p.timeOf(&r)
	return err == nil && p.Clock.See(r.Record, when, r.Now)
}

type latest struct{ holder }

var _ Emitter = (*latest)(nil)

func (l *latest) Process(ctx context.Context, r *Record) (Outcome, error) {
	if !l.Clock.See(r.Record, r.When, r.Now) {
		return l.ahead(ctx, r)
	}
	return l.hold(ctx, r, l.late)
}

func (l *latest) Emit(ctx context.Context, most int) (n int, err error) {
	return l.held.Emit(most, l.release(ctx, l.fresh))
}

// holder holds records until no other one of their key can replace them.
type holder struct {
	keeping
	value []byte // memory
}

// decision decides a record.
type decision func(ctx context.Context, r *Record) (Outcome, error)

// hold adds a record to those that are held, unless it is late.
func (h *holder) hold(ctx context.Context, r *Record, late decision) (Outcome, error) {
	h.value = repartition.AppendHeld(h.value[:0], h.ID, r.At, r.read())
	topic, size := h.StateOf(h.ID.Topic), len(h.value)
	if room := h.Limits.Of(topic) - cluster.BatchOverhead - 16 - state.Keep.HeaderSize() - keep.EntrySize - h.Clock.MaxSize(); size+len(r.ID) > room {
		return h.Fail(ctx, r, 1, semel.Permanent(fmt.Errorf("keep: the record has %d bytes with its key and headers, and topic %s, which holds it, takes %d: raise max.message.bytes of that topic", size, topic, room)))
	}
	verdict, replaced := h.held.Add(string(r.ID), r.When, r.At, h.value)
	h.Counts.Superseded += replaced
	switch verdict {
	case keep.Held:
		h.Counts.Held++
	case keep.Superseded:
		h.Counts.Superseded++
	case keep.Late:
		return late(ctx, r)
	}
	return Aside, nil
}

// late decides a record that is older than the watermark allows.
func (h *holder) late(ctx context.Context, r *Record) (Outcome, error) {
	h.Counts.Late++
	return h.Park(ctx, r, h.Keep.Late, pipeline.ReasonLate, 0, fmt.Errorf("its time is %s, and records up to %s have taken effect (grace %v): %w",
		text(r.When), text(h.held.Watermark()), h.Keep.Grace, semel.ErrLate))
}

// ahead decides a record whose time is too far ahead of the clock.
func (h *holder) ahead(ctx context.Context, r *Record) (Outcome, error) {
	return h.Park(ctx, r, pipeline.Park, pipeline.ReasonPermanent, 1, h.Times.aheadOf(r.When, r.Now))
}

func (h *holder) Due(bool) bool { return h.held.Due() }

// Preview implements Emitter. What is held has no early results.
func (h *holder) Preview(context.Context, int) (n int, err error) { return 0, nil }

// release returns a function that delivers a record that was held.
func (h *holder) release(ctx context.Context, deliver decision) func(id string, when int64, value []byte) error {
	return func(id string, when int64, value []byte) error {
		of, offset, err := repartition.ParseHeld(h.ID, value)
		if err != nil {
			return fmt.Errorf("%w: of %s/%d", err, h.ID.Topic, h.ID.Number)
		}
		r := h.Open(of)
		if r.At, r.Now, r.When, r.ID = offset, h.Now(), when, []byte(id); r.Key != KeyUnreadable {
			_, err = deliver(ctx, &r)
			return err
		}
		_, err = h.Park(ctx, &r, pipeline.Park, pipeline.ReasonUnreadable, 0, r.Err) // Unwrap is another one than when it was read
		return err
	}
}
