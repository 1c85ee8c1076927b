package logstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/test/faultfs"
)

// spillWork is a workload that lets keys leave memory, and what its calls returned.
type spillWork struct {
	clock *handClock
	s     *Store
	// until has for each key whose last change is durable when it is forgotten: the zero
	// time if it is absent.
	until    map[int]time.Time
	position int  // of the last durable transaction; at most one more was tried
	held     bool // key -1 is durably held
	runs     []string
}

// always is later than all other times of the workload.
var always = time.Unix(1<<40, 0)

func newSpillWork() *spillWork {
	return &spillWork{clock: newHandClock(), until: make(map[int]time.Time)}
}

func (w *spillWork) open(fs *faultfs.FS, fsync Fsync) (err error) {
	w.s, err = Open("/d/store", &Options{
		FS: fs, Clock: w.clock.now, Fsync: fsync, FsyncInterval: time.Hour, SegmentSize: minSegmentSize, CacheBytes: minCacheBytes,
	})
	if err == nil {
		mergePairs(w.s)
	}
	return err
}

// run does the work: runs are made, merged by size, merged because most of their keys have
// expired, and deleted. Between the steps it notes which runs there are.
func (w *spillWork) run(fs *faultfs.FS, fsync Fsync) error {
	if err := w.open(fs, fsync); err != nil {
		return err
	}
	defer w.s.Close()
	for _, step := range []func() error{
		w.hold,
		w.done(0, 200, time.Hour),
		w.set, w.spill,
		w.pass, w.purge,
		w.done(200, 400, semel.Forever), w.done(400, 420, time.Hour),
		w.remove(200),
		w.set, w.spill,
		w.remove(201), w.done(200, 201, semel.Forever),
		w.done(500, 700, semel.Forever),
		w.spill, w.merge,
		w.done(700, 770, time.Hour),
		w.spill,
		w.pass,
		w.done(900, 910, time.Hour), w.remove(202),
		w.spill,
		w.pass, w.merge, w.purge,
		w.done(700, 800, semel.Forever),
		w.set,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return w.s.Close()
}

// durable notes the state of keys after a change, if that is durable.
func (w *spillWork) durable(failed error, until time.Time, keys ...int) error {
	if err := errors.Join(failed, w.s.Sync()); err != nil {
		return err
	}
	for _, n := range keys {
		w.until[n] = until
	}
	return nil
}

func (w *spillWork) done(from, to int, window time.Duration) func() error {
	return func() error {
		reqs, answers := make([]semel.ClaimRequest, to-from), make([]semel.ClaimAnswer, to-from)
		keys := make([]int, to-from)
		for i := range reqs {
			keys[i] = from + i
			delete(w.until, keys[i]) // until it is known
			reqs[i] = semel.ClaimRequest{Key: key(from + i), Done: true, Window: window}
		}
		until := always
		if window != semel.Forever {
			until = w.clock.now().Add(window)
		}
		return w.durable(w.s.Claim(context.Background(), reqs, answers), until, keys...)
	}
}

func (w *spillWork) remove(n int) func() error {
	return func() error {
		delete(w.until, n)
		_, err := w.s.Remove(context.Background(), key(n))
		return w.durable(err, time.Time{}, n)
	}
}

func (w *spillWork) hold() error {
	var a [1]semel.ClaimAnswer
	err := w.s.Claim(context.Background(), []semel.ClaimRequest{{Key: key(-1), Lease: time.Hour, Window: time.Hour, Hold: true, Owner: semel.Owner{Nonce: 1}}}, a[:])
	err = w.durable(err, time.Time{})
	w.held = err == nil
	return err
}

func (w *spillWork) set() error {
	tx, err := w.s.Begin(context.Background())
	if err != nil {
		return err
	}
	defer tx.Abort()
	tx.Set("position", []byte(strconv.Itoa(w.position+1)))
	if err := w.durable(tx.Commit(context.Background()), time.Time{}); err != nil {
		return err
	}
	w.position++
	return nil
}

func (w *spillWork) spill() error { return w.note(Spill(context.Background(), w.s)) }
func (w *spillWork) merge() error { return w.note(mergeNow(w.s)) }

func (w *spillWork) purge() error {
	_, err := w.s.Purge(context.Background())
	return w.note(err)
}

func (w *spillWork) pass() error {
	w.clock.advance(2 * time.Hour)
	return nil
}

func (w *spillWork) note(err error) error {
	w.s.log.mu.Lock()
	defer w.s.log.mu.Unlock()
	var names []string
	for _, s := range w.s.finder.runs.list {
		names = append(names, s.Name())
	}
	w.runs = append(w.runs, strings.Join(names, " "))
	return err
}

// check compares the open store with the answers of the calls.
func (w *spillWork) check() error {
	ctx, now := context.Background(), w.clock.now()
	want := make(map[semel.Digest]bool)
	var keys []semel.Key
	var ends []time.Time
	for n, until := range w.until {
		keys, ends = append(keys, key(n)), append(ends, until)
	}
	records := make([]semel.Record, len(keys))
	if err := w.s.Look(ctx, keys, records); err != nil {
		return err
	}
	for i, r := range records {
		done := ends[i].After(now)
		if want[r.Digest] = done; (r.State == semel.Done) != done {
			return fmt.Errorf("key %s is %s, and was to be known until %v at %v", keys[i].ID, r.State, ends[i], now)
		}
	}
	listed := make(map[semel.Digest]bool)
	for r, err := range w.s.List(ctx, semel.ListOptions{State: semel.Done}) {
		if err != nil {
			return err
		}
		if known, sure := want[r.Digest]; listed[r.Digest] || sure && !known {
			return fmt.Errorf("the key of digest %s is listed again, or was removed", r.Digest)
		}
		listed[r.Digest] = true
	}
	for d, done := range want {
		if done && !listed[d] {
			return fmt.Errorf("the key of digest %s is not listed", d)
		}
	}
	var r [1]semel.Record
	if err := w.s.Look(ctx, []semel.Key{key(-1)}, r[:]); err != nil || w.held && r[0].State != semel.Unknown {
		return fmt.Errorf("the held key is %s, %w", r[0].State, err)
	}
	v, _ := w.s.Value("position")
	if position, _ := strconv.Atoi(string(v)); position != w.position && position != w.position+1 {
		return fmt.Errorf("position is %q, after %d", v, w.position)
	}
	var fresh [1]semel.ClaimAnswer
	if err := w.s.Claim(ctx, []semel.ClaimRequest{{Key: key(5000), Lease: time.Hour, Window: time.Hour, Owner: semel.Owner{Nonce: 1}}}, fresh[:]); err != nil || fresh[0].Decision != semel.Fresh {
		return fmt.Errorf("a new key is %s, %w", fresh[0].Decision, err)
	}
	return nil
}

// TestStoreSurvivesCrashesWhileKeysLeaveMemory crashes at each file operation of spills,
// merges and deletions. With -short it takes a part of the operations that is drawn.
func TestStoreSurvivesCrashesWhileKeysLeaveMemory(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 5))
	step := 1
	if testing.Short() {
		step = 24
	}
	for _, fsync := range []Fsync{Always, Never} {
		whole, w := faultfs.New(), newSpillWork()
		var seen sync.Map
		whole.SetHook(func(op faultfs.Op) error {
			seen.Store(op.Kind.String()+" "+filepath.Ext(strings.TrimSuffix(op.Name, ".tmp")), true)
			return nil
		})
		if err := w.run(whole, fsync); err != nil {
			t.Fatal(err)
		}
		for _, suffix := range []string{run.Suffix, run.IndexSuffix} {
			for _, kind := range []faultfs.OpKind{faultfs.Create, faultfs.Write, faultfs.Sync, faultfs.Rename, faultfs.Remove} {
				if _, ok := seen.Load(kind.String() + " " + suffix); !ok {
					t.Errorf("there was no %s of a %s file", kind, suffix)
				}
			}
		}
		// Runs were merged by their size, and because their keys have expired. The first was deleted.
		if got := strings.Join(w.runs, ", "); !strings.HasPrefix(got, runName(1, 1)+", , ") || !strings.HasSuffix(got, runName(2, 3)+" "+runName(4, 5)) {
			t.Errorf("runs after each step: %s", got)
		}
		for at := 1 + random.IntN(step); at <= whole.Ops(); at += step {
			fs, w := faultfs.New(), newSpillWork()
			fs.CrashAt(at)
			if err := w.run(fs, fsync); err == nil {
				continue // the background did less this time
			}
			for _, policy := range []faultfs.Policy{faultfs.OnlySynced, faultfs.Torn, faultfs.Everything} {
				if err := w.survives(fs.Survive(policy, random), fsync); err != nil {
					t.Fatalf("fsync %s, crash at operation %d of %d, %s: %v", fsync, at, whole.Ops(), policy, err)
				}
			}
		}
	}
}

// survives opens what a crash left, and checks it before and after all keys leave memory.
func (w *spillWork) survives(left *faultfs.FS, fsync Fsync) error {
	again := &spillWork{clock: w.clock, until: w.until, position: w.position, held: w.held}
	if err := again.open(left, fsync); err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer again.s.Close()
	if err := again.check(); err != nil {
		return err
	}
	if err := errors.Join(again.spill(), again.merge(), again.check()); err != nil {
		return fmt.Errorf("after another spill: %w", err)
	}
	return again.s.Close()
}
