// Package inbox hands the messages that a source has received to the pipeline that
// reads the source.
package inbox

import (
	"context"
	"sync"
	"time"

	"github.com/semel-dev/semel/pipeline"
)

// Inbox has the received messages that nobody has read. Its owner, a source, guards it
// with a lock of its own, because what the source knows of a message changes together
// with the inbox. The methods say who holds the lock.
type Inbox struct {
	// Items are the messages in order. The owner may change them under its lock, and
	// calls Changed afterwards if there are more of them.
	Items []*pipeline.Item
	// Err ends the source once all Items are read. The owner sets it as it adds Items.
	Err error

	lock    sync.Locker
	changed chan struct{} // closed and replaced by Changed
}

// New returns an empty Inbox that this lock guards.
func New(lock sync.Locker) Inbox { return Inbox{lock: lock, changed: make(chan struct{})} }

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

// Pause waits for d, or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
