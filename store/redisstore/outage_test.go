package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
)

// nonce makes owners that no other claim has.
var nonce atomic.Uint64

func request(key semel.Key) semel.ClaimRequest {
	return semel.ClaimRequest{
		Key: key, Owner: semel.Owner{Name: "outage", Nonce: nonce.Add(1)},
		Lease: time.Minute, Window: time.Hour,
	}
}

// askFor asks for one key and returns the error of the call or of the key.
func askFor(ctx context.Context, store semel.Store, req semel.ClaimRequest) (semel.ClaimAnswer, error) {
	var answers [1]semel.ClaimAnswer
	err := store.Claim(ctx, []semel.ClaimRequest{req}, answers[:])
	return answers[0], errors.Join(err, answers[0].Err)
}

// finish completes one key and returns the error of the call or of the key.
func finish(ctx context.Context, store semel.Store, key semel.Key, token semel.Token) error {
	var answers [1]error
	err := store.Complete(ctx, []semel.CompleteRequest{{
		Key: key, Token: token, Window: time.Hour, Result: semel.Result{Kind: semel.Value, Data: []byte(key.ID)},
	}}, answers[:])
	return errors.Join(err, answers[0])
}

// lifeOf uses each verb and ability of a store once, and returns the first
// error or wrong answer.
func lifeOf(ctx context.Context, store *Store) error {
	id := fmt.Sprint("life ", nonce.Add(1))
	key, other := semel.Key{Scope: "life", ID: id}, semel.Key{Scope: "life", ID: id + " held"}
	want := func(req semel.ClaimRequest, decision semel.Decision) (semel.ClaimAnswer, error) {
		answer, err := askFor(ctx, store, req)
		if err == nil && answer.Decision != decision {
			err = fmt.Errorf("%s is %v, not %v", req.Key, answer.Decision, decision)
		}
		return answer, err
	}
	released, err := want(request(key), semel.Fresh)
	if err != nil {
		return err
	}
	var failed [1]error
	if err := store.Release(ctx, []semel.ReleaseRequest{{Key: key, Token: released.Claim.Token}}, failed[:]); errors.Join(err, failed[0]) != nil {
		return errors.Join(err, failed[0])
	}
	held, err := want(request(key), semel.Fresh)
	if err != nil {
		return err
	}
	var extended [1]semel.ExtendAnswer
	if err := store.Extend(ctx, []semel.ExtendRequest{{Key: key, Token: held.Claim.Token, Lease: time.Minute}}, extended[:]); errors.Join(err, extended[0].Err) != nil {
		return errors.Join(err, extended[0].Err)
	}
	if err := finish(ctx, store, key, held.Claim.Token); err != nil {
		return err
	}
	if _, err := want(request(key), semel.Duplicate); err != nil {
		return err
	}
	done := request(semel.Key{Scope: "life", ID: id + " done"})
	done.Done = true
	if store.opts.Compact != nil {
		done.Window = store.opts.Compact.Window
	}
	if _, err := want(done, semel.Fresh); err != nil {
		return err
	}
	doubtful, err := want(request(other), semel.Fresh)
	if err != nil {
		return err
	}
	if err := store.Release(ctx, []semel.ReleaseRequest{{Key: other, Token: doubtful.Claim.Token, Unknown: true}}, failed[:]); errors.Join(err, failed[0]) != nil {
		return errors.Join(err, failed[0])
	}
	if err := store.Resolve(ctx, other, semel.Done, semel.Result{}, time.Hour); err != nil {
		return err
	}
	for record, err := range store.List(ctx, semel.Filter{}) {
		if err != nil {
			return err
		}
		if record.State == semel.Absent {
			return fmt.Errorf("listed as absent: %+v", record)
		}
	}
	if _, err := store.Count(ctx); err != nil {
		return err
	}
	for _, k := range []semel.Key{key, other, done.Key} {
		if removed, err := store.Remove(ctx, k); err != nil || !removed {
			return fmt.Errorf("removing %s: %t, %w", k, removed, err)
		}
	}
	return store.Audit(ctx, []byte(strings.Repeat("x", 10)))
}
