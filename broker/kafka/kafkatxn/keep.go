package kafkatxn

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keystate"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/repartition"
	"github.com/semel-dev/semel/internal/changes"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/kept"
	"github.com/semel-dev/semel/pipeline"
)

func (o *TransactorOptions) validateKeep(wrong *invalid.List) {
	wrong.Join(o.Keep.Validate())
	if o.Aggregate != nil {
		wrong.Add("Keep: it cannot be combined with Aggregate: keep messages with one pipeline, and aggregate its output with another")
	}
	if o.Keep.First != nil && o.EventTime != nil {
		wrong.Add("EventTime: Keep.First has the times by which keys are remembered, and a Grace and a policy of its own: leave it out")
	}
	if o.Keep.Holds() && o.Transform != nil {
		wrong.Add("Keep: messages that are held have no Transform. Transform them with a pipeline behind it")
	}
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
	when := w.when
	if !p.slot.windows.noteTime(r, when, now) {
		return w.park(ctx, r, pipeline.Park, pipeline.ReasonPermanent, 1, w.opts.aheadOf(when, now))
	}
	if k.First != nil {
		if err := w.releaseOf(ctx, p, r, id.ID); err != nil {
			return err
		}
		switch p.slot.state.Decide(d, p.slot.windows.reached(when), when, offset) {
		case keystate.Duplicate:
			w.duplicate(r, d)
			return nil
		case keystate.Again:
			w.counts.again++
			return nil
		}
	}
	value := repartition.AppendHeld(nil, p.id, offset, r)
	name := w.opts.windowsOf(p.id.Topic)
	if room := w.s.limits.Of(name) - cluster.BatchOverhead - 16 - changes.Kept.HeaderSize() - kept.EntrySize - p.slot.windows.mix.MaxSize(); len(value)+len(id.ID) > room {
		return w.fail(ctx, r, 1, semel.Permanent(fmt.Errorf("keep: the record has %d bytes with its key and headers, and topic %s, which holds it, takes %d: raise max.message.bytes of that topic", len(value), name, room)))
	}
	verdict, replaced := st.Add(id.ID, when, offset, value)
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
		return w.takeEffect(ctx, p, r, offset, d, p.slot.state.StreamTime, now)
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
		when = min(w.when, now)
	}
	st.See(when, now)
	version, err := w.versions.Version(&w.message, kept.ParseVersion)
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

// releaseOf delivers the records of an id that are due, before another record of the id is
// decided. Otherwise the other record would be late, or superseded by a record that cannot
// replace it, if both are in one transaction.
func (w *worker) releaseOf(ctx context.Context, p *part, r *kgo.Record, id string) error {
	body := w.body
	err := p.slot.windows.kept.EmitOf(id, func(id string, when int64, value []byte) error { return w.releaseHeld(ctx, p, id, when, value) })
	w.body = body
	w.fill(r)
	return err
}

// releaseHeld delivers a record that was held, unless another of its key took effect.
func (w *worker) releaseHeld(ctx context.Context, p *part, id string, when int64, value []byte) error {
	r, offset, err := repartition.ParseHeld(p.id, value)
	if err != nil {
		return fmt.Errorf("%w: of %s/%d", err, p.id.Topic, p.id.Number)
	}
	w.body = r.Value
	now := w.s.t.now()
	if w.opts.Keep.First == nil {
		w.counts.fresh++
		_, err = w.effect(ctx, p, r, now)
		return err
	}
	d := p.slot.state.Digest([]byte(id))
	if v := p.slot.state.Decide(&d, when, when, offset); v == keystate.Duplicate || v == keystate.Again {
		w.counts.superseded++
		return nil
	}
	w.counts.fresh++
	return w.takeEffect(ctx, p, r, offset, &d, when, now)
}
