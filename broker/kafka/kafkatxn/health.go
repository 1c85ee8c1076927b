package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/pipeline"
)

var _ semel.Readier = (*Transactor)(nil)

// Ready implements semel.Readier. It returns nil or the reason why the Transactor does not work.
// Run has not started, a topic is missing, no broker answers, or a member has not worked since an
// error. Or a transaction without an end holds up a partition, a right is missing on a topic with
// keys or windows (looked for every 10 seconds), or the Transactor stalls (see
// pipeline.EventStalled) for another reason than a transaction that will end. It blocks until ctx
// ends at most and may be called at any time.
func (t *Transactor) Ready(ctx context.Context) error {
	client, looked, err := t.health.Look()
	if err != nil {
		return err
	}
	if client == nil {
		return errors.New("kafka: Run has not started")
	}
	if still := t.stall.For(); still > 0 && !t.health.Passes() {
		_, what, _ := t.health.Work()
		return fmt.Errorf("kafka: stalled for %v, waiting for %s", still.Round(time.Second), what)
	}
	if err := client.Ping(ctx); err != nil {
		return fmt.Errorf("kafka: no broker answers: %w", err)
	}
	if lacks := t.lacks.Load(); lacks != nil && *lacks != nil {
		return *lacks
	}
	if !looked {
		return errors.New("kafka: it is checking brokers and topics")
	}
	return nil
}

// UnderWay returns the number of records in open transactions. Their size is not known,
// and bytes is 0. UnderWay may be called at any time.
func (t *Transactor) UnderWay() (count int, bytes int64) {
	count, _, _ = t.health.Work() // only the number counts here
	return count, 0
}

// watch reports when the Transactor stalls and when it moves again, until stop is
// called. A transaction may be open for an interval.
func (t *Transactor) watch(ctx context.Context) (stop func()) {
	t.stall.Slow = t.opts.Limits.Interval
	return t.stall.Start(ctx, diagnose.Work{
		Look: t.health.Progress,
		Stalled: func(_ context.Context, still time.Duration) {
			records, what, err := t.health.Work()
			t.observe(pipeline.Event{Kind: pipeline.EventStalled, Count: records, Elapsed: still, Reason: what, Err: err})
		},
		Moves: func(still time.Duration) { t.observe(pipeline.Event{Kind: pipeline.EventMoves, Elapsed: still}) },
	})
}

// silent reports whether an error means that no broker answered.
func silent(err error) bool {
	_, answered := errors.AsType[*kerr.Error](err)
	_, missing := errors.AsType[*cluster.MissingTopicError](err)
	answered = answered || missing
	return err != nil && !answered && !cluster.IsFinal(err) && !errors.Is(err, errAgain)
}

// joined reports whether a client is in its group.
func joined(client *kgo.GroupTransactSession) bool {
	member, _ := client.Client().GroupMetadata()
	return member != ""
}
