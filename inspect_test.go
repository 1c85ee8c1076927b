package semel_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

func TestGuardLooksUpAndResolvesKeys(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.NewGuard(store, &semel.GuardOptions{OnLeaseExpired: semel.ExpiryHold})
	if err != nil {
		t.Fatal(err)
	}
	key := semel.Key{ID: "a"}
	doubt := func(context.Context, semel.Claim) ([]byte, error) { return nil, semel.ErrOutcomeUnknown }
	if _, err := guard.Do(t.Context(), key, doubt); !errors.Is(err, semel.ErrOutcomeUnknown) {
		t.Fatalf("an effect in doubt: %v", err)
	}
	if r, err := guard.Look(t.Context(), key); err != nil || r.State != semel.Unknown {
		t.Errorf("the record is %s, %v, want unknown", r.State, err)
	}
	if err := guard.Resolve(t.Context(), key, semel.Done, semel.Result{}); err != nil {
		t.Fatal(err)
	}
	if r, err := guard.Look(t.Context(), key); err != nil || r.State != semel.Done || r.Expires.Sub(r.FirstSeen) < semel.DefaultWindow {
		t.Errorf("the record is %+v, %v, want done for the guard's window", r, err)
	}
	if err := guard.Resolve(t.Context(), key, semel.Done, semel.Result{}); !errors.Is(err, semel.ErrNotUnknown) {
		t.Errorf("a done key is resolved again: %v", err)
	}
}

// TestAGuardReportsItsWindowAndTheAgeOfTheOldestRecord: an alert compares the two.
func TestAGuardReportsItsWindowAndTheAgeOfTheOldestRecord(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen semel.Event
		guard := newGuard(t, newStore(t, nil), semel.GuardOptions{Window: 3 * time.Hour, Observer: (*last)(&seen)})
		if _, err := guard.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := guard.MeasureWindow(t.Context()); err != nil {
			t.Fatal(err)
		}
		if seen.Kind != semel.EventWindowMeasured || seen.Window != 3*time.Hour || seen.Elapsed < 59*time.Minute || seen.Elapsed > time.Hour+time.Minute {
			t.Errorf("%+v", seen)
		}
	})
}

// bare is a store without optional interfaces.
type bare struct{ semel.Store }

func TestAGuardReportsMissingAbilitiesOfItsStore(t *testing.T) {
	t.Parallel()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	guard, err := semel.NewGuard(bare{store}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = guard.Look(t.Context(), semel.Key{ID: "a"})
	if !errors.Is(err, errors.ErrUnsupported) || err.Error() != "semel: the store semel_test.bare cannot look keys up: unsupported operation" {
		t.Errorf("look: %v", err)
	}
	if err := guard.Resolve(t.Context(), semel.Key{ID: "a"}, semel.Absent, semel.Result{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("resolve: %v", err)
	}
}

// last is an observer that keeps the newest event.
type last semel.Event

func (l *last) Observe(e semel.Event) { *l = last(e) }
