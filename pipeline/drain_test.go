package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

func TestDrainFinishesItemsInProgressAndReturnsWaitingOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Workers = 2
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			if m.Key.ID == "fails" {
				return semel.Result{}, errors.New("try again")
			}
			time.Sleep(5 * time.Second)
			return semel.Result{}, nil
		}
		r.opts.Failure.From = time.Hour
		r.add(0, "fails", "") // waits for its next attempt, with its claim
		for i := range int64(9) {
			r.add(i+1, string(rune('a'+i)), "")
		}
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		time.Sleep(time.Second)
		stop()
		began := time.Now()
		if err := end(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("the drain took %v, want what was left of the effects", took)
		}
		r.wantAcked(2)
		if r.source.returned != 8 || !r.source.closed {
			t.Errorf("%d returned, want 8; closed: %t", r.source.returned, r.source.closed)
		}
		if a := r.claim("fails", time.Second); a.Decision != semel.Fresh {
			t.Errorf("the claim of the returned message: %v, want fresh", a.Decision)
		}
	})
}

func TestADrainEndsEffectsWhenShutdownIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Shutdown = 3 * time.Second
		r.handler = func(ctx context.Context, m pipeline.Delivery) (semel.Result, error) {
			<-ctx.Done()
			return semel.Result{}, ctx.Err()
		}
		r.add(1, "a", "")
		r.source.endless = true
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		time.Sleep(time.Second)
		stop()
		began := time.Now()
		if err := end(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the drain took %v", took)
		}
		r.wantAcked(0)
		r.wantParked(nil)
		time.Sleep(2 * time.Millisecond) // the lease has ended; the record is still there
		if a := r.claim("a", time.Second); a.Decision != semel.Fresh || a.Claim.Attempt != 2 {
			t.Errorf("%v, attempt %d: want fresh and 2, as the effect may have happened", a.Decision, a.Claim.Attempt)
		}
	})
}

func TestMessagesWithoutAKeyFollowThePolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for policy, want := range map[pipeline.Missing]struct{ acked, delivered, parked int }{
			pipeline.MissingPark: {3, 1, 2}, pipeline.MissingDrop: {3, 1, 0}, pipeline.MissingPass: {3, 3, 0}, pipeline.MissingHash: {3, 2, 0},
		} {
			r := newRig(t)
			r.opts.OnMissing, r.opts.Fingerprint = policy, true
			r.add(1, "a", "")
			for i := range int64(2) {
				r.add(i+2, "x", "").Message.Body = []byte(`{"n":1}`)
			}
			r.run()
			r.wantAcked(want.acked)
			parked := 0
			if err := r.letters.List(t.Context(), "", func(p *pipeline.Parked) bool {
				if parked++; p.Reason != "key-missing" {
					t.Errorf("parked for %q", p.Reason)
				}
				return true
			}); err != nil {
				t.Fatal(err)
			}
			if len(r.delivered) != want.delivered || parked != want.parked {
				t.Errorf("policy %d: %d delivered and %d parked, want %+v", policy, len(r.delivered), parked, want)
			}
		}
		r := newRig(t)
		r.opts.OnMissing = pipeline.MissingStop
		r.add(1, "x", "").Message.Body = []byte(`{}`)
		if err := r.start(t.Context())(); !errors.Is(err, pipeline.ErrStopped) || stoppedFor(err) != pipeline.ReasonKeyMissing {
			t.Errorf("%v", err)
		}
		r.wantAcked(0)
	})
}

// stoppedFor returns why a pipeline stopped at a message, or "".
func stoppedFor(err error) pipeline.Reason {
	if stopped, ok := errors.AsType[*pipeline.StoppedError](err); ok {
		return stopped.Reason
	}
	return ""
}

func TestLateAndMismatchFollowTheirPolicies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, then := range []pipeline.Then{pipeline.Park, pipeline.Drop, pipeline.Stop} {
			for _, reason := range []string{"late", "mismatch"} {
				r := newRig(t)
				r.opts.EventTime, r.opts.Window, r.opts.Fingerprint = true, time.Hour, true
				r.opts.OnLate, r.opts.OnMismatch = then, then
				r.add(1, "mismatch", "g")
				bad := r.add(2, reason, "g") // with another body
				for _, it := range r.source.todo {
					it.Message.Time = time.Now()
				}
				if reason == "late" {
					bad.Message.Time = time.Now().Add(-61 * time.Minute)
				}
				err := r.start(t.Context())()
				stops := then == pipeline.Stop
				if errors.Is(err, pipeline.ErrStopped) != stops || !stops && err != nil || stops && stoppedFor(err) != pipeline.Reason(reason) {
					t.Errorf("%s, %s: %v", reason, then, err)
				}
				want := map[string]string{}
				if then == pipeline.Park {
					want[reason] = reason
				}
				r.wantParked(want)
				if n := len(r.delivered); n != 1 {
					t.Errorf("%s, %s: %d deliveries", reason, then, n)
				}
				if acked := r.acked(); acked != 2 && then != pipeline.Stop || acked != 1 && then == pipeline.Stop {
					t.Errorf("%s, %s: %d acknowledged", reason, then, acked)
				}
			}
		}
	})
}

func TestMessagesUseNoAttemptsWhileTheSinkIsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Failure.Attempts = 2
		down := true
		calls := 0
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if calls++; down {
				return semel.Result{}, pipeline.Unavailable(errors.New("away"), 0)
			}
			return semel.Result{}, nil
		}
		for i := range int64(50) {
			r.add(i, string(rune('0'+i)), "")
		}
		end := r.start(t.Context())
		time.Sleep(time.Hour)
		r.mu.Lock()
		if calls > 16+300 {
			t.Errorf("%d calls of a sink that was down for an hour", calls)
		}
		down = false
		r.mu.Unlock()
		if err := end(); err != nil {
			t.Error(err)
		}
		r.wantAcked(50)
		r.wantParked(nil)
	})
}

// TestDeliveryResumesSoonAfterTheSinkRecovers: concurrent failures count as one, and do not double the
// pause each.
func TestDeliveryResumesSoonAfterTheSinkRecovers(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			begin := time.Now()
			r.handler = func(ctx context.Context, _ pipeline.Delivery) (semel.Result, error) {
				nap(ctx, time.Millisecond)
				if time.Since(begin) < 500*time.Millisecond {
					return semel.Result{}, pipeline.Unavailable(errors.New("away"), after)
				}
				return semel.Result{}, nil
			}
			for i := range int64(50) {
				r.add(i, string(rune('0'+i)), "")
			}
			r.run()
			r.wantAcked(50)
			if took := time.Since(begin); took > 2*time.Second {
				t.Errorf("the sink was down for half a second, with pauses of %v, and all was done after %v", after, took)
			}
		})
	}
}

// TestMessagesRefusedByAFullSinkUseNoAttempts: a sink takes a few messages and refuses the rest
// for a while. The refused messages are not the cause.
func TestMessagesRefusedByAFullSinkUseNoAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Failure.Attempts = 2
		begin, second, taken := time.Now(), -1, 0
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if now := int(time.Since(begin) / time.Second); now != second {
				second, taken = now, 0
			}
			if taken++; taken > 5 {
				return semel.Result{}, pipeline.Unavailable(errors.New("429"), time.Second)
			}
			return semel.Result{}, nil
		}
		for i := range int64(300) {
			r.add(i, string(rune(1000+i)), "")
		}
		r.run()
		r.wantParked(nil)
		r.wantAcked(300)
		if took := time.Since(begin); took > 2*time.Minute {
			t.Errorf("five messages a second, and 300 took %v", took)
		}
	})
}

// littleRoom takes one line at a time, like a disk that is nearly full.
type littleRoom struct{ err error }

func (littleRoom) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Parallel: 4} }
func (littleRoom) Close(context.Context) error { return nil }
func (l littleRoom) Deliver(_ context.Context, items []*pipeline.Item) {
	if len(items) > 1 {
		full := pipeline.Unavailable(l.err, 0)
		for _, it := range items {
			it.Err = full
		}
	}
}

// TestMessagesUseNoAttemptsWhenTheWholeBatchFails: if the sink refuses a whole batch, no message of
// it is the cause.
func TestMessagesUseNoAttemptsWhenTheWholeBatchFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Failure.Attempts = 1
		r.sink = littleRoom{errors.New("no space left")}
		for i := range int64(100) {
			r.add(i, string(rune(1000+i)), "")
		}
		r.run()
		r.wantParked(nil)
		r.wantAcked(100)
	})
}

// pauses counts the pauses of a pipeline, and how long they took.
type pauses struct {
	times atomic.Int32
	took  atomic.Int64
}

func (p *pauses) Observe(semel.Event) {}

func (p *pauses) ObservePipeline(e pipeline.Event) {
	switch e.Kind {
	case pipeline.EventPaused:
		p.times.Add(1)
	case pipeline.EventResumed:
		p.took.Add(int64(e.Elapsed))
	}
}

// TestAFullDiskKeepsThePipelinePaused: a disk that is nearly full takes one message after
// each pause. An alert must still see that the pipeline is paused.
func TestAFullDiskKeepsThePipelinePaused(t *testing.T) {
	t.Parallel()
	for _, full := range []error{&os.PathError{Op: "write", Path: "/full/out", Err: syscall.ENOSPC}, fmt.Errorf("keys: %w", semel.ErrStoreFull)} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.sink = littleRoom{full}
			seen := &pauses{}
			r.opts.Observer = seen
			for i := range int64(1000) { // many more than there are pauses
				r.add(i, string(rune(1000+i)), "")
			}
			ctx, stop := context.WithCancel(t.Context())
			end := r.start(ctx)
			time.Sleep(10 * time.Minute)
			if n, of := seen.times.Load(), time.Duration(seen.took.Load()); n > 60 || of < 9*time.Minute {
				t.Errorf("in ten minutes with %v it was paused %d times, for %v together", full, n, of)
			}
			stop()
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAMessageThatMakesTheSinkLookDownIsParked(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, time.Second} {
		testLooksDown(t, after)
	}
}

func testLooksDown(t *testing.T, after time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			if m.Key.ID == "poison" {
				return semel.Result{}, pipeline.Unavailable(errors.New("503"), after)
			}
			return semel.Result{}, nil
		}
		r.source.endless = true
		r.add(0, "poison", "")
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		for i := range int64(600) {
			r.add(i+1, string(rune(1000+i)), "")
			time.Sleep(time.Second)
		}
		r.wantParked(map[string]string{"poison": "attempts"})
		r.wantAcked(601)
		stop()
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

func TestRedriveRunsOnlyUnfinishedMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Failure.Then = pipeline.Park
		r.source.endless = true
		bad := true
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			if h, _ := m.Header(pipeline.RedriveHeader); m.Redrive > 0 && string(h) != string(rune('0'+m.Redrive)) {
				t.Errorf("redrive %d has the header %q", m.Redrive, h)
			}
			if bad || m.Key.ID == "never" {
				return semel.Result{}, semel.Permanent(errors.New("bad"))
			}
			return semel.Result{}, nil
		}
		for i, id := range []string{"a", "done meanwhile", "never", "taken out"} {
			r.add(int64(i), id, "")
		}
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		time.Sleep(time.Minute)
		r.wantAcked(4)
		bad = false
		if a := r.claim("done meanwhile", time.Minute); a.Decision != semel.Fresh {
			t.Errorf("the key of the parked message: %v", a.Decision)
		} else if err := r.store.Store.Complete(ctx, []semel.CompleteRequest{{Key: semel.Key{ID: "done meanwhile"}, Token: a.Claim.Token, Window: time.Hour}}, make([]error, 1)); err != nil {
			t.Fatal(err)
		}
		// The source delivers the same messages again, as after a crash between
		// parking and acknowledging.
		r.source.acked = map[int64]int{}
		for i, id := range []string{"a", "never"} {
			r.add(int64(2*i), id, "")
		}
		time.Sleep(time.Minute)
		r.wantAcked(2)
		if n := len(r.delivered); n != 4 {
			t.Errorf("%d deliveries of parked messages, want none", n)
		}
		var ids []string
		if err := r.letters.List(ctx, "", func(p *pipeline.Parked) bool { ids = append(ids, p.ID); return true }); err != nil {
			t.Fatal(err)
		}
		if err := r.letters.Queue(ctx, ids); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		r.wantParked(map[string]string{"never": "permanent"})
		if got := r.attempts("done meanwhile"); len(got) != 1 {
			t.Errorf("the message that an operator marked done was delivered %d times", len(got))
		}
		if got := r.attempts("a"); !slices.Equal(got, []int{1, 1}) {
			t.Errorf("attempts: %v", got)
		}
		stop()
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

func TestRedriveContinuesWhenAParkedMessageDisappears(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		if err := r.letters.Park(t.Context(), []pipeline.Parked{
			{ID: "1", Pipeline: "pipeline", Key: semel.Key{ID: "a"}, Reason: "late"}, {ID: "2", Pipeline: "pipeline", Key: semel.Key{ID: "b"}, Reason: "late"},
		}); err != nil {
			t.Fatal(err)
		}
		if err := r.letters.Queue(t.Context(), []string{"1", "2"}); err != nil {
			t.Fatal(err)
		}
		r.handler = func(ctx context.Context, m pipeline.Delivery) (semel.Result, error) {
			time.Sleep(time.Second)
			return semel.Result{}, r.letters.Settle(ctx, &pipeline.Parked{ID: map[string]string{"a": "1", "b": "2"}[m.Key.ID]}, pipeline.Settlement{How: pipeline.HowSkipped, Actor: "somebody"})
		}
		r.source.endless = true
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		time.Sleep(time.Minute)
		if n, _ := r.runner.UnderWay(); n != 0 {
			t.Errorf("%d messages are stuck", n)
		}
		stop()
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

func TestADrainDoesNotWaitForAStoreThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Shutdown = 4 * time.Second
		r.opts.Failure.From = time.Hour
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			return semel.Result{}, errors.New("try again")
		}
		r.store.release = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		r.add(1, "a", "")
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		time.Sleep(time.Second)
		stop()
		began := time.Now()
		if err := end(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("the drain took %v", took)
		}
		r.wantAcked(0)
	})
}

// noPlace is a parker that can never park some messages.
type noPlace struct{ *pipeline.DeadLetterDir }

func (p noPlace) Park(ctx context.Context, list []pipeline.Parked) error {
	for i := range list {
		if list[i].Key.ID == "large" {
			return semel.Permanent(errors.New("too large"))
		}
	}
	return p.DeadLetterDir.Park(ctx, list)
}

func TestAMessageThatCanNeverBeParkedStopsThePipelineUnacknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.DeadLetters = noPlace{r.letters}
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			if m.Key.ID != "good" {
				return semel.Result{}, semel.Permanent(errors.New("never"))
			}
			return semel.Result{}, nil
		}
		r.add(0, "good", "")
		r.add(1, "large", "")
		end := r.start(t.Context())
		err := end()
		if !errors.Is(err, pipeline.ErrStopped) || !strings.Contains(err.Error(), "stopped at a message that cannot be parked: ") {
			t.Errorf("it ended with %v", err)
		}
		if n, _ := r.letters.Count(t.Context(), ""); n != 0 || r.source.acked[1] != 0 {
			t.Errorf("%d are parked, and the large one is settled %d times", n, r.source.acked[1])
		}
	})
}
