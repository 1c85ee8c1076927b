package engine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestEachEngineFindsDuplicatesInBatchInStoreAndAfterReopening(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"pebble", "badger", "bbolt", "sqlite"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			claim := func(e Engine, want []bool, ids ...string) {
				t.Helper()
				keys := make([][]byte, len(ids))
				for i, id := range ids {
					keys[i] = []byte(id)
				}
				got := make([]bool, len(ids))
				if err := e.Claim(keys, got); err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, want) {
					t.Errorf("claim of %v: fresh %v, want %v", ids, got, want)
				}
				for _, key := range keys {
					clear(key) // an engine must not keep the caller's bytes
				}
			}
			e, err := Open(name, dir)
			if err != nil {
				t.Fatal(err)
			}
			claim(e, []bool{true, true, false}, "a", "b", "a")
			claim(e, []bool{false, true}, "b", "c")
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			if e, err = Open(name, dir); err != nil {
				t.Fatal(err)
			}
			claim(e, []bool{false, false, false, true}, "a", "b", "c", "d")
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestOpenRefusesAnEngineItDoesNotKnow(t *testing.T) {
	t.Parallel()
	if e, err := Open("other", t.TempDir()); err == nil {
		t.Error("opened", e)
	}
}

func TestGroupGivesEachKeyToOneCaller(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	e, err := Open("bbolt", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g := NewGroup(e, 16)
	const callers, ids = 32, 100
	var granted atomic.Int64
	var wg sync.WaitGroup
	for c := range callers {
		order := rand.New(rand.NewPCG(seed, uint64(c))).Perm(ids)
		wg.Go(func() {
			for _, id := range order {
				fresh, err := g.Claim(fmt.Appendf(nil, "%d", id))
				if err != nil {
					t.Error(err)
				}
				if fresh {
					granted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	g.Close()
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if granted.Load() != ids {
		t.Errorf("%d keys were granted, want %d", granted.Load(), ids)
	}
}
