package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/fields"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/output"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/window"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// aggregate adds records to windows, and writes the results of these.
var aggregate = Kind{
	On:    func(o *Options) bool { return o.Aggregate != nil },
	State: func(o *Options) Store { return window.New(o.Aggregate) },
	Text:  func(o *Options) string { return o.Aggregate.String() },
	Holds: "open windows", Gauge: "dedup.windows.open",
	Times: func(o *Options, t *Times) {
		agg := o.Aggregate
		t.On, t.All, t.Closes, t.Idle, t.Early = true, true, true, agg.Idle, agg.Early
		t.Rule, t.Unit, t.Ahead, t.Behind = agg.Time, agg.Unit, agg.MaxAhead, agg.MaxBehind
	},
	By: func(o *Options) *key.Rule { return o.Aggregate.By },
	New: func(p *Partition, _ Operator) Operator {
		return &windowing{Partition: p, windows: p.Store.(*window.State), groups: fields.NewGroupKeys(p.Aggregate.By)}
	},
}

type windowing struct {
	*Partition
	windows *window.State
	groups  *fields.GroupKeys
	outputs output.Results
}

var (
	_ Emitter  = (*windowing)(nil)
	_ Preparer = (*windowing)(nil)
)

func (w *windowing) Process(ctx context.Context, r *Record) (Outcome, error) {
	agg := w.Aggregate
	w.note(r)
	group, err := r.Group, error(nil)
	if len(group) == 0 {
		group, err = w.groups.Of(&w.message)
	}
	if err == nil && w.Elsewhere(group, w.ID.Number) { // where it would have a window of its own
		err = semel.Permanent(fmt.Errorf("aggregate: the record was copied to the partition of another group key than %q: the filter or the map has changed since; redrive it", group))
	}
	if err != nil {
		return w.Fail(ctx, r, 1, err)
	}
	if agg.Time != nil {
		w.message.Time = time.UnixMilli(r.When)
	}
	verdict, err := w.add(group, r)
	switch {
	case err != nil && w.windows.CopyErr() != nil:
		return Aside, err
	case err != nil:
		return w.failed(ctx, r, 1, err)
	case verdict == window.Late:
		return w.Park(ctx, r, agg.Late, pipeline.ReasonLate, 0, fmt.Errorf("the window of its time %s is closed, as all windows up to %s (grace %v): %w",
			text(r.When), text(w.windows.Watermark()), agg.Grace, semel.ErrLate))
	case verdict == window.Ahead:
		return w.Park(ctx, r, pipeline.Park, pipeline.ReasonPermanent, 1, w.Times.aheadOf(r.When, r.Now))
	}
	w.Counts.Delivered++
	return Done, nil
}

// Prepare implements Preparer. It finds the group keys, unless a FilterMap may change them.
func (w *windowing) Prepare(batch []Record) {
	if w.FilterMap != nil {
		return
	}
	w.groups.Begin()
	for i := range batch {
		w.note(&batch[i])
		batch[i].Group = w.groups.Next(&w.message)
	}
	w.windows.Fetch(w.groups.All())
}

// add adds the message of a record to the windows of a group. It turns a panic of the Aggregator
// into an error.
func (w *windowing) add(group []byte, r *Record) (v window.Verdict, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = semel.Permanent(fmt.Errorf("the aggregate panicked: %v", p))
		}
	}()
	return w.windows.Add(&w.message, group, r.When, r.Now)
}

func (w *windowing) Due(early bool) bool { return w.windows.Due() || early && w.windows.Fresh() }

func (w *windowing) Emit(ctx context.Context, most int) (n int, err error) {
	return w.windows.Emit(most, func(c *stream.Closed) error { return w.result(ctx, c, true) })
}

func (w *windowing) Preview(ctx context.Context, most int) (n int, err error) {
	return w.windows.Preview(most, func(c *stream.Closed) error { return w.result(ctx, c, false) })
}

// result writes the result of a window.
func (w *windowing) result(ctx context.Context, c *stream.Closed, final bool) (err error) {
	var restart error
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("the aggregate panicked: %v", panicked)
		}
		if err == nil {
			err = restart
		} else {
			err = fmt.Errorf("kafka: %w at the result of %q in the window of %s/%d from %s: %w", pipeline.ErrStopped, c.Key, w.ID.Topic, w.ID.Number, c.Start.Format(time.RFC3339), err)
		}
	}()
	body, err := w.Aggregate.Func.Result(c)
	if err != nil || body == nil {
		return err
	}
	out := w.outputs.New(w.Aggregate, c, body, final)
	out.Topic = w.Output
	// A window may end after the clock. Its result waits until brokers take that time.
	err, restart = w.Raised(ctx, w.Limits.Check(out.Topic, out))
	if err != nil || restart != nil {
		return err
	}
	w.write(out, w.ID.Number)
	return nil
}
