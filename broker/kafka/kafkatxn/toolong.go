package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/budget"
	"github.com/semel-dev/semel/internal/header"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// newBudget returns the budget of the transactions of a member.
func (o *TransactorOptions) newBudget() budget.Transaction {
	return budget.NewTransaction(o.Limits.Interval, o.Timeouts.Transaction, o.Transform != nil || o.FilterMap != nil)
}

// room returns how many records the next read may return.
func (w *worker) room() int { return w.budget.Room(w.records, w.opts.Limits.Records) }

// callFilterMap calls the FilterMap for a message. If it takes longer than most, the error
// is permanent, because no transaction with the record would commit. If ctx has ended, the
// error wraps errAgain.
func (o *TransactorOptions) callFilterMap(ctx context.Context, m *semel.Message, k semel.Key, most time.Duration) (body []byte, pass bool, err error) {
	if o.FilterMap == nil {
		return m.Body, true, nil
	}
	limited := budget.Within(ctx, most, errTooSlow{most, o.Timeouts.Transaction})
	defer limited.Stop()
	body, pass, err = o.FilterMap.Call(limited, pipeline.Delivery{Message: *m, Key: k, Attempt: 1, Redrive: header.Redrives(m)})
	switch {
	case err == nil:
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: %v", errAgain, err) // not wrapped: it says nothing of the record
	case limited.Err() != nil:
		err = semel.Permanent(err)
	}
	return body, pass, err
}

// errTooSlow says that a record takes longer than a transaction may be open.
type errTooSlow struct{ most, transaction time.Duration }

func (e errTooSlow) Error() string {
	return fmt.Sprintf("it takes more than %v for this message, and brokers abort a transaction after %v (Timeouts.Transaction): make it simpler, or the message smaller", e.most, e.transaction)
}

// overdue explains an error that is the answer to a transaction that was open for too
// long. Nil stays nil.
func (o *TransactorOptions) overdue(b *budget.Transaction, err error) error {
	if !isEnded(err) {
		return err
	}
	took, overdue := b.Overdue()
	if !overdue || o.Transform == nil && o.FilterMap == nil {
		return err
	}
	what := "the filter or map needs more than that: make it simpler"
	if o.Transform != nil {
		what = "the Transform needs more than that: make it quicker, or raise it"
	}
	return fmt.Errorf("the transaction took %v, and brokers abort it after the Timeouts.Transaction of %v: %s: %w",
		took.Round(time.Millisecond), o.Timeouts.Transaction, what, err)
}

// isEnded reports whether an error means that the producer's transaction has ended.
func isEnded(err error) bool {
	return cluster.IsAny(err, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidTxnState, kerr.TransactionAbortable, kerr.InvalidProducerIDMapping, kerr.UnknownProducerID)
}

// errFull says that the open transaction should end before the record that is being
// decided.
var errFull = errors.New("kafka: the transaction takes too long for another record")

// mostAborts is how many consecutive transactions may be aborted for an error before
// the session counts as failing.
const mostAborts = 3

// retried reports a transaction that was aborted for an error. If many are, it waits,
// because topics keep the records of each one.
func (s *session) retried(ctx context.Context, err error) {
	s.t.observe(pipeline.Event{Kind: pipeline.EventRetried, Count: s.work.records, Err: err})
	if s.aborts++; s.aborts >= mostAborts {
		s.t.health.Failed(s.name, fmt.Errorf("kafka: transactions fail: %w", err))
		_ = retry.Sleep(ctx, retry.Backoff(s.aborts, 10*time.Millisecond, 1280*time.Millisecond))
	}
}

// succeeded notes that the session has committed or is idle.
func (s *session) succeeded() {
	s.aborts = 0
	s.t.health.Succeeded(s.name)
}
