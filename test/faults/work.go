package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
)

// mode is how keys and effects are tied together. Inputs of one mode have its
// name as their scope.
type mode string

const (
	// retry: claim, effect, complete; what a lost holder left is done again.
	retry mode = "retry"
	// hold: the same, but what a lost holder left becomes unknown.
	hold mode = "hold"
	// sameTx: key and effect commit in one transaction of PostgreSQL.
	sameTx mode = "tx"
)

// inputs are the names of inputs of a mode, from one number up to another.
func inputs(m mode, from, to int) []string {
	var list []string
	for i := from; i < to; i++ {
		list = append(list, fmt.Sprintf("%s/%d", m, i))
	}
	return list
}

// Points at which a worker kills itself, each behind the name of a mode.
const (
	beforeEffect = "before its effect"
	afterEffect  = "after its effect"
	afterCommit  = "after its completion"
)

// effectsTable has the effects of the mode sameTx. Nothing in it keeps a key
// from being there twice.
const effectsTable = `CREATE TABLE effects (id bigint NOT NULL, key text NOT NULL, worker text NOT NULL)`

// workJob is the part of one worker process: to process all inputs of its
// modes, of which the other workers get the same.
type workJob struct {
	Setting setting
	Worker  string
	// Journal is the address of the journal, File the file behind it.
	Journal, File string
	Modes         []mode
	Keys, Lanes   int
	Lease         time.Duration
	Seed          uint64
	// Deaths is the probability with which the worker kills itself at each of
	// the points.
	Deaths float64
}

// statusBroken is the status of a process that could not do its job.
const statusBroken = 7

func (j *workJob) run(ctx context.Context) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // any end is the end of who started us
		os.Exit(statusBroken)
	}()
	store, err := j.Setting.open(ctx)
	if err != nil {
		return err
	}
	defer store.close()
	w, err := newWorker(store, j.Worker, &recorder{addr: j.Journal}, j.Modes, j.Lease)
	if err != nil {
		return err
	}
	defer w.journal.close()
	w.seed, w.deaths = j.Seed, j.Deaths
	old, err := readJournal(j.File)
	if err != nil {
		return err
	}
	finished := map[string]bool{}
	for _, e := range old {
		if e.Worker == j.Worker && (e.Kind == settled || e.Kind == parked) {
			finished[e.Key] = true
		}
	}
	var todo []string
	for _, m := range j.Modes {
		for _, input := range inputs(m, 0, j.Keys) {
			if !finished[input] {
				todo = append(todo, input)
			}
		}
	}
	fmt.Println("working")
	return w.processAll(ctx, todo, j.Lanes)
}

// worker processes deliveries.
type worker struct {
	name    string
	journal *recorder
	guards  map[mode]*semel.Guard
	tx      *pgstore.Guard // for the mode sameTx
	// bare: effects leave no result.
	bare   bool
	seed   uint64
	deaths float64
	// failures counts answers of the store that were errors.
	failures atomic.Int64
	// slowest is how long the slowest delivery took, in nanoseconds.
	slowest atomic.Int64
}

func newWorker(store *opened, name string, journal *recorder, modes []mode, lease time.Duration) (*worker, error) {
	w := &worker{name: name, journal: journal, guards: map[mode]*semel.Guard{}, bare: store.bare}
	for _, m := range modes {
		opts := &semel.GuardOptions{Name: name, Lease: lease, Wait: lease / 10, Observer: semel.ObserverFunc(w.observe)}
		var err error
		switch m {
		case sameTx:
			w.tx, err = pgstore.NewGuard(store.postgres, opts)
		case hold:
			opts.OnLeaseExpired = semel.ExpiryHold
			w.guards[m], err = semel.NewGuard(store, opts)
		default:
			w.guards[m], err = semel.NewGuard(store, opts)
		}
		if err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *worker) observe(e semel.Event) {
	if e.Kind == semel.EventStoreError {
		w.failures.Add(1)
	}
}

func (w *worker) took(d time.Duration) {
	for old := w.slowest.Load(); int64(d) > old && !w.slowest.CompareAndSwap(old, int64(d)); {
		old = w.slowest.Load()
	}
}

// processAll processes inputs in a random order, several concurrently, until each is
// settled or parked.
func (w *worker) processAll(ctx context.Context, todo []string, parallel int) error {
	rand.New(rand.NewPCG(w.seed, 0)).Shuffle(len(todo), func(a, b int) { todo[a], todo[b] = todo[b], todo[a] })
	failed := make([]error, parallel)
	var wg sync.WaitGroup
	for n := range parallel {
		wg.Go(func() {
			l := &handler{worker: w, random: rand.New(rand.NewPCG(w.seed, uint64(n)+1))}
			for i := n; i < len(todo) && failed[n] == nil; i += parallel {
				failed[n] = l.deliver(ctx, todo[i])
			}
		})
	}
	wg.Wait()
	return errors.Join(failed...)
}

// handler processes one delivery after the other.
type handler struct {
	*worker
	random *rand.Rand
}

// patience is how long one delivery may take: a consumer has such a limit.
const patience = 4 * time.Second

var errFlaky = errors.New("the effect failed before it happened")

// deliver delivers an input again and again until it is settled or parked.
func (l *handler) deliver(ctx context.Context, input string) error {
	m := mode(keyOf(input).Scope)
	for {
		attempt, cancel := context.WithTimeout(ctx, patience)
		began := time.Now()
		out, err := l.process(attempt, m, input)
		l.took(time.Since(began))
		cancel()
		e := entry{Key: input, Worker: l.name}
		switch {
		case err == nil:
			l.mayDie(m, input, afterCommit)
			e.Kind, e.Decision, e.Result = settled, out.Decision.String(), string(out.Result.Data)
			l.journal.record(e)
			return nil
		case out.Decision == semel.OutcomeUnknown:
			e.Kind = parked
			l.journal.record(e)
			return nil
		case semel.Classify(err) == semel.ClassPermanent:
			return fmt.Errorf("%s: %w", input, err)
		}
		if err := pause(ctx, time.Duration(5+l.random.IntN(20))*time.Millisecond); err != nil {
			return fmt.Errorf("%s is not settled: %w", input, err)
		}
	}
}

// process processes one delivery.
func (l *handler) process(ctx context.Context, m mode, input string) (semel.Outcome, error) {
	if m == sameTx {
		return l.tx.DoTx(ctx, keyOf(input), func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
			return l.insert(ctx, tx, input)
		})
	}
	return l.guards[m].Do(ctx, keyOf(input), func(ctx context.Context, claim semel.Claim) ([]byte, error) {
		if err := l.before(m, input); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx) // before anything happened
		}
		l.journal.record(entry{Kind: effect, Key: input, Worker: l.name, Attempt: claim.Attempt, Token: uint64(claim.Token)})
		l.mayDie(m, input, afterEffect)
		if l.bare {
			return nil, nil
		}
		return []byte(result(input, uint64(claim.Token))), nil
	})
}

// before is what may go wrong before an effect.
func (l *handler) before(m mode, input string) error {
	l.mayDie(m, input, beforeEffect)
	if l.random.IntN(50) == 0 {
		return errFlaky
	}
	return nil
}

// insert is an effect in a transaction.
func (l *handler) insert(ctx context.Context, tx pgx.Tx, input string) ([]byte, error) {
	if err := l.before(sameTx, input); err != nil {
		return nil, err
	}
	// No sequence: it would number another effect alike after a failover that
	// forgets this one.
	id := rand.Int64()
	if _, err := tx.Exec(ctx, `INSERT INTO effects (id, key, worker) VALUES ($1, $2, $3)`, id, input, l.name); err != nil {
		return nil, err
	}
	l.mayDie(sameTx, input, afterEffect)
	return []byte(result(input, uint64(id))), nil
}

// mayDie kills this process now and then.
func (l *handler) mayDie(m mode, input, point string) {
	if l.random.Float64() >= l.deaths {
		return
	}
	l.journal.record(entry{Kind: death, Key: input, Worker: l.name, Point: string(m) + " " + point})
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {}
}

// committed returns the effects of the mode sameTx as entries of a journal.
func committed(ctx context.Context, address string) ([]entry, error) {
	conn, err := pgx.Connect(ctx, address)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(ctx, `SELECT key, worker, id FROM effects`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (entry, error) {
		e := entry{Kind: effect, Attempt: 1}
		return e, row.Scan(&e.Key, &e.Worker, &e.Token)
	})
}

// pause waits for d, or returns the cause of the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
