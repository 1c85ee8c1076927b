package pipeline

import (
	"context"
	"sync"
	"sync/atomic"
)

// Partition is one ordered unit of a source, such as a Kafka partition or a file. A
// source makes its partitions, and closes a partition when it loses it. Many goroutines
// may call its methods.
type Partition struct {
	name string

	id atomic.Uint64 // unique in its runner; 0 until the runner has seen it

	// These belong to the scheduler, and its lock guards them.
	queued int  // the number of items in progress
	paused bool // the source was asked not to read it

	mu     sync.Mutex // guards the fields below
	busy   int        // the number of items that workers have
	closed bool
	forget func()        // the scheduler's method
	idle   chan struct{} // closed when the partition is closed and not busy
}

// NewPartition returns an open partition. Its name, such as "orders/3", is for people.
func NewPartition(name string) *Partition {
	return &Partition{name: name, idle: make(chan struct{})}
}

// number returns a number above 0 that no other partition of the runner has.
func (p *Partition) number(r *Runner) uint64 {
	id := p.id.Load()
	if id == 0 {
		id = r.partitions.Add(1) << 1
		p.id.Store(id)
		p.mu.Lock()
		p.forget = r.sched.forget
		p.mu.Unlock()
	}
	return id
}

// Name returns the partition's name.
func (p *Partition) Name() string { return p.name }

// Close ends the partition. The runner starts no further item of it and drops the items
// that wait, because the source delivers them again, perhaps to another process. Close
// blocks until the items that are being processed are settled and acknowledged. If ctx
// ends before that, Close returns the error of ctx. Closing twice is legal.
func (p *Partition) Close(ctx context.Context) error {
	p.mu.Lock()
	var forget func()
	if !p.closed {
		p.closed, forget = true, p.forget
		if p.busy == 0 {
			close(p.idle)
		}
	}
	p.mu.Unlock()
	if forget != nil {
		forget()
	}
	select {
	case <-p.idle:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Closed reports whether the partition is closed.
func (p *Partition) Closed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// begin notes that a worker processes an item. It returns false if the partition is
// closed.
func (p *Partition) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.busy++
	return true
}

// more notes that a worker processes n more items. It has one of the partition
// already, so Close waits for the others too.
func (p *Partition) more(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy += n
}

// end notes that a worker has processed n items.
func (p *Partition) end(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy -= n
	if p.closed && p.busy == 0 {
		close(p.idle)
	}
}
