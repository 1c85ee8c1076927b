package coarse

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/semel-dev/semel"
)

func TestDuplicatesDifferByTheirValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, then string
		want        bool
	}{
		{`{"a":1,"b":2}`, `{"a":1,"b":2}`, false},
		{`{"a":1,"b":2}`, `{ "b": 2, "a": 1 }`, false},
		{`{"a":1}`, `{"a":2}`, true},
		{`{"a":1}`, `{"a":"1"}`, true},
		{`{"a":1}`, `{"a":1,"b":null}`, true},
		{`text`, `text`, false},
		{`text`, `text `, true},
		{`{"a":1}`, `{"a":`, true},
		{``, `{}`, true},
	} {
		for _, fresh := range []bool{true, false} { // the message that took effect may be unknown
			w := New()
			hash := w.Hash(semel.Key{Scope: "s", ID: "k"})
			if fresh {
				w.Fresh(hash, []byte(c.first))
			} else if w.Differs(hash, []byte(c.first)) {
				t.Errorf("%s differs from nothing", c.first)
			}
			for range 2 {
				if got := w.Differs(hash, []byte(c.then)); got != c.want {
					t.Errorf("%s after %s, fresh %t: differs %t", c.then, c.first, fresh, got)
				}
			}
			if w.Differs(hash, []byte(c.first)) {
				t.Errorf("%s differs from itself after %s", c.first, c.then)
			}
			w.Fresh(hash, []byte(c.then)) // its window was over
			if w.Differs(hash, []byte(c.then)) {
				t.Errorf("%s differs from itself", c.then)
			}
		}
	}
}

func TestScopeIsPartOfTheKeyHash(t *testing.T) {
	t.Parallel()
	w := New()
	seen := map[uint64]bool{}
	for _, k := range []semel.Key{{Scope: "a", ID: "b"}, {Scope: "ab"}, {ID: "ab"}, {Scope: "b", ID: "a"}} {
		seen[w.Hash(k)] = true
	}
	if len(seen) != 4 {
		t.Errorf("%d hashes", len(seen))
	}
}

// TestDifferingDuplicatesAreEstimatedFromASampleOfKeys counts differing duplicates exactly among few keys, and among many
// in proportion to the sample, long after their first messages.
func TestDifferingDuplicatesAreEstimatedFromASampleOfKeys(t *testing.T) {
	t.Parallel()
	for _, keys := range []int{100, 1000, 20_000} {
		w := New()
		w.most = 1000
		random := rand.New(rand.NewPCG(1, 2))
		hashes := make([]uint64, keys)
		for i := range hashes {
			hashes[i] = random.Uint64()
			w.Fresh(hashes[i], fmt.Appendf(nil, `{"n":%d}`, i))
		}
		found := 0
		for i, hash := range hashes {
			if w.Differs(hash, fmt.Appendf(nil, `{ "n": %d }`, i)) {
				t.Fatal("a duplicate with the same value differs")
			}
			if w.Differs(hash, fmt.Appendf(nil, `{"n":-%d}`, i+1)) {
				found++
			}
		}
		if want := min(keys, 1000); found != want || len(w.known) != want || len(w.hashes) != want {
			t.Errorf("%d keys: %d differ, %d are known", keys, found, len(w.known))
		}
	}
}

// TestManyDifferingDuplicatesAreComparedByTheirBytes: comparing bytes is faster.
func TestManyDifferingDuplicatesAreComparedByTheirBytes(t *testing.T) {
	t.Parallel()
	w := New()
	w.Fresh(1, []byte(`{"n":0}`))
	for i := range 2000 {
		if !w.Differs(1, fmt.Appendf(nil, `{"n":%d}`, i+1)) {
			t.Fatalf("duplicate %d does not differ", i)
		}
	}
	if w.Differs(1, []byte(`{"n":0}`)) {
		t.Error("the same message differs")
	}
}

func BenchmarkWatch(b *testing.B) {
	body := []byte(`{"event_id":"evt_01HX7Z3C","type":"order.placed","order_id":1002,"customer":"c-08","amount":"21.00","currency":"EUR"}`)
	for name, keys := range map[string]uint64{"few keys": 1000, "many keys": 10_000_000} {
		b.Run(name, func(b *testing.B) {
			w, random := New(), rand.New(rand.NewPCG(1, 2))
			step := ^uint64(0) / keys
			for range 10_000 { // the sample is there
				w.Fresh(random.Uint64N(keys)*step, body)
			}
			for b.Loop() {
				w.Differs(random.Uint64N(keys)*step, body)
			}
		})
	}
}
