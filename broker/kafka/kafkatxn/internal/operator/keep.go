package operator

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keep"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keystate"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/repartition"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/pipeline"
)

// keepOne lets one record of each key take effect: the one with the smallest time, the last of
// a window, or each that is newer than all before. It holds records until no other record of
// their key can replace them.
var keepOne = Kind{
	On:    func(o *Options) bool { return o.Keep != nil },
	State: func(o *Options) Store { return keep.New(keep.RuleOf(o.Keep, o.Window)) },
	Text:  func(o *Options) string { return o.Keep.String() },
	Holds: func(o *Options) (what, loss string) {
		if o.Keep.Newest != nil {
			return "newest versions", "older records would take effect"
		}
		return "held records", "results would lack messages"
	},
	New: func(p *Partition, next Operator) Operator {
		k := keeping{remembering{p, next}, p.Store.(*keep.State)}
		if p.Keep.Newest != nil {
			return &newest{k}
		}
		return &holder{k}
	},
}

type keeping struct {
	remembering
	held *keep.State
}

// newest lets records take effect whose version is newer than all before.
type newest struct{ keeping }

// Process implements Operator.
func (n *newest) Process(ctx context.Context, r *Record) (Outcome, error) {
	if r.Key == KeyPass {
		return n.fresh(ctx, r)
	}
	when := r.Now
	if n.EventTime {
		when = min(r.When, r.Now)
	}
	n.held.See(when, r.Now)
	m := n.Fill(r)
	k, _ := n.KeyOf() // the record has a key
	version, err := n.versions.Version(m, keep.ParseVersion)
	newer := false
	if err == nil {
		newer, err = keep.Newer(version, n.held.Version(k.ID))
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
		n.held.SetVersion(k.ID, version, max(when, n.held.Watermark()))
	}
	return outcome, err
}

// holder holds records until no other one of their key can replace them.
type holder struct{ keeping }

var _ Emitter = (*holder)(nil)

// Process implements Operator.
func (h *holder) Process(ctx context.Context, r *Record) (Outcome, error) {
	if r.Key == KeyPass {
		return h.fresh(ctx, r)
	}
	if !h.Clock.See(r.Record, r.When, r.Now) {
		return h.Park(ctx, r, pipeline.Park, pipeline.ReasonPermanent, 1, h.Times.aheadOf(r.When, r.Now))
	}
	h.Fill(r)
	k, _ := h.KeyOf() // the record has a key
	if h.Keep.First != nil {
		// Records of the key that are due take effect first. Otherwise this one would be late, or
		// superseded by a record that cannot replace it, if both are in one transaction.
		if err := h.held.EmitOf(k.ID, h.release(ctx)); err != nil {
			return Aside, err
		}
		switch h.Keys.Decide(&r.Digest, h.Clock.Reached(r.When), r.When, r.At) {
		case keystate.Duplicate:
			return h.duplicate(r)
		case keystate.Again:
			return h.again()
		}
	}
	return h.hold(ctx, r, k.ID)
}

// Foresee moves the watermark by a record that is decided next, and reports whether the records
// of its key that are due take effect before it.
func (p *Partition) Foresee(of *kgo.Record, now int64) bool {
	if p.Keep == nil || p.Keep.First == nil {
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

// hold adds a record to those that are held.
func (h *holder) hold(ctx context.Context, r *Record, id string) (Outcome, error) {
	value := repartition.AppendHeld(nil, h.ID, r.At, r.read())
	topic := h.StateOf(h.ID.Topic)
	if room := h.Limits.Of(topic) - cluster.BatchOverhead - 16 - state.Keep.HeaderSize() - keep.EntrySize - h.Clock.MaxSize(); len(value)+len(id) > room {
		return h.Fail(ctx, r, 1, semel.Permanent(fmt.Errorf("keep: the record has %d bytes with its key and headers, and topic %s, which holds it, takes %d: raise max.message.bytes of that topic", len(value), topic, room)))
	}
	verdict, replaced := h.held.Add(id, r.When, r.At, value)
	h.Counts.Superseded += replaced
	switch verdict {
	case keep.Held:
		h.Counts.Held++
	case keep.Superseded:
		h.Counts.Superseded++
	case keep.Late:
		return h.late(ctx, r)
	}
	return Aside, nil
}

// late decides a record that is older than the watermark allows. A redriven record is never
// late, if no other one of its key took effect.
func (h *holder) late(ctx context.Context, r *Record) (Outcome, error) {
	if h.Keep.First != nil && h.redrives(r) > 0 {
		return h.remember(ctx, r, h.Keys.StreamTime, &h.Counts.Fresh)
	}
	h.Counts.Late++
	return h.Park(ctx, r, h.Keep.Late, pipeline.ReasonLate, 0, fmt.Errorf("its time is %s, and records up to %s have taken effect (grace %v): %w",
		text(r.When), text(h.held.Watermark()), h.Keep.Grace, semel.ErrLate))
}

// Due implements Emitter.
func (h *holder) Due(bool) bool { return h.held.Due() }

// Emit implements Emitter.
func (h *holder) Emit(ctx context.Context, most int) (n int, err error) {
	return h.held.Emit(most, h.release(ctx))
}

// Preview implements Emitter. What is held has no early results.
func (h *holder) Preview(context.Context, int) (n int, err error) { return 0, nil }

// release returns a function that delivers a record that was held, unless another of its key
// took effect.
func (h *holder) release(ctx context.Context) func(id string, when int64, value []byte) error {
	return func(id string, when int64, value []byte) error {
		of, offset, err := repartition.ParseHeld(h.ID, value)
		if err != nil {
			return fmt.Errorf("%w: of %s/%d", err, h.ID.Topic, h.ID.Number)
		}
		x := h.Open(of)
		r := &x
		r.At, r.Now, r.When = offset, h.Now(), when
		if r.Key == KeyUnreadable { // Unwrap is another one than when it was read
			_, err = h.Park(ctx, r, pipeline.Park, pipeline.ReasonUnreadable, 0, r.Err)
			return err
		}
		if h.Keep.First == nil {
			_, err = h.fresh(ctx, r)
			return err
		}
		r.Digest = h.Keys.Digest([]byte(id))
		if v := h.Keys.Decide(&r.Digest, when, when, offset); v == keystate.Duplicate || v == keystate.Again {
			h.Counts.Superseded++
			return nil
		}
		_, err = h.remember(ctx, r, when, &h.Counts.Fresh)
		return err
	}
}
