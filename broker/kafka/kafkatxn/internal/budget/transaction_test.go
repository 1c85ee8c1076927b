package budget

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnExpiredContextIsSeenThroughEveryMethod asks in several goroutines.
func TestAnExpiredContextIsSeenThroughEveryMethod(t *testing.T) {
	t.Parallel()
	cause := SlowError{time.Second, time.Minute}
	for name, ended := range map[string]func(ctx context.Context) bool{
		"Err":  func(ctx context.Context) bool { return ctx.Err() != nil },
		"Done": func(ctx context.Context) bool { _, open := <-ctx.Done(); return !open },
		"a context made of it": func(ctx context.Context) bool {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			_, open := <-ctx.Done()
			return !open
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := Within(t.Context(), time.Second, time.Minute)
				defer p.Stop()
				if context.Cause(p) != nil {
					t.Error("it has a cause before its end")
				}
				var asking sync.WaitGroup
				for range 2 {
					asking.Go(func() {
						for n := 0; !ended(p); n++ {
							if n > 200 {
								t.Error("it does not end")
								return
							}
							time.Sleep(10 * time.Millisecond) // in a bubble
						}
						if !errors.Is(context.Cause(p), cause) {
							t.Errorf("its cause is %v", context.Cause(p))
						}
					})
				}
				asking.Wait()
			})
		})
	}
}
