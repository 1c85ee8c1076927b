package suite

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
)

// sharedBatches claims ids in batches by several concurrent workers, with claims that
// complete in one step. It returns the time that this took.
func sharedBatches(ctx context.Context, store semel.Store, ids *ids, batch, workers int) (time.Duration, error) {
	start := time.Now()
	batches := (ids.count + batch - 1) / batch
	scratch := sync.Pool{New: func() any {
		return &claims{reqs: make([]semel.ClaimRequest, batch), answers: make([]semel.ClaimAnswer, batch)}
	}}
	err := inParallel(workers, batches, func(b int) error {
		c := scratch.Get().(*claims)
		defer scratch.Put(c)
		from := b * batch
		n := min(batch, ids.count-from)
		for i := range n {
			c.reqs[i] = semel.ClaimRequest{Key: semel.Key{ID: ids.at(from + i)}, Owner: semel.Owner{Nonce: uint64(from + i)}, Window: remembered, Done: true}
		}
		clear(c.answers)
		if err := store.Claim(ctx, c.reqs[:n], c.answers[:n]); err != nil {
			return err
		}
		for i := range n {
			if err := wantFresh(c.answers[i].Decision == semel.Fresh, c.answers[i].Err); err != nil {
				return err
			}
		}
		return nil
	})
	return time.Since(start), err
}

type claims struct {
	reqs    []semel.ClaimRequest
	answers []semel.ClaimAnswer
	owned   bool // each has an owner of its own
}

// inParallel calls do for 0 to n-1 by several concurrent workers. It returns the first
// error of each worker.
func inParallel(workers, n int, do func(i int) error) error {
	var next atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, workers)
	for range workers {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				if err := do(int(i)); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(failed)
	var errs []error
	for err := range failed {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
