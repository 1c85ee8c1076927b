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

// Close ends the partition. The runner begins no further item of it and forgets the
// items that were read: the source delivers them again, perhaps to another process.
// Close blocks until the items that are being processed are settled and acknowledged.
// If ctx ends before, it returns the error of ctx. Closing twice is legal.
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

// begin notes that an item is being processed. It returns false if the partition is
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

// more notes that n more items are being processed. One is already, so that Close
// waits for them too.
func (p *Partition) more(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy += n
}

// end notes that n items are no longer processed.
func (p *Partition) end(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy -= n
	if p.closed && p.busy == 0 {
		close(p.idle)
	}
}
