package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/semel-dev/semel/store/pgstore"
)

// lookAfter is how long a call runs before its lock is looked for. A statement of the
// session gives up after pgstore.DefaultLockWait.
const lookAfter = pgstore.DefaultLockWait / 2

// lock is what one call waits for. Once the statement has failed, the server no longer
// knows.
type lock struct {
	mu sync.Mutex
	by string
}

// watch asks find for the lock of a call that takes long, until stop is called.
func (l *lock) watch(ctx context.Context, find func(context.Context) string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	looked := make(chan struct{})
	timer := time.AfterFunc(lookAfter, func() {
		defer close(looked)
		by := find(ctx)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.by = by
	})
	return func() {
		cancel()
		if !timer.Stop() {
			<-looked
		}
	}
}

// explain adds the holder of the lock to an error, once the watch is over or before.
func (l *lock) explain(err error) error {
	if !isHeld(err) || inConflict(err) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return &LockError{By: l.by, Err: err}
}
