package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/sampletest"
)

// grant is a key that was granted and done, or a duplicate of one.
type grant struct {
	key           string
	before, after time.Time // times around the claim
	// closed is when it was known to be committed. until is the earliest time at
	// which the store may forget it, latest the time by which it must have.
	closed, until, latest time.Time
	how                   string
}

// journal records the answers to the writers of a test.
type journal struct {
	mu               sync.Mutex // guards the rest
	granted, refused []grant
	spans            int // transactions that were open during a clean-up
	passes           int // clean-ups so far
}

func (j *journal) note(list *[]grant, g grant) {
	j.mu.Lock()
	defer j.mu.Unlock()
	*list = append(*list, g)
}

// check checks that no key has two grants inside a window, and that each
// duplicate has a grant.
func (j *journal) check(t *testing.T) {
	t.Helper()
	of := make(map[string][]grant)
	for _, g := range j.granted {
		of[g.key] = append(of[g.key], g)
	}
	for key, all := range of {
		slices.SortFunc(all, func(a, b grant) int { return a.before.Compare(b.before) })
		for i, a := range all {
			for _, b := range all[i+1:] {
				// If the two ran concurrently, either may have been first.
				if b.after.Before(a.until) && a.after.Before(b.until) {
					t.Errorf("%s was granted twice: %s from %v to %v, remembered to %v; %s from %v to %v, remembered to %v",
						key, a.how, a.before, a.after, a.until, b.how, b.before, b.after, b.until)
				}
			}
		}
	}
	for _, d := range j.refused {
		behind := func(g grant) bool { return g.before.Before(d.after) && !g.latest.Before(d.before) }
		if !slices.ContainsFunc(of[d.key], behind) {
			t.Errorf("%s was called a duplicate from %v to %v, with nothing behind it", d.key, d.before, d.after)
		}
	}
}

// writer claims random keys in random ways.
type writer struct {
	*journal
	store  *Store
	random *rand.Rand
	name   string
	nonce  uint64
}

func (w *writer) request(done bool) semel.ClaimRequest {
	w.nonce++
	return semel.ClaimRequest{
		Key: semel.Key{ID: strconv.Itoa(w.random.IntN(30))}, Owner: semel.Owner{Name: w.name, Nonce: w.nonce}, Lease: 20 * time.Second,
		Window: time.Duration(1+w.random.IntN(40)) * 20 * time.Millisecond, Done: done,
	}
}

// work makes one call or transaction.
func (w *writer) work(ctx context.Context) error {
	switch w.random.IntN(4) {
	case 0:
		return w.transaction(ctx)
	case 1:
		return w.leased(ctx)
	}
	reqs := []semel.ClaimRequest{w.request(true), w.request(true), w.request(true)}
	answers := make([]semel.ClaimAnswer, len(reqs))
	before := time.Now()
	if err := w.store.Claim(ctx, reqs, answers); err != nil {
		return err
	}
	w.record(reqs, answers, before, time.Now(), time.Now(), "in one step")
	return nil
}

// record records the answers once they are committed.
func (w *writer) record(reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, before, after, closed time.Time, how string) {
	for i, a := range answers {
		g := grant{key: reqs[i].Key.ID, before: before, after: after, closed: closed, how: w.name + " " + how}
		switch g.until, g.latest = before.Add(reqs[i].Window), after.Add(reqs[i].Window); a.Decision {
		case semel.Fresh:
			w.note(&w.granted, g)
		case semel.Duplicate:
			w.note(&w.refused, g)
		}
	}
}

// transaction claims in a transaction that stays open during clean-ups.
func (w *writer) transaction(ctx context.Context) error {
	tx, err := w.store.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer rollback(ctx, tx)
	in, began := (&Guard{store: w.store}).InTx(tx), w.cleanUps()
	type claimed struct {
		reqs          []semel.ClaimRequest
		answers       []semel.ClaimAnswer
		before, after time.Time
	}
	var all []claimed
	for range 1 + w.random.IntN(2) {
		c := claimed{reqs: []semel.ClaimRequest{w.request(true), w.request(true)}, answers: make([]semel.ClaimAnswer, 2), before: time.Now()}
		if err := in.claim(ctx, c.reqs, c.answers); err != nil {
			return err
		}
		c.after = time.Now()
		all = append(all, c)
		if err := sleep(ctx, time.Duration(w.random.IntN(250))*time.Millisecond); err != nil {
			return err
		}
	}
	for _, c := range all {
		for i, a := range c.answers {
			if a.Decision != semel.Fresh {
				continue
			}
			if err := in.SetResult(ctx, c.reqs[i].Key, semel.Result{Kind: semel.Value, Data: []byte(w.name)}); err != nil {
				return fmt.Errorf("set result: %w", err)
			}
		}
	}
	commit := w.random.IntN(4) > 0
	if commit {
		if err := tx.Commit(ctx); err != nil {
			return err
		}
	} else if err := tx.Rollback(ctx); err != nil {
		return err
	}
	if w.cleanUps() > began {
		w.mu.Lock()
		w.spans++
		w.mu.Unlock()
	}
	for _, c := range all {
		if !commit {
			// Answers that the transaction had about its own keys do not count.
			continue
		}
		w.record(c.reqs, c.answers, c.before, c.after, time.Now(), "in a transaction")
	}
	return nil
}

// leased claims with a lease, extends it, and completes or releases.
func (w *writer) leased(ctx context.Context) error {
	reqs := []semel.ClaimRequest{w.request(false)}
	answers := make([]semel.ClaimAnswer, 1)
	before := time.Now()
	if err := w.store.Claim(ctx, reqs, answers); err != nil {
		return err
	}
	after := time.Now()
	if answers[0].Decision != semel.Fresh {
		w.record(reqs, answers, before, after, after, "under a lease")
		return nil
	}
	key, token := reqs[0].Key, answers[0].Claim.Token
	if err := sleep(ctx, time.Duration(w.random.IntN(250))*time.Millisecond); err != nil {
		return err
	}
	extended := make([]semel.ExtendAnswer, 1)
	err := insist(func() error {
		return w.store.Extend(ctx, []semel.ExtendRequest{{Key: key, Token: token, Lease: 20 * time.Second}}, extended)
	})
	if err != nil || extended[0].Err != nil {
		return fmt.Errorf("extend %s under token %d: %w", key, token, errors.Join(errLost, err, extended[0].Err))
	}
	finished, window := make([]error, 1), reqs[0].Window
	if w.random.IntN(4) == 0 {
		err := insist(func() error {
			return w.store.Release(ctx, []semel.ReleaseRequest{{Key: key, Token: token}}, finished)
		})
		if err != nil || finished[0] != nil {
			return fmt.Errorf("release %s under token %d: %w", key, token, errors.Join(errLost, err, finished[0]))
		}
		return nil
	}
	completing := time.Now()
	err = insist(func() error {
		return w.store.Complete(ctx, []semel.CompleteRequest{{Key: key, Token: token, Window: window}}, finished)
	})
	if err != nil || finished[0] != nil {
		return fmt.Errorf("complete %s under token %d: %w", key, token, errors.Join(errLost, err, finished[0]))
	}
	closed := time.Now()
	w.note(&w.granted, grant{
		key: key.ID, before: before, after: after, closed: closed, until: completing.Add(window), latest: closed.Add(window), how: w.name + " under a lease",
	})
	return nil
}

// insist repeats a call that was refused because a lock was not free in time.
// Such a call did nothing, so its holder still has the claim.
func insist(call func() error) error {
	for {
		if err := call(); err == nil || stateOf(err) != lockNotAvailable {
			return err
		}
	}
}

// errLost: a claim was lost although its lease runs.
var errLost = errors.New("the claim is lost")

// ways counts the grants by how they were claimed. The caller holds mu.
func (j *journal) ways() map[string]int {
	how := make(map[string]int)
	for _, g := range j.granted {
		how[g.how[len("writer-0 "):]]++
	}
	return how
}

// cleanUps returns the number of clean-ups so far.
func (j *journal) cleanUps() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.passes
}

// cleaners clean up until ctx ends. Each lives for a random time and is killed in
// the middle of its work.
func (j *journal) cleaners(ctx context.Context, t *testing.T, address string, o Options, random *rand.Rand) (killed int) {
	for ctx.Err() == nil {
		life, cancel := context.WithTimeout(ctx, time.Duration(random.IntN(400))*time.Millisecond)
		p, err := pgxpool.New(context.WithoutCancel(ctx), address)
		if err != nil {
			t.Errorf("cleaner: %v", err)
			cancel()
			return killed
		}
		s, err := New(life, p, &o)
		for err == nil {
			if _, err = s.Purge(life); err == nil {
				j.mu.Lock()
				j.passes++
				j.mu.Unlock()
				err = sleep(life, 20*time.Millisecond)
			}
		}
		if life.Err() == nil {
			t.Errorf("cleaner: %v", err)
		}
		killed++
		cancel()
		p.Close()
	}
	return killed
}

// forms are the forms of clean-up, with options for stores whose messages all
// have the same time.
func forms() map[Cleanup]Options {
	began := time.Now()
	return map[Cleanup]Options{
		CleanupDelete:      {},
		CleanupMessageTime: {MessageTime: func(semel.Key) (time.Time, bool) { return began, true }},
	}
}

func TestCleanUpKeepsLiveKeysUnderLoad(t *testing.T) {
	t.Parallel()
	for form, opts := range forms() {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			forgetsNothingUnderLoad(t, form, opts)
		})
	}
}

func forgetsNothingUnderLoad(t *testing.T, form Cleanup, opts Options) {
	start := seed(t)
	address := shared.Database(t)
	migrated(t, address, &MigrateOptions{Cleanup: form})
	connections := pool(t, address)
	opts.LockWait = 500 * time.Millisecond
	load := 8 * time.Second
	if testing.Short() {
		load = 2 * time.Second
	}
	// On a busy machine it takes longer to reach the situation under test.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	began := time.Now()
	var j journal
	var group sync.WaitGroup
	var refusals int
	for i := range 8 {
		s, err := New(t.Context(), connections, &opts)
		if err != nil {
			t.Fatal(err)
		}
		w := &writer{&j, s, rand.New(rand.NewPCG(start, uint64(i))), "writer-" + strconv.Itoa(i), 0}
		group.Go(func() {
			for ctx.Err() == nil {
				// The call is not cut off, because its answer would be unknown.
				err := w.work(context.WithoutCancel(ctx))
				if err != nil && (errors.Is(err, errLost) || semel.Classify(err) != semel.ClassRetryable) {
					t.Errorf("%s: %v", w.name, err)
				}
				j.mu.Lock()
				if err != nil {
					refusals++
				}
				if time.Since(began) > load && j.passes >= 6 && j.spans > 0 && len(j.refused) > 0 && len(j.granted) > 100 && len(j.ways()) == 3 {
					cancel()
				}
				j.mu.Unlock()
			}
		})
	}
	killed := j.cleaners(ctx, t, address, opts, rand.New(rand.NewPCG(start, 1<<32)))
	group.Wait()
	j.check(t)
	how := j.ways()
	t.Logf("%d clean-ups, %d grants (%v), %d duplicates, %d transactions open over a clean-up, %d cleaners killed, %d calls refused",
		j.passes, len(j.granted), how, len(j.refused), j.spans, killed, refusals)
	if cmp.Or(len(j.refused) == 0, j.passes < 6, j.spans == 0, killed == 0, len(how) < 3) {
		t.Error("the test did not meet what it is about")
	}
}

func TestConformanceWhileCleaningUp(t *testing.T) {
	t.Parallel()
	for _, form := range sampletest.OneOf(CleanupDelete, CleanupMessageTime) {
		t.Run(string(form), func(t *testing.T) {
			t.Parallel()
			conformance(t, shared.Database(t), MigrateOptions{Cleanup: form, Partitions: 8, KeepIDs: true, KeepOrigins: true}, forms()[form], cleanBeside)
		})
	}
}

// cleanBeside cleans up concurrently with a test case until it ends.
func cleanBeside(tb testing.TB, beside *Store, stores *caseStores) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	tb.Cleanup(func() { cancel(); <-ended })
	go func() {
		defer close(ended)
		seen := make(map[*Store]bool)
		for ctx.Err() == nil {
			if _, err := beside.Purge(ctx); err != nil && ctx.Err() == nil {
				tb.Errorf("clean up: %v", err)
				return
			}
			// No call has to survive one clean-up after another on a slow machine.
			// Calls that never end do not stop clean-up.
			limit := time.Now().Add(2 * time.Second)
			for sleep(ctx, 10*time.Millisecond) == nil && !stores.idle(seen) && time.Now().Before(limit) {
			}
		}
	}()
}
