package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

// seed returns the seed in SEMEL_SEED, or a new one, and prints it.
func seed(t testing.TB) uint64 {
	t.Helper()
	s := rand.Uint64()
	if given := os.Getenv("SEMEL_SEED"); given != "" {
		var err error
		if s, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("SEMEL_SEED: %v", err)
		}
	}
	t.Logf("SEMEL_SEED=%d", s)
	return s
}

// crossed lets workers call f concurrently, each with the same keys in a
// different order. It checks that the server counts no deadlock.
func crossed(t *testing.T, b *bundle, s uint64, rounds int, f func(worker, round int, order []int) error) {
	t.Helper()
	const workers, keys = 12, 150
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(s, uint64(w)))
			for round := range rounds {
				order := random.Perm(keys)
				for i := range order {
					order[i] += round * keys
				}
				if err := f(w, round, order); err != nil {
					t.Errorf("worker %d, round %d: %v", w, round, err)
					return
				}
			}
		})
	}
	group.Wait()
	// The counts of pooled sessions become visible when the sessions end.
	b.pool.Reset()
	eventually(t, "the sessions have ended", func() bool {
		return b.number("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()") == 0
	})
	if n := b.number("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
		t.Errorf("the server broke %d dead-locks", n)
	}
}

func TestCrossedBatchesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	s := seed(t)
	b := opened(t, &Options{LockWait: mostLockWait})
	var mu sync.Mutex
	winners := make(map[int]int)
	crossed(t, b, s, 20, func(_, _ int, order []int) error {
		reqs := make([]semel.ClaimRequest, len(order))
		for i, n := range order {
			reqs[i] = request(keyOf(n))
			reqs[i].Lease = time.Hour // longer than any worker lags behind
		}
		answers := make([]semel.ClaimAnswer, len(reqs))
		err := b.Claim(context.Background(), reqs, answers)
		mu.Lock()
		defer mu.Unlock()
		for i, a := range answers {
			if a.Decision == semel.Fresh {
				winners[order[i]]++
			} else if a.Decision != semel.InFlight {
				err = errors.Join(err, fmt.Errorf("key %d is %s, %v", order[i], a.Decision, a.Err))
			}
		}
		return err
	})
	for n := range 20 * 150 {
		if winners[n] != 1 {
			t.Fatalf("key %d has %d winners, want 1", n, winners[n])
		}
	}
}

// TestCrossedTakeOversDoNotDeadlock has leases that end immediately. Batches take
// keys over from each other, complete and extend them, in crossed order.
func TestCrossedTakeOversDoNotDeadlock(t *testing.T) {
	t.Parallel()
	s := seed(t)
	b := opened(t, &Options{LockWait: mostLockWait})
	var mu sync.Mutex
	tokens := make(map[semel.Key]semel.Token)
	crossed(t, b, s, 10, func(w, round int, order []int) error {
		reqs := make([]semel.ClaimRequest, len(order))
		for i, n := range order {
			reqs[i] = request(keyOf(n % 150)) // the same keys in each round
			reqs[i].Lease = time.Microsecond
		}
		answers := make([]semel.ClaimAnswer, len(reqs))
		if err := b.Claim(context.Background(), reqs, answers); err != nil {
			return err
		}
		var extends []semel.ExtendRequest
		var releases []semel.ReleaseRequest
		mu.Lock()
		for i, a := range answers {
			if a.Decision != semel.Fresh {
				continue
			}
			extends = append(extends, semel.ExtendRequest{Key: reqs[i].Key, Token: a.Claim.Token, Lease: time.Microsecond})
			if (w+i)%3 == 0 {
				releases = append(releases, semel.ReleaseRequest{Key: reqs[i].Key, Token: a.Claim.Token})
			}
			tokens[reqs[i].Key] = max(tokens[reqs[i].Key], a.Claim.Token)
		}
		mu.Unlock()
		err := b.Extend(context.Background(), extends, make([]semel.ExtendAnswer, len(extends)))
		return errors.Join(err, b.Release(context.Background(), releases, make([]error, len(releases))))
	})
	for n := range 150 {
		req := request(keyOf(n))
		a := make([]semel.ClaimAnswer, 1)
		if err := b.Claim(t.Context(), []semel.ClaimRequest{req}, a); err != nil || a[0].Decision != semel.Fresh || a[0].Claim.Token <= tokens[req.Key] {
			t.Fatalf("key %d: %v, %+v, want fresh with a token above %d", n, err, a[0], tokens[req.Key])
		}
	}
}

// locked holds a key in its own transaction until the test releases it.
func locked(t *testing.T, b *bundle, n int) (endTransaction func(commit bool)) {
	t.Helper()
	tx := b.begin()
	answers := make([]semel.ClaimAnswer, 1)
	req := request(keyOf(n))
	req.Done = true
	on := session{Store: b.Store, q: tx, lockWait: "1s"}
	if err := on.claim(t.Context(), []semel.ClaimRequest{req}, answers); err != nil || answers[0].Decision != semel.Fresh {
		t.Fatalf("claim in a transaction: %v, %+v", err, answers[0])
	}
	return func(commit bool) {
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(context.Background()); err != nil {
			t.Errorf("end the transaction: %v", err)
		}
	}
}

func TestKeyHeldByATransactionIsInFlightAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	const wait = 400 * time.Millisecond
	b := opened(t, &Options{LockWait: wait})
	endTransaction := locked(t, b, 77)
	began := time.Now()
	all := make([]int, 200)
	for i := range all {
		all[i] = i
	}
	answers, err := b.ask(t.Context(), all...)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < wait || took > 2*time.Minute {
		t.Errorf("the call took %v with a lock wait of %v", took, wait)
	}
	for i, a := range answers {
		want, holder := semel.Fresh, ""
		if i == 77 {
			want, holder = semel.InFlight, openTransaction
		}
		if a.Decision != want || a.Holder != holder {
			t.Errorf("key %d is %s of %q, %v, want %s of %q", i, a.Decision, a.Holder, a.Err, want, holder)
		}
	}
	endTransaction(true)
	b.want(semel.Duplicate, 77)
}

func TestClaimWaitsForATransactionThatEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		commit bool
		want   semel.Decision
	}{{true, semel.Duplicate}, {false, semel.Fresh}} {
		b := opened(t, &Options{LockWait: 20 * time.Second})
		endTransaction := locked(t, b, 1)
		decided := make(chan semel.Decision)
		go func() {
			answers, err := b.ask(context.Background(), 1)
			if err != nil {
				t.Errorf("claim: %v", err)
			}
			decided <- answers[0].Decision
		}()
		eventually(t, "the claim waits", func() bool { return waiting(t, b.pool) == 1 })
		endTransaction(c.commit)
		if got := <-decided; got != c.want {
			t.Errorf("after a transaction ends (committed: %t) the claim is %s, want %s", c.commit, got, c.want)
		}
	}
}

// TestLockTimeoutStaysInItsStatement: a pooler hands the session to other
// clients.
func TestLockTimeoutStaysInItsStatement(t *testing.T) {
	t.Parallel()
	b := opened(t, nil)
	conn, err := b.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	answers := make([]semel.ClaimAnswer, 1)
	on := session{Store: b.Store, q: conn, alone: true, lockWait: "1234ms"}
	if err := on.claim(t.Context(), []semel.ClaimRequest{request(keyOf(1))}, answers); err != nil {
		t.Fatal(err)
	}
	var left string
	if err := conn.QueryRow(t.Context(), "SHOW lock_timeout").Scan(&left); err != nil || left != "0" {
		t.Errorf("after a claim lock_timeout is %s, %v, want 0", left, err)
	}
}

func TestCompletionBehindALockedRowIsRetryable(t *testing.T) {
	t.Parallel()
	b := opened(t, &Options{LockWait: 50 * time.Millisecond})
	a := b.want(semel.Fresh, 1)[0]
	tx := b.begin()
	if _, err := tx.Exec(t.Context(), "SELECT FROM semel_keys FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	errs := make([]error, 1)
	err := b.Complete(t.Context(), []semel.CompleteRequest{{Key: keyOf(1), Token: a.Claim.Token, Window: time.Hour}}, errs)
	if semel.Classify(err) != semel.ClassRetryable {
		t.Errorf("complete behind a lock: %v, of class %s, want retryable", err, semel.Classify(err))
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.complete(1, a, time.Hour)
	b.want(semel.Duplicate, 1)
}
