package operator

import (
	"context"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
)

// timed finds the times of records.
var timed = Kind{
	On:  func(o *Options) bool { return o.Times.On },
	New: func(p *Partition, next Operator) Operator { return &timing{p, next} },
}

type timing struct {
	*Partition
	next Operator
}

func (t *timing) Process(ctx context.Context, r *Record) (Outcome, error) {
	if r.Key == KeyKnown || t.Times.All && r.Key != KeyUnreadable {
		when, err := t.timeOf(r)
		if err != nil && r.Key != KeyMissing {
			return t.Fail(ctx, r, 1, err)
		}
		if r.When = when; err == nil && t.Times.All {
			t.Clock.See(r.Record, when, r.Now)
		}
	}
	return t.next.Process(ctx, r)
}

var errNoTime = errors.New("the record has no time (its timestamp is -1)")

// timeOf returns the time by which a record counts, in milliseconds, as it was read.
func (e *Env) timeOf(r *Record) (when int64, err error) {
	if e.times != nil {
		record.Fill(&e.message, r.Record)
		if when, err = e.times.Time(&e.message, e.Times.Unit); err != nil {
			err = fmt.Errorf("the time %s: %w", e.Times.Rule, err)
		}
	} else if when = r.Timestamp.UnixMilli(); when == -1 {
		err = errNoTime
	}
	if err == nil {
		err = e.Times.CheckPast(when, r.Now)
	}
	if err != nil {
		return 0, semel.Permanent(err)
	}
	return when, nil
}
