package file_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
)

// TestASessionDoesNotWaitForAWaitingClaim: a worker may be long in coming for
// what it has begun, and others may not wait for it.
func TestASessionDoesNotWaitForAWaitingClaim(t *testing.T) {
	t.Parallel()
	s := openSession(t, openStore(t), filepath.Join(t.TempDir(), "out"), nil)
	first := s.Begin(t.Context(), itemsOf("a", "b"), nil)
	items := itemsOf("c")
	second := s.Begin(t.Context(), items, nil)
	landed := make(chan struct{})
	go func() { second.Wait(); close(landed) }()
	select {
	case <-landed:
	case <-time.After(time.Minute):
		t.Error("the second batch waits until a caller waits for the first")
	}
	first.Wait()
	<-landed
	if items[0].Err != nil || items[0].Decision != semel.Fresh {
		t.Errorf("%v, %v", items[0].Decision, items[0].Err)
	}
}

func TestSessionStopsAtThePartWithAKeyInFlight(t *testing.T) {
	t.Parallel()
	store, path := openStore(t), filepath.Join(t.TempDir(), "out")
	s := openSession(t, store, path, file.InParts(file.SessionOptions{}, 1))
	hold(t, store, "held")
	items := itemsOf("before", "held", "behind", "far behind")
	process(t, s, items)
	var flight *semel.InFlightError
	if items[0].Err != nil || !errors.As(items[1].Err, &flight) || !errors.Is(items[2].Err, pipeline.ErrBehind) || !errors.Is(items[3].Err, pipeline.ErrBehind) {
		t.Errorf("errors %v, %v, %v, %v", items[0].Err, items[1].Err, items[2].Err, items[3].Err)
	}
	if items[3].Decision != semel.Undecided {
		t.Errorf("what is far behind is %v", items[3].Decision)
	}
	closeSession(t, s)
	if got := contentOf(t, path); got != "before\n" {
		t.Errorf("got %q", got)
	}
}

// hold claims a key as another would, and returns the request that gives it back.
func hold(t *testing.T, store *logstore.Store, id string) semel.ReleaseRequest {
	t.Helper()
	reqs := []semel.ClaimRequest{{Key: semel.Key{ID: id}, Owner: semel.Owner{Name: "other", Nonce: 1}, Lease: time.Hour, Window: time.Hour}}
	answers := make([]semel.ClaimAnswer, 1)
	if err := store.Claim(t.Context(), reqs, answers); err != nil || answers[0].Decision != semel.Fresh {
		t.Fatal(answers[0], err)
	}
	return semel.ReleaseRequest{Key: reqs[0].Key, Token: answers[0].Claim.Token}
}

// Keys that others hold take units back, with parts of batches of other partitions in
// them. What is behind such a part must not be written before it.
func TestSessionKeepsTheOrderWhenUnitsAreRolledBack(t *testing.T) {
	t.Parallel()
	const partitions, each = 4, 400
	random := newRandom(t)
	store, path := openStore(t), filepath.Join(t.TempDir(), "out")
	s := openSession(t, store, path, file.InParts(file.SessionOptions{}, 2))
	var running sync.WaitGroup
	for partition := range partitions {
		ids := make([]string, each)
		held := map[string]semel.ReleaseRequest{}
		for i := range ids {
			ids[i] = fmt.Sprintf("partition %d line %d", partition, i)
			if random.IntN(20) == 0 {
				held[ids[i]] = hold(t, store, ids[i])
			}
		}
		random := rand.New(rand.NewPCG(random.Uint64(), 0))
		running.Go(func() {
			for left := itemsOf(ids...); len(left) > 0; {
				batch := slices.Clone(left[:min(len(left), 1+random.IntN(20))])
				s.Process(t.Context(), batch)
				left = slices.DeleteFunc(left, func(it *pipeline.Item) bool {
					return it.Err == nil && it.Decision != semel.Undecided && slices.Contains(batch, it)
				})
				for _, it := range batch {
					var flight *semel.InFlightError
					if !errors.As(it.Err, &flight) {
						continue
					}
					errs := make([]error, 1)
					if err := errors.Join(store.Release(t.Context(), []semel.ReleaseRequest{held[it.Call.Key.ID]}, errs), errs[0]); err != nil {
						t.Errorf("release %s: %v", it.Call.Key, err)
						return
					}
				}
			}
		})
	}
	running.Wait()
	closeSession(t, s)
	var next [partitions]int
	for line := range bytes.Lines([]byte(contentOf(t, path))) {
		var partition, n int
		if _, err := fmt.Sscanf(strings.TrimSpace(string(line)), "partition %d line %d", &partition, &n); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if n != next[partition] {
			t.Fatalf("partition %d has line %d where %d belongs", partition, n, next[partition])
		}
		next[partition]++
	}
	if next != [partitions]int{each, each, each, each} {
		t.Errorf("lines of the partitions: %v", next)
	}
}
