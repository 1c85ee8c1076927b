package inbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel/internal/inbox"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// TestInboxReadWaitsForMessagesAndWakesTheProducer has an owner that adds messages when there are
// none.
func TestInboxReadWaitsForMessagesAndWakesTheProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		box := inbox.New(&mu)
		ctx, cancel := context.WithCancel(t.Context())
		var owner sync.WaitGroup
		owner.Go(func() {
			for box.Await(ctx, func() bool { return len(box.Items) == 0 }) {
				_ = retry.Sleep(ctx, time.Second)
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

func TestADeliveryLimitKeepsOneDeliveryInReserve(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		limit inbox.Limit
		first int // the first delivery that is exhausted; 0: none is
	}{
		{inbox.Limit{}, 0},
		{inbox.Limit{Deliveries: 1}, 2},
		{inbox.Limit{Deliveries: 2}, 2},
		{inbox.Limit{Deliveries: 3}, 2},
		{inbox.Limit{Deliveries: 6}, 5},
		{inbox.Limit{Deliveries: 6, Reserve: 2}, 4},
	} {
		for n := range 10 {
			if got, want := c.limit.Check(n) != nil, c.first > 0 && n >= c.first; got != want {
				t.Errorf("%+v: delivery %d is exhausted: %t, want %t", c.limit, n, got, want)
			}
		}
	}
}

func TestMessagesPastTheDeliveryLimitAreReadSeparately(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	box := inbox.New(&mu)
	mu.Lock()
	for _, it := range []*pipeline.Item{{}, {Err: errors.New("limit")}, {}} {
		box.Put(it)
	}
	box.Changed()
	mu.Unlock()
	read, err := box.Read(t.Context())
	if err != nil || len(read) != 2 {
		t.Errorf("%d messages, %v; want 2", len(read), err)
	}
	mu.Lock()
	if box.Empty() {
		t.Error("it is empty before the exhausted message is read")
	}
	mu.Unlock()
	emptied := make(chan bool)
	go func() { emptied <- box.Await(t.Context(), box.Empty) }()
	exhausted, err := box.ReadExhausted(t.Context())
	if !<-emptied {
		t.Error("no reader is notified that it is empty")
	}
	if err != nil || len(exhausted) != 1 || exhausted[0].Err == nil {
		t.Errorf("%d exhausted messages, %v; want 1", len(exhausted), err)
	}
}
