package tiered_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/tiered"
)

// stalling is a cache in front of which the process may stall.
type stalling struct {
	*memstore.Store
	stall func()
}

func (s *stalling) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	s.stall()
	return s.Store.Claim(ctx, reqs, answers)
}

func TestALateCopyOfAnEndedRecordIsRemoved(t *testing.T) {
	for name, result := range map[string]semel.Result{
		"without a result": {},
		"with a result":    {Kind: semel.Value, Data: []byte("paid")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				durable, err := memstore.New(nil)
				if err != nil {
					t.Fatal(err)
				}
				memory, err := memstore.New(nil)
				if err != nil {
					t.Fatal(err)
				}
				cache := &stalling{Store: memory, stall: func() {}}
				stack, err := tiered.New(durable, &tiered.Options{Layers: []tiered.Layer{{Cache: cache}}})
				if err != nil {
					t.Fatal(err)
				}
				key := semel.Key{Scope: "orders", ID: "1"}
				const window = 10 * time.Second
				claim := func(nonce uint64) semel.ClaimAnswer {
					t.Helper()
					var answer [1]semel.ClaimAnswer
					req := semel.ClaimRequest{Key: key, Owner: semel.Owner{Name: "test", Nonce: nonce}, Lease: time.Second, Window: window}
					if err := stack.Claim(t.Context(), []semel.ClaimRequest{req}, answer[:]); err != nil {
						t.Fatal(err)
					}
					return answer[0]
				}
				first := claim(1)
				cache.stall = func() { time.Sleep(window + time.Second) }
				var errs [1]error
				done := semel.CompleteRequest{Key: key, Token: first.Claim.Token, Result: result, Window: window}
				if err := stack.Complete(t.Context(), []semel.CompleteRequest{done}, errs[:]); err != nil || errs[0] != nil {
					t.Fatal(err, errs[0])
				}
				cache.stall = func() {}
				if got := claim(2); got.Decision != semel.Fresh {
					t.Errorf("after the window the key is %v, by a copy that was written late", got.Decision)
				}
			})
		})
	}
}
