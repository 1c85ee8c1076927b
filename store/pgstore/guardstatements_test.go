package pgstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// TestAContextThatAnothersErrorEndedRecordsNothing ends the context of a batch with
// the error of another message, as errgroup does: nothing of the batch has failed.
func TestAContextThatAnothersErrorEndedRecordsNothing(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	hoping(t, d)
	calls := []semel.Call{{Key: key("a")}, {Key: key("b")}}
	ctx, cancel := context.WithCancelCause(t.Context())
	for _, out := range d.DoTxBatch(ctx, calls, TxQueueFunc(func(b *pgx.Batch, fresh []*semel.Item) error {
		for _, item := range fresh {
			b.Queue(count, item.Call.Key.ID)
		}
		cancel(semel.Permanent(errors.New("another message is malformed")))
		return nil
	})) {
		if out.Err == nil || semel.Classify(out.Err) == semel.ClassPermanent {
			t.Errorf("got %v", out.Err)
		}
	}
	for _, call := range calls {
		out, err := d.queueOne(t.Context(), call, func(b *pgx.Batch) { b.Queue(count, call.Key.ID) })
		if err != nil || out.Decision != semel.Fresh {
			t.Errorf("its redelivery: %s, %v", out.Decision, err)
		}
	}
}

// TestStatementsThatWereSentAreNotCalledBack holds the statements up with a lock
// of another session while their caller gives up.
func TestStatementsThatWereSentAreNotCalledBack(t *testing.T) {
	t.Parallel()
	const wait = "SELECT pg_advisory_xact_lock(1)"
	for name, do := range map[string]func(ctx context.Context, d *desk, call semel.Call) (semel.Outcome, error){
		"DoStatements": func(ctx context.Context, d *desk, call semel.Call) (semel.Outcome, error) {
			return d.queueOne(ctx, call, func(b *pgx.Batch) {
				b.Queue(count, call.Key.ID)
				b.Queue(wait)
			})
		},
		"DoBatchStatements": func(ctx context.Context, d *desk, call semel.Call) (semel.Outcome, error) {
			calls := []semel.Call{call, {Key: key("its neighbour")}}
			out := d.DoTxBatch(ctx, calls, TxQueueFunc(func(b *pgx.Batch, fresh []*semel.Item) error {
				for _, item := range fresh {
					b.Queue(count, item.Call.Key.ID)
				}
				b.Queue(wait)
				return nil
			}))
			return out[0].Outcome, out[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, &Options{LockWait: mostLockWait}, nil)
			hoping(t, d)
			tx, err := d.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer rollback(t.Context(), tx)
			if _, err := tx.Exec(t.Context(), wait); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			type answer struct {
				out semel.Outcome
				err error
			}
			answered := make(chan answer, 1)
			go func() {
				out, err := do(ctx, d, semel.Call{Key: key("a")})
				answered <- answer{out, err}
			}()
			eventually(t, "the statements wait", func() bool { return waiting(t, d.pool) == 1 })
			cancel()
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			a := <-answered
			want(t, a.out, a.err, semel.Fresh, "", nil)
			d.wantEffects(t, "a", 1)
		})
	}
	t.Run("before they are sent", func(t *testing.T) {
		t.Parallel()
		d := newDesk(t, nil, nil)
		hoping(t, d)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := d.queueOne(ctx, semel.Call{Key: key("a")}, func(b *pgx.Batch) {
			b.Queue(count, "a")
			cancel()
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, semel.ErrOutcomeUnknown) {
			t.Errorf("a call that nothing was sent of: %v", err)
		}
		d.wantEffects(t, "a", 0)
	})
}

func TestPatienceBeginsWhenTheCallerHasGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		longer, end := outlasting(ctx, time.Minute)
		defer end()
		time.Sleep(time.Hour)
		if longer.Err() != nil {
			t.Fatal("it ended before its caller had gone")
		}
		began, gone := time.Now(), errors.New("gone")
		cancel(gone)
		<-longer.Done()
		if waited := time.Since(began); waited != time.Minute || context.Cause(longer) != gone {
			t.Errorf("it ended after %v, because of %v", waited, context.Cause(longer))
		}
		// One that ended by itself leaves nothing behind in the bubble.
		short, end := outlasting(ctx, time.Minute)
		end()
		if short.Err() == nil {
			t.Error("it did not end")
		}
	})
}
