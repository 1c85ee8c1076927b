package pipeline_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// rig is a pipeline for a test in a bubble. A test may replace its parts before the
// start.
type rig struct {
	t         *testing.T
	source    *listSource
	partition *pipeline.Partition
	store     *flaky
	letters   *pipeline.DeadLetterDir
	opts      pipeline.Options
	phases    pipeline.TwoPhaseOptions
	handler   pipeline.Handler
	sink      pipeline.Sink                        // instead of handler
	session   func(pipeline.Sink) pipeline.Session // instead of TwoPhase
	runner    *pipeline.Runner

	mu        sync.Mutex
	delivered []pipeline.Delivery
}

func newRig(t *testing.T) *rig {
	letters, err := pipeline.OpenDeadLetterDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, source: newListSource(), partition: pipeline.NewPartition("a"), store: &flaky{Store: newStore(t)}, letters: letters}
	r.opts = pipeline.Options{Key: rule(t), DeadLetters: letters}
	r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) { return semel.Result{}, nil }
	return r
}

// add appends a message to those of the source.
func (r *rig) add(offset int64, id, group string) *pipeline.Item {
	it := message(r.partition, offset, id, group)
	r.put(it)
	return it
}

// put appends an item to those of the source.
func (r *rig) put(it *pipeline.Item) {
	r.source.mu.Lock()
	r.source.todo = append(r.source.todo, it)
	r.source.mu.Unlock()
	select {
	case r.source.more <- struct{}{}:
	default:
	}
}

// start runs the pipeline. end waits for it and returns its error.
func (r *rig) start(ctx context.Context) (end func() error) {
	r.t.Helper()
	sink := r.sink
	if sink == nil {
		sink = pipeline.NewHandler(func(ctx context.Context, m pipeline.Delivery) (semel.Result, error) {
			r.mu.Lock()
			r.delivered = append(r.delivered, m)
			r.mu.Unlock()
			return r.handler(ctx, m)
		})

	}
	var session pipeline.Session
	var err error
	if r.session != nil {
		session = r.session(sink)
	} else if session, err = pipeline.NewTwoPhase(r.store, sink, &r.phases); err != nil {
		r.t.Fatal(err)
	}
	if r.runner, err = pipeline.NewRunner(r.source, session, &r.opts); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- r.runner.Run(ctx) }()
	return func() error { return <-ended }
}

// run runs the pipeline until its source has no more.
func (r *rig) run() {
	r.t.Helper()
	if err := r.start(r.t.Context())(); err != nil {
		r.t.Error(err)
	}
}

// attempts returns the attempt numbers of the deliveries of an id.
func (r *rig) attempts(id string) (list []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.delivered {
		if m.Key.ID == id {
			list = append(list, m.Attempt)
		}
	}
	return list
}

func (r *rig) acked() int {
	r.source.mu.Lock()
	defer r.source.mu.Unlock()
	return len(r.source.acked)
}

func (r *rig) wantAcked(n int) {
	r.t.Helper()
	if got := r.acked(); got != n {
		r.t.Errorf("%d messages are acknowledged, want %d", got, n)
	}
}

// parked returns the reasons of the parked messages, by id.
func (r *rig) parked() map[string]string {
	r.t.Helper()
	reasons := map[string]string{}
	if err := r.letters.List(context.Background(), "", func(p *pipeline.Parked) bool {
		reasons[p.Key.ID] = string(p.Reason)
		return true
	}); err != nil {
		r.t.Fatal(err)
	}
	return reasons
}

func (r *rig) wantParked(want map[string]string) {
	r.t.Helper()
	got := r.parked()
	for id, reason := range want {
		if got[id] != reason {
			r.t.Errorf("%s is parked for %q, want %q", id, got[id], reason)
		}
	}
	if len(got) != len(want) {
		r.t.Errorf("parked: %v, want %v", got, want)
	}
}

// claim claims a key like another process.
func (r *rig) claim(id string, lease time.Duration) semel.ClaimAnswer {
	r.t.Helper()
	req := []semel.ClaimRequest{{Key: semel.Key{ID: id}, Owner: semel.Owner{Name: "another"}, Lease: lease, Window: time.Hour}}
	answer := make([]semel.ClaimAnswer, 1)
	if err := r.store.Store.Claim(r.t.Context(), req, answer); err != nil {
		r.t.Fatal(err)
	}
	return answer[0]
}

// flaky is a store whose calls a test may replace.
type flaky struct {
	semel.Store
	mu       sync.Mutex
	claim    func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error
	complete func(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error
	extend   func(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error
	release  func(ctx context.Context) error
}

func (f *flaky) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	f.mu.Lock()
	fn := f.release
	f.mu.Unlock()
	if fn != nil {
		return fn(ctx)
	}
	return f.Store.Release(ctx, reqs, answers)
}

func (f *flaky) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	f.mu.Lock()
	fn := f.claim
	f.mu.Unlock()
	if fn != nil {
		return fn(ctx, reqs, answers)
	}
	return f.Store.Claim(ctx, reqs, answers)
}

func (f *flaky) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	f.mu.Lock()
	fn := f.complete
	f.mu.Unlock()
	if fn != nil {
		return fn(ctx, reqs, answers)
	}
	return f.Store.Complete(ctx, reqs, answers)
}

func (f *flaky) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	f.mu.Lock()
	fn := f.extend
	f.mu.Unlock()
	if fn != nil {
		return fn(ctx, reqs, answers)
	}
	return f.Store.Extend(ctx, reqs, answers)
}

// heal passes all calls to the store.
func (f *flaky) heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.claim, f.complete, f.extend = nil, nil, nil
}
