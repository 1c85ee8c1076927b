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
	reason := pipeline.ReasonAttempts
	if semel.Classify(err) == semel.ClassPermanent {
		reason = pipeline.ReasonPermanent
	}
	return w.putAside(ctx, r, w.opts.Failure.Then, reason, attempts, err)
}

// fit reports as an error that an output is larger than its topic takes, or that its
// topic cannot be written.
func (w *worker) fit(ctx context.Context, outputs []*kgo.Record) error {
	for _, out := range outputs {
		topic := w.topicOf(out)
		if err := w.refused(ctx, topic); err != nil {
			return err
		}
		if err := w.check(ctx, topic, out); err != nil {
			return err
		}
	}
	return nil
}

// check says whether a topic takes an output. If it wraps errAgain, the session begins
// anew.
func (w *worker) check(ctx context.Context, topic string, out *kgo.Record) error {
	return w.s.t.raised(ctx, w.s.limits, &w.askedLimits, w.s.limits.check(topic, out))
}

// putAside does with a record that is not delivered what the policy says.
func (w *worker) putAside(ctx context.Context, r *kgo.Record, then pipeline.Then, reason pipeline.Reason, attempts int, cause error) error {
	fill(&w.message, r)
	k, _ := w.keyOf()
	switch then {
	case pipeline.Stop:
		return toldToStop(r, reason, cause)
	case pipeline.Drop:
		w.asides.add(pipeline.EventDropped, reason, itemOf(r, k, attempts, cause))
	default:
		out, err := w.opts.park(r, w.s.limits, reason, attempts, cause)
		if err != nil {
			return err
		}
		w.asides.add(pipeline.EventParked, reason, itemOf(r, k, attempts, cause))
		w.produce(out)
	}
	return nil
}

// toldToStop is the error of a Transactor that stops at a record because its options
// say so.
func toldToStop(r *kgo.Record, reason pipeline.Reason, cause error) error {
	where := fmt.Sprintf("a message of %s/%d at %d", r.Topic, r.Partition, r.Offset)
	return fmt.Errorf("kafkaio: %w", &pipeline.StoppedError{Where: where, Reason: reason, Err: cause})
}

// stoppedAt is the error of a Transactor that stops at a record.
func stoppedAt(r *kgo.Record, cause error) error {
	return fmt.Errorf("kafkaio: %w of %s/%d at %d: %w", pipeline.ErrStopped, r.Topic, r.Partition, r.Offset, cause)
}

// park returns the record to put aside for another, or an error that stops the
// Transactor: there is no place for it.
func (o *TransactorOptions) park(r *kgo.Record, l limits, reason pipeline.Reason, attempts int, cause error) (*kgo.Record, error) {
	if o.Parked == "" {
		return nil, stoppedAt(r, fmt.Errorf("there is no topic for what is put aside, and Parked can name one: %w", cause))
	}
	out := parkedRecord(r, o.Parked, o.Group, reason, attempts, cause)
	if err := l.check(o.Parked, out); err != nil {
		return nil, stoppedAt(r, fmt.Errorf("it cannot be put aside, for %q: %w", reason, err))
	}
	return out, nil
}

// asides are what observers are told of the records that a transaction put aside or
// gave up. They are told when it has committed: what is aborted is read again.
type asides []pipeline.Event

// mostTold is how many of them are told one by one. Of the others only the count is.
const mostTold = 100

func (a *asides) add(kind pipeline.EventKind, why pipeline.Reason, it *pipeline.Item) {
	reason := string(why)
	if len(*a) < mostTold {
		*a = append(*a, pipeline.Event{Kind: kind, Count: 1, Reason: reason, Err: it.Err, Item: it})
		return
	}
	for i := range (*a)[mostTold:] {
		if e := &(*a)[mostTold+i]; e.Kind == kind && e.Reason == reason {
			e.Count++
			return
		}
	}
	*a = append(*a, pipeline.Event{Kind: kind, Count: 1, Reason: reason})
}

func (a *asides) report(t *Transactor) {
	for _, e := range *a {
		t.observe(e)
	}
	a.reset()
}

func (a *asides) reset() {
	clear(*a) // they hold records
	*a = (*a)[:0]
}

// itemOf returns what observers are told of a record. They share their bytes.
func itemOf(r *kgo.Record, k semel.Key, attempts int, cause error) *pipeline.Item {
	it := &pipeline.Item{Attempt: attempts, Err: cause}
	fill(&it.Message, r)
	it.Call.Key, it.Redrive = k, redrivesOf(&it.Message)
	return it
}
