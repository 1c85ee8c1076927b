package inbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel/internal/inbox"
	"github.com/semel-dev/semel/pipeline"
)

// TestReadWaitsTakesAllAndWakesItsOwner has an owner that adds messages when there are
// none.
func TestReadWaitsTakesAllAndWakesItsOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		box := inbox.New(&mu)
		ctx, cancel := context.WithCancel(t.Context())
		var owner sync.WaitGroup
		owner.Go(func() {
			for box.Await(ctx, func() bool { return len(box.Items) == 0 }) {
				inbox.Pause(ctx, time.Second)
				mu.Lock()
				box.Items = append(box.Items, &pipeline.Item{}, &pipeline.Item{})
				box.Changed()
				mu.Unlock()
			}
		})
		begun := time.Now()
		for range 3 {
			items, err := box.Read(t.Context())
			if err != nil || len(items) != 2 {
				t.Fatalf("%d messages, %v", len(items), err)
			}
		}
		if took := time.Since(begun); took != 3*time.Second {
			t.Errorf("three reads took %v, want 3s", took)
		}
		cause := errors.New("enough")
		ended, end := context.WithCancelCause(t.Context())
		end(cause)
		if _, err := box.Read(ended); !errors.Is(err, cause) {
			t.Errorf("a read under an ended context returns %v", err)
		}
		cancel()
		owner.Wait()
	})
}
