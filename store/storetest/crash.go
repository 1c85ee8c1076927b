package storetest

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/vfs"
)

// CrashHarness tells RunCrash how to create a durable store on a file system.
// The store must do all its file work through that file system.
type CrashHarness struct {
	// Open opens the store in a directory, or creates a new one there. The
	// directory may be missing, but its parent exists. Use the smallest file
	// and cache sizes of the store, so that it starts several files. The store
	// must implement io.Closer.
	Open func(fs vfs.FS, dir string, now func() time.Time) (semel.Store, error)
	// Large is the total size in bytes of about ten results with which the
	// workload fills files. Defaults to 20000. Must not be above
	// Traits.MaxResult.
	Large int
	// Transact has the same meaning as in [Harness]. Defaults to nil.
	Transact func(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error
}

// RunCrash runs a workload on the store and injects disk faults, at each
// operation on the file system in turn:
//   - The process dies.
//   - The power fails and tears writes.
//   - The disk is full.
//   - A write or sync fails.
//   - A bit flips.
//   - A file of a closed store loses its end.
//
// Afterwards every acknowledged change must be there, and no change that was
// not requested. A store that detects damage must return ErrCorrupt.
//
// A store that is not PowerSafe must lose nothing when its process dies. The
// suite also checks that it does lose something when the power fails.
//
// With go test -short, each run uses a random part of the operations.
func RunCrash(t *testing.T, h CrashHarness) {
	t.Helper()
	for _, c := range crashCases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e := newCrashEnv(t, h)
			e.short = testing.Short()
			c.check(e)
		})
	}
}

type crashCase struct {
	name  string
	check func(e *crashEnv)
}

var crashCases = []crashCase{
	{"a workload without faults is answered", crashNowhere},
	{"a crash at any operation loses nothing acknowledged", crashAnywhere},
	{"a crash during recovery loses nothing acknowledged", crashTwice},
	{"a full disk is refused cleanly at any operation", diskFull},
	{"a disk that fills up during a write loses nothing acknowledged", diskFillsUp},
	{"a failed operation loses nothing acknowledged", operationFails},
	{"a failed sync stops the store until it is reopened", syncFails},
	{"a flipped bit causes no false duplicate and no silent loss", bitFlips},
	{"records at the end of a closed store do not vanish silently", endsVanish},
}

// crashEnv is the environment of a case of RunCrash.
type crashEnv struct {
	testing.TB
	harness CrashHarness
	seed    uint64
	short   bool // try only a part of the operations
	random  *rand.Rand
	// traits are the traits of the store.
	traits semel.Traits
	// ops is the number of operations of a workload without faults. kinds
	// counts them by kind.
	ops   int
	kinds map[faultfs.OpKind]int
	// lost counts acknowledged keys that a power failure lost.
	lost int
}

// storeDir is the directory of the store.
const storeDir = "/store"

func newCrashEnv(tb testing.TB, h CrashHarness) *crashEnv {
	tb.Helper()
	if h.Large == 0 {
		h.Large = 20_000
	}
	e := &crashEnv{TB: tb, harness: h, seed: seed(tb), kinds: make(map[faultfs.OpKind]int)}
	e.random = rand.New(rand.NewPCG(e.seed, 0))
	fs := faultfs.New()
	var mu sync.Mutex // guards e.kinds, because the store may work in the background
	fs.SetHook(func(op faultfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		e.kinds[op.Kind]++
		return nil
	})
	r := e.run(fs, nothingFails)
	if e.Failed() {
		e.FailNow()
	}
	if !e.traits.Durable {
		e.Fatalf("RunCrash is for stores with the trait Durable")
	}
	e.ops = r.fs.Ops()
	return e
}

// seed returns the seed of a random test and prints it. It is the value of
// SEMEL_SEED, or a new seed.
func seed(tb testing.TB) uint64 {
	tb.Helper()
	s := rand.Uint64()
	if given := os.Getenv("SEMEL_SEED"); given != "" {
		var err error
		if s, err = strconv.ParseUint(given, 10, 64); err != nil {
			tb.Fatalf("SEMEL_SEED: %v", err)
		}
	}
	tb.Logf("to repeat: SEMEL_SEED=%d", s)
	return s
}

// run runs the whole workload.
func (e *crashEnv) run(fs *faultfs.FS, tolerates func(error) bool) *crashRun {
	e.Helper()
	r := newCrashRun(e, fs, tolerates)
	r.workload()
	r.close()
	return r
}

func nothingFails(error) bool { return false }

func crashNowhere(e *crashEnv) {
	for _, policy := range []faultfs.Policy{faultfs.OnlySynced, faultfs.Everything} {
		r := e.run(faultfs.New(), nothingFails)
		if len(r.errs) > 0 {
			e.Fatalf("the workload fails: %v", r.errs)
		}
		r.where = "closed, then " + policy.String()
		e.verify(r, r.fs.Survive(policy, nil), policy == faultfs.Everything || e.traits.PowerSafe)
	}
	if e.ops < 50 {
		e.Errorf("the workload takes %d operations of the file system only: is the store on it?", e.ops)
	}
}

// points yields 1 to n until a check fails. With go test -short it yields every
// eighth of them, from a random start.
func (e *crashEnv) points(n int) iter.Seq[int] {
	first, step := 1, 1
	if e.short {
		first, step = 1+e.random.IntN(8), 8
	}
	return func(yield func(int) bool) {
		for i := first; i <= n && !e.Failed() && yield(i); i += step {
		}
	}
}

// crashAt runs the workload up to a crash at operation n.
func (e *crashEnv) crashAt(n int) *crashRun {
	e.Helper()
	fs := faultfs.New()
	fs.CrashAt(n)
	r := newCrashRun(e, fs, func(error) bool { return fs.Crashed() })
	r.where = fmt.Sprintf("crash at operation %d of %d", n, e.ops)
	r.workload()
	if !fs.Crashed() {
		fs.CrashAt(fs.Ops() + 1) // this run took another path: end it here
	}
	r.close()
	return r
}

func crashAnywhere(e *crashEnv) {
	for n := range e.points(e.ops) {
		r := e.crashAt(n)
		for i, policy := range []faultfs.Policy{faultfs.Everything, faultfs.OnlySynced, faultfs.Torn, faultfs.Torn, faultfs.Torn} {
			at := r.where
			r.where = fmt.Sprintf("%s, %s (%d)", at, policy, i)
			e.verify(r, r.fs.Survive(policy, e.random), policy == faultfs.Everything || e.traits.PowerSafe)
			r.where = at
		}
	}
	if !e.traits.PowerSafe && e.lost == 0 && !e.Failed() {
		e.Errorf("the traits do not say PowerSafe, but no crash lost anything")
	}
}

func crashTwice(e *crashEnv) {
	for n := range e.points(e.ops) {
		r := e.crashAt(n)
		first := r.fs.Survive(faultfs.Torn, e.random)
		// Count the operations of a recovery.
		trial := first.Survive(faultfs.Everything, nil)
		store, err := e.harness.Open(trial, storeDir, r.clock.Now)
		if err != nil && errors.Is(err, semel.ErrCorrupt) && !e.traits.PowerSafe {
			continue // see verify
		}
		if err != nil {
			e.Fatalf("%s: open: %v", r.where, err)
		}
		ops := trial.Ops()
		if err := closeStore(store); err != nil {
			e.Fatalf("%s: close: %v", r.where, err)
		}
		if ops == 0 {
			continue
		}
		at := 1 + e.random.IntN(ops)
		first.CrashAt(at)
		if store, err := e.harness.Open(first, storeDir, r.clock.Now); err == nil {
			_ = closeStore(store) // it fails: the crash has happened, or happens here
		}
		policy := []faultfs.Policy{faultfs.OnlySynced, faultfs.Torn, faultfs.Everything}[e.random.IntN(3)]
		r.where = fmt.Sprintf("%s, torn, and again at operation %d of its recovery, %s", r.where, at, policy)
		e.verify(r, first.Survive(policy, e.random), e.traits.PowerSafe)
	}
}

// failing runs the workload with a hook that fails operations. Then it removes
// the hook and checks that the store works again, either immediately or after a
// reopen.
func (e *crashEnv) failing(where string, hook func(*crashRun, faultfs.Op) error) *crashRun {
	e.Helper()
	fs := faultfs.New()
	r := newCrashRun(e, fs, refusal)
	r.where = where
	fs.SetHook(func(op faultfs.Op) error { return hook(r, op) })
	r.workload()
	return r
}

// heal removes the fault, uses the store once more and closes it. Then it
// checks that no acknowledged change is missing.
func (e *crashEnv) heal(r *crashRun) {
	e.Helper()
	r.fs.SetHook(nil)
	r.fs.SetFree(-1)
	r.cycle(2, text("after the fault"))
	r.close()
	at := r.where
	for _, policy := range []faultfs.Policy{faultfs.Everything, faultfs.OnlySynced} {
		r.where = at + ", healed, " + policy.String()
		e.verify(r, r.fs.Survive(policy, nil), policy == faultfs.Everything || e.traits.PowerSafe)
	}
}

// takesSpace reports whether an operation can find the disk full.
func takesSpace(k faultfs.OpKind) bool {
	switch k {
	case faultfs.MkdirAll, faultfs.Create, faultfs.Write, faultfs.Allocate, faultfs.Lock:
		return true
	}
	return false
}

func diskFull(e *crashEnv) {
	writes := 0
	for kind, n := range e.kinds {
		if takesSpace(kind) {
			writes += n
		}
	}
	for n := range e.points(writes) {
		for _, lasts := range []bool{false, true} {
			var count atomic.Int64
			r := e.failing(fmt.Sprintf("disk full at write %d of %d, lasting: %t", n, writes, lasts), func(_ *crashRun, op faultfs.Op) error {
				if !takesSpace(op.Kind) {
					return nil
				}
				if c := count.Add(1); c == int64(n) || lasts && c > int64(n) {
					return syscall.ENOSPC
				}
				return nil
			})
			e.heal(r)
		}
	}
}

func diskFillsUp(e *crashEnv) {
	for range 40 {
		free := e.random.Int64N(300_000)
		r := newCrashRun(e, faultfs.New(), refusal)
		r.where = fmt.Sprintf("disk full after %d bytes", free)
		r.fs.SetFree(free)
		r.workload()
		e.heal(r)
	}
}

func operationFails(e *crashEnv) {
	for n := range e.points(e.ops) {
		var failed atomic.Pointer[faultfs.Op]
		r := e.failing(fmt.Sprintf("EIO at operation %d of %d", n, e.ops), func(_ *crashRun, op faultfs.Op) error {
			if op.N == n {
				failed.Store(&op)
				return syscall.EIO
			}
			return nil
		})
		if op := failed.Load(); op != nil {
			r.where += fmt.Sprintf(" (%s)", op)
		}
		e.heal(r)
	}
}
