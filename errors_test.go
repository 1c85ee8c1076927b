package semel_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func TestClassifyNeverReadsDoubtAsFailure(t *testing.T) {
	for _, c := range []struct {
		err  error
		want semel.Class
	}{
		{nil, semel.ClassNone},
		{errors.New("never heard of it"), semel.ClassUnknown},
		{context.DeadlineExceeded, semel.ClassUnknown},
		{fmt.Errorf("x: %w", semel.ErrStoreUnavailable), semel.ClassRetryable},
		// Both errors: the unknown outcome wins.
		{fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, semel.ErrStoreUnavailable), semel.ClassUnknown},
		{&semel.StaleTokenError{}, semel.ClassPermanent},
		{&semel.InFlightError{}, semel.ClassRetryable},
		{semel.Permanent(errors.New("no")), semel.ClassPermanent},
		{semel.ErrStoreFailed, semel.ClassUnknown},
	} {
		if got := semel.Classify(c.err); got != c.want {
			t.Errorf("%v is %v, want %v", c.err, got, c.want)
		}
	}
	if semel.Permanent(nil) != nil {
		t.Error("no error became a permanent one")
	}
}

func TestOnlyACompleteEffectMayBeAcknowledged(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, true},
		{fmt.Errorf("x: %w", semel.ErrResultNotKept), true},
		{fmt.Errorf("x: %w", semel.Permanent(errors.New("no"))), true},
		{&semel.PermanentError{Err: errors.New("no"), Replayed: true}, true},
		{errors.New("never heard of it"), false},
		{semel.ErrOutcomeUnknown, false},
		{fmt.Errorf("%w: %w", semel.ErrLeaseLost, &semel.StaleTokenError{}), false},
		{&semel.InFlightError{}, false},
		{semel.ErrMismatch, false},
		{semel.ErrLate, false},
		{semel.ErrInvalidKey, false},
		{semel.ErrResultTooLarge, false},
		{semel.ErrStoreFull, false},
		{context.Canceled, false},
	} {
		if got := semel.MayAck(c.err); got != c.want {
			t.Errorf("MayAck(%v) is %t", c.err, got)
		}
	}
}

// TestUnkeptResultOfAnotherKeyDoesNotAcknowledgeTheMessage: an effect that fails with the
// ErrResultNotKept of another key is not complete itself.
func TestUnkeptResultOfAnotherKeyDoesNotAcknowledgeTheMessage(t *testing.T) {
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
	inner := fmt.Errorf("inner: %w", semel.ErrResultNotKept)
	_, err := g.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) { return nil, inner })
	if semel.MayAck(err) || err == nil || err.Error() != inner.Error() {
		t.Errorf("Do: %v", err)
	}
	for _, out := range g.DoBatch(t.Context(), []semel.Call{{Key: orderKey}}, func(context.Context, []*semel.BatchItem) error { return inner }) {
		if semel.MayAck(out.Err) || out.Err == nil {
			t.Errorf("DoBatch: %v", out.Err)
		}
	}
	if out, err := g.Do(t.Context(), orderKey, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil }); err != nil || out.Decision != semel.Fresh {
		t.Errorf("the next delivery: %v, %v", out.Decision, err)
	}
}

func TestErrorSaysThatTheHolderHasNoName(t *testing.T) {
	for _, err := range []error{&semel.InFlightError{Key: orderKey}, &semel.InFlightError{Key: orderKey, LeaseEnd: time.Unix(0, 0)}} {
		if text := err.Error(); !strings.Contains(text, "held by a holder without a name") {
			t.Errorf("the message is %q", text)
		}
	}
	g := newGuard(t, newStore(t, nil), semel.GuardOptions{})
	_, err := g.Settle(t.Context(), &semel.Call{Key: orderKey}, &semel.ClaimAnswer{Decision: semel.OutcomeUnknown}, 0)
	if text := err.Error(); !strings.Contains(text, "last held by a holder without a name") {
		t.Errorf("the message is %q", text)
	}
}

func TestKeysAreValidatedByLengthAlone(t *testing.T) {
	long := string(make([]byte, semel.MaxKeyBytes))
	for _, c := range []struct {
		key semel.Key
		ok  bool
	}{
		{semel.Key{ID: "a"}, true},
		{semel.Key{ID: "\x00\xff", Scope: "\x00"}, true},
		{semel.Key{ID: long, Scope: long}, true},
		{semel.Key{Scope: "a"}, false},
		{semel.Key{ID: long + "x"}, false},
		{semel.Key{ID: "a", Scope: long + "x"}, false},
	} {
		if err := c.key.Validate(); (err == nil) != c.ok || err != nil && !errors.Is(err, semel.ErrInvalidKey) {
			t.Errorf("%.20v: %v", c.key, err)
		}
	}
}
