package pipeline

import (
	"context"
	"sync"
	"sync/atomic"
)

// Partition is one ordered unit of a source: a partition, a message group, a file.
// A source makes its partitions and closes one when it loses it. All methods may be
// called at once.
type Partition struct {
	name string

	id atomic.Uint64 // a number of its own in its runner

	// Of the scheduler, and guarded by its lock.
	queued int  // items under way
	held   bool // the source was told to pause it

	mu     sync.Mutex
	busy   int
	closed bool
	forget func()        // of the runner's scheduler
	idle   chan struct{} // closed when closed and not busy
}

// NewPartition returns an open partition. The name is for people: "orders/3".
func NewPartition(name string) *Partition {
	return &Partition{name: name, idle: make(chan struct{})}
}

// number returns a number that no other partition of the runner has, and not 0.
func (l *Partition) number(r *Runner) uint64 {
	id := l.id.Load()
	if id == 0 {
		id = r.partitions.Add(1) << 1
		l.id.Store(id)
		l.mu.Lock()
		l.forget = r.sched.forget
		l.mu.Unlock()
	}
	return id
}

// Name returns the partition's name.
func (l *Partition) Name() string { return l.name }

// Close ends the partition: no further item of it is begun, and those that were read
// are forgotten; the source will deliver them to somebody again. It blocks until
// the items that are being processed are settled and acknowledged, or ctx ends,
// whose error it returns. Closing twice is legal.
func (l *Partition) Close(ctx context.Context) error {
	l.mu.Lock()
	var forget func()
	if !l.closed {
		l.closed, forget = true, l.forget
		if l.busy == 0 {
			close(l.idle)
		}
	}
	l.mu.Unlock()
	if forget != nil {
		forget()
	}
	select {
	case <-l.idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Closed reports whether the partition is closed.
func (l *Partition) Closed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// begin notes that an item is being processed; it returns false if the partition is
// closed.
func (l *Partition) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.busy++
	return true
}

// more notes that n more items are being processed. One is already, so that who
// closes the partition waits for them too.
func (l *Partition) more(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy += n
}

// end notes that n items are no longer processed.
func (l *Partition) end(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy -= n
	if l.closed && l.busy == 0 {
		close(l.idle)
	}
}
