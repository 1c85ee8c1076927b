package pipeline_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

func TestClosedPartitionReleasesItsShareOfTheLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.source.endless = true
		r.opts.MaxItems, r.opts.Workers = 2, 1
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			time.Sleep(time.Second)
			return semel.Result{}, nil
		}
		for i := range int64(10) { // one read returns more than may be in progress
			r.add(i, string(rune('a'+i)), "")
		}
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		synctest.Wait()
		if err := r.partition.Close(ctx); err != nil {
			t.Error(err)
		}
		r.partition = pipeline.NewPartition("b")
		r.add(100, "x", "")
		r.add(101, "y", "")
		time.Sleep(time.Minute)
		r.wantAcked(3) // including the one that was being processed
		stop()
		if err := end(); err != nil {
			t.Error(err)
		}
		if r.source.returned != 0 {
			t.Errorf("%d messages of a closed partition were returned", r.source.returned)
		}
	})
}

func TestClosedPartitionReleasesItsClaimsImmediately(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.source.endless = true
		r.opts.Failure.From = time.Hour
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			return semel.Result{}, errors.New("try again")
		}
		r.add(1, "a", "")
		r.add(2, "a", "") // waits behind the first
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		time.Sleep(5 * time.Minute) // many leases
		if a := r.claim("a", time.Second); a.Decision != semel.InFlight {
			t.Errorf("while the message waits for its next attempt: %v, want in flight", a.Decision)
		}
		if err := r.partition.Close(ctx); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if a := r.claim("a", time.Second); a.Decision != semel.Fresh {
			t.Errorf("after its partition was closed: %v, want fresh", a.Decision)
		}
		if n, bytes := r.runner.UnderWay(); n != 0 || bytes != 0 {
			t.Errorf("%d messages of %d bytes are under way", n, bytes)
		}
		stop()
		if err := end(); err != nil {
			t.Error(err)
		}
		r.wantAcked(0)
	})
}

func TestCloseWaitsForItemsThatAreProcessed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.source.endless = true
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			time.Sleep(10 * time.Second)
			return semel.Result{}, nil
		}
		r.add(1, "a", "")
		r.add(2, "b", "")
		r.add(3, "a", "")
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		time.Sleep(time.Second)
		short, cancel := context.WithTimeout(ctx, time.Second)
		if err := r.partition.Close(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("close while two are being processed: %v", err)
		}
		cancel()
		if err := r.partition.Close(ctx); err != nil {
			t.Error(err)
		}
		r.wantAcked(2)
		stop()
		if err := end(); err != nil {
			t.Error(err)
		}
		r.wantAcked(2)
	})
}

// pausing is a source whose partition can be paused.
type pausing struct {
	*listSource
	paused atomic.Bool
	wake   chan struct{}
	calls  atomic.Int32
}

func (p *pausing) Pause(partition *pipeline.Partition, paused bool) {
	if partition.Name() == "parked" {
		panic("a partition of another source")
	}
	p.calls.Add(1)
	p.paused.Store(paused)
	if !paused {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
}

func (p *pausing) Read(ctx context.Context) ([]*pipeline.Item, error) {
	for p.paused.Load() {
		select {
		case <-p.wake:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return p.listSource.Read(ctx)
}

func TestAPausedPartitionIsResumed(t *testing.T) {
	for _, most := range []int{1, 2, 3, 4, 7, 40} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				for i := range int64(100) {
					r.add(i, string(rune('A'+i)), "")
				}
				source := &pausing{listSource: r.source, wake: make(chan struct{}, 1)}
				session, err := pipeline.NewTwoPhase(r.store, pipeline.NewHandler(r.handler), nil)
				if err != nil {
					t.Fatal(err)
				}
				r.opts.MaxItems = most
				runner, err := pipeline.NewRunner(source, session, &r.opts)
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if err := runner.Run(ctx); err != nil {
					t.Error(err)
				}
				r.wantAcked(100)
			})
		})
	}
}
