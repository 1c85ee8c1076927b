package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// nonce makes owners unique.
var nonce atomic.Uint64

func request(key semel.Key) semel.ClaimRequest {
	return semel.ClaimRequest{
		Key: key, Owner: semel.Owner{Name: "outage", Nonce: nonce.Add(1)},
		Lease: time.Minute, Window: time.Hour,
	}
}

// askFor claims one key and returns the error of the call or of the key.
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

// lifeOf calls each method of a store once, and returns the first error or
// wrong answer.
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
	if err := store.Resolve(ctx, semel.ResolveRequest{Key: other, As: semel.Done, Window: time.Hour}); err != nil {
		return err
	}
	for record, err := range store.List(ctx, semel.ListOptions{}) {
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

// outage is a server with a store, for tests that disturb the server.
type outage struct {
	t      *testing.T
	server *services.Server
	client *Client
	store  *Store
}

func newOutage(t *testing.T, connecting *ClientOptions, args ...string) *outage {
	t.Helper()
	server := servicestest.StartRedis(t, &services.RedisOptions{Args: args})
	client := connect(t, server.URL(), connecting)
	store, err := New(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &outage{t, server, client, store}
}

// errorsOf returns how often a server has answered with an error of this kind,
// which proves that a fault happened.
func errorsOf(t testing.TB, addr, kind string) int {
	t.Helper()
	info := fields(do(t, addr, "INFO", "errorstats").(string))
	n, err := strconv.Atoi(after(info["errorstat_"+kind], "count="))
	if err != nil {
		return 0
	}
	return n
}

// wantFault fails the test if the server has not answered with such an error.
func (o *outage) wantFault(kind string) {
	o.t.Helper()
	if errorsOf(o.t, o.server.Addr(), kind) == 0 {
		o.t.Errorf("the server has never answered %s: the fault did not happen", kind)
	}
}

// key returns a key that no other test has.
func (o *outage) key() semel.Key {
	return semel.Key{Scope: o.t.Name(), ID: strconv.FormatUint(nonce.Add(1), 10)}
}

// claim claims a key and expects a decision.
func (o *outage) claim(req semel.ClaimRequest, want semel.Decision) semel.ClaimAnswer {
	o.t.Helper()
	answer, err := askFor(o.t.Context(), o.store, req)
	if err != nil || answer.Decision != want {
		o.t.Fatalf("claim: %v, error %v; want %v", answer.Decision, err, want)
	}
	return answer
}

// done returns a key that was claimed and completed.
func (o *outage) done() semel.Key {
	o.t.Helper()
	key := o.key()
	held := o.claim(request(key), semel.Fresh)
	if err := finish(o.t.Context(), o.store, key, held.Claim.Token); err != nil {
		o.t.Fatal(err)
	}
	return key
}

// wantRefusal claims a key and expects an error of a kind and no decision.
func (o *outage) wantRefusal(key semel.Key, want error, class semel.Class) {
	o.t.Helper()
	answer, err := askFor(o.t.Context(), o.store, request(key))
	if !errors.Is(err, want) || semel.Classify(err) != class || answer.Decision != semel.Undecided {
		o.t.Errorf("claim: %v, error %v of class %v; want %v of class %v", answer.Decision, err, semel.Classify(err), want, class)
	}
}

// work runs effects under a guard while a server is disturbed, and keeps a
// ledger. No fault may break this rule: a duplicate has a completed effect
// behind it.
type work struct {
	t     *testing.T
	guard *semel.Guard

	mu      sync.Mutex  // guards the fields below
	keys    []semel.Key // only further adds to them
	effects map[semel.Key]int
	// acknowledged has the keys whose message was acknowledged.
	acknowledged map[semel.Key]bool
	// unrecorded has the keys whose caller learned that the effect happened and
	// could not be recorded. These keys may have their effect again.
	unrecorded map[semel.Key]bool
	failures   int
	duplicates int
}

func newWork(t *testing.T, store semel.Store, keys int) *work {
	t.Helper()
	guard, err := semel.NewGuard(store, &semel.GuardOptions{Lease: 2 * time.Second, Wait: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return &work{
		t: t, guard: guard, keys: idsFrom(t.Name(), 0, keys),
		effects: map[semel.Key]int{}, acknowledged: map[semel.Key]bool{}, unrecorded: map[semel.Key]bool{},
	}
}

// start delivers each key twice, with several workers, and repeats each delivery
// until it is acknowledged. Then it delivers what next returns, until end says that the
// fault is over: no work is done before the fault. end returns when all is acknowledged.
func (w *work) start(ctx context.Context, next func(i int) semel.Key) (end func()) {
	const workers = 8
	over := make(chan struct{})
	keys := w.keys
	var wg sync.WaitGroup
	for n := range workers {
		wg.Go(func() {
			for i := n; ctx.Err() == nil; i += workers {
				if i < 2*len(keys) {
					w.deliver(ctx, keys[i/2])
					continue
				}
				select {
				case <-over:
					return
				default:
				}
				w.deliver(ctx, next(i))
			}
		})
	}
	end = sync.OnceFunc(func() {
		close(over)
		wg.Wait()
	})
	w.t.Cleanup(end)
	return end
}

// again returns the keys of the work once more.
func (w *work) again(i int) semel.Key { return w.keys[i/2%len(w.keys)] }

// further returns new keys, and adds them to the work.
func (w *work) further(i int) semel.Key {
	key := idsFrom(w.t.Name(), i, 1)[0]
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keys = append(w.keys, key)
	return key
}

func (w *work) deliver(ctx context.Context, key semel.Key) {
	redelivery := time.NewTicker(10 * time.Millisecond)
	defer redelivery.Stop()
	var last error
	for {
		out, err := w.guard.Do(ctx, key, func(context.Context, semel.Claim) ([]byte, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.effects[key]++
			return []byte(key.ID), nil
		})
		if w.settle(key, out, err) {
			return
		}
		select {
		case <-redelivery.C:
			last = err
		case <-ctx.Done():
			w.t.Errorf("%s is not acknowledged: %v, and before that: %v", key, err, last)
			return
		}
	}
}

// settle records the outcome of a delivery and reports whether it is
// acknowledged.
func (w *work) settle(key semel.Key, out semel.Outcome, err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if out.Decision == semel.Duplicate {
		w.duplicates++
		if w.effects[key] == 0 {
			w.t.Errorf("%s is called a duplicate, and its effect has never happened", key)
		}
		if string(out.Result.Data) != key.ID {
			w.t.Errorf("%s is answered with the result %q", key, out.Result.Data)
		}
	}
	if err != nil {
		w.failures++
		if out.Decision == semel.Fresh {
			w.unrecorded[key] = true
		}
		return false
	}
	w.acknowledged[key] = true
	return true
}

// waitFor waits until n keys are acknowledged, or the context ends.
func (w *work) waitFor(ctx context.Context, n int) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		w.mu.Lock()
		enough := len(w.acknowledged) >= n
		w.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// check checks the ledger at the end, and returns how many keys had a second
// effect although all their effects were recorded.
func (w *work) check() (second int) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, key := range w.keys {
		if w.effects[key] == 0 {
			w.t.Errorf("%s is lost: it was acknowledged without an effect", key)
		}
		if w.effects[key] > 1 && !w.unrecorded[key] {
			second++
		}
	}
	w.t.Logf("%d keys, %d not recorded, %d others with a second effect, %d duplicates, %d failed calls",
		len(w.keys), len(w.unrecorded), second, w.duplicates, w.failures)
	return second
}

// containsCode reports whether an error wraps an answer of the server that
// begins with this word.
func containsCode(err error, code string) bool {
	var answer *rueidis.RedisError
	return errors.As(err, &answer) && strings.HasPrefix(answer.Error(), code+" ")
}

// wantFailures fails the test if no caller noticed the fault.
func (w *work) wantFailures() {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failures == 0 {
		w.t.Error("no call failed: the fault did not happen")
	}
}
