package pipeline_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// TestAnExhaustedMessageIsParkedWhileTheSinkIsDown has a pipeline that is
// full of messages whose sink is unavailable.
func TestAnExhaustedMessageIsParkedWhileTheSinkIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.source.endless, r.source.exhausted = true, make(chan []*pipeline.Item)
		r.opts.MaxItems = 2
		r.opts.OnMissing, r.opts.Failure.Then = pipeline.MissingDrop, pipeline.Drop
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			return semel.Result{}, pipeline.Unavailable(errors.New("nobody there"), 0)
		}
		for n := range int64(5) {
			r.add(n, string(rune('a'+n)), "g")
		}
		ctx, cancel := context.WithCancel(t.Context())
		end := r.start(ctx)
		time.Sleep(time.Minute)
		limit := errors.New("delivered 4 times, and the server deletes it after 5")
		last := []*pipeline.Item{message(r.partition, 10, "last", "g"), message(r.partition, 11, "x", "")}
		last[1].Message.Body = []byte(`{}`) // no key
		for _, it := range last {
			it.Err, it.Message.Origin.Delivery = limit, 4
		}
		r.source.exhausted <- last
		synctest.Wait()
		r.wantAcked(2)
		r.wantParked(map[string]string{"last": "deliveries", "": "deliveries"})
		if err := r.letters.List(t.Context(), "", func(p *pipeline.Parked) bool {
			if p.Attempts != 4 || !strings.Contains(p.Error, "after 5") {
				t.Errorf("parked with %d attempts and the error %q", p.Attempts, p.Error)
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		// It comes again, because the acknowledgement was lost.
		again := message(r.partition, 10, "last", "g")
		again.Err = limit
		r.source.exhausted <- []*pipeline.Item{again}
		synctest.Wait()
		r.wantParked(map[string]string{"last": "deliveries", "": "deliveries"})
		cancel()
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// TestWithoutADeadLetterStoreEveryDeliveryIsProcessed has policies that park nothing.
func TestWithoutADeadLetterStoreEveryDeliveryIsProcessed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.source.endless, r.source.exhausted = true, make(chan []*pipeline.Item)
		r.opts.DeadLetters, r.opts.OnMissing, r.opts.OnLate, r.opts.OnMismatch = nil, pipeline.MissingDrop, pipeline.Drop, pipeline.Drop
		r.opts.Failure.Then = pipeline.Drop
		ctx, cancel := context.WithCancel(t.Context())
		end := r.start(ctx)
		last := message(r.partition, 10, "last", "g")
		last.Err = errors.New("delivered 4 times")
		r.source.exhausted <- []*pipeline.Item{last}
		synctest.Wait()
		r.wantAcked(1)
		if got := r.attempts("last"); len(got) != 1 {
			t.Errorf("delivered %d times, want once", len(got))
		}
		cancel()
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// TestWithoutADeadLetterStoreExhaustedMessagesWait while nothing is delivered.
func TestWithoutADeadLetterStoreExhaustedMessagesWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.source.endless, r.source.exhausted = true, make(chan []*pipeline.Item)
		r.opts.DeadLetters, r.opts.OnMissing, r.opts.OnLate, r.opts.OnMismatch = nil, pipeline.MissingDrop, pipeline.Drop, pipeline.Drop
		r.opts.Failure.Then, r.opts.MaxItems = pipeline.Drop, 2
		works := make(chan struct{})
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			<-works
			return semel.Result{}, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		end := r.start(ctx)
		for n := range int64(3) {
			last := message(r.partition, n, string(rune('a'+n)), "g")
			last.Err = errors.New("delivered 4 times")
			synctest.Wait()
			select {
			case r.source.exhausted <- []*pipeline.Item{last}:
				if n == 2 {
					t.Error("the pipeline takes more messages than it has room for")
				}
			default:
				if n < 2 {
					t.Errorf("message %d is not read", n)
				}
			}
		}
		close(works)
		synctest.Wait()
		cancel()
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}
