package kafkatxn

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/tables"
	"github.com/semel-dev/semel/internal/header"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// fail applies the policy to a record that cannot be delivered.
func (w *worker) fail(ctx context.Context, r *kgo.Record, attempts int, err error) error {
	if row, ok := errors.AsType[*stream.RowError](err); ok {
		return w.withoutRow(ctx, r, row, attempts)
	}
	if errors.Is(err, tables.ErrElsewhere) {
		return err // all other records would fail too
	}
	reason := pipeline.ReasonAttempts
	if semel.Classify(err) == semel.ClassPermanent {
		reason = pipeline.ReasonPermanent
	}
	return w.park(ctx, r, w.opts.Failure.Then, reason, attempts, err)
}

// fit returns an error if an output is too large for its topic or its topic cannot be
// written.
func (w *worker) fit(ctx context.Context, outputs []*kgo.Record) error {
	for _, out := range outputs {
		topic := w.topicOf(out)
		err, restart := w.unwritable.Check(ctx, w.s.t.adm(), topic)
		if restart != nil {
			return fmt.Errorf("%w: %v", errAgain, restart) // not wrapped: a restart may help
		}
		if err != nil {
			return err
		}
		if err := w.check(ctx, topic, out); err != nil {
			return err
		}
	}
	return nil
}

// check returns an error if an output is too large for a topic, or its time is too far
// from the clock. If the error wraps errAgain, the session restarts.
func (w *worker) check(ctx context.Context, topic string, out *kgo.Record) error {
	l := w.s.limits
	return w.s.t.raised(ctx, l, &w.askedLimits, cmp.Or(l.Check(topic, out), l.CheckTime(topic, out, w.budget.Began())))
}

// park applies the policy to a record that is not delivered. A record is parked as it was
// read.
func (w *worker) park(ctx context.Context, r *kgo.Record, then pipeline.Then, reason pipeline.Reason, attempts int, cause error) error {
	r.Value = w.body
	w.note(r)
	k, _ := w.keyOf() // without a key it is zero
	switch then {
	case pipeline.Stop:
		return toldToStop(r, reason, cause)
	case pipeline.Drop:
		w.deferred.Add(pipeline.EventDropped, reason, itemOf(r, k, attempts, cause))
	default:
		out, err := w.opts.parked(r, w.s.limits, reason, attempts, cause)
		if err != nil {
			return err
		}
		w.deferred.Add(pipeline.EventParked, reason, itemOf(r, k, attempts, cause))
		w.produce(out)
	}
	return nil
}

// toldToStop is the error of a Transactor that a policy stops at a record.
func toldToStop(r *kgo.Record, reason pipeline.Reason, cause error) error {
	where := fmt.Sprintf("a message of %s/%d at %d", r.Topic, r.Partition, r.Offset)
	return fmt.Errorf("kafka: %w", &pipeline.StoppedError{Where: where, Reason: reason, Err: cause})
}

// stoppedAt is the error of a Transactor that stops at a record.
func stoppedAt(r *kgo.Record, cause error) error {
	return fmt.Errorf("kafka: %w of %s/%d at %d: %w", pipeline.ErrStopped, r.Topic, r.Partition, r.Offset, cause)
}

// parked returns the dead-letter record of another record. If there is no place for it,
// the error stops the Transactor.
func (o *TransactorOptions) parked(r *kgo.Record, l cluster.Limits, reason pipeline.Reason, attempts int, cause error) (*kgo.Record, error) {
	if o.Parked == "" {
		return nil, stoppedAt(r, fmt.Errorf("it cannot be parked, because Parked names no topic: %w", cause))
	}
	out := record.Parked(r, o.Parked, o.Group, reason, attempts, cause)
	if err := l.Check(o.Parked, out); err != nil {
		return nil, stoppedAt(r, fmt.Errorf("it cannot be parked (reason %q): %w", reason, err))
	}
	return out, nil
}

// itemOf returns the item of a record for observers. They share their bytes.
func itemOf(r *kgo.Record, k semel.Key, attempts int, cause error) *pipeline.Item {
	it := &pipeline.Item{Attempt: attempts, Err: cause}
	record.Fill(&it.Message, r)
	it.Call.Key, it.Redrive = k, header.Redrives(&it.Message)
	return it
}

// learn learns which topics cannot be written. An error restarts the session.
func (w *worker) learn(ctx context.Context) error {
	if err := w.unwritable.Learn(ctx, w.s.t.adm(), w.opts.written()); err != nil {
		return fmt.Errorf("%w: %v", errAgain, err) // wrapping the cause would end the Transactor
	}
	return nil
}

// topicOf returns the topic of an output of a Transform.
func (w *worker) topicOf(out *kgo.Record) string {
	if out.Topic == "" {
		return w.opts.Output.Topic
	}
	return out.Topic
}
