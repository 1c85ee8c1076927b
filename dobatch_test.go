package semel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
)

func TestBatchDecidesEachCallSeparately(t *testing.T) {
	store := newStore(t, nil)
	g := newGuard(t, store, semel.GuardOptions{})
	key := func(id string) semel.Key { return semel.Key{Scope: "orders", ID: id} }
	var j journal
	if _, err := g.Do(t.Context(), key("seen"), j.effect("before")); err != nil {
		t.Fatal(err)
	}
	answers := make([]semel.ClaimAnswer, 1)
	elsewhere := semel.ClaimRequest{Key: key("elsewhere"), Owner: semel.Owner{Name: "other", Nonce: 1}, Lease: semel.DefaultLease, Window: semel.DefaultWindow}
	if err := store.Claim(t.Context(), []semel.ClaimRequest{elsewhere}, answers); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	calls := []semel.Call{
		{Key: key("seen")}, {Key: key("new")}, {Key: key("elsewhere")}, {Key: semel.Key{}},
		{Key: key("fails")}, {Key: key("fails permanently")}, {Key: key("new")}, {Key: key("fails")},
	}
	var rounds [][]int
	got := g.DoBatch(t.Context(), calls, func(_ context.Context, fresh []*semel.BatchItem) error {
		var round []int
		for _, item := range fresh {
			round = append(round, item.Index)
			switch item.Call.Key.ID {
			case "fails":
				item.Err = broken
			case "fails permanently":
				item.Err = semel.Permanent(broken)
			default:
				item.Data = []byte("done " + item.Call.Key.ID)
			}
		}
		rounds = append(rounds, round)
		return nil
	})
	if want := "[[1 4 5] [7]]"; fmt.Sprint(rounds) != want {
		t.Errorf("the effect saw %v, want %s", rounds, want)
	}
	want := []struct {
		decision semel.Decision
		data     string
		err      error
	}{
		{semel.Duplicate, "before", nil},
		{semel.Fresh, "done new", nil},
		{semel.InFlight, "", semel.ErrInFlight},
		{semel.Undecided, "", semel.ErrInvalidKey},
		{semel.Undecided, "", broken},
		{semel.Fresh, "broken", broken},
		{semel.Duplicate, "done new", nil},
		{semel.Undecided, "", broken},
	}
	for i, w := range want {
		g := got[i]
		if g.Decision != w.decision || string(g.Result.Data) != w.data || !errors.Is(g.Err, w.err) {
			t.Errorf("call %d (%s): got %v %q %v, want %v %q %v", i, calls[i].Key.ID, g.Decision, g.Result.Data, g.Err, w.decision, w.data, w.err)
		}
	}
	for id, state := range map[string]semel.State{"new": semel.Done, "fails": semel.Absent, "fails permanently": semel.Done, "elsewhere": semel.Claimed} {
		if got := look(t, store, key(id)).State; got != state {
			t.Errorf("%s is %v, want %v", id, got, state)
		}
	}
}

func TestErrorOfTheWholeBatchReleasesItsKeys(t *testing.T) {
	store := newStore(t, nil)
	g := newGuard(t, store, semel.GuardOptions{})
	broken := errors.New("broken")
	got := g.DoBatch(t.Context(), []semel.Call{{Key: orderKey}}, func(context.Context, []*semel.BatchItem) error { return broken })
	if !errors.Is(got[0].Err, broken) {
		t.Errorf("got %v", got[0].Err)
	}
	if state := look(t, store, orderKey).State; state != semel.Absent {
		t.Errorf("the record is %v", state)
	}
}

func TestBatchResultsAreReplayedUnchanged(t *testing.T) {
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
	calls := []semel.Call{{Key: semel.Key{ID: "text"}}, {Key: semel.Key{ID: "empty"}}, {Key: semel.Key{ID: "none"}}}
	results := [][]byte{[]byte("receipt"), {}, nil}
	for range 2 {
		for i, out := range g.DoBatch(t.Context(), calls, func(_ context.Context, fresh []*semel.BatchItem) error {
			for _, item := range fresh {
				item.Data = results[item.Index]
			}
			return nil
		}) {
			if out.Err != nil || string(out.Result.Data) != string(results[i]) || (out.Result.Kind == semel.NoResult) != (results[i] == nil) {
				t.Errorf("%s: %s %v %q, %v", calls[i].Key.ID, out.Decision, out.Result.Kind, out.Result.Data, out.Err)
			}
		}
	}
}

// TestABatchFuncMaySortItsItems has an effect sort its items, for example to lock rows in one order.
func TestABatchFuncMaySortItsItems(t *testing.T) {
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
	calls := []semel.Call{{Key: semel.Key{ID: "z"}}, {Key: semel.Key{ID: "a"}}}
	outs := g.DoBatch(t.Context(), calls, func(_ context.Context, items []*semel.BatchItem) error {
		slices.SortFunc(items, func(x, y *semel.BatchItem) int { return strings.Compare(x.Call.Key.ID, y.Call.Key.ID) })
		for _, it := range items {
			if it.Call.Key.ID == "z" {
				it.Err = errors.New("z failed")
			}
		}
		return nil
	})
	for i, o := range outs {
		t.Logf("%s: %v %v", calls[i].Key.ID, o.Decision, o.Err)
	}
	if outs[0].Err == nil || outs[1].Err != nil {
		t.Errorf("outcomes are swapped: z: %v, a: %v", outs[0].Err, outs[1].Err)
	}
	ran := false
	out, err := g.Do(t.Context(), calls[0].Key, func(context.Context, semel.Claim) ([]byte, error) { ran = true; return nil, nil })
	if !ran {
		t.Errorf("LOST: z is %v (%v) without an effect", out.Decision, err)
	}
	ran = false
	_, _ = g.Do(t.Context(), calls[1].Key, func(context.Context, semel.Claim) ([]byte, error) { ran = true; return nil, nil })
	if ran {
		t.Errorf("TWICE: a")
	}
}
