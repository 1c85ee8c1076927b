package pgstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
)

// desk is a guard on its own database, with a table that counts effects.
type desk struct {
	*Guard
	store *Store
	pool  *pgxpool.Pool
}

func newDesk(t testing.TB, opts *Options, guard *semel.GuardOptions) *desk {
	t.Helper()
	return deskAt(t, shared.Database(t), opts, guard)
}

// deskAt creates the tables at an address.
func deskAt(t testing.TB, address string, opts *Options, guard *semel.GuardOptions) *desk {
	t.Helper()
	p := pool(t, address)
	if _, err := Migrate(t.Context(), p, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Exec(t.Context(), "CREATE TABLE effects (id text PRIMARY KEY, count int NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	return openDesk(t, p, opts, guard)
}

// openDesk opens a guard on existing tables.
func openDesk(t testing.TB, p *pgxpool.Pool, opts *Options, guard *semel.GuardOptions) *desk {
	t.Helper()
	s, err := New(t.Context(), p, opts)
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGuard(s, guard)
	if err != nil {
		t.Fatal(err)
	}
	return &desk{g, s, p}
}

// count adds to the effects of an id, like an effect that is not idempotent.
const count = "INSERT INTO effects VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET count = effects.count + 1"

// counting is an effect that counts itself and returns a result.
func counting(id string) TxFunc {
	return func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		_, err := tx.Exec(ctx, count, id)
		return []byte("result of " + id), err
	}
}

// queueOne decides one call whose effect is a batch of statements.
func (d *desk) queueOne(ctx context.Context, call semel.Call, queue func(b *pgx.Batch)) (semel.Outcome, error) {
	out := d.DoTxBatch(ctx, []semel.Call{call}, TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
		var b pgx.Batch
		queue(&b)
		for _, s := range b.QueuedQueries {
			q.Queue(fresh[0], s.SQL, s.Arguments...).Fn = s.Fn
		}
		return nil
	}))
	return out[0].Outcome, out[0].Err
}

// effects returns how often the effect of an id happened.
func (d *desk) effects(t testing.TB, id string) (n int) {
	t.Helper()
	err := d.pool.QueryRow(context.Background(), "SELECT count FROM effects WHERE id = $1", id).Scan(&n)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	return n
}

func (d *desk) wantEffects(t testing.TB, id string, want int) {
	t.Helper()
	if n := d.effects(t, id); n != want {
		t.Errorf("the effect of %s is there %d times, want %d", id, n, want)
	}
}

func key(id string) semel.Key { return semel.Key{Scope: "test", ID: id} }

// want checks the decision, result and error of a call.
func want(t testing.TB, out semel.Outcome, err error, decision semel.Decision, result string, target error) {
	t.Helper()
	if out.Decision != decision || string(out.Result.Data) != result || !errors.Is(err, target) {
		t.Errorf("outcome %s with %q, error %v; want %s with %q, error %v", out.Decision, out.Result.Data, err, decision, result, target)
	}
}

func TestDuplicatesOfATransactionGetItsResult(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	out, err := d.DoTx(t.Context(), key("a"), counting("a"))
	want(t, out, err, semel.Fresh, "result of a", nil)
	if out.Attempt != 1 {
		t.Errorf("attempt %d, want 1", out.Attempt)
	}
	for range 2 {
		out, err = d.DoTx(t.Context(), key("a"), counting("a"))
		want(t, out, err, semel.Duplicate, "result of a", nil)
	}
	// The other method of the same guard knows the key as well.
	out, err = d.Do(t.Context(), key("a"), func(context.Context, semel.Claim) ([]byte, error) {
		t.Error("the effect ran again")
		return nil, nil
	})
	want(t, out, err, semel.Duplicate, "result of a", nil)
	d.wantEffects(t, "a", 1)
}

func TestAnErrorRollsBackKeyAndEffect(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	failed := errors.New("out of stock")
	out, err := d.DoTx(t.Context(), key("a"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		if _, err := counting("a")(ctx, tx); err != nil {
			return nil, err
		}
		return []byte("no"), failed
	})
	want(t, out, err, semel.Undecided, "", failed)
	d.wantEffects(t, "a", 0)
	out, err = d.DoTx(t.Context(), key("a"), counting("a"))
	want(t, out, err, semel.Fresh, "result of a", nil)
}

func TestPermanentErrorIsRecordedAndItsEffectRolledBack(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	for i, decision := range []semel.Decision{semel.Fresh, semel.Duplicate} {
		out, err := d.DoTx(t.Context(), key("a"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			if _, err := counting("a")(ctx, tx); err != nil {
				return nil, err
			}
			return nil, semel.Permanent(errors.New("no such account"))
		})
		var permanent *semel.PermanentError
		if !errors.As(err, &permanent) || permanent.Replayed != (i == 1) || err.Error() != "no such account" {
			t.Fatalf("error %v", err)
		}
		want(t, out, err, decision, "no such account", err)
	}
	d.wantEffects(t, "a", 0)
}

// TestUnkeptResultOfAnotherKeyDoesNotAcknowledgeTheMessage: an effect that fails with the
// ErrResultNotKept of another key is rolled back, so its message must come again.
func TestUnkeptResultOfAnotherKeyDoesNotAcknowledgeTheMessage(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	inner := fmt.Errorf("inner: %w", semel.ErrResultNotKept)
	_, err := d.DoTx(t.Context(), key("a"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) { return nil, inner })
	if semel.MayAck(err) || err.Error() != inner.Error() {
		t.Errorf("DoTx: %v", err)
	}
	calls := []semel.Call{{Key: key("a")}, {Key: key("b")}}
	for i, out := range d.DoTxBatch(t.Context(), calls, TxItemFunc(func(_ context.Context, _ pgx.Tx, item *semel.BatchItem) error {
		if item.Index == 0 {
			return inner
		}
		return nil
	})) {
		if semel.MayAck(out.Err) != (i == 1) {
			t.Errorf("DoTxBatch, call %d: %v", i, out.Err)
		}
	}
	out, err := d.DoTx(t.Context(), key("a"), counting("a"))
	want(t, out, err, semel.Fresh, "result of a", nil)
}

func TestIgnoredStatementErrorRollsBackTheKey(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	broken := map[string]func(ctx context.Context, tx pgx.Tx){
		"exec": func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Exec(ctx, "INSERT INTO effects VALUES ('x', NULL)") },
		"query": func(ctx context.Context, tx pgx.Tx) {
			if rows, err := tx.Query(ctx, "INSERT INTO effects VALUES ('x', NULL)"); err == nil {
				rows.Close()
			}
		},
		"row": func(ctx context.Context, tx pgx.Tx) {
			var n int
			_ = tx.QueryRow(ctx, "INSERT INTO effects VALUES ('x', NULL) RETURNING count").Scan(&n)
		},
		"batch": func(ctx context.Context, tx pgx.Tx) {
			var b pgx.Batch
			b.Queue("INSERT INTO effects VALUES ('x', NULL)")
			_ = tx.SendBatch(ctx, &b).Close()
		},
		"copy": func(ctx context.Context, tx pgx.Tx) {
			_, _ = tx.CopyFrom(ctx, pgx.Identifier{"effects"}, []string{"id", "count"}, pgx.CopyFromRows([][]any{{"x", nil}}))
		},
		"later": func(ctx context.Context, tx pgx.Tx) {
			_, _ = tx.Exec(ctx, "INSERT INTO effects VALUES ('x', NULL)")
			_, _ = tx.Exec(ctx, "SELECT 1")
		},
	}
	for name, fail := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := "swallowed by " + name
			out, err := d.DoTx(t.Context(), key(id), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				_, _ = counting(id)(ctx, tx)
				fail(ctx, tx)
				return []byte("fine"), nil
			})
			want(t, out, err, semel.Undecided, "", semel.ErrInvalidRequest)
			if stateOf(err) != "23502" {
				t.Errorf("error %v does not have its cause", err)
			}
			d.wantEffects(t, id, 0)
		})
	}
	out, err := d.DoTx(t.Context(), key("behind a savepoint"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		savepoint, err := tx.Begin(ctx)
		if err != nil {
			return nil, err
		}
		_, _ = savepoint.Exec(ctx, "INSERT INTO effects VALUES ('x', NULL)")
		if err := savepoint.Rollback(ctx); err != nil {
			return nil, err
		}
		return counting("behind a savepoint")(ctx, tx)
	})
	want(t, out, err, semel.Fresh, "result of behind a savepoint", nil)
}

func TestAnEffectCannotEndItsTransaction(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	_, err := d.DoTx(t.Context(), key("commit"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		if err := tx.Rollback(ctx); !errors.Is(err, ErrNotYours) {
			t.Errorf("rollback: %v", err)
		}
		return nil, tx.Commit(ctx)
	})
	if !errors.Is(err, ErrNotYours) {
		t.Errorf("commit: %v", err)
	}
	// An end that bypasses the guard is detected. It is reported neither as success
	// nor as failure.
	for _, sql := range []string{"COMMIT", "ROLLBACK"} {
		for _, fail := range []error{nil, errors.New("failed")} {
			_, err = d.DoTx(t.Context(), key(sql), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				if _, err := tx.Exec(ctx, sql); err != nil {
					t.Error(err)
				}
				return nil, fail
			})
			if sql == "ROLLBACK" || fail == nil {
				if !errors.Is(err, semel.ErrOutcomeUnknown) || strings.Contains(err.Error(), "<nil>") {
					t.Errorf("%s by the effect, which returned %v: %v", sql, fail, err)
				}
			}
		}
	}
	// So is an effect that continues in its own transaction, which would be rolled
	// back or committed without its key.
	for _, fail := range []error{nil, errors.New("failed")} {
		_, err = d.DoTx(t.Context(), key(fmt.Sprint("another transaction", fail)), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			for _, sql := range []string{"COMMIT", "BEGIN"} {
				if _, err := tx.Exec(ctx, sql); err != nil {
					t.Error(err)
				}
			}
			return nil, fail
		})
		if !errors.Is(err, semel.ErrOutcomeUnknown) {
			t.Errorf("COMMIT and BEGIN by the effect, which returned %v: %v", fail, err)
		}
	}
	_, err = d.DoTx(t.Context(), key("open rows"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		_, err := tx.Query(ctx, "SELECT generate_series(1, 10)")
		return nil, err
	})
	if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "rows") {
		t.Errorf("open rows: %v", err)
	}
	d.wantIdle(t)
}

// wantIdle checks that no transaction is left open.
func (d *desk) wantIdle(t testing.TB) {
	t.Helper()
	eventually(t, "all transactions to end", func() bool {
		var n int
		err := d.pool.QueryRow(context.Background(),
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'").Scan(&n)
		return err == nil && n == 0
	})
}

// eventually waits for a condition that others bring about.
func eventually(t testing.TB, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(2 * time.Minute) // reached only if something hangs
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

func TestPanicRollsBackAndPropagates(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	ends := map[string]func(){
		"panic":  func() { panic("of the effect") },
		"goexit": runtime.Goexit,
	}
	for name, end := range ends {
		var wait sync.WaitGroup
		wait.Add(1)
		var recovered any
		go func() {
			defer wait.Done()
			defer func() { recovered = recover() }()
			_, _ = d.DoTx(t.Context(), key(name), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				_, _ = counting(name)(ctx, tx)
				end()
				return nil, nil
			})
			t.Errorf("%s: DoTx returned", name)
		}()
		wait.Wait()
		if (recovered != nil) != (name == "panic") {
			t.Errorf("%s: recovered %v", name, recovered)
		}
		d.wantEffects(t, name, 0)
		out, err := d.DoTx(t.Context(), key(name), counting(name))
		want(t, out, err, semel.Fresh, "result of "+name, nil)
	}
	d.wantIdle(t)
}

func TestCancelledEffectLeavesNeitherRowNorKey(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := d.DoTx(ctx, key("a"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		_, _ = counting("a")(ctx, tx)
		cancel()
		_, err := tx.Exec(ctx, "SELECT pg_sleep(10)")
		return nil, err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	d.wantIdle(t)
	d.wantEffects(t, "a", 0)
	// An effect that succeeded is committed although its caller has gone.
	ctx, cancel = context.WithCancel(t.Context())
	out, err := d.DoTx(ctx, key("a"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		defer cancel()
		return counting("a")(ctx, tx)
	})
	want(t, out, err, semel.Fresh, "result of a", nil)
	d.wantEffects(t, "a", 1)
}

func TestAConcurrentDuplicateWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{LockWait: mostLockWait}, nil)
	for _, commits := range []bool{true, false} {
		id := fmt.Sprint("first commits: ", commits)
		entered, leave := make(chan struct{}), make(chan struct{})
		var wait sync.WaitGroup
		wait.Go(func() {
			_, err := d.DoTx(t.Context(), key(id), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				_, err := counting(id)(ctx, tx)
				close(entered)
				<-leave
				if !commits {
					err = errors.New("rolled back")
				}
				return []byte("of the first"), err
			})
			if (err == nil) != commits {
				t.Error(err)
			}
		})
		<-entered
		var ran atomic.Bool
		wait.Go(func() {
			out, err := d.DoTx(t.Context(), key(id), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				ran.Store(true)
				return counting(id)(ctx, tx)
			})
			if commits {
				want(t, out, err, semel.Duplicate, "of the first", nil)
			} else {
				want(t, out, err, semel.Fresh, "result of "+id, nil)
			}
		})
		d.wantWaiting(t, 1)
		if ran.Load() {
			t.Error("the duplicate ran while the first did")
		}
		close(leave)
		wait.Wait()
		d.wantEffects(t, id, 1)
	}
}

// wantWaiting waits until this many sessions wait for a lock.
func (d *desk) wantWaiting(t testing.TB, n int) {
	t.Helper()
	eventually(t, "a session to wait for a lock", func() bool {
		var waiting int
		err := d.pool.QueryRow(context.Background(),
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").Scan(&waiting)
		return err == nil && waiting >= n
	})
}

func TestTheWaitForAKeyIsBounded(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{LockWait: 50 * time.Millisecond}, nil)
	_, err := d.DoTx(t.Context(), key("a"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		out, err := d.DoTx(t.Context(), key("a"), counting("a"))
		want(t, out, err, semel.InFlight, "", semel.ErrInFlight)
		if semel.Classify(err) != semel.ClassRetryable {
			t.Errorf("class %v", semel.Classify(err))
		}
		return counting("a")(ctx, tx)
	})
	if err != nil {
		t.Fatal(err)
	}
	d.wantEffects(t, "a", 1)
	// A key under a lease is in flight immediately. The guard waits for it if Wait
	// is set.
	entered, leave := make(chan struct{}), make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		_, err := d.Do(t.Context(), key("b"), func(context.Context, semel.Claim) ([]byte, error) {
			close(entered)
			<-leave
			return []byte("by lease"), nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-entered
	out, err := d.DoTx(t.Context(), key("b"), counting("b"))
	want(t, out, err, semel.InFlight, "", semel.ErrInFlight)
	patient := openDesk(t, d.pool, nil, &semel.GuardOptions{Wait: time.Minute})
	wait.Go(func() {
		out, err := patient.DoTx(t.Context(), key("b"), counting("b"))
		want(t, out, err, semel.Duplicate, "by lease", nil)
	})
	close(leave)
	wait.Wait()
	d.wantEffects(t, "b", 0)
}
