package operator

import (
	"context"
	"errors"

	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// filterMap filters and changes records.
var filterMap = Kind{
	On:   func(o *Options) bool { return o.FilterMap != nil },
	Slow: "the filter or map needs more than that: make it simpler",
	New:  func(p *Partition, next Operator) Operator { return &filter{p, next} },
}

type filter struct {
	*Partition
	next Operator
}

func (f *filter) Process(ctx context.Context, r *Record) (Outcome, error) {
	redrives := f.redrives(r)
	m, most := f.Fill(r), f.Most
	if f.Emits {
		most /= 2 // it follows other records of its transaction
	}
	body, pass, err := f.CallFilterMap(ctx, &pipeline.Delivery{Message: *m, Key: f.KeyOf(r), Attempt: 1, Redrive: redrives}, most)
	switch {
	case err != nil && ctx.Err() != nil:
		return NoRow, Ended(err)
	case err != nil:
		return f.failed(ctx, r, 1, err)
	case !pass:
		f.Counts.Filtered++
		return Done, nil
	}
	r.Value = body
	return f.next.Process(ctx, r)
}

// failed ends a record for which a function of the user failed, or leaves it to the operator of
// tables if it has no row.
func (p *Partition) failed(ctx context.Context, r *Record, attempts int, err error) (Outcome, error) {
	if _, ok := errors.AsType[*stream.RowError](err); ok {
		r.Err, r.Attempts = err, attempts
		return NoRow, nil
	}
	return p.Fail(ctx, r, attempts, err)
}
