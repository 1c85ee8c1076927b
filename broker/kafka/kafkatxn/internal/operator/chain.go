package operator

import (
	"cmp"
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/watermarks"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// kinds are all operators, in the order in which a record meets them.
var kinds = []Kind{timed, keyed, deduplicate, keepFirst, keepLast, keepNewest, joinRows, filterMap, aggregate, transform, pass}

// Plan says which operators a chain has.
type Plan struct {
	*Options
	kinds []Kind
}

// NewPlan chooses the operators for options, and sets what follows from the operators.
func NewPlan(o *Options) *Plan { return choose(o, kinds) }

func choose(o *Options, from []Kind) *Plan {
	p := &Plan{Options: o}
	o.Times.Idle = semel.Forever
	for _, k := range slices.Backward(from) { // whether some are there depends on those behind them
		if !k.On(o) {
			continue
		}
		p.kinds = append(p.kinds, k)
		o.slow = cmp.Or(o.slow, k.Slow)
		if k.Times != nil {
			k.Times(o, &o.Times)
		}
	}
	slices.Reverse(p.kinds)
	if o.Times.Rule == nil {
		o.Times.Unit = stream.Milliseconds
	}
	o.Times.BySource = o.Times.Closes && o.Inputs != nil
	// With a state the time of the other records could make the record late. Behind a repartition
	// stage the record is a copy, which is deleted behind the committed offset.
	o.MayWait = !p.HasState() && o.Inputs == nil && slices.ContainsFunc(o.Tables, func(t *stream.Table) bool { return t != nil && t.Missing == stream.MissingWait })
	return p
}

// HasState reports whether an operator has a state.
func (p *Plan) HasState() bool { return p.stateful().State != nil }

// NewStore makes an empty state. One of the operators has a state.
func (p *Plan) NewStore() Store { return p.stateful().State(p.Options) }

// Text says how the state is made, and of which messages. One of the operators has a state.
func (p *Plan) Text() string {
	return pipeline.RuleText(p.stateful().Text(p.Options), p.Unwrap)
}

// Holds says for people what the state is, and what follows if it is lost.
func (p *Plan) Holds() (what, loss string) {
	of := p.stateful()
	return cmp.Or(of.Holds, "entries"), cmp.Or(of.Loss, "results would lack messages")
}

// Gauge returns the name of the gauge of the state's values, or "".
func (p *Plan) Gauge() string { return p.stateful().Gauge }

// ReleasesSlowly reports whether records that are released are given to functions of the user.
func (p *Plan) ReleasesSlowly() bool { return p.callsUser() && p.stateful().Releases }

// By returns the rule of the group key whose records must be in one partition, or nil.
func (p *Plan) By() *key.Rule {
	if by := p.stateful().By; by != nil {
		return by(p.Options)
	}
	return nil
}

// stateful returns the kind with a state, or one without anything.
func (p *Plan) stateful() *Kind {
	if at := slices.IndexFunc(p.kinds, func(k Kind) bool { return k.State != nil }); at >= 0 {
		return &p.kinds[at]
	}
	return &Kind{}
}

// Chain has the operators of a partition.
type Chain struct {
	Partition
	Emitter           // that of the results; nil without one
	preparer Preparer // nil without one
}

// Begin makes the operators of a partition whose state is up to date.
func (c *Chain) Begin(plan *Plan, e *Env) {
	c.Env, c.first, c.Emitter, c.preparer = e, nil, nil, nil
	c.Clock = cmp.Or[watermarks.Clock](c.Clock, watermarks.Single{}) // without a state
	for _, k := range slices.Backward(plan.kinds) {
		c.first = k.New(&c.Partition, c.first)
		if of, ok := c.first.(Emitter); ok {
			c.Emitter = of
		}
		if of, ok := c.first.(Preparer); ok {
			c.preparer = of
		}
	}
}

// Batch returns records as the chain takes them, and reads ahead for them. They are in memory
// that the next call uses again. Original makes a record that was read the one of an input, and
// now is the time in milliseconds. The error is that of a policy that stops.
func (c *Chain) Batch(records []*kgo.Record, original func(*kgo.Record), now int64) ([]Record, error) {
	e := c.Env
	e.batch, e.found = e.batch[:0], e.found[:0]
	for _, r := range records {
		at := r.Offset
		original(r)
		e.batch = append(e.batch, e.Open(r))
		x := &e.batch[len(e.batch)-1]
		x.At, x.Now = at, now
		if err := e.Identify(c.Keys, x); err != nil {
			return nil, err
		}
	}
	if c.preparer != nil {
		c.preparer.Prepare(e.batch)
	}
	return e.batch, nil
}

// Process decides a record, and returns what became of it.
func (c *Chain) Process(ctx context.Context, r *Record) (Outcome, error) {
	return c.first.Process(ctx, r)
}

// Due reports whether results must be written now; with early, also those that may change later.
func (c *Chain) Due(early bool) bool { return c.Emitter != nil && c.Emitter.Due(early) }
