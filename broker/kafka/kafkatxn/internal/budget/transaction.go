package budget

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// firstRead and mostRead are how many records a read returns, if nothing is known of
	// the time that a record takes, and at most.
	firstRead = 8
	mostRead  = 10_000
	// between is how many records are decided between two looks at the clock, if each takes
	// a short time.
	between = 64
)

// Transaction bounds the time of a transaction. A filter, a map or a Transform may take any time,
// and brokers abort a transaction that is open for too long. So a transaction ends between
// two records if it takes too long. The records before are decided, and the others are read
// again. The reads become smaller, so that this happens seldom.
//
// Brokers count from the first output. So a record that takes nearly as long as they allow
// can only be the first one of a transaction. If it was not, the transaction fails, and the
// next one ends before that record.
type Transaction struct {
	interval, transaction time.Duration
	unknown               bool

	read   int // how many records one read returns
	limit  int // of the records of a transaction, after one that took too long; or 0
	began  time.Time
	done   int // records of the open transaction
	inTime int // how many of them were done within the interval
}

// NewTransaction returns the budget of transactions that should take an interval, and that
// brokers abort after another time. unknown says that records may take any time.
func NewTransaction(interval, transaction time.Duration, unknown bool) Transaction {
	b := Transaction{interval: interval, transaction: transaction, unknown: unknown, read: mostRead}
	if unknown {
		b.read = firstRead
	}
	return b
}

// Begin starts a transaction.
func (b *Transaction) Begin() { b.began, b.done, b.inTime = time.Now(), 0, 0 }

// Began returns when the open transaction started.
func (b *Transaction) Began() time.Time { return b.began }

// Left returns how much of the interval is left.
func (b *Transaction) Left() time.Duration { return b.interval - time.Since(b.began) }

// Most returns how many records the open transaction may have, of a number.
func (b *Transaction) Most(records int) int {
	if b.limit > 0 {
		return min(b.limit, records)
	}
	return records
}

// Room returns how many records the next read may return, if the open transaction has some
// and may have others.
func (b *Transaction) Room(has, most int) int { return max(min(b.read, b.Most(most)-has), 1) }

// Full reports whether the open transaction should end before the next record. The first
// record never waits for another transaction. A transaction of which not all records are
// decided ends early when ctx has ended.
func (b *Transaction) Full(ctx context.Context) bool {
	if b.done == 0 || !b.unknown && b.limit == 0 && b.done%between > 0 {
		return false
	}
	since := time.Since(b.began)
	if since <= b.interval {
		b.inTime = b.done
	}
	return since > b.transaction/4 || b.limit > 0 && b.done >= b.limit || ctx.Err() != nil
}

// Done counts a record of the open transaction.
func (b *Transaction) Done() { b.done++ }

// Paced adapts the size of the next reads to the time that the records of one took.
func (b *Transaction) Paced(records int, took time.Duration) {
	switch {
	case !b.unknown:
	case took > b.interval:
		b.read = max(int(float64(records)*float64(b.interval)/float64(took)), 1)
	case took < b.interval/4 && records >= b.read:
		b.read = min(2*b.read, mostRead)
	}
}

// Overdue reports whether brokers may have aborted the open transaction because it took too
// long, and how long that was. The next one then ends before the record that took this one
// beyond its interval.
func (b *Transaction) Overdue() (took time.Duration, overdue bool) {
	took = time.Since(b.began)
	if took < b.transaction {
		return took, false
	}
	b.limit = max(b.inTime, 1)
	return took, true
}

// Committed notes that the open transaction is committed.
func (b *Transaction) Committed() { b.limit = 0 }

// Patience is a context that ends some time after it is first asked whether it has ended. Only
// functions that may take long ask, so the others cost no timer.
type Patience struct {
	context.Context
	cause SlowError
	once  sync.Once
	timed atomic.Pointer[timed] // nil until it is asked
}

type timed struct {
	context.Context
	cancel context.CancelFunc
}

// Within returns a context that ends after a time with a SlowError. Brokers abort a transaction
// after another time.
func Within(ctx context.Context, most, transaction time.Duration) *Patience {
	return &Patience{Context: ctx, cause: SlowError{most, transaction}}
}

// SlowError says that a record takes longer than a transaction may be open.
type SlowError struct{ most, transaction time.Duration }

func (e SlowError) Error() string {
	return fmt.Sprintf("it takes more than %v for this message, and brokers abort a transaction after %v (Timeouts.Transaction): make it simpler, or the message smaller", e.most, e.transaction)
}

// Stop frees the timer.
func (p *Patience) Stop() {
	if t := p.timed.Load(); t != nil {
		t.cancel()
	}
}

func (p *Patience) ask() context.Context {
	p.once.Do(func() {
		ctx, cancel := context.WithTimeoutCause(p.Context, p.cause.most, p.cause)
		p.timed.Store(&timed{ctx, cancel})
	})
	return p.timed.Load()
}

func (p *Patience) Done() <-chan struct{} { return p.ask().Done() }

func (p *Patience) Err() error { return p.ask().Err() }

func (p *Patience) Value(key any) any {
	if t := p.timed.Load(); t != nil {
		return t.Value(key)
	}
	return p.Context.Value(key)
}
