package operator

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/budget"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/header"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// Options are what operators need of the options of a Transactor.
type Options struct {
	// Kinds are the operators of a chain; see Choose.
	Kinds []Kind
	// Name and Group are those of the pipeline.
	Name, Group string
	// Rule finds the key of a record in a scope, and OnMissing says what happens without one.
	Rule      *key.Rule
	Scope     string
	OnMissing pipeline.Missing
	// Window is how long a key is remembered.
	Window time.Duration
	// EventTime says that keys are remembered by the times of records. Late is the policy for
	// late records, unless they are delivered.
	EventTime, DeliverLate bool
	Late                   pipeline.Then
	// Times says which time a record has.
	Times Times

	Keep      *stream.Keep
	Tables    []*stream.Table
	FilterMap pipeline.FilterMap
	Aggregate *stream.Aggregate
	Transform func(ctx context.Context, m pipeline.Delivery) ([]*kgo.Record, error)
	// MayWait says that other records may be decided while one waits for its row.
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
}

// Choose sets the kinds of operators that a chain has.
func (o *Options) Choose() {
	for _, k := range kinds {
		if k.On(o) {
			o.Kinds = append(o.Kinds, k)
		}
	}
}

// HasState reports whether an operator has a state.
func (o *Options) HasState() bool {
	return slices.ContainsFunc(o.Kinds, func(k Kind) bool { return k.State != nil })
}

// NewStore makes an empty state. One of the operators has a state.
func (o *Options) NewStore() Store {
	i := slices.IndexFunc(o.Kinds, func(k Kind) bool { return k.State != nil })
	return o.Kinds[i].State(o)
}

// Text identifies what an operator with a state makes of records.
func (o *Options) Text() string {
	if o.Keep != nil {
		return o.Keep.String()
	}
	return o.Aggregate.String()
}

// calls reports whether records are given to functions of the user, which may take any time.
func (o *Options) calls() bool { return o.Transform != nil || o.FilterMap != nil }

// NewBudget returns the budget of the transactions of a member.
func (o *Options) NewBudget(interval time.Duration) budget.Transaction {
	return budget.NewTransaction(interval, o.Most, o.calls())
}

// CallFilterMap calls the FilterMap for a message. If it takes longer than most, the error is
// permanent, because no transaction with the record would commit. If ctx has ended, the error
// wraps state.ErrAgain.
func (o *Options) CallFilterMap(ctx context.Context, m *semel.Message, k semel.Key, most time.Duration) (body []byte, pass bool, err error) {
	if o.FilterMap == nil {
		return m.Body, true, nil
	}
	limited := budget.Within(ctx, most, SlowError{most, o.Most})
	defer limited.Stop()
	body, pass, err = o.FilterMap.Call(limited, pipeline.Delivery{Message: *m, Key: k, Attempt: 1, Redrive: header.Redrives(m)})
	switch {
	case err == nil:
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: %v", state.ErrAgain, err) // not wrapped: it says nothing of the record
	case limited.Err() != nil:
		err = semel.Permanent(err)
	}
	return body, pass, err
}

// SlowError says that a record takes longer than a transaction may be open.
type SlowError struct{ most, transaction time.Duration }

func (e SlowError) Error() string {
	return fmt.Sprintf("it takes more than %v for this message, and brokers abort a transaction after %v (Timeouts.Transaction): make it simpler, or the message smaller", e.most, e.transaction)
}

// Overdue explains an error that is the answer to a transaction that was open for too long. Nil
// stays nil.
func (o *Options) Overdue(b *budget.Transaction, err error) error {
	if !isEnded(err) {
		return err
	}
	took, overdue := b.Overdue()
	if !overdue || !o.calls() {
		return err
	}
	what := "the filter or map needs more than that: make it simpler"
	if o.Transform != nil {
		what = "the Transform needs more than that: make it quicker, or raise it"
	}
	return fmt.Errorf("the transaction took %v, and brokers abort it after the Timeouts.Transaction of %v: %s: %w",
		took.Round(time.Millisecond), o.Most, what, err)
}
