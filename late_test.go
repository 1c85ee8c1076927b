package semel_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

func memory(t *testing.T, opts *memstore.Options) semel.Store {
	t.Helper()
	store, err := memstore.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestLateMessagesFollowThePolicy(t *testing.T) {
	t.Parallel()
	broken := errors.New("the dead-letter store is closed")
	for name, c := range map[string]struct {
		policy semel.LatePolicy
		parks  error
		want   error
		runs   bool
		parked bool
	}{
		"reject":               {policy: semel.LateReject, want: semel.ErrLate},
		"run":                  {policy: semel.LateRun, runs: true},
		"park":                 {policy: semel.LatePark, parked: true},
		"park, which may fail": {policy: semel.LatePark, parks: broken, want: broken, parked: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var parked, ran bool
			opts := &semel.GuardOptions{OnLate: c.policy, Window: time.Hour}
			if c.policy == semel.LatePark {
				opts.Park = func(_ context.Context, call *semel.Call, reason error) error {
					parked = call.Key.ID == "old" && errors.Is(reason, semel.ErrLate)
					return c.parks
				}
			}
			guard, err := semel.NewGuard(memory(t, nil), opts)
			if err != nil {
				t.Fatal(err)
			}
			call := semel.Call{Key: semel.Key{ID: "old"}, Time: time.Now().Add(-2 * time.Hour)}
			out, err := guard.DoCall(t.Context(), call, func(context.Context, semel.Claim) ([]byte, error) {
				ran = true
				return nil, nil
			})
			if !errors.Is(err, c.want) || ran != c.runs || parked != c.parked {
				t.Errorf("got error %v, ran %t, parked %t; want %v, %t, %t", err, ran, parked, c.want, c.runs, c.parked)
			}
			if want := map[bool]semel.Decision{true: semel.Fresh, false: semel.Late}[c.runs]; out.Decision != want {
				t.Errorf("the decision is %s, want %s", out.Decision, want)
			}
		})
	}
}

func TestGuardRefusesLatePoliciesThatContradict(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*semel.GuardOptions{
		"a policy there is not":    {OnLate: 9},
		"park without a function":  {OnLate: semel.LatePark},
		"a function without park":  {Park: func(context.Context, *semel.Call, error) error { return nil }},
		"a negative result length": {MaxResult: -1},
	} {
		if _, err := semel.NewGuard(memory(t, nil), opts); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%s: got %v, want an ErrInvalidRequest", name, err)
		}
	}
}

func TestGuardRefusesResultsTheStoreCannotKeepBeforeAnyEffect(t *testing.T) {
	t.Parallel()
	store := memory(t, &memstore.Options{MaxResult: 100})
	if _, err := semel.NewGuard(store, &semel.GuardOptions{MaxResult: 101}); !errors.Is(err, semel.ErrResultTooLarge) {
		t.Errorf("results of 101 bytes: got %v, want an ErrResultTooLarge", err)
	}
	if _, err := semel.NewGuard(store, &semel.GuardOptions{MaxResult: 100}); err != nil {
		t.Errorf("results of 100 bytes: %v", err)
	}
}

func TestRequestsNobodyCanAnswerAreRefused(t *testing.T) {
	t.Parallel()
	key := semel.Key{ID: "a"}
	for name, c := range map[string]struct{ got, want error }{
		"claim without lease":      {(&semel.ClaimRequest{Key: key, Window: 1}).Validate(), semel.ErrInvalidRequest},
		"claim without window":     {(&semel.ClaimRequest{Key: key, Lease: 1}).Validate(), semel.ErrInvalidRequest},
		"claim without id":         {(&semel.ClaimRequest{Lease: 1, Window: 1}).Validate(), semel.ErrInvalidKey},
		"claim of a done effect":   {(&semel.ClaimRequest{Key: key, Window: 1, Done: true}).Validate(), nil},
		"complete without window":  {(&semel.CompleteRequest{Key: key}).Validate(0), semel.ErrInvalidRequest},
		"complete with odd result": {(&semel.CompleteRequest{Key: key, Window: 1, Result: semel.Result{Kind: 99}}).Validate(0), semel.ErrInvalidRequest},
		"complete with long result": {(&semel.CompleteRequest{Key: key, Window: 1, Result: semel.Result{
			Kind: semel.Value, Data: make([]byte, 11)}}).Validate(10), semel.ErrResultTooLarge},
		"complete without limit": {(&semel.CompleteRequest{Key: key, Window: 1, Result: semel.Result{Kind: semel.Value, Data: make([]byte, 11)}}).Validate(0), nil},
		"release without id":     {(&semel.ReleaseRequest{}).Validate(), semel.ErrInvalidKey},
		"extend without lease":   {(&semel.ExtendRequest{Key: key}).Validate(), semel.ErrInvalidRequest},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: got %v, want %v", name, c.got, c.want)
		}
	}
}
