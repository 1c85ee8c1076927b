package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/pipeline"
)

// The client commits everything that it has read, so a transaction can only end where a
// read ends. The duration of a Transform is unknown. So with a Transform, a read
// returns few records: as many as take a part of an interval. The other records wait in
// the client.
const (
	firstPace = 8
	mostPace  = 1000
	// mostRead is how many records a read returns without a Transform.
	mostRead = 10_000
)

// errSlow says that the transaction would be open for too long.
var errSlow = errors.New("kafka: the Transform is slower than before: the next read is smaller")

// room returns how many records the next read may return.
func (w *worker) room() int {
	most := mostRead
	if w.opts.Transform != nil {
		most = w.pace
	}
	return max(min(most, w.most()-w.records), 1)
}

// most returns how many records the open transaction may have.
func (w *worker) most() int {
	if w.limit > 0 {
		return min(w.limit, w.opts.Limits.Records)
	}
	return w.opts.Limits.Records
}

// paced adapts the pace to the time that the records of a read took.
func (w *worker) paced(n int, took time.Duration) {
	switch {
	case took > w.opts.Limits.Interval:
		w.pace = max(int(float64(n)*float64(w.opts.Limits.Interval)/float64(took)), 1)
	case took < w.opts.Limits.Interval/4 && n >= w.pace:
		w.pace = min(2*w.pace, mostPace)
	}
}

// begins counts a record that is given to the Transform. It returns errSlow if the rest
// of a read should wait for another transaction, because brokers would abort this one.
// The first record never waits, since brokers count from the first output.
func (w *worker) begins() error {
	since := time.Since(w.began)
	if since <= w.opts.Limits.Interval {
		w.inTime = w.transformed
	}
	if w.transformed > 0 && since > w.opts.Timeouts.Transaction/2 {
		w.shorten()
		return errSlow
	}
	w.transformed++
	return nil
}

// shorten makes the next transaction end before the record that took this one beyond
// its interval.
func (w *worker) shorten() { w.limit = max(w.inTime, 1) }

// overdue explains an error that is the answer to a transaction that was open for too
// long. Nil stays nil.
func (w *worker) overdue(err error) error {
	took := time.Since(w.began)
	if w.opts.Transform == nil || took < w.opts.Timeouts.Transaction || !isEnded(err) {
		return err
	}
	w.shorten()
	return fmt.Errorf("the transaction took %v, and brokers abort it after the Timeouts.Transaction of %v: the Transform needs more than that: make it quicker, or raise it: %w",
		took.Round(time.Millisecond), w.opts.Timeouts.Transaction, err)
}

// isEnded reports whether an error means that the producer's transaction has ended.
func isEnded(err error) bool {
	return cluster.IsAny(err, kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidTxnState, kerr.TransactionAbortable, kerr.InvalidProducerIDMapping, kerr.UnknownProducerID)
}

// mostAborts is how many consecutive transactions may be aborted for an error before
// the session counts as failing.
const mostAborts = 3

// retried reports a transaction that was aborted for an error. If many are, it waits,
// because topics keep the records of each one.
func (s *session) retried(ctx context.Context, err error) {
	s.t.observe(pipeline.Event{Kind: pipeline.EventRetried, Count: s.work.records, Err: err})
	if s.aborts++; s.aborts >= mostAborts {
		s.t.health.Failed(s.name, fmt.Errorf("kafka: transactions fail: %w", err))
		cluster.Pause(ctx, 10*time.Millisecond<<min(s.aborts, 7))
	}
}

// works notes that the session has committed or is idle.
func (s *session) works() {
	s.aborts = 0
	s.t.health.Works(s.name)
}
