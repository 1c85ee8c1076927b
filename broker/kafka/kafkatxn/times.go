package kafkatxn

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
)

// Records count by a time: their own, or one that a rule finds in them. A time that records
// can hardly have would close the windows of all others, or hold them for years, or make keys
// be remembered for too long. Such a record is parked.

// timeRule returns the rule that finds the times of records, and their unit. It returns nil
// if their own times count.
func (o *TransactorOptions) timeRule() (*key.Rule, stream.TimeUnit) {
	switch {
	case o.Keep != nil && o.Keep.First != nil:
		return o.Keep.First, o.Keep.Unit
	case o.Aggregate != nil && o.Aggregate.Time != nil:
		return o.Aggregate.Time, o.Aggregate.Unit
	}
	return nil, stream.Milliseconds
}

// isTimed reports whether records with a key count by a time.
func (o *TransactorOptions) isTimed() bool {
	return o.Aggregate != nil || o.EventTime != nil || o.Keep != nil && o.Keep.Holds()
}

// maxBehind returns how far a record may be behind the clock, or 0 if only times before
// oldest are refused.
func (o *TransactorOptions) maxBehind() time.Duration {
	switch {
	case o.Aggregate != nil:
		return o.Aggregate.MaxBehind
	case o.Keep != nil:
		return o.Keep.MaxBehind
	}
	return 0
}

// oldest is the time in 1973 from which on a number of milliseconds is in no other unit a
// time before the year 5138.
const oldest = 100_000_000_000

var errNoTime = errors.New("the record has no time (its timestamp is -1)")

// timeOf returns the time by which a record counts, in milliseconds, as it was read.
func (w *worker) timeOf(r *kgo.Record, now int64) (when int64, err error) {
	if w.times != nil {
		rule, unit := w.opts.timeRule()
		record.Fill(&w.message, r)
		if when, err = w.times.Time(&w.message, unit); err != nil {
			err = fmt.Errorf("the time %s: %w", rule, err)
		}
	} else if when = r.Timestamp.UnixMilli(); when == -1 {
		err = errNoTime
	}
	if err == nil {
		err = w.opts.checkPast(when, now)
	}
	if err != nil {
		return 0, semel.Permanent(err)
	}
	return when, nil
}

// checkPast returns an error if a time is further behind the clock than times of records are.
func (o *TransactorOptions) checkPast(when, now int64) error {
	behind := o.maxBehind()
	switch {
	case when < 0:
		return fmt.Errorf("its time %s is before 1970", text(when))
	case behind >= semel.Forever:
	case behind > 0 && when < now-behind.Milliseconds():
		return fmt.Errorf("its time %s is more than %v behind the clock (max_behind), which is at %s%s", text(when), behind, text(now), o.unitHint(when))
	case behind == 0 && when < oldest:
		return fmt.Errorf("its time %s is before 1973%s", text(when), o.unitHint(when))
	}
	return nil
}

// aheadOf returns the error of a record whose time is too far ahead of the clock.
func (o *TransactorOptions) aheadOf(when, now int64) error {
	return fmt.Errorf("its time %s is more than %v ahead of the clock, which is at %s%s", text(when), o.maxAhead(), text(now), o.unitHint(when))
}

// unitHint names the unit that a time seems to have, if it was read in another one.
func (o *TransactorOptions) unitHint(when int64) string {
	_, unit := o.timeRule()
	number := strconv.FormatInt(when, 10)
	switch unit {
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
	if !ok || seems == unit {
		return ""
	}
	return fmt.Sprintf(": %s looks like %s since 1970, and was read as %s", number, seems.Long(), unit.Long())
}

// text returns a time in milliseconds for a message.
func text(milliseconds int64) string { return time.UnixMilli(milliseconds).UTC().Format(time.RFC3339) }
