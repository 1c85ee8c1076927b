package outbox

import (
	"sync"

	"github.com/jackc/pglogrepl"
)

// progress finds the position in the write-ahead log before which every row is
// acknowledged, although rows are acknowledged in any order. Many goroutines may call its
// methods; none blocks. The zero value is ready to use.
type progress struct {
	mu sync.Mutex // guards the fields below, and those of its transactions
	// low is the position.
	low pglogrepl.LSN
	// From first to last are the transactions behind low, in the order of their commits.
	first, last *txn
}

// txn is a transaction with rows of the outbox.
type txn struct {
	xid uint64 // 0 if the rows are from the table

	// These are guarded by progress.mu.
	rows          int           // that are not acknowledged
	end           pglogrepl.LSN // where the log continues behind it
	ended         bool          // no further row comes
	before, after *txn
}

// settled reports whether all its rows are acknowledged.
func (t *txn) settled() bool { return t.ended && t.rows == 0 }

// begin adds a transaction behind the others.
func (p *progress) begin(xid uint64) *txn {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &txn{xid: xid, before: p.last}
	if p.last == nil {
		p.first = t
	} else {
		p.last.after = t
	}
	p.last = t
	return t
}

// add notes rows of a transaction that has not ended.
func (p *progress) add(t *txn, rows int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.rows += rows
}

// end notes that a transaction has no further row, and where the log continues.
func (p *progress) end(t *txn, at pglogrepl.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.end, t.ended = max(t.end, at), true
	p.settle(t)
}

// ack notes that a row of a transaction is acknowledged.
func (p *progress) ack(t *txn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.rows--
	p.settle(t)
}

// pass notes that nothing that was not added comes before a position. No transaction is
// being received.
func (p *progress) pass(at pglogrepl.LSN) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last == nil {
		p.low = max(p.low, at)
		return
	}
	p.last.end = max(p.last.end, at)
}

// settle moves the position behind the settled transactions at the front. Of several settled
// positions in a row, only the last is kept, so that positions behind a waiting row take no
// memory.
func (p *progress) settle(t *txn) {
	if !t.settled() {
		return
	}
	if t.after != nil && t.after.settled() {
		t = p.drop(t)
	}
	if t.before != nil && t.before.settled() {
		p.drop(t.before)
	}
	if t == p.first {
		p.low = max(p.low, t.end)
		p.drop(t)
	}
}

// drop removes a transaction, and returns the one behind it.
func (p *progress) drop(t *txn) *txn {
	if t.before == nil {
		p.first = t.after
	} else {
		t.before.after = t.after
	}
	if t.after == nil {
		p.last = t.before
	} else {
		t.after.before = t.before
	}
	return t.after
}

// position returns the position.
func (p *progress) position() pglogrepl.LSN {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.low
}
