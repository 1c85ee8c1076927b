package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
)

// batchWays are all ways to decide many calls, each with an effect that fails for
// some ids. The server refuses a poison.
var batchWays = map[string]func(ctx context.Context, d *desk, calls []semel.Call, fail failing) []semel.BatchOutcome{
	"TxBatchFunc, item by item": func(ctx context.Context, d *desk, calls []semel.Call, fail failing) []semel.BatchOutcome {
		return d.DoTxBatch(ctx, calls, TxBatchFunc(func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) error {
			for _, item := range fresh {
				item.Data, item.Err = fail.effect(ctx, tx, item.Call.Key.ID)
				if item.Err != nil && fail[item.Call.Key.ID] == errPoison {
					return nil // the transaction is aborted
				}
			}
			return nil
		}))
	},
	"TxBatchFunc, all together": func(ctx context.Context, d *desk, calls []semel.Call, fail failing) []semel.BatchOutcome {
		return d.DoTxBatch(ctx, calls, TxBatchFunc(func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) error {
			for _, item := range fresh {
				data, err := fail.effect(ctx, tx, item.Call.Key.ID)
				if err != nil {
					return err
				}
				item.Data = data
			}
			return nil
		}))
	},
	"TxItemFunc": func(ctx context.Context, d *desk, calls []semel.Call, fail failing) []semel.BatchOutcome {
		return d.DoTxBatch(ctx, calls, TxItemFunc(func(ctx context.Context, tx pgx.Tx, item *semel.BatchItem) (err error) {
			item.Data, err = fail.effect(ctx, tx, item.Call.Key.ID)
			return err
		}))
	},
	"TxQueueFunc with results": func(ctx context.Context, d *desk, calls []semel.Call, fail failing) []semel.BatchOutcome {
		return d.DoTxBatch(ctx, calls, TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
			for _, item := range fresh {
				id := item.Call.Key.ID
				switch q.Queue(item, count, id); fail[id] {
				case errPanic:
					panic("of an effect")
				case errPoison:
					q.Queue(item, "INSERT INTO effects VALUES ('poison', NULL)")
				default:
					item.Data, item.Err = []byte("result of "+id), fail[id]
				}
			}
			return nil
		}))
	},
	"TxQueueFunc with callbacks": func(ctx context.Context, d *desk, calls []semel.Call, fail failing) []semel.BatchOutcome {
		return d.DoTxBatch(ctx, calls, TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
			for _, item := range fresh {
				id := item.Call.Key.ID
				q.Queue(item, count, id).Exec(func(pgconn.CommandTag) error {
					if fail[id] == errPanic {
						panic("of a callback")
					}
					item.Data, item.Err = []byte("result of "+id), fail[id]
					return nil
				})
				if fail[id] == errPoison {
					q.Queue(item, "INSERT INTO effects VALUES ('poison', NULL)")
				}
			}
			return nil
		}))
	},
}

var (
	errRefused = errors.New("refused")
	errPoison  = errors.New("poisoned")
	errPanic   = errors.New("panic")
	errForGood = semel.Permanent(errors.New("permanently"))
)

// failing says which ids fail, and how.
type failing map[string]error

func (f failing) effect(ctx context.Context, tx pgx.Tx, id string) ([]byte, error) {
	if _, err := tx.Exec(ctx, count, id); err != nil {
		return nil, err
	}
	switch f[id] {
	case errPanic:
		panic("of an effect")
	case errPoison:
		_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ('poison', NULL)")
		return nil, err
	}
	return []byte("result of " + id), f[id]
}

func callsOf(n int, format string) []semel.Call {
	calls := make([]semel.Call, n)
	for i := range calls {
		calls[i].Key = key(fmt.Sprintf(format, i))
	}
	return calls
}

func TestFailingMessageRollsBackAloneInABatch(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	for name, do := range batchWays {
		t.Run(name, func(t *testing.T) {
			id := func(i int) string { return fmt.Sprintf("%s %d", name, i) }
			calls := callsOf(70, name+" %d")
			calls = append(calls, calls[3], calls[10]) // repeated; the second of them fails
			if _, err := d.DoTx(t.Context(), calls[20].Key, counting(id(20))); err != nil {
				t.Fatal(err)
			}
			fail := failing{id(10): errRefused, id(30): errPoison, id(31): errForGood, id(60): errRefused}
			outcomes := do(t.Context(), d, calls, fail)
			for i, out := range outcomes {
				switch i {
				case 10, 60, 71:
					want(t, out.Outcome, out.Err, semel.Undecided, "", errRefused)
				case 30:
					if stateOf(out.Err) != "23502" {
						t.Errorf("poison: %v", out.Err)
					}
				case 31:
					want(t, out.Outcome, out.Err, semel.Fresh, "permanently", errForGood)
				case 20:
					want(t, out.Outcome, out.Err, semel.Duplicate, "result of "+id(20), nil)
				case 70:
					want(t, out.Outcome, out.Err, semel.Duplicate, "result of "+id(3), nil)
				default:
					want(t, out.Outcome, out.Err, semel.Fresh, "result of "+id(i), nil)
				}
			}
			again := do(t.Context(), d, calls[:70], nil)
			for i, out := range again {
				switch i {
				case 10, 30, 60:
					want(t, out.Outcome, out.Err, semel.Fresh, "result of "+id(i), nil)
				case 31:
					var permanent *semel.PermanentError
					if !errors.As(out.Err, &permanent) || !permanent.Replayed {
						t.Errorf("failed permanently: %v", out.Err)
					}
					d.wantEffects(t, id(i), 0)
					continue
				default:
					want(t, out.Outcome, out.Err, semel.Duplicate, "result of "+id(i), nil)
				}
				d.wantEffects(t, id(i), 1)
			}
		})
	}
}

// TestARefusedStatementFailsItsItemAlone counts how often the statements of the items are
// sent: the guard knows whose statement was refused, and tries nothing alone.
func TestARefusedStatementFailsItsItemAlone(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{LockWait: 100 * time.Millisecond}, nil)
	locker, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer rollback(t.Context(), locker)
	const poison, missing = "INSERT INTO effects VALUES ('poison', NULL)", "INSERT INTO nowhere VALUES (1)"
	for _, c := range []struct {
		name  string
		bad   map[int]string // the statements of some items
		held  []int          // the items whose rows are locked
		fails []int
		code  string
		sent  int
	}{
		{"one item", map[int]string{4: poison}, nil, []int{4}, "23502", 2},
		{"two items", map[int]string{0: poison, 9: poison}, nil, []int{0, 9}, "23502", 3},
		{"a text that is wrong for several items", map[int]string{2: missing, 3: missing, 7: missing}, nil, []int{2, 3, 7}, "42P01", 2},
		{"one locked row", nil, []int{5}, []int{5}, "55P03", 2},
		{"several locked rows", nil, []int{1, 3, 5, 7}, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, "55P03", 2},
	} {
		for _, hot := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, keys and statements together: %t", c.name, hot), func(t *testing.T) {
				id := func(i int) string { return fmt.Sprint(c.name, hot, i) }
				for _, i := range c.held {
					if _, err := d.pool.Exec(t.Context(), count, id(i)); err != nil {
						t.Fatal(err)
					}
					if _, err := locker.Exec(t.Context(), "SELECT FROM effects WHERE id = $1 FOR UPDATE", id(i)); err != nil {
						t.Fatal(err)
					}
				}
				d.optimism.saw(false)
				if hot {
					makeOptimistic(t, d)
				}
				calls, sent := make([]semel.Call, 10), 0
				for i := range calls {
					calls[i].Key = key(id(i))
				}
				outcomes := d.DoTxBatch(t.Context(), calls, TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
					sent++
					for _, item := range fresh {
						if sql, bad := c.bad[item.Index]; bad {
							q.Queue(item, sql)
						} else {
							q.Queue(item, count, id(item.Index))
						}
					}
					return nil
				}))
				for i, out := range outcomes {
					if !slices.Contains(c.fails, i) {
						want(t, out.Outcome, out.Err, semel.Fresh, "", nil)
						d.wantEffects(t, id(i), 1)
						continue
					}
					if _, ok := errors.AsType[*StatementError](out.Err); !ok || stateOf(out.Err) != c.code || out.Decision != semel.Undecided {
						t.Errorf("item %d: %s, %v", i, out.Decision, out.Err)
					}
					d.wantEffects(t, id(i), map[bool]int{true: 1}[slices.Contains(c.held, i)])
				}
				want := c.sent
				if hot && c.code == "42P01" {
					want++ // to see whether it is a statement of the store that is wrong
				}
				if sent != want {
					t.Errorf("the statements were queued %d times, want %d", sent, want)
				}
			})
		}
	}
}

// TestARefusedStatementOfSeveralItemsFailsItsItemAlone counts how often the statements are
// queued: together, then apart, and then without the items that failed.
func TestARefusedStatementOfSeveralItemsFailsItsItemAlone(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{LockWait: 100 * time.Millisecond}, nil)
	locker, err := d.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer rollback(t.Context(), locker)
	const several = "INSERT INTO effects SELECT id, n FROM unnest($1::text[], $2::int[]) AS r (id, n) ON CONFLICT (id) DO UPDATE SET count = effects.count + 1"
	for _, c := range []struct {
		name, sql string
		bad       []int // the items whose rows are refused
		held      []int // the items whose rows are locked
		fails     []int
		code      string
		sent      int
	}{
		{"none", several, nil, nil, nil, "", 1},
		{"one item", several, []int{4}, nil, []int{4}, "23502", 3},
		{"two items", several, []int{0, 9}, nil, []int{0, 9}, "23502", 4},
		{"one locked row", several, nil, []int{5}, []int{5}, "55P03", 3},
		{"the text of the statement alone", "INSERT INTO nowhere SELECT $1::text[], $2::int[]", nil, nil, nil, "", 2},
	} {
		for _, hot := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, keys and statements together: %t", c.name, hot), func(t *testing.T) {
				id := func(i int) string { return fmt.Sprint(c.name, hot, i) }
				for _, i := range c.held {
					if _, err := d.pool.Exec(t.Context(), count, id(i)); err != nil {
						t.Fatal(err)
					}
					if _, err := locker.Exec(t.Context(), "SELECT FROM effects WHERE id = $1 FOR UPDATE", id(i)); err != nil {
						t.Fatal(err)
					}
				}
				d.optimism.saw(false)
				if hot {
					makeOptimistic(t, d)
				}
				calls, sent := make([]semel.Call, 10), 0
				for i := range calls {
					calls[i].Key = key(id(i))
				}
				outcomes := d.DoTxBatch(t.Context(), calls, TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
					sent++
					var ids []string
					var numbers []*int
					for _, item := range fresh {
						number := new(int)
						*number = 1
						if slices.Contains(c.bad, item.Index) {
							number = nil
						}
						if q.Apart() {
							q.Queue(item, several, []string{id(item.Index)}, []*int{number})
						}
						ids, numbers = append(ids, id(item.Index)), append(numbers, number)
					}
					if !q.Apart() {
						q.Queue(nil, c.sql, ids, numbers)
					}
					return nil
				}))
				for i, out := range outcomes {
					if !slices.Contains(c.fails, i) {
						want(t, out.Outcome, out.Err, semel.Fresh, "", nil)
						d.wantEffects(t, id(i), 1)
						continue
					}
					if _, ok := errors.AsType[*StatementError](out.Err); !ok || stateOf(out.Err) != c.code || out.Decision != semel.Undecided {
						t.Errorf("item %d: %s, %v", i, out.Decision, out.Err)
					}
					d.wantEffects(t, id(i), map[bool]int{true: 1}[slices.Contains(c.held, i)])
				}
				want := c.sent
				if hot && c.sql != several {
					want++ // to see whether it is a statement of the store that is wrong
				}
				if sent != want {
					t.Errorf("the statements were queued %d times, want %d", sent, want)
				}
			})
		}
	}
}

func TestPanicInABatchLeavesNeitherRowsNorKeys(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	for name, do := range batchWays {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the panic did not continue", name)
				}
			}()
			do(t.Context(), d, callsOf(3, name+" %d"), failing{name + " 1": errPanic})
		}()
		for _, out := range do(t.Context(), d, callsOf(3, name+" %d"), nil) {
			if out.Decision != semel.Fresh || out.Err != nil {
				t.Errorf("%s: %s, %v", name, out.Decision, out.Err)
			}
		}
		d.wantEffects(t, name+" 0", 1)
	}
	d.wantIdle(t)
}

func TestAKeyThatIsHeldDoesNotHoldABatch(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{LockWait: 50 * time.Millisecond}, nil)
	_, err := d.DoTx(t.Context(), key("held 1"), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
		for name, do := range batchWays {
			calls := append(callsOf(3, name+" %d"), semel.Call{Key: key("held 1")})
			for i, out := range do(ctx, d, calls, nil) {
				if i == 3 {
					want(t, out.Outcome, out.Err, semel.InFlight, "", semel.ErrInFlight)
				} else if out.Decision != semel.Fresh || out.Err != nil {
					t.Errorf("%s: %s, %v", name, out.Decision, out.Err)
				}
			}
		}
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestCrossedBatchesRunEachEffectOnce has batches with the same messages in any
// order. Their effects lock rows in that order.
func TestCrossedBatchesRunEachEffectOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{retries: 50, LockWait: mostLockWait}, nil)
	start := seed(t)
	const messages, workers = 60, 8
	for name, do := range batchWays {
		var wait sync.WaitGroup
		for w := range workers {
			random := rand.New(rand.NewPCG(uint64(start), uint64(w)))
			wait.Go(func() {
				for range 3 {
					if random.IntN(2) == 0 { // reads the known keys and inserts the others in one statement
						d.mostly.streak.Store(optimisticAfter)
					}
					calls := callsOf(messages, name+" %d")
					random.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
					for _, out := range do(t.Context(), d, calls[:messages/2], nil) {
						if out.Err != nil {
							t.Errorf("%s: %v", name, out.Err)
						}
					}
				}
			})
		}
		wait.Wait()
		for i := range messages {
			if n := d.effects(t, fmt.Sprintf(name+" %d", i)); n > 1 {
				t.Errorf("the effect of %s %d is there %d times", name, i, n)
			}
		}
	}
}

// TestEffectsAreRepeatedAfterADeadlock has transactions that write two rows in
// opposite order.
func TestEffectsAreRepeatedAfterADeadlock(t *testing.T) {
	t.Parallel()
	d := newDesk(t, &Options{LockWait: mostLockWait}, nil)
	if _, err := d.pool.Exec(t.Context(), "INSERT INTO effects VALUES ('left', 0), ('right', 0)"); err != nil {
		t.Fatal(err)
	}
	var meet sync.WaitGroup
	meet.Add(2)
	var runs [2]int
	var wait sync.WaitGroup
	for i, order := range [][]string{{"left", "right"}, {"right", "left"}} {
		wait.Go(func() {
			out, err := d.DoTx(t.Context(), key(order[0]), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				runs[i]++
				if _, err := tx.Exec(ctx, count, order[0]); err != nil {
					return nil, err
				}
				if runs[i] == 1 {
					meet.Done()
					meet.Wait()
				}
				_, err := tx.Exec(ctx, count, order[1])
				return nil, err
			})
			want(t, out, err, semel.Fresh, "", nil)
		})
	}
	wait.Wait()
	d.wantEffects(t, "left", 2)
	d.wantEffects(t, "right", 2)
	// A victim that runs again may take its first row before the other session wakes up,
	// and then there is a second deadlock.
	if runs[0]+runs[1] < 3 {
		t.Errorf("the effects ran %d times, want 2 and the victim again", runs[0]+runs[1])
	}
}

// TestBatchCancelledByAnotherMessagesErrorRecordsNoFailure ends the context of a batch
// with the error of another message, as errgroup does. Nothing in the batch has
// failed.
func TestBatchCancelledByAnotherMessagesErrorRecordsNoFailure(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil, nil)
	makeOptimistic(t, d)
	calls := []semel.Call{{Key: key("a")}, {Key: key("b")}}
	ctx, cancel := context.WithCancelCause(t.Context())
	for _, out := range d.DoTxBatch(ctx, calls, TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
		for _, item := range fresh {
			q.Queue(item, count, item.Call.Key.ID)
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

// TestCancelledCallDoesNotCancelSentStatements blocks the statements with a lock of
// another session while their caller gives up.
func TestCancelledCallDoesNotCancelSentStatements(t *testing.T) {
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
			out := d.DoTxBatch(ctx, calls, TxQueueFunc(func(q *Statements, fresh []*semel.BatchItem) error {
				for _, item := range fresh {
					q.Queue(item, count, item.Call.Key.ID)
				}
				q.Queue(nil, wait)
				return nil
			}))
			return out[0].Outcome, out[0].Err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, &Options{LockWait: mostLockWait}, nil)
			makeOptimistic(t, d)
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
		makeOptimistic(t, d)
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

func TestTheCommitTimeoutBeginsWhenTheCallerHasLeft(t *testing.T) {
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
		// A context that ended by itself leaves nothing behind in the bubble.
		short, end := outlasting(ctx, time.Minute)
		end()
		if short.Err() == nil {
			t.Error("it did not end")
		}
	})
}
