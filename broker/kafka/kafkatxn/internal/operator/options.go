package operator

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/budget"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// Options are what operators need of the options of a Transactor.
type Options struct {
	// Name and Group are those of the pipeline.
	Name, Group string
	// Rule finds the key of a record in a scope, and OnMissing says what happens without one.
	Rule      *key.Rule
	Scope     string
	OnMissing pipeline.Missing
	// Unwrap returns the message inside a message, or is nil.
	Unwrap pipeline.Unwrapper
	// Window is how long a key is remembered.
	Window time.Duration
	// Times says which time a record has, and by which times keys are remembered. Late is the
	// policy for late records, unless they are delivered.
	Times       Times
	DeliverLate bool
	Late        pipeline.Then

	Keep      *stream.Keep
	Tables    []*stream.Table
	FilterMap pipeline.FilterMap
	Aggregate *stream.Aggregate
	Transform func(ctx context.Context, m pipeline.Delivery) ([]*kgo.Record, error)
	// MayWait says that other records may be decided while one waits for its row. NewPlan sets it.
	MayWait bool

	// Output is the topic of outputs. SamePartition writes them to the partition with the
	// number of the one that was read. KeyHeaders adds headers that name the key.
	Output                    string
	SamePartition, KeyHeaders bool
	// Parked is the dead-letter topic, or "". Failure is the policy for records that fail.
	Parked  string
	Failure pipeline.Failure
	// StateOf returns the topic that holds the state of an operator.
	StateOf func(topic string) string
	// Inputs are the topics of which copies are decided; nil without copies.
	Inputs []string
	// Most is how long a transaction may be open.
	Most time.Duration

	slow string // Kind.Slow of the last operator that has it
}

// callsUser reports whether records are given to functions of the user, which may take any time.
func (o *Options) callsUser() bool { return o.slow != "" }

// NewBudget returns the budget of the transactions of a member.
func (o *Options) NewBudget(interval time.Duration) budget.Transaction {
	return budget.NewTransaction(interval, o.Most, o.callsUser())
}

// CallFilterMap calls the FilterMap. If it takes longer than most, the error is permanent, because
// no transaction with the record would commit. After ctx has ended, an error says nothing of the
// record.
func (o *Options) CallFilterMap(ctx context.Context, d *pipeline.Delivery, most time.Duration) (body []byte, pass bool, err error) {
	if o.FilterMap == nil {
		return d.Body, true, nil
	}
	limited := budget.Within(ctx, most, o.Most)
	defer limited.Stop()
	body, pass, err = o.FilterMap.Call(limited, *d)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = semel.Permanent(err)
	}
	return body, pass, err
}

// Ended says that a session drains, because the context of the user's functions has ended. cause
// is not wrapped, because it says nothing of the record.
func Ended(cause error) error { return fmt.Errorf("%w: %v", state.ErrAgain, cause) }

// Overdue explains an error that is the answer to a transaction that was open for too long. Nil
// stays nil.
func (o *Options) Overdue(b *budget.Transaction, err error) error {
	if !isEnded(err) {
		return err
	}
	took, overdue := b.Overdue()
	if !overdue || !o.callsUser() {
		return err
	}
	return fmt.Errorf("the transaction took %v, and brokers abort it after the Timeouts.Transaction of %v: %s: %w",
		took.Round(time.Millisecond), o.Most, o.slow, err)
}

// Times says which time a record has: its own, or one that a rule finds in it. A time that
// records can hardly have would close the windows of all others, or hold them for years, or make
// keys be remembered for too long. Such a record is parked.
type Times struct {
	// On says that records count by a time, and All that those without a key do, too. Keys says
	// that keys are remembered by it, with a grace.
	On, All, Keys bool
	Grace         time.Duration
	// Rule finds the time in a unit; nil if the record's own time counts.
	Rule *key.Rule
	Unit stream.TimeUnit
	// Ahead and Behind are how far a time may be from the clock. Behind is 0 if only times
	// before oldest are refused.
	Ahead, Behind time.Duration
	// Closes says that results wait for the watermark. Idle is how long a partition has no new
	// records before the clock moves the watermark, and Early the time between early results, or 0.
	Closes      bool
	Idle, Early time.Duration
	// BySource says that a partition has records of several sources, and that the slowest of them
	// decides how far it has come. NewPlan sets it.
	BySource bool
}

// oldest is the time in 1973 from which on a number of milliseconds is in no other unit a
// time before the year 5138.
const oldest = 100_000_000_000

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

// DeadLetter returns the dead-letter record of another record. If there is no place for it,
// the error stops the Transactor.
func (o *Options) DeadLetter(r *kgo.Record, l cluster.Limits, reason pipeline.Reason, attempts int, cause error) (*kgo.Record, error) {
	if o.Parked == "" {
		return nil, stoppedAt(r, fmt.Errorf("it cannot be parked, because Parked names no topic: %w", cause))
	}
	out := record.Parked(r, o.Parked, o.Group, reason, attempts, cause)
	if err := l.Check(o.Parked, out); err != nil {
		return nil, stoppedAt(r, fmt.Errorf("it cannot be parked (reason %q): %w", reason, err))
	}
	return out, nil
}

// isEnded reports whether an error means that the producer's transaction has ended.
func isEnded(err error) bool {
	return cluster.IsAny(err, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidTxnState, kerr.TransactionAbortable, kerr.InvalidProducerIDMapping, kerr.UnknownProducerID)
}

// stoppedAt is the error of a Transactor that stops at a record.
func stoppedAt(r *kgo.Record, cause error) error {
	return fmt.Errorf("kafka: %w of %s/%d at %d: %w", pipeline.ErrStopped, r.Topic, r.Partition, r.Offset, cause)
}
