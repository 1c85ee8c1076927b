package pipeline

import (
	"context"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
)

// Direct is the session of any sink without a store of keys. It delivers every message
// and decides nothing: a message that comes again is delivered again, under the same
// key. It suits a source that forgets an acknowledged message, and a target that knows a repeated
// key.
type Direct struct {
	sink Sink
	opts DirectOptions
}

// DirectOptions are the options of NewDirect. The zero value is valid.
type DirectOptions struct {
	// FilterMap filters and changes the messages that are delivered. Defaults to none.
	FilterMap FilterMap
}

var (
	_ Session        = (*Direct)(nil)
	_ Waiter         = (*Direct)(nil)
	_ doctor.Readier = (*Direct)(nil)
)

// NewDirect returns a session. Close closes the sink. NewDirect panics if the sink is
// nil.
func NewDirect(sink Sink, opts *DirectOptions) *Direct {
	if err := missing("NewDirect", argument{"sink", sink == nil}); err != nil {
		panic(err)
	}
	d := &Direct{sink: sink}
	if opts != nil {
		d.opts = *opts
	}
	return d
}

// Process implements Session.
func (d *Direct) Process(ctx context.Context, items []*Item) {
	for _, it := range items {
		it.Decision, it.Result, it.Err, it.Delivered = semel.Fresh, semel.Result{}, nil, false
		it.Attempt = it.Tries + 1
	}
	deliver(ctx, d.sink, d.opts.FilterMap, items)
}

// Abandon implements Session: nothing is held between two calls of Process.
func (d *Direct) Abandon(context.Context, []*Item) {}

// BindScope implements Session: there is no store.
func (d *Direct) BindScope(context.Context, string, semel.ScopeOwner) error { return nil }

// Traits implements Session.
func (d *Direct) Traits() SinkTraits { return d.sink.Traits() }

// Close implements Session.
func (d *Direct) Close(ctx context.Context) error { return d.sink.Close(ctx) }

// Ready implements doctor.Readier. It asks the sink.
func (d *Direct) Ready(ctx context.Context) error { return sinkReady(ctx, d.sink) }

// WaitsFor implements Waiter.
func (d *Direct) WaitsFor(ctx context.Context) (what string, ends bool) {
	return waitsFor(ctx, d.sink, "delivery to the sink"), false
}
