package operator

import (
	"context"
	"errors"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// keyed decides the records that have no key. No operator behind it asks whether a record has one.
var keyed = Kind{
	On:  func(*Options) bool { return true },
	New: func(p *Partition, next Operator) Operator { return &keying{p.effect, next} },
}

type keying struct {
	remembering
	decides Operator // by the key
}

func (k *keying) Process(ctx context.Context, r *Record) (Outcome, error) {
	switch r.Key {
	case KeyKnown:
		return k.decides.Process(ctx, r)
	case KeyPass:
		return k.fresh(ctx, r)
	case KeyUnreadable:
		return k.Park(ctx, r, k.policy(), pipeline.ReasonUnreadable, 0, r.Err)
	}
	reason := pipeline.ReasonKeyInvalid
	if errors.Is(r.Err, key.ErrMissing) {
		reason = pipeline.ReasonKeyMissing
	}
	return k.Park(ctx, r, k.policy(), reason, 0, diagnose.NoKey(r.Body, r.Err))
}

// policy returns what happens to a record without a key. Identify has stopped at it if the policy
// is to stop.
func (k *keying) policy() pipeline.Then {
	if k.OnMissing == pipeline.MissingDrop {
		return pipeline.Drop
	}
	return pipeline.Park
}

// deduplicate lets the first record of each key take effect.
var deduplicate = Kind{
	On:  func(o *Options) bool { return o.Keep == nil },
	New: func(p *Partition, next Operator) Operator { return &dedup{behind(p, next)} },
}

type dedup struct{ remembering }

func (d *dedup) Process(ctx context.Context, r *Record) (Outcome, error) {
	when, reached := d.times(r)
	switch d.Keys.Decide(&r.Digest, reached, when, r.At) {
	case keys.Duplicate:
		return d.duplicate(r)
	case keys.Again:
		return d.again()
	case keys.Late:
		return d.late(ctx, r, when)
	}
	return d.remember(ctx, r, when, &d.Counts.Fresh)
}

// late decides a record that is older than what is remembered. A redriven record is never late,
// nor one that was read in time. It is remembered from now on, because its own time may be
// before the window.
func (d *dedup) late(ctx context.Context, r *Record, when int64) (Outcome, error) {
	switch {
	case r.Resumed || d.redrives(r) > 0:
		return d.remember(ctx, r, d.Keys.StreamTime, &d.Counts.Fresh)
	case d.DeliverLate:
		return d.remember(ctx, r, when, &d.Counts.Late)
	}
	d.Counts.Late++
	return d.Park(ctx, r, d.Late, pipeline.ReasonLate, 0, semel.ErrLate)
}

// remembering passes records on and remembers their keys.
type remembering struct {
	*Partition
	next Operator
}

// behind returns what passes records on that take effect, to an operator. The operator that decides by
// keys calls it, and keyed has it from there.
func behind(p *Partition, next Operator) remembering {
	p.effect = remembering{p, next}
	return p.effect
}

// times returns the time from which the key of a record counts, and the one that the partition has
// reached with it.
func (o *remembering) times(r *Record) (when, reached int64) {
	if !o.Times.Keys {
		return r.Now, r.Now
	}
	when = min(r.When, r.Now) // a record from the future counts as of now
	return when, o.Clock.Reached(when)
}

// fresh passes a record on that takes effect, and counts it.
func (o *remembering) fresh(ctx context.Context, r *Record) (Outcome, error) {
	return o.pass(ctx, r, &o.Counts.Fresh)
}

// pass passes a record on, and counts it unless it is late for the next operators or must be
// decided again.
func (o *remembering) pass(ctx context.Context, r *Record, count *int) (Outcome, error) {
	outcome, err := o.next.Process(ctx, r)
	switch outcome {
	case Done, Aside:
		*count++
	case Late:
		o.Counts.Late++
	}
	return outcome, err
}

// remember passes a record on, and remembers its key from a time on if it took effect.
func (o *remembering) remember(ctx context.Context, r *Record, when int64, count *int) (Outcome, error) {
	from := semel.Origin{Source: r.Topic, Partition: r.Partition, Offset: r.Offset} // the record becomes its output
	outcome, err := o.pass(ctx, r, count)
	if outcome == Done && err == nil {
		o.Contents.Fresh(hashOf(&r.Digest), r.Body)
		o.Keys.Learn(&r.Digest, when, r.At)
		if o.Inputs != nil {
			o.Keys.From(slices.Index(o.Inputs, from.Source)+1, from.Partition, from.Offset)
		}
	}
	return outcome, err
}

// duplicate counts a record whose key is known.
func (o *remembering) duplicate(r *Record) (Outcome, error) {
	c := &o.Counts
	c.Duplicate++
	if o.Contents.Differs(hashOf(&r.Digest), r.Body) {
		if c.Differing++; c.Differing == 1 {
			c.Example = &pipeline.Item{Message: semel.Message{Origin: o.Fill(r).Origin}}
			c.Example.Call.Key = o.KeyOf(r)
		}
	}
	return Aside, nil
}

// again counts a record that is read again.
func (o *remembering) again() (Outcome, error) {
	o.Counts.Again++
	return Aside, nil
}
