// Package inbox hands the messages that a source has received to the pipeline that
// reads the source.
package inbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/semel-dev/semel/pipeline"
)

// Inbox has the received messages that no reader has taken. Its owner, a source, guards it
// with a lock of its own, because what the source knows of a message changes together
// with the inbox. The methods say who holds the lock.
type Inbox struct {
	// Items are the messages in order. The owner may change them under its lock, and
	// calls Changed afterwards if there are more of them.
	Items []*pipeline.Item
	// Exhausted are the messages that the server may not deliver again, see
	// pipeline.SourceTraits. Otherwise they are as Items.
	Exhausted []*pipeline.Item
	// Err ends the source once all Items are read. The owner sets it as it adds Items.
	Err error

	lock    sync.Locker
	changed chan struct{} // closed and replaced by Changed
}

// New returns an empty Inbox that this lock guards.
func New(lock sync.Locker) Inbox { return Inbox{lock: lock, changed: make(chan struct{})} }

// Put adds a message: one with an Err to Exhausted, and others to Items. The caller holds
// the lock, and calls Changed after the last message.
func (b *Inbox) Put(it *pipeline.Item) {
	if it.Err != nil {
		b.Exhausted = append(b.Exhausted, it)
		return
	}
	b.Items = append(b.Items, it)
}

// Remove removes the messages for which gone returns true. The caller holds the lock.
func (b *Inbox) Remove(gone func(*pipeline.Item) bool) {
	b.Items = slices.DeleteFunc(b.Items, gone)
	b.Exhausted = slices.DeleteFunc(b.Exhausted, gone)
}

// Empty reports whether the pipeline has read all messages. Until then an owner that requests
// messages requests no more, so that its memory is bounded. The caller holds the lock.
func (b *Inbox) Empty() bool { return len(b.Items)+len(b.Exhausted) == 0 }

// Take removes all messages and returns them. The caller holds the lock.
func (b *Inbox) Take() []*pipeline.Item {
	all := append(b.Items, b.Exhausted...)
	b.Items, b.Exhausted = nil, nil
	return all
}

// Changed wakes those who wait in Read or Await. The caller holds the lock.
func (b *Inbox) Changed() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// Read takes all messages, as pipeline.Source wants it. It waits for the first one until
// ctx ends, or until there is an Err. The caller does not hold the lock.
func (b *Inbox) Read(ctx context.Context) (items []*pipeline.Item, err error) {
	if !b.Await(ctx, func() bool {
		items = b.Items
		if b.Items = nil; len(items) > 0 {
			b.Changed()
			return true
		}
		err = b.Err
		return err != nil
	}) {
		return nil, context.Cause(ctx)
	}
	return items, err
}

// ReadExhausted takes all Exhausted messages, as pipeline.SourceTraits wants it. It waits
// for the first one until ctx ends. The caller does not hold the lock.
func (b *Inbox) ReadExhausted(ctx context.Context) (items []*pipeline.Item, err error) {
	if !b.Await(ctx, func() bool {
		items, b.Exhausted = b.Exhausted, nil
		if len(items) > 0 {
			b.Changed()
		}
		return len(items) > 0
	}) {
		return nil, context.Cause(ctx)
	}
	return items, nil
}

// Limit is how often a server delivers a message that is not acknowledged.
type Limit struct {
	// Deliveries is the largest number of deliveries, or 0 if there is no limit.
	Deliveries int
	// Reserve is how many of them stay in reserve, because the process may end before the
	// message is parked. Defaults to 1.
	Reserve int
	// Then says what the server does after that, as in "RabbitMQ deletes the message".
	// Setting names the limit.
	Then, Setting string
}

// Check returns an error if the message must be parked at its delivery number n. The first
// delivery is always processed.
func (l Limit) Check(n int) error {
	if l.Deliveries == 0 || n < max(l.Deliveries-cmp.Or(l.Reserve, 1), 2) {
		return nil
	}
	return fmt.Errorf("this is delivery %d of at most %d, after which %s (%s): retry it when the cause is repaired, and raise the limit, so that restarts in an outage do not reach it",
		n, l.Deliveries, l.Then, l.Setting)
}

// Await waits until ready returns true after a change. It calls ready under the lock,
// and returns false if ctx has ended. The caller does not hold the lock.
func (b *Inbox) Await(ctx context.Context, ready func() bool) bool {
	for ctx.Err() == nil {
		b.lock.Lock()
		ok, changed := ready(), b.changed
		b.lock.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return false
}
