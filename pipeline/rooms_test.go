package pipeline_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// A beat that is on its way when its batch is complete must not touch the claims
// of the batch that comes next.
func TestALateRenewalAffectsNoLaterClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Workers = 1
		r.store.extend = func(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
			nap(ctx, 8*time.Second) // of the first beat, until 18 s
			for i := range reqs {
				if reqs[i].Key.ID == "a" {
					answers[i].Err = &semel.StaleTokenError{Key: reqs[i].Key, Token: reqs[i].Token}
				}
			}
			return nil
		}
		r.handler = func(ctx context.Context, m pipeline.Delivery) (semel.Result, error) {
			select {
			case <-time.After(map[string]time.Duration{"a": 15 * time.Second, "b": 9 * time.Second}[m.Key.ID]):
			case <-ctx.Done():
			}
			return semel.Result{}, context.Cause(ctx)
		}
		r.add(1, "a", "")
		r.add(2, "b", "")
		r.run()
		r.wantAcked(2)
		if a, b := r.attempts("a"), r.attempts("b"); len(a) != 1 || len(b) != 1 {
			t.Errorf("attempts at a are %v, at b %v, want one each", a, b)
		}
	})
}

// What failed and waits has its claim, whatever became of others in its batch
// and in later ones.
func TestFailedMessageKeepsItsClaimWhileOtherMessagesAreProcessed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Workers, r.opts.Batch = 1, 10
		r.opts.Failure = pipeline.Failure{From: time.Minute}
		seen := map[string][]semel.Token{}
		r.sink = &tryingSink{func(it *pipeline.Item) error {
			id := it.Call.Key.ID
			seen[id] = append(seen[id], it.Token)
			if it.Message.Origin.Offset%7 == 0 && len(seen[id]) == 1 {
				return fmt.Errorf("not now")
			}
			return nil
		}}
		const n = 200
		for i := range int64(n) {
			r.add(i+1, fmt.Sprint("id", i), "")
		}
		r.run()
		r.wantAcked(n)
		var all []semel.Token
		for id, tokens := range seen {
			if len(slices.Compact(tokens)) != 1 {
				t.Errorf("%s was delivered with the tokens %v, want one claim", id, tokens)
			}
			all = append(all, tokens[0])
		}
		slices.Sort(all)
		if len(slices.Compact(all)) != n {
			t.Errorf("%d messages had one token with another", n-len(slices.Compact(all)))
		}
	})
}

// tryingSink delivers one item after the other.
type tryingSink struct {
	try func(*pipeline.Item) error
}

func (s *tryingSink) Deliver(_ context.Context, items []*pipeline.Item) {
	for _, it := range items {
		it.Err = s.try(it)
	}
}
func (*tryingSink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Parallel: 1} }
func (*tryingSink) Close(context.Context) error { return nil }

// total is an observer that counts events and their keys.
type total struct {
	mu            sync.Mutex
	calls, events map[semel.EventKind]int
}

func (o *total) ObservePipeline(pipeline.Event) {}
func (o *total) Observe(e semel.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls[e.Kind]++
	o.events[e.Kind] += max(e.Count, 1)
}

func TestABatchIsObservedInOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, o := newRig(t), &total{calls: map[semel.EventKind]int{}, events: map[semel.EventKind]int{}}
		r.phases.Guard.Observer = o
		r.opts.Workers, r.opts.Batch = 1, 100
		r.sink = &tryingSink{func(*pipeline.Item) error { return nil }}
		for i := range int64(100) {
			r.add(i+1, fmt.Sprint("id", i%90), "")
		}
		r.run()
		r.wantAcked(100)
		if o.events[semel.EventDecided] != 100 && o.events[semel.EventDecided] != 110 || o.events[semel.EventCompleted] != 90 {
			t.Errorf("told of %v", o.events)
		}
		if o.calls[semel.EventCompleted] > 20 || o.calls[semel.EventDecided] > 60 {
			t.Errorf("told %v times", o.calls)
		}
	})
}
