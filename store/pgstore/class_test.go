package pgstore

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// transactWays are the ways in which a guard runs an effect in its own
// transaction.
var transactWays = map[string]func(ctx context.Context, d *desk, call semel.Call, fn TxFunc) error{
	"DoTxCall": func(ctx context.Context, d *desk, call semel.Call, fn TxFunc) error {
		_, err := d.DoTxCall(ctx, call, fn)
		return err
	},
	"TxBatchFunc": func(ctx context.Context, d *desk, call semel.Call, fn TxFunc) error {
		return d.DoTxBatch(ctx, []semel.Call{call}, TxBatchFunc(func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) (err error) {
			fresh[0].Data, err = fn(ctx, tx)
			return err
		}))[0].Err
	},
	"TxBatchFunc, by item": func(ctx context.Context, d *desk, call semel.Call, fn TxFunc) error {
		return d.DoTxBatch(ctx, []semel.Call{call}, TxBatchFunc(func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) error {
			fresh[0].Data, fresh[0].Err = fn(ctx, tx)
			return nil
		}))[0].Err
	},
	"TxItemFunc": func(ctx context.Context, d *desk, call semel.Call, fn TxFunc) error {
		return d.DoTxBatch(ctx, []semel.Call{call}, TxItemFunc(func(ctx context.Context, tx pgx.Tx, item *semel.BatchItem) (err error) {
			item.Data, err = fn(ctx, tx)
			return err
		}))[0].Err
	},
}

// statementWays are the ways that take an SQL effect.
var statementWays = map[string]func(ctx context.Context, d *desk, call semel.Call, sql string) error{
	"TxQueueFunc": func(ctx context.Context, d *desk, call semel.Call, sql string) error {
		_, err := d.queueOne(ctx, call, func(b *pgx.Batch) { b.Queue(sql) })
		return err
	},
	"TxQueueFunc with a result": func(ctx context.Context, d *desk, call semel.Call, sql string) error {
		return d.DoTxBatch(ctx, []semel.Call{call}, TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
			q.Queue(fresh[0], sql)
			fresh[0].Data = []byte("result")
			return nil
		}))[0].Err
	},
}

// TestEachErrorOfATransactionHasItsClass causes each error that DoTx and its
// variants document, through each variant.
// TestCallIsRepeatedAfterALostAnswerToTheCommit has the errors that only a lost
// commit answer causes.
func TestEachErrorOfATransactionHasItsClass(t *testing.T) {
	t.Parallel()
	own := errors.New("out of stock")
	address := shared.Database(t)
	const lockWait = 50 * time.Millisecond
	parks := semel.GuardOptions{OnLate: semel.LatePark, Park: func(context.Context, *semel.Call, error) error { return own }}
	d := deskAt(t, address, &Options{LockWait: lockWait}, nil)
	parking := openDesk(t, d.pool, nil, &parks)
	if _, err := d.pool.Exec(t.Context(), "CREATE TABLE late (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)"); err != nil {
		t.Fatal(err)
	}
	// settled claims the key with a request, and completes it.
	settled := func(t *testing.T, call *semel.Call, print semel.Fingerprint, result semel.Result) {
		t.Helper()
		answers, errs := make([]semel.ClaimAnswer, 1), make([]error, 1)
		req := request(call.Key)
		req.Fingerprint = print
		err := d.store.Claim(t.Context(), []semel.ClaimRequest{req}, answers)
		if err == nil {
			err = d.store.Complete(t.Context(), []semel.CompleteRequest{{Key: call.Key, Token: answers[0].Claim.Token, Result: result, Window: time.Hour}}, errs)
		}
		if err = errors.Join(err, errs[0]); err != nil {
			t.Fatal(err)
		}
	}
	held := func(t *testing.T, call *semel.Call) semel.Claim {
		t.Helper()
		answers := make([]semel.ClaimAnswer, 1)
		if err := d.store.Claim(t.Context(), []semel.ClaimRequest{request(call.Key)}, answers); err != nil || answers[0].Decision != semel.Fresh {
			t.Fatalf("%s, %v", answers[0].Decision, err)
		}
		return answers[0].Claim
	}
	open := func(t *testing.T, call *semel.Call) {
		t.Helper()
		b := &bundle{d.store, t}
		if _, err := d.InTx(b.begin()).Claim(t.Context(), semel.Call{Key: call.Key}); err != nil {
			t.Fatal(err)
		}
	}
	type errorCase struct {
		name   string
		guard  *desk // defaults to d
		before func(t *testing.T, call *semel.Call)
		fn     func(ctx context.Context, tx pgx.Tx, cancel func()) error
		sql    string // instead of fn
		want   error
		says   string
		class  semel.Class
	}
	exec := func(sql string) func(context.Context, pgx.Tx, func()) error {
		return func(ctx context.Context, tx pgx.Tx, _ func()) error {
			_, err := tx.Exec(ctx, sql)
			return err
		}
	}
	swallow := func(sql string) func(context.Context, pgx.Tx, func()) error {
		return func(ctx context.Context, tx pgx.Tx, _ func()) error {
			_, _ = tx.Exec(ctx, sql)
			return nil
		}
	}
	const duplicateRow = "INSERT INTO late VALUES (1), (1)"
	cases := []errorCase{
		{name: "the key is invalid", before: func(_ *testing.T, call *semel.Call) { call.Key.ID = "" }, want: semel.ErrInvalidKey, class: semel.ClassPermanent},
		{name: "another holds the key", before: func(t *testing.T, call *semel.Call) { held(t, call) },
			want: semel.ErrInFlight, says: "held by test until", class: semel.ClassRetryable},
		{name: "a transaction holds the key", before: open,
			want: semel.ErrInFlight, says: "held by a transaction that has not committed: ", class: semel.ClassRetryable},
		{name: "the key has another payload",
			before: func(t *testing.T, call *semel.Call) {
				call.Fingerprint = semel.Fingerprint{1}
				settled(t, call, semel.Fingerprint{2}, semel.Result{})
			},
			want: semel.ErrMismatch, class: semel.ClassPermanent},
		{name: "the message is late", before: func(_ *testing.T, call *semel.Call) { call.Time = time.Unix(0, 0) },
			want: semel.ErrLate, class: semel.ClassPermanent},
		{name: "a late message cannot be parked", guard: parking, before: func(_ *testing.T, call *semel.Call) { call.Time = time.Unix(0, 0) },
			want: own, class: semel.ClassUnknown},
		{name: "the result was not kept",
			before: func(t *testing.T, call *semel.Call) {
				settled(t, call, semel.Fingerprint{}, semel.Result{Kind: semel.NotKept})
			},
			want: semel.ErrResultNotKept, class: semel.ClassPermanent},
		{name: "the effect failed permanently before",
			before: func(t *testing.T, call *semel.Call) { settled(t, call, semel.Fingerprint{}, failedResult(own)) },
			says:   "out of stock", class: semel.ClassPermanent},
		{name: "the key is unknown",
			before: func(t *testing.T, call *semel.Call) {
				errs := make([]error, 1)
				err := d.store.Release(t.Context(), []semel.ReleaseRequest{{Key: call.Key, Token: held(t, call).Token, Unknown: true}}, errs)
				if err = errors.Join(err, errs[0]); err != nil {
					t.Fatal(err)
				}
			},
			want: semel.ErrOutcomeUnknown, class: semel.ClassUnknown},
		{name: "the effect fails", fn: func(context.Context, pgx.Tx, func()) error { return own }, want: own, class: semel.ClassUnknown},
		{name: "the effect fails permanently", fn: func(context.Context, pgx.Tx, func()) error { return semel.Permanent(own) }, want: own, class: semel.ClassPermanent},
		{name: "the effect commits", fn: func(ctx context.Context, tx pgx.Tx, _ func()) error { return tx.Commit(ctx) }, want: ErrNotYours, class: semel.ClassPermanent},
		{name: "the effect continues after an error", fn: swallow("SELECT 1/0"), want: semel.ErrInvalidRequest, class: semel.ClassPermanent},
		{name: "the effect ends its transaction", fn: exec("ROLLBACK"), want: semel.ErrOutcomeUnknown, class: semel.ClassUnknown},
		{name: "the effect loses its connection", fn: exec("SELECT pg_terminate_backend(pg_backend_pid())"), want: semel.ErrStoreUnavailable, class: semel.ClassRetryable},
		{name: "the effect does not see that it lost its connection", fn: swallow("SELECT pg_terminate_backend(pg_backend_pid())"),
			want: semel.ErrStoreUnavailable, class: semel.ClassRetryable},
		{name: "the commit is refused", fn: exec(duplicateRow), want: semel.ErrInvalidRequest, class: semel.ClassPermanent},
		{name: "the caller has gone",
			fn: func(ctx context.Context, _ pgx.Tx, cancel func()) error {
				cancel()
				return ctx.Err()
			},
			want: context.Canceled, class: semel.ClassUnknown},
		{name: "a statement is refused", sql: "SELECT 1/0", want: semel.ErrInvalidRequest, class: semel.ClassPermanent},
		{name: "the commit of statements is refused", sql: duplicateRow, want: semel.ErrInvalidRequest, class: semel.ClassPermanent},
		{name: "a statement ends its transaction", sql: "ROLLBACK", want: semel.ErrOutcomeUnknown, class: semel.ClassUnknown},
		{name: "a statement loses its connection", sql: "SELECT pg_terminate_backend(pg_backend_pid())", want: semel.ErrStoreUnavailable, class: semel.ClassRetryable},
	}
	check := func(t *testing.T, c *errorCase, do func(ctx context.Context, d *desk, call semel.Call, cancel func()) error) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		call := semel.Call{Key: key(t.Name())}
		if c.before != nil {
			c.before(t, &call)
		}
		guard := d
		if c.guard != nil {
			guard = c.guard
		}
		err := do(ctx, guard, call, cancel)
		switch {
		case err == nil:
			t.Error("there is no error")
		case c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says):
			t.Errorf("got %v, want %v with %q", err, c.want, c.says)
		case semel.Classify(err) != c.class:
			t.Errorf("%v is %s, want %s", err, semel.Classify(err), c.class)
		}
	}
	for i := range cases {
		c := &cases[i]
		for name, do := range transactWays {
			if c.sql == "" {
				t.Run(c.name+"/"+name, func(t *testing.T) {
					check(t, c, func(ctx context.Context, d *desk, call semel.Call, cancel func()) error {
						return do(ctx, d, call, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
							if c.fn == nil {
								return nil, nil
							}
							return nil, c.fn(ctx, tx, cancel)
						})
					})
				})
			}
		}
		for name, do := range statementWays {
			if c.fn == nil {
				t.Run(c.name+"/"+name, func(t *testing.T) {
					check(t, c, func(ctx context.Context, d *desk, call semel.Call, _ func()) error {
						return do(ctx, d, call, cmp.Or(c.sql, "SELECT 1"))
					})
				})
			}
		}
	}
}

// TestErrorsOfACallersTransactionHaveTheirClass covers transactions that the
// caller ends.
func TestErrorsOfACallersTransactionHaveTheirClass(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{LockWait: 50 * time.Millisecond, MaxResult: 10}, nil)
	b := &bundle{d.store, t}
	claim := func(t *testing.T, tx *Tx, key semel.Key) error {
		_, err := tx.Claim(t.Context(), semel.Call{Key: key})
		return err
	}
	for name, c := range map[string]struct {
		do    func(t *testing.T, tx *Tx, key semel.Key) error
		want  error
		class semel.Class
	}{
		"a key of another transaction": {func(t *testing.T, tx *Tx, key semel.Key) error {
			if err := claim(t, d.InTx(b.begin()), key); err != nil {
				t.Fatal(err)
			}
			return claim(t, tx, key)
		}, semel.ErrStoreUnavailable, semel.ClassRetryable},
		"the result of a key that was not claimed": {func(t *testing.T, tx *Tx, key semel.Key) error {
			return tx.SetResult(t.Context(), key, semel.Result{})
		}, semel.ErrInvalidRequest, semel.ClassPermanent},
		"a result that is too large": {func(t *testing.T, tx *Tx, key semel.Key) error {
			return tx.SetResult(t.Context(), key, semel.Result{Kind: semel.Value, Data: make([]byte, 11)})
		}, semel.ErrResultTooLarge, semel.ClassPermanent},
		"a key that is held": {func(t *testing.T, tx *Tx, key semel.Key) error {
			if err := d.store.Claim(t.Context(), []semel.ClaimRequest{request(key)}, make([]semel.ClaimAnswer, 1)); err != nil {
				t.Fatal(err)
			}
			return claim(t, tx, key)
		}, semel.ErrInFlight, semel.ClassRetryable},
		"an invalid key": {func(t *testing.T, tx *Tx, _ semel.Key) error {
			return claim(t, tx, semel.Key{})
		}, semel.ErrInvalidKey, semel.ClassPermanent},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.do(t, d.InTx(b.begin()), key(t.Name()))
			if !errors.Is(err, c.want) || semel.Classify(err) != c.class {
				t.Errorf("got %v, which is %s; want %v, which is %s", err, semel.Classify(err), c.want, c.class)
			}
		})
	}
}

// TestAKeyOfAnOpenTransactionHasAHolder claims a key inside the transaction that
// already holds it, as a program may do by mistake, and in another delivery.
func TestAKeyOfAnOpenTransactionHasAHolder(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{LockWait: 50 * time.Millisecond}, nil)
	const holder = "a transaction that has not committed"
	held := func(how string, err error) {
		t.Helper()
		var flight *semel.InFlightError
		if !errors.As(err, &flight) || flight.Holder != holder || !strings.Contains(err.Error(), "held by "+holder+": ") {
			t.Errorf("%s: %v, want the holder %q", how, err, holder)
		}
	}
	_, err := d.DoTx(t.Context(), key("a"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		_, err := d.Do(ctx, key("a"), func(context.Context, semel.Claim) ([]byte, error) { return nil, nil })
		held("Do", err)
		out := d.DoBatch(ctx, []semel.Call{{Key: key("b")}, {Key: key("a")}}, func(context.Context, []*semel.BatchItem) error { return nil })
		held("DoBatch", out[1].Err)
		if out[0].Err != nil {
			t.Errorf("a key beside it: %v", out[0].Err)
		}
		_, err = d.DoTx(ctx, key("a"), counting("a"))
		held("DoTx", err)
		return nil, nil
	})
	if err != nil {
		t.Error(err)
	}
}
