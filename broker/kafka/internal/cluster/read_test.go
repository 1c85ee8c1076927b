package cluster

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
)

func TestEachCallsAllAndReturnsAllErrors(t *testing.T) {
	t.Parallel()
	var now, most, calls atomic.Int64
	odd := errors.New("odd")
	err := Each([]int{1, 2, 3, 4, 5, 6, 7, 8, 9}, func(n int) error {
		if running := now.Add(1); running > most.Load() {
			most.Store(running)
		}
		defer now.Add(-1)
		calls.Add(int64(n))
		runtime.Gosched()
		if n == 3 || n == 8 {
			return fmt.Errorf("%d: %w", n, odd)
		}
		return nil
	})
	if !errors.Is(err, odd) || err.Error() != "3: odd\n8: odd" || calls.Load() != 45 || now.Load() != 0 || most.Load() > int64(runtime.GOMAXPROCS(0)) {
		t.Errorf("%v, sum of calls %d, at most %d together", err, calls.Load(), most.Load())
	}
	if err := Each(nil, func(int) error { return odd }); err != nil {
		t.Error(err)
	}
}
