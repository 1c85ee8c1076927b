package suite

import (
	"io"
	"testing"

	"github.com/semel-dev/semel/store/memstore"
)

func TestKeysOfGrowthDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]int{}
	for i := range 100_000 {
		for _, number := range []int{i, grownNew(10_000_000) + i} {
			id := string(grownID(nil, number))
			if other, known := seen[id]; known || len(id) != 16 {
				t.Fatalf("keys %d and %d are %q", number, other, id)
			}
			seen[id] = number
		}
	}
}

func TestGrowthIsRefusedIfAnAnswerIsWrong(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	const keys = 5000
	if rate, err := fillNumbers(t.Context(), store, 0, keys, keys/10, 64, 2); err != nil || rate <= 0 {
		t.Fatal(rate, err)
	}
	if late, err := lateNumber(t.Context(), store, keys); err != nil || late <= 0 {
		t.Error(late, err)
	}
	for _, cold := range []bool{false, true} {
		if err := answersNumbers(t.Context(), store, keys, cold); err != nil {
			t.Error(err)
		}
	}
	if _, err := fillNumbers(t.Context(), store, keys-1, keys+10, 1, 64, 1); err == nil {
		t.Error("a known key was taken for a new one")
	}
	empty, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	if answersNumbers(t.Context(), empty, keys, false) == nil {
		t.Error("forgotten keys were not noticed")
	}
}

func TestGrowthOfAnUnknownStoreIsRefused(t *testing.T) {
	t.Parallel()
	r := Runner{Env: Env{Root: t.TempDir(), Quick: true}, Log: io.Discard}
	if err := r.Grow(t.Context(), "other", 0); err == nil {
		t.Error("no error")
	}
}

func TestDuplicatesOfACostAreThoseOfEarlierMessages(t *testing.T) {
	t.Parallel()
	e := Env{Root: t.TempDir(), Quick: true}
	for _, s := range e.costScenarios() {
		if s.from == "file" || s.from == "outbox" {
			continue
		}
		m := newCostMessages(&s)
		seen := map[string]string{}
		const n = 3000
		for i := range n {
			id, text := m.text(i)
			if before, known := seen[string(id)]; known && before != string(text) || known != (m.source(i) != i) {
				t.Fatalf("%s: message %d is %s, known: %v", s.name, i, text, known)
			}
			if seen[string(id)] = string(text); len(text) != costBytes {
				t.Fatalf("%s: message %d has %d bytes: %s", s.name, i, len(text), text)
			}
		}
		if len(seen) != m.distinct(n) {
			t.Errorf("%s: %d ids, want %d", s.name, len(seen), m.distinct(n))
		}
	}
}
