package operator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
)

// Times says which time a record has: its own, or one that a rule finds in it. A time that
// records can hardly have would close the windows of all others, or hold them for years, or make
// keys be remembered for too long. Such a record is parked.
type Times struct {
	// On says that records count by a time, and All that those without a key do, too.
	On, All bool
	// Rule finds the time in a unit; nil if the record's own time counts.
	Rule *key.Rule
	Unit stream.TimeUnit
	// Ahead and Behind are how far a time may be from the clock. Behind is 0 if only times
	// before oldest are refused.
	Ahead, Behind time.Duration
	// Idle is how long a partition has no new records before the clock moves its watermark.
	Idle time.Duration
	// Mixed says that the partitions of the inputs are mixed in a partition, so that the
	// slowest of them decides how far it has come.
	Mixed bool
}

// timed finds the times of records.
var timed = Kind{
	On:  func(o *Options) bool { return o.Times.On },
	New: func(p *Partition, next Operator) Operator { return &timing{p, next} },
}

type timing struct {
	*Partition
	next Operator
}

// Process implements Operator.
func (t *timing) Process(ctx context.Context, r *Record) (Outcome, error) {
	if r.Key == KeyKnown || t.Times.All {
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

// oldest is the time in 1973 from which on a number of milliseconds is in no other unit a
// time before the year 5138.
const oldest = 100_000_000_000

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

// CheckPast returns an error if a time is further behind the clock than times of records are.
func (t *Times) CheckPast(when, now int64) error {
	switch {
	case when < 0:
		return fmt.Errorf("its time %s is before 1970", text(when))
	case t.Behind >= semel.Forever:
	case t.Behind > 0 && when < now-t.Behind.Milliseconds():
		return fmt.Errorf("its time %s is more than %v behind the clock (max_behind), which is at %s%s", text(when), t.Behind, text(now), t.unitHint(when))
	case t.Behind == 0 && when < oldest:
		return fmt.Errorf("its time %s is before 1973%s", text(when), t.unitHint(when))
	}
	return nil
}

// aheadOf returns the error of a record whose time is too far ahead of the clock.
func (t *Times) aheadOf(when, now int64) error {
	return fmt.Errorf("its time %s is more than %v ahead of the clock, which is at %s%s", text(when), t.Ahead, text(now), t.unitHint(when))
}

// unitHint names the unit that a time seems to have, if it was read in another one.
func (t *Times) unitHint(when int64) string {
	number := strconv.FormatInt(when, 10)
	switch t.Unit {
	case stream.Seconds:
		number = strconv.FormatInt(when/1000, 10)
	case stream.Milliseconds:
	case stream.Microseconds:
		number += "000"
	case stream.Nanoseconds:
		number += "000000"
	default:
		return ""
	}
	seems, ok := stream.UnitOf(len(number))
	if !ok || seems == t.Unit {
		return ""
	}
	return fmt.Sprintf(": %s looks like %s since 1970, and was read as %s", number, seems.Long(), t.Unit.Long())
}

// text returns a time in milliseconds for a message.
func text(milliseconds int64) string { return time.UnixMilli(milliseconds).UTC().Format(time.RFC3339) }
