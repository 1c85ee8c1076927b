package oncecmd

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/store/memstore"
)

// mute is a store whose first answers to claims are lost.
type mute struct {
	*memstore.Store
	lose atomic.Int32
}

func (m *mute) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	err := m.Store.Claim(ctx, reqs, answers)
	if m.lose.Add(-1) >= 0 {
		clear(answers)
		return semel.ErrOutcomeUnknown
	}
	return err
}

func newTestCall(t *testing.T, lose int32) (*call, *semel.Guard, *callStore, *memstore.Store) {
	memory, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &mute{Store: memory}
	m.lose.Store(lose)
	store := &callStore{open: func(context.Context) (semel.Store, io.Closer, error) { return m, io.NopCloser(nil), nil }, patience: time.Minute}
	if err := store.begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	guard, err := semel.NewGuard(store, &semel.GuardOptions{Lease: time.Hour, OnLeaseExpired: semel.ExpiryHold})
	if err != nil {
		t.Fatal(err)
	}
	f := &flags{expired: "hold", failed: "release", lease: time.Hour}
	f.App = &term.App{Stdin: nil, Stdout: io.Discard, Stderr: io.Discard}
	f.Patience = time.Minute
	return newCall(f, semel.Key{Scope: "once", ID: "a"}, "a", "/bin/true", []string{"true"}, nil), guard, store, memory
}

// A claim whose answers are lost is given back before the call ends.
func TestAClaimWithoutAnAnswerIsGivenBack(t *testing.T) {
	t.Parallel()
	c, guard, store, memory := newTestCall(t, 3)
	if _, err := c.do(t.Context(), guard, store); !errors.Is(err, semel.ErrOutcomeUnknown) {
		t.Fatalf("the claim was answered: %v", err)
	}
	if _, unreleased := store.last(); unreleased != nil {
		t.Error(unreleased)
	}
	records := make([]semel.Record, 1)
	if err := memory.Look(t.Context(), []semel.Key{c.of}, records); err != nil || records[0].State != semel.Absent {
		t.Errorf("the key is %s, %v", records[0].State, err)
	}
}

// A claim that the store never answers is not forgotten.
func TestAClaimThatStaysOpenIsReported(t *testing.T) {
	t.Parallel()
	c, guard, store, _ := newTestCall(t, 1<<30)
	if _, err := c.do(t.Context(), guard, store); !errors.Is(err, semel.ErrOutcomeUnknown) {
		t.Fatalf("the claim was answered: %v", err)
	}
	if _, unreleased := store.last(); !errors.Is(unreleased, errUnsettled) {
		t.Errorf("the call says that its claim is given back: %v", unreleased)
	}
}

// The patience with the store ends when it has just granted the claim.
func TestNothingStartsWhenTheClaimHasEnded(t *testing.T) {
	t.Parallel()
	c, _, _, _ := newTestCall(t, 0)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errPatience)
	if data, err := c.run(ctx, semel.Claim{Attempt: 1}); data != nil || err == nil || errors.Is(err, context.Canceled) || c.process != nil {
		t.Errorf("%s, %v, %v", data, err, c.process)
	}
}

// Only a key without a result counts as a success.
func TestAResultThatCannotBeReadIsNoSuccess(t *testing.T) {
	t.Parallel()
	written, err := newKept(7, &output{}).encode()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		result semel.Result
		status int
		ok     bool
	}{
		{semel.Result{}, 0, true},
		{semel.Result{Kind: semel.Value, Data: written}, 7, true},
		{semel.Result{Kind: semel.NotKept}, 0, false},
		{semel.Result{Kind: semel.Value, Data: []byte("{}\n")}, 0, false},
		{semel.Result{Kind: semel.Value, Data: []byte("by another program")}, 0, false},
	} {
		if k, ok := readKept(c.result); ok != c.ok || ok && k.Status != c.status {
			t.Errorf("%+v: %+v, %v", c.result, k, ok)
		}
	}
}
