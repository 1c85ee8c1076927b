package operator

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/pipeline"
)

// kinds are all operators, in the order in which a record meets them.
var kinds = []Kind{timed, keyed, deduplicate, keepOne, joinRows, filterMap, aggregate, transform, pass}

// Plan says which operators a chain has.
type Plan struct {
	*Options
	kinds []Kind
}

// NewPlan chooses the operators for options.
func NewPlan(o *Options) *Plan { return choose(o, kinds) }

func choose(o *Options, from []Kind) *Plan {
	p := &Plan{Options: o}
	for _, k := range from {
		if k.On(o) {
			p.kinds = append(p.kinds, k)
		}
	}
	return p
}

// HasState reports whether an operator has a state.
func (p *Plan) HasState() bool { return slices.ContainsFunc(p.kinds, hasState) }

// NewStore makes an empty state. One of the operators has a state.
func (p *Plan) NewStore() Store { return p.stateful().State(p.Options) }

// Text says how the state is made, and of which messages. One of the operators has a state.
func (p *Plan) Text() string {
	return pipeline.RuleText(p.stateful().Text(p.Options), p.Unwrap)
}

// Holds says for people what the state is, and what follows if it is lost. Without a state it is
// nothing.
func (p *Plan) Holds() (what, loss string) {
	if !p.HasState() {
		return "", ""
	}
	if of := p.stateful(); of.Holds != nil {
		return of.Holds(p.Options)
	}
	return "entries", "results would lack messages"
}

// Gauge returns the name of the gauge of the state's values, or "". One of the operators has a
// state.
func (p *Plan) Gauge() string { return p.stateful().Gauge }

func (p *Plan) stateful() *Kind { return &p.kinds[slices.IndexFunc(p.kinds, hasState)] }

func hasState(k Kind) bool { return k.State != nil }

// Chain has the operators of a partition.
type Chain struct {
	Partition
	emitter  Emitter  // nil without one
	preparer Preparer // nil without one
}

// Begin makes the operators of a partition whose state is up to date.
func (c *Chain) Begin(plan *Plan, e *Env) {
	c.Env, c.first, c.emitter, c.preparer = e, nil, nil, nil
	for _, k := range slices.Backward(plan.kinds) {
		c.first = k.New(&c.Partition, c.first)
		if of, ok := c.first.(Emitter); ok {
			c.emitter = of
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

// Emits reports whether the chain has an operator that writes results of its state.
func (c *Chain) Emits() bool { return c.emitter != nil }

// Due reports whether results must be written now; with early, also those that may change later.
func (c *Chain) Due(early bool) bool { return c.emitter != nil && c.emitter.Due(early) }

// Emit writes at most a number of results that are due, and returns how many.
func (c *Chain) Emit(ctx context.Context, most int) (n int, err error) {
	if c.emitter == nil {
		return 0, nil
	}
	return c.emitter.Emit(ctx, most)
}

// Preview writes at most a number of results that may change later, and returns how many.
func (c *Chain) Preview(ctx context.Context, most int) (n int, err error) {
	if c.emitter == nil {
		return 0, nil
	}
	return c.emitter.Preview(ctx, most)
}
