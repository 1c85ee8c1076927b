package kafkatxn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
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
		if err := w.refused(ctx, topic); err != nil {
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
	return w.s.t.raised(ctx, l, &w.askedLimits, cmp.Or(l.Check(topic, out), l.CheckTime(topic, out, w.began)))
}

// park applies the policy to a record that is not delivered. A record is parked as it was
// read.
func (w *worker) park(ctx context.Context, r *kgo.Record, then pipeline.Then, reason pipeline.Reason, attempts int, cause error) error {
	r.Value = w.body
	record.Fill(&w.message, r)
	k, _ := w.keyOf()
	switch then {
	case pipeline.Stop:
		return toldToStop(r, reason, cause)
	case pipeline.Drop:
		w.asides.Add(pipeline.EventDropped, reason, itemOf(r, k, attempts, cause))
	default:
		out, err := w.opts.parked(r, w.s.limits, reason, attempts, cause)
		if err != nil {
			return err
		}
		w.asides.Add(pipeline.EventParked, reason, itemOf(r, k, attempts, cause))
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

// refusals are the topics to which outputs of a Transform cannot be written. Such an
// output fails only its message. They are learned from failed transactions, so that
// other topics cost nothing.
type refusals struct {
	topics map[string]refusal

	mu    sync.Mutex // guards the fields below
	heard map[string]error
}

type refusal struct {
	err error
	at  time.Time
}

const (
	// refusedFor is how long a topic is not written before the next try.
	refusedFor = time.Minute
	// mostRefused bounds how many topics are remembered.
	mostRefused = 1000
)

// hear notes that a record could not be written because of its topic. The client calls
// it.
func (f *refusals) hear(topic string, err error) {
	if !cluster.SaysTopic(err) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.heard == nil {
		f.heard = map[string]error{}
	}
	f.heard[topic] = err
}

// learn asks about the topics with errors, except those that the Transactor itself
// needs. An error restarts the session: older brokers refuse a whole transaction
// because of a topic without write permission, and its producer is then unusable.
func (w *worker) learn(ctx context.Context) (again error) {
	f := &w.refusals
	f.mu.Lock()
	heard := f.heard
	f.heard = nil
	f.mu.Unlock()
	maps.DeleteFunc(heard, func(topic string, _ error) bool { return slices.Contains(w.opts.written(), topic) })
	if f.topics == nil || len(f.topics) > mostRefused {
		f.topics = map[string]refusal{}
	}
	began := time.Now()
	for topic, cause := range heard {
		err := errors.New("kafka: it was not asked yet")
		for tries := 1; err != nil; tries++ { // new topics share the time
			if err = cluster.AskTopic(ctx, w.s.t.adm(), topic, cause); !cluster.AsksAgain(ctx, began, tries, err) {
				break
			}
		}
		if cluster.SaysTopic(err) {
			f.topics[topic] = refusal{err, time.Now()}
		}
		if errors.Is(err, kerr.TopicAuthorizationFailed) {
			again = fmt.Errorf("%w: topic %s: %v", errAgain, topic, err) // wrapping the cause would end the Transactor
		}
	}
	return again
}

// refused returns the permanent error of an output whose topic cannot be written, or
// nil. It asks for missing topics again. If brokers do not answer, the error restarts
// the session, and the message waits.
func (w *worker) refused(ctx context.Context, topic string) error {
	why, ok := w.refusals.topics[topic]
	if !ok {
		return nil
	}
	remedy := "fix the Transform"
	switch {
	case errors.Is(why.err, kerr.UnknownTopicOrPartition):
		switch err := cluster.AskTopic(ctx, w.s.t.adm(), topic, nil); {
		case err == nil:
			delete(w.refusals.topics, topic)
			return nil
		case !cluster.SaysTopic(err):
			return fmt.Errorf("%w: topic %s: %v", errAgain, topic, err) // not wrapped: a restart may help
		}
		remedy = "create it, or fix the Transform"
	case errors.Is(why.err, kerr.TopicAuthorizationFailed):
		if time.Since(why.at) > refusedFor {
			delete(w.refusals.topics, topic)
			return nil
		}
		remedy = "allow Write on it, or fix the Transform"
	}
	return semel.Permanent(fmt.Errorf("an output of the Transform for topic %q: %w: %s", topic, why.err, remedy))
}

// topicOf returns the topic of an output of a Transform.
func (w *worker) topicOf(out *kgo.Record) string {
	if out.Topic == "" {
		return w.opts.Output.Topic
	}
	return out.Topic
}
