package kafkaio

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// fail does with a record that cannot be delivered what the policy says.
func (w *worker) fail(ctx context.Context, r *kgo.Record, attempts int, err error) error {
	reason := "attempts"
	if semel.Classify(err) == semel.ClassPermanent {
		reason = "permanent"
	}
	then := w.opts.Failure.Then
	return w.putAside(ctx, r, then == pipeline.Drop, then == pipeline.Stop, reason, attempts, err)
}

// fit reports as an error that an output is larger than its topic takes.
func (w *worker) fit(outputs []*kgo.Record) error {
	for _, out := range outputs {
		topic := out.Topic
		if topic == "" {
			topic = w.opts.Output
		}
		if err := w.s.limits.check(topic, out); err != nil {
			return err
		}
	}
	return nil
}

// putAside does with a record that is not delivered what the policy says.
func (w *worker) putAside(ctx context.Context, r *kgo.Record, drop, stop bool, reason string, attempts int, cause error) error {
	switch {
	case stop:
		return stoppedAt(r, cause)
	case drop:
		w.counts.dropped++
	default:
		out, err := w.opts.park(r, w.s.limits, reason, attempts, cause)
		if err != nil {
			return err
		}
		w.counts.parked++
		w.s.client.Produce(ctx, out, w.promise)
	}
	return nil
}

// stoppedAt is the error of a Transactor that stops at a record.
func stoppedAt(r *kgo.Record, cause error) error {
	return fmt.Errorf("kafkaio: %s/%d at %d: %w: %w", r.Topic, r.Partition, r.Offset, pipeline.ErrStopped, cause)
}

// park returns the record to put aside for another, or an error that stops the
// Transactor: there is no place for it.
func (o *TransactorOptions) park(r *kgo.Record, l limits, reason string, attempts int, cause error) (*kgo.Record, error) {
	if o.Parked == "" {
		return nil, stoppedAt(r, fmt.Errorf("there is no topic for what is put aside: %w", cause))
	}
	out := parkedRecord(r, o.Parked, o.Group, reason, attempts, cause)
	if err := l.check(o.Parked, out); err != nil {
		return nil, stoppedAt(r, fmt.Errorf("it cannot be put aside, for %q: %w", reason, err))
	}
	return out, nil
}
