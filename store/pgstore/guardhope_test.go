package pgstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
)

// hopefulWays are the ways in which a guard hopes that a key is new.
var hopefulWays = map[string]func(ctx context.Context, d *desk, call semel.Call) (semel.Outcome, error){
	"DoTx": func(ctx context.Context, d *desk, call semel.Call) (semel.Outcome, error) {
		return d.DoCallTx(ctx, call, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
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
		out := d.DoTxBatch(ctx, calls, TxQueueFunc(func(b *pgx.Batch, fresh []*semel.Item) error {
			for _, item := range fresh {
				b.Queue(count, item.Call.Key.ID)
			}
			return nil
		}))
		return out[0].Outcome, out[0].Err
	},
}

// hoping makes a guard hope.
func hoping(t testing.TB, d *desk) {
	t.Helper()
	for i := range calmAfter {
		if d.calm.hopeful() {
			t.Fatalf("the guard hopes after %d transactions", i)
		}
		if _, err := d.DoTx(t.Context(), key(fmt.Sprintf("calm %d %d", i, time.Now().UnixNano())), func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	if !d.calm.hopeful() {
		t.Fatal("the guard does not hope")
	}
}

func TestAWrongHopeDecidesAsIfThereWasNone(t *testing.T) {
	t.Parallel()
	for _, ids := range []bool{false, true} {
		for name, do := range hopefulWays {
			t.Run(fmt.Sprintf("%s, readable keys: %t", name, ids), func(t *testing.T) {
				t.Parallel()
				address := shared.Database(t)
				migrated(t, address, &MigrateOptions{KeepIDs: ids})
				d := deskAt(t, address, &Options{KeepIDs: ids}, nil)
				ctx := t.Context()
				decide := func(call semel.Call, decision semel.Decision, target error) {
					t.Helper()
					hoping(t, d)
					out, err := do(ctx, d, call)
					want(t, out, err, decision, "", target)
					d.calm.saw(false)
				}
				payload := semel.Fingerprint{1}
				decide(semel.Call{Key: key("a"), Fingerprint: payload, Window: semel.Forever}, semel.Fresh, nil)
				decide(semel.Call{Key: key("a"), Fingerprint: payload}, semel.Duplicate, nil)
				decide(semel.Call{Key: key("a"), Fingerprint: semel.Fingerprint{2}}, semel.Mismatch, semel.ErrMismatch)
				decide(semel.Call{Key: key("late"), Time: time.Now().Add(-48 * time.Hour)}, semel.Late, semel.ErrLate)
				decide(semel.Call{Key: key("in time"), Time: time.Now()}, semel.Fresh, nil)
				decide(semel.Call{Key: semel.Key{}}, semel.Undecided, semel.ErrInvalidKey)
				// Where the window has ended the row is still there.
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
					for r, err := range d.store.List(ctx, semel.Filter{Scope: &scope}) {
						if err != nil || r.Key.ID == "" {
							t.Errorf("listed %+v, %v", r, err)
						}
					}
				}
			})
		}
	}
}

func TestAnErrorOfAStatementLeavesNothing(t *testing.T) {
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
			for _, hope := range []bool{false, true} {
				id := fmt.Sprintf("%s, hoping: %t", name, hope)
				d.calm.saw(false)
				if hope {
					hoping(t, d)
				}
				out, err := d.queueOne(t.Context(), semel.Call{Key: key(id)}, func(b *pgx.Batch) { queue(b, id) })
				if out.Decision != semel.Undecided || semel.Classify(err) != semel.ClassPermanent && !errors.Is(err, refuse) {
					t.Errorf("%s: %s, %v", id, out.Decision, err)
				}
				d.wantEffects(t, id, 0)
				out, err = hopefulWays["TxQueueFunc"](t.Context(), d, semel.Call{Key: key(id)})
				want(t, out, err, semel.Fresh, "", nil)
				d.wantEffects(t, id, 1)
			}
		})
	}
}

// TestEveryModeOfAPoolWillDo has pools of pgx in each of its modes, as they are
// set for one pooler or another, and the forms of clean-up.
func TestEveryModeOfAPoolWillDo(t *testing.T) {
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
					hoping(t, d)
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
	for name, do := range hopefulWays {
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
