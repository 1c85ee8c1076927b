package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/storetest"
	"github.com/semel-dev/semel/test/sampletest"
)

// optimisticWays are the ways in which a guard uses optimistic inserts.
var optimisticWays = map[string]func(ctx context.Context, d *desk, call semel.Call) (semel.Outcome, error){
	"DoTx": func(ctx context.Context, d *desk, call semel.Call) (semel.Outcome, error) {
		return d.DoTxCall(ctx, call, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			_, err := tx.Exec(ctx, count, call.Key.ID)
			return nil, err
		})
	},
	"TxQueueFunc": func(ctx context.Context, d *desk, call semel.Call) (semel.Outcome, error) {
		return d.queueOne(ctx, call, func(b *pgx.Batch) { b.Queue(count, call.Key.ID) })
	},
	"TxQueueFunc with callbacks": func(ctx context.Context, d *desk, call semel.Call) (semel.Outcome, error) {
		return d.queueOne(ctx, call, func(b *pgx.Batch) {
			b.Queue(count, call.Key.ID).Exec(func(tag pgconn.CommandTag) error {
				if tag.RowsAffected() != 1 {
					return errors.New("no row")
				}
				return nil
			})
		})
	},
	"TxQueueFunc for two": func(ctx context.Context, d *desk, call semel.Call) (semel.Outcome, error) {
		calls := []semel.Call{call, {Key: key(call.Key.ID + ", its neighbour")}}
		out := d.DoTxBatch(ctx, calls, TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
			for _, item := range fresh {
				q.Queue(item, count, item.Call.Key.ID)
			}
			return nil
		}))
		return out[0].Outcome, out[0].Err
	},
}

// makeOptimistic makes a guard use optimistic inserts.
func makeOptimistic(t testing.TB, d *desk) {
	t.Helper()
	for i := range optimisticAfter {
		if d.optimism.justified() {
			t.Fatalf("the guard is optimistic after %d transactions", i)
		}
		if _, err := d.DoTx(t.Context(), key(fmt.Sprintf("new %d %d", i, time.Now().UnixNano())), func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if !d.optimism.justified() {
		t.Fatal("the guard is not optimistic")
	}
}

func TestAnOptimisticInsertThatFailsDecidesAsUsual(t *testing.T) {
	t.Parallel()
	for _, ids := range []bool{false, true} {
		for name, do := range optimisticWays {
			t.Run(fmt.Sprintf("%s, readable keys: %t", name, ids), func(t *testing.T) {
				t.Parallel()
				address := shared.Database(t)
				migrated(t, address, &MigrateOptions{KeepIDs: ids})
				d := deskAt(t, address, &Options{KeepIDs: ids}, nil)
				ctx := t.Context()
				decide := func(call semel.Call, decision semel.Decision, target error) {
					t.Helper()
					makeOptimistic(t, d)
					out, err := do(ctx, d, call)
					want(t, out, err, decision, "", target)
					d.optimism.saw(false)
				}
				payload := semel.Fingerprint{1}
				decide(semel.Call{Key: key("a"), Fingerprint: payload, Window: semel.Forever}, semel.Fresh, nil)
				decide(semel.Call{Key: key("a"), Fingerprint: payload}, semel.Duplicate, nil)
				decide(semel.Call{Key: key("a"), Fingerprint: semel.Fingerprint{2}}, semel.Mismatch, semel.ErrMismatch)
				decide(semel.Call{Key: key("late"), Time: time.Now().Add(-48 * time.Hour)}, semel.Late, semel.ErrLate)
				decide(semel.Call{Key: key("in time"), Time: time.Now()}, semel.Fresh, nil)
				decide(semel.Call{Key: semel.Key{}}, semel.Undecided, semel.ErrInvalidKey)
				// After the window has ended, the row still exists.
				decide(semel.Call{Key: key("short"), Window: time.Millisecond}, semel.Fresh, nil)
				eventually(t, "a window to end", func() bool {
					records := make([]semel.Record, 1)
					return d.store.Look(ctx, []semel.Key{key("short")}, records) == nil && records[0].State == semel.Absent
				})
				decide(semel.Call{Key: key("short")}, semel.Fresh, nil)
				d.wantEffects(t, "a", 1)
				d.wantEffects(t, "late", 0)
				d.wantEffects(t, "short", 2)
				records := make([]semel.Record, 1)
				if err := d.store.Look(ctx, []semel.Key{key("a")}, records); err != nil {
					t.Fatal(err)
				}
				if r := records[0]; r.State != semel.Done || !r.Expires.IsZero() || r.Attempt != 1 || r.Fingerprint[0] != 1 {
					t.Errorf("the record is %+v", r)
				}
				if ids {
					scope := "test"
					for r, err := range d.store.List(ctx, semel.ListOptions{Scope: &scope}) {
						if err != nil || r.Key.ID == "" {
							t.Errorf("listed %+v, %v", r, err)
						}
					}
				}
			})
		}
	}
}

func TestFailedStatementLeavesNeitherRowNorKey(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	refuse := errors.New("callback refuses")
	for name, queue := range map[string]func(b *pgx.Batch, id string){
		"statement": func(b *pgx.Batch, id string) {
			b.Queue(count, id)
			b.Queue("INSERT INTO effects VALUES ('x', NULL)")
		},
		"callback": func(b *pgx.Batch, id string) {
			b.Queue(count, id).Exec(func(pgconn.CommandTag) error { return refuse })
		},
		"at the commit": func(b *pgx.Batch, id string) {
			b.Queue(count, id)
			b.Queue("INSERT INTO children VALUES ('nobody')")
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "at the commit" {
				if _, err := d.pool.Exec(t.Context(), "CREATE TABLE children (parent text REFERENCES effects DEFERRABLE INITIALLY DEFERRED)"); err != nil {
					t.Fatal(err)
				}
			}
			for _, optimistic := range []bool{false, true} {
				id := fmt.Sprintf("%s, optimistic: %t", name, optimistic)
				d.optimism.saw(false)
				if optimistic {
					makeOptimistic(t, d)
				}
				out, err := d.queueOne(t.Context(), semel.Call{Key: key(id)}, func(b *pgx.Batch) { queue(b, id) })
				if out.Decision != semel.Undecided || semel.Classify(err) != semel.ClassPermanent && !errors.Is(err, refuse) {
					t.Errorf("%s: %s, %v", id, out.Decision, err)
				}
				d.wantEffects(t, id, 0)
				out, err = optimisticWays["TxQueueFunc"](t.Context(), d, semel.Call{Key: key(id)})
				want(t, out, err, semel.Fresh, "", nil)
				d.wantEffects(t, id, 1)
			}
		})
	}
}

// TestOptimisticInsertWorksInEveryPoolMode has pgx pools in each mode, as set for various
// poolers, and the forms of clean-up.
func TestOptimisticInsertWorksInEveryPoolMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		for cleanup, opts := range forms() {
			t.Run(fmt.Sprintf("%s, %v", mode, cleanup), func(t *testing.T) {
				t.Parallel()
				address := shared.Database(t)
				migrated(t, address, &MigrateOptions{Cleanup: cleanup})
				d := deskAt(t, address+"&default_query_exec_mode="+modeNames[mode], &opts, nil)
				everyWayTwice(t, d)
				if cleanup == CleanupDelete {
					makeOptimistic(t, d)
				}
				everyWayTwice(t, d)
			})
		}
	}
}

var modeNames = map[pgx.QueryExecMode]string{
	pgx.QueryExecModeCacheStatement: "cache_statement", pgx.QueryExecModeCacheDescribe: "cache_describe",
	pgx.QueryExecModeDescribeExec: "describe_exec", pgx.QueryExecModeExec: "exec", pgx.QueryExecModeSimpleProtocol: "simple_protocol",
}

// everyWayTwice decides a key twice in each way.
func everyWayTwice(t *testing.T, d *desk) {
	t.Helper()
	for name, do := range optimisticWays {
		id := fmt.Sprintf("%s %d", name, time.Now().UnixNano())
		for _, decision := range []semel.Decision{semel.Fresh, semel.Duplicate} {
			out, err := do(t.Context(), d, semel.Call{Key: key(id)})
			want(t, out, err, decision, "", nil)
		}
		d.wantEffects(t, id, 1)
	}
	for name, do := range batchWays {
		id := fmt.Sprintf("%s %d", name, time.Now().UnixNano())
		for _, decision := range []semel.Decision{semel.Fresh, semel.Duplicate} {
			for i, out := range do(t.Context(), d, callsOf(3, id+" %d"), nil) {
				want(t, out.Outcome, out.Err, decision, fmt.Sprintf("result of %s %d", id, i), nil)
			}
		}
	}
}

// optimist is a store whose claims are all optimistic, regardless of their size
// and of earlier failures.
type optimist struct{ *Store }

func newOptimist(s *Store) optimist {
	s.leastOptimistic = 1
	return optimist{s}
}

// Claim implements semel.Store.
func (h optimist) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	h.optimism.streak.Store(optimisticAfter)
	return h.Store.Claim(ctx, reqs, answers)
}

func TestConformanceOfOptimisticInserts(t *testing.T) {
	t.Parallel()
	for _, migrate := range sampletest.OneOf(MigrateOptions{}, MigrateOptions{KeepIDs: true, KeepOrigins: true, Partitions: 3}) {
		t.Run(fmt.Sprintf("readable keys: %t", migrate.KeepIDs), func(t *testing.T) {
			t.Parallel()
			connections := pool(t, shared.Database(t))
			storetest.Run(t, storetest.Harness{
				Time: storetest.Wall,
				New: func(tb testing.TB, _ func() time.Time) func() (semel.Store, error) {
					migrate := migrate
					migrate.Schema = "s" + strings.ToLower(rand.Text()[:10])
					if _, err := Migrate(tb.Context(), connections, &migrate); err != nil {
						tb.Fatal(err)
					}
					return func() (semel.Store, error) {
						s, err := New(context.Background(), connections, &Options{Names: migrate.Names, KeepIDs: migrate.KeepIDs, LockWait: mostLockWait})
						if err != nil {
							return nil, err
						}
						return newOptimist(s), nil
					}
				},
				Transact: func(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error {
					return transact(ctx, store.(optimist).Store, reqs, answers, commit)
				},
			})
		})
	}
}

// TestMostlyNewKeysAreDecidedByOneStatement claims keys in every state, and new ones, in one
// transaction.
func TestMostlyNewKeysAreDecidedByOneStatement(t *testing.T) {
	t.Parallel()
	for _, ids := range []bool{false, true} {
		t.Run(fmt.Sprintf("readable keys: %t", ids), func(t *testing.T) {
			t.Parallel()
			address := shared.Database(t)
			migrated(t, address, &MigrateOptions{KeepIDs: ids, KeepOrigins: ids})
			d := deskAt(t, address, &Options{KeepIDs: ids, KeepOrigins: ids}, nil)
			ctx := t.Context()
			if _, err := d.DoTx(ctx, key("done"), counting("done")); err != nil {
				t.Fatal(err)
			}
			held := func(id string, hold bool, lease time.Duration) semel.Claim {
				t.Helper()
				req := request(key(id))
				req.Hold, req.Lease = hold, lease
				answers := make([]semel.ClaimAnswer, 1)
				if err := d.store.Claim(ctx, []semel.ClaimRequest{req}, answers); err != nil || answers[0].Decision != semel.Fresh {
					t.Fatalf("%s: %s, %v", id, answers[0].Decision, err)
				}
				return answers[0].Claim
			}
			held("leased", false, time.Hour)
			held("expired", false, time.Millisecond)
			held("unknown", true, time.Millisecond)
			released := []error{nil}
			if err := d.store.Release(ctx, []semel.ReleaseRequest{{Key: key("released"), Token: held("released", false, time.Hour).Token}}, released); err != nil || released[0] != nil {
				t.Fatal(err, released[0])
			}
			if _, err := d.DoTxCall(ctx, semel.Call{Key: key("over"), Window: time.Millisecond}, counting("over")); err != nil {
				t.Fatal(err)
			}
			eventually(t, "leases and windows to end", func() bool {
				records := make([]semel.Record, 3)
				err := d.store.Look(ctx, []semel.Key{key("over"), key("unknown"), key("expired")}, records)
				return err == nil && records[0].State == semel.Absent && records[1].State == semel.Unknown && !records[2].LeaseEnd.After(time.Now())
			})
			want := map[string]semel.Decision{
				"done": semel.Duplicate, "leased": semel.InFlight, "expired": semel.Fresh, "unknown": semel.OutcomeUnknown, "released": semel.Fresh, "over": semel.Fresh,
			}
			var reqs []semel.ClaimRequest
			ask := func(id string) {
				reqs = append(reqs, semel.ClaimRequest{Key: key(id), Done: true, Window: time.Hour, Time: time.Now(), Origin: "here"})
			}
			for id := range want {
				ask(id)
			}
			for i := range 20 {
				ask(fmt.Sprint("new ", i))
				want[fmt.Sprint("new ", i)] = semel.Fresh
			}
			u, err := d.store.begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer u.end(ctx)
			answers := make([]semel.ClaimAnswer, len(reqs))
			c := u.claims(reqs, answers)
			keys := c.sorted()
			if done, err := c.insertMost(ctx, keys); !done || err != nil {
				t.Fatalf("decided: %t, %v", done, err)
			}
			if left := open(keys); len(left) > 0 {
				t.Errorf("%d keys are open", len(left))
			}
			for i, a := range answers {
				if id := reqs[i].Key.ID; a.Decision != want[id] || a.Err != nil {
					t.Errorf("%s is %s, %v, want %s", id, a.Decision, a.Err, want[id])
				} else if id == "done" && string(a.Result.Data) != "result of done" || id == "leased" && a.Holder != "test" || id == "expired" && a.Claim.Attempt != 2 {
					t.Errorf("%s has the answer %+v", id, a)
				}
			}
			if err := u.commit(ctx, nil, time.Minute); err != nil {
				t.Fatal(err)
			}
			u.end(ctx)
			for i := range reqs {
				if want[reqs[i].Key.ID] == semel.Fresh {
					claimed(t, d.store, reqs[i:i+1], semel.Duplicate)
				}
			}
			records := make([]semel.Record, 1)
			if err := d.store.Look(ctx, []semel.Key{key("new 3")}, records); err != nil {
				t.Fatal(err)
			}
			if r := records[0]; r.State != semel.Done || r.Expires.Before(time.Now().Add(time.Minute)) || ids != (r.Origin == "here") {
				t.Errorf("the record is %+v", r)
			}
		})
	}
}

// TestAnInsertOfMostKeysThatFailsDecidesAsUsual has a message that is late, and a key that
// an open transaction inserts after the statement has read the known ones.
func TestAnInsertOfMostKeysThatFailsDecidesAsUsual(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{LockWait: mostLockWait}, nil)
	batch := func(name string, more ...semel.Call) []semel.BatchOutcome {
		d.mostly.streak.Store(optimisticAfter)
		d.optimism.saw(false)
		return d.DoTxBatch(t.Context(), append(callsOf(20, name+" %d"), more...), TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
			for _, item := range fresh {
				q.Queue(item, count, item.Call.Key.ID)
			}
			return nil
		}))
	}
	check := func(name string, outcomes []semel.BatchOutcome, last semel.Decision) {
		t.Helper()
		for i, out := range outcomes[:20] {
			want(t, out.Outcome, out.Err, semel.Fresh, "", nil)
			d.wantEffects(t, fmt.Sprintf(name+" %d", i), 1)
		}
		if got := outcomes[20].Decision; got != last {
			t.Errorf("%s: the last one is %s, %v, want %s", name, got, outcomes[20].Err, last)
		}
		if d.mostly.justified() {
			t.Errorf("%s: the guard is optimistic after an insert that failed", name)
		}
	}
	check("late", batch("late", semel.Call{Key: key("too late"), Time: time.Now().Add(-48 * time.Hour)}), semel.Late)
	d.wantEffects(t, "too late", 0)

	inserted, commit := make(chan struct{}), make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		_, err := d.DoTx(t.Context(), key("contended"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			close(inserted)
			<-commit
			_, err := tx.Exec(ctx, count, "contended")
			return nil, err
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-inserted
	var outcomes []semel.BatchOutcome
	wait.Go(func() { outcomes = batch("contended", semel.Call{Key: key("contended")}) })
	eventually(t, "the batch waits", func() bool { return waiting(t, d.pool) == 1 })
	close(commit)
	wait.Wait()
	check("contended", outcomes, semel.Duplicate)
	d.wantEffects(t, "contended", 1)
}

// doneRequests returns requests that make keys done in one step.
func doneRequests(keys []int) []semel.ClaimRequest {
	reqs := make([]semel.ClaimRequest, len(keys))
	for i, n := range keys {
		reqs[i] = request(keyOf(n))
		reqs[i].Done = true
	}
	return reqs
}

func TestStoreInsertsOptimisticallyAfterManyNewKeys(t *testing.T) {
	t.Parallel()
	b := opened(t, nil)
	next := 0
	batch := func(n int) []semel.ClaimRequest {
		keys := make([]int, n)
		for i := range keys {
			keys[i], next = next, next+1
		}
		return doneRequests(keys)
	}
	for i := range optimisticAfter {
		if b.optimism.justified() {
			t.Fatalf("the store is optimistic after %d calls", i)
		}
		claimed(t, b.Store, batch(leastOptimistic), semel.Fresh)
	}
	if !b.optimism.justified() {
		t.Fatal("the store is not optimistic")
	}
	claimed(t, b.Store, batch(leastOptimistic), semel.Fresh)
	// One known key, twice in the call, among new ones.
	reqs := append(batch(leastOptimistic), doneRequests([]int{0, 0, next})...)
	next++
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := b.Claim(t.Context(), reqs, answers); err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		want := semel.Fresh
		if known := len(reqs) - 3; i == known || i == known+1 {
			want = semel.Duplicate
		}
		if a.Decision != want || a.Err != nil {
			t.Errorf("request %d is %s, %v, want %s", i, a.Decision, a.Err, want)
		}
	}
	if b.optimism.justified() {
		t.Error("the store is optimistic after an insert that failed")
	}
	for n := range next {
		claimed(t, b.Store, doneRequests([]int{n}), semel.Duplicate)
	}
}

// claimed claims in one call and expects the same decision for all.
func claimed(t *testing.T, s semel.Store, reqs []semel.ClaimRequest, want semel.Decision) {
	t.Helper()
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := s.Claim(t.Context(), reqs, answers); err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if a.Decision != want || a.Err != nil {
			t.Fatalf("request %d is %s, %v, want %s", i, a.Decision, a.Err, want)
		}
	}
}

// TestCrossedOptimisticInsertsDoNotDeadlock has concurrent optimistic batches of
// the same keys in crossed order: all but one fail.
func TestCrossedOptimisticInsertsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	s := seed(t)
	b := opened(t, &Options{LockWait: mostLockWait})
	h := newOptimist(b.Store)
	var mu sync.Mutex // guards winners
	winners := make(map[int]int)
	crossed(t, b, s, 20, func(_, _ int, order []int) error {
		answers := make([]semel.ClaimAnswer, len(order))
		err := h.Claim(context.Background(), doneRequests(order), answers)
		mu.Lock()
		defer mu.Unlock()
		for i, a := range answers {
			if a.Decision == semel.Fresh {
				winners[order[i]]++
			} else if a.Decision != semel.Duplicate {
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

func TestOptimisticInsertWaitsForALockedKeyUpToLockWait(t *testing.T) {
	t.Parallel()
	b := opened(t, &Options{LockWait: 200 * time.Millisecond})
	endTransaction := locked(t, b, 77)
	all := make([]int, 200)
	for i := range all {
		all[i] = i
	}
	answers := make([]semel.ClaimAnswer, len(all))
	if err := newOptimist(b.Store).Claim(t.Context(), doneRequests(all), answers); err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		want := semel.Fresh
		if i == 77 {
			want = semel.InFlight
		}
		if a.Decision != want {
			t.Errorf("key %d is %s, %v, want %s", i, a.Decision, a.Err, want)
		}
	}
	endTransaction(true)
	claimed(t, b.Store, doneRequests(all), semel.Duplicate)
}
