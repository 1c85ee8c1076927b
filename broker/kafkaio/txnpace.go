package kafkaio

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel/pipeline"
)

// What the client has read is committed as a whole, and a transaction can only end
// where a read ends. Nothing is known of how long a Transform takes, so beside one
// little is read at once: as much as it takes in a part of an interval. What is not
// read yet waits in the client.
const (
	firstPace = 8
	mostPace  = 1000
	// mostRead is how many records are read at once without a Transform.
	mostRead = 10_000
)

// errSlow says that the transaction would be open for too long.
var errSlow = errors.New("kafkaio: the Transform is slower than it was: less is read at once")

// room returns how many records may be read at once.
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
		return min(w.limit, w.opts.MaxRecords)
	}
	return w.opts.MaxRecords
}

// paced learns from how long it took to decide records that were read at once.
func (w *worker) paced(n int, took time.Duration) {
	switch {
	case took > w.opts.Interval:
		w.pace = max(int(float64(n)*float64(w.opts.Interval)/float64(took)), 1)
	case took < w.opts.Interval/4 && n >= w.pace:
		w.pace = min(2*w.pace, mostPace)
	}
}

// begins counts a record that is given to the Transform. It returns errSlow if what
// is left of a read should wait for another transaction, because brokers would abort
// this one before its end. The first record never waits: brokers count from the first
// output.
func (w *worker) begins() error {
	since := time.Since(w.began)
	if since <= w.opts.Interval {
		w.inTime = w.transformed
	}
	if w.transformed > 0 && since > w.opts.TransactionTimeout/2 {
		w.shorten()
		return errSlow
	}
	w.transformed++
	return nil
}

// shorten has the next transaction end before the record that took this one beyond
// its interval.
func (w *worker) shorten() { w.limit = max(w.inTime, 1) }

// overdue says so if an error is the answer to a transaction that was open for too
// long. Nil stays nil.
func (w *worker) overdue(err error) error {
	took := time.Since(w.began)
	if w.opts.Transform == nil || took < w.opts.TransactionTimeout || !isEnded(err) {
		return err
	}
	w.shorten()
	return fmt.Errorf("the transaction took %v, and brokers abort it after the TransactionTimeout of %v: the Transform needs more than that: make it quicker, or raise TransactionTimeout: %w",
		took.Round(time.Millisecond), w.opts.TransactionTimeout, err)
}

// isEnded reports whether an error is what a producer hears whose transaction is no
// more.
func isEnded(err error) bool {
	for _, ended := range []error{kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidTxnState, kerr.TransactionAbortable, kerr.InvalidProducerIDMapping, kerr.UnknownProducerID} {
		if errors.Is(err, ended) {
			return true
		}
	}
	return false
}

// mostAborts is how many transactions in a row may be aborted for an error before
// the session does not count as working.
const mostAborts = 3

// retried tells of a transaction that was aborted for an error.
func (s *session) retried(err error) {
	s.t.observe(pipeline.Event{Kind: pipeline.EventRetried, Count: s.work.records, Err: err})
	if s.aborts++; s.aborts >= mostAborts {
		s.t.health.failed(s.name, fmt.Errorf("kafkaio: transactions fail: %w", err))
	}
}

// works notes that the session committed, or has nothing to do.
func (s *session) works() {
	s.aborts = 0
	s.t.health.works(s.name)
}
