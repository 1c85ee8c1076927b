package file_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/sampletest"
)

// sinkBeside opens a sink that commits separately from a store.
func sinkBeside(t *testing.T, store *logstore.Store, path string) *file.Sink {
	t.Helper()
	s, err := file.OpenSink(path, &file.SinkOptions{Beside: store})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func deliverLines(t *testing.T, s *file.Sink, lines ...string) {
	t.Helper()
	items := itemsOf(lines...)
	s.Deliver(t.Context(), items)
	for _, it := range items {
		if it.Err != nil {
			t.Fatal(it.Err)
		}
	}
}

// TestSessionKeepsLinesThatASinkWroteBetween is a pipeline that observes for a while.
func TestSessionKeepsLinesThatASinkWroteBetween(t *testing.T) {
	t.Parallel()
	store, path := openStore(t), filepath.Join(t.TempDir(), "out")
	for _, step := range []struct {
		sink  []string // of a sink, or
		lines []string // of a session
		want  string
	}{
		{sink: []string{"early"}, want: "early"},
		{lines: []string{"one"}, want: "early one"},
		{sink: []string{"one", "two"}, want: "early one one two"},
		{sink: []string{"three"}, want: "early one one two three"},
		{lines: []string{"one", "four"}, want: "early one one two three four"},
		{lines: []string{"four", "five"}, want: "early one one two three four five"},
	} {
		if step.lines != nil {
			s := openSession(t, store, path, nil)
			process(t, s, itemsOf(step.lines...))
			closeSession(t, s)
		} else {
			s := sinkBeside(t, store, path)
			deliverLines(t, s, step.sink...)
			if err := s.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := contentOf(t, path); got != strings.ReplaceAll(step.want, " ", "\n")+"\n" {
			t.Fatalf("after %+v it has %q", step, got)
		}
	}
}

// TestSessionsOfTwoStoresKeepLinesInOneOutput goes from one store to another and
// back.
func TestSessionsOfTwoStoresKeepLinesInOneOutput(t *testing.T) {
	t.Parallel()
	a, b, path := openStore(t), openStore(t), filepath.Join(t.TempDir(), "out")
	for i, store := range []*logstore.Store{a, b, a, b} {
		s := openSession(t, store, path, &file.SessionOptions{Append: i == 1})
		process(t, s, itemsOf("one", string(rune('a'+i))))
		closeSession(t, s)
	}
	if got := contentOf(t, path); got != "one\na\none\nb\nc\nd\n" {
		t.Errorf("got %q", got)
	}
}

// TestASinkWithAStoreRefusesTheSameOutputsAsTheSession says so before it appends what
// the session would not begin behind.
func TestASinkWithAStoreRefusesTheSameOutputsAsTheSession(t *testing.T) {
	t.Parallel()
	store, path := openStore(t), filepath.Join(t.TempDir(), "out")
	s := openSession(t, store, path, nil)
	process(t, s, itemsOf("one", "two"))
	closeSession(t, s)
	if err := os.Truncate(path, 5); err != nil {
		t.Fatal(err)
	}
	if _, err := file.OpenSink(path, &file.SinkOptions{Beside: store}); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("error %v", err)
	}
}

// rig is a store and an output on one disk.
type rig struct {
	disk  *faultfs.FS
	fsync logstore.Fsync
	store *logstore.Store
}

func (r *rig) open() (err error) {
	r.store, err = logstore.Open("/keys", &logstore.Options{FS: r.disk, Fsync: r.fsync})
	return err
}

// session writes lines by a session, closes all and returns the first error.
func (r *rig) session(t *testing.T, lines ...string) (err error) {
	if err := r.open(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.store.Close()) }()
	s, err := file.OpenSession(t.Context(), r.store, "/out", &file.SessionOptions{FS: r.disk})
	if err != nil {
		return err
	}
	items := itemsOf(lines...)
	for i := range items { // a record for each
		s.Process(t.Context(), items[i:i+1])
		err = errors.Join(err, items[i].Err)
	}
	return errors.Join(err, s.Close(t.Context()))
}

// sink writes lines by a sink that commits separately, and completes each key when its
// line is safe.
func (r *rig) sink(t *testing.T, lines ...string) (done []string, err error) {
	if err := r.open(); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.store.Close()) }()
	sink, err := file.OpenSink("/out", &file.SinkOptions{Beside: r.store, FS: r.disk})
	if err != nil {
		return nil, err
	}
	two, err := pipeline.NewTwoPhase(r.store, sink, &pipeline.TwoPhaseOptions{Observe: true})
	if err != nil {
		return nil, err
	}
	items := itemsOf(lines...)
	for i := range items {
		two.Process(t.Context(), items[i:i+1])
		if items[i].Err != nil {
			err = errors.Join(err, items[i].Err)
			break
		}
		done = append(done, lines[i])
	}
	return done, errors.Join(err, two.Close(t.Context()))
}

func (r *rig) lines(t *testing.T) []string {
	t.Helper()
	data, err := r.disk.ReadFile("/out")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
}

// eachCrash runs the steps of a test with a crash at each of its operations. It does so
// under each setting of the store and with each way in which a disk loses data that was
// not synced. With -short each setting has one of these ways, others from run to run.
func eachCrash(t *testing.T, prepare, crashing func(r *rig) error, after func(r *rig, where string)) {
	t.Helper()
	random := newRandom(t)
	for _, fsync := range []logstore.Fsync{logstore.Always, logstore.Interval, logstore.Never} {
		for _, policy := range sampletest.OneOf(faultfs.OnlySynced, faultfs.Torn, faultfs.Everything) {
			for at := 1; ; at++ {
				r := &rig{disk: faultfs.New(), fsync: fsync}
				if err := prepare(r); err != nil {
					t.Fatal(err)
				}
				r.disk = r.disk.Survive(faultfs.Everything, nil) // which counts from zero
				r.disk.CrashAt(at)
				err := crashing(r)
				if !r.disk.Crashed() {
					if err != nil || at < 10 {
						t.Fatalf("%v after %d operations", err, at)
					}
					break
				}
				r.disk = r.disk.Survive(policy, random)
				after(r, fmt.Sprintf("fsync %v, policy %v, crash at operation %d", fsync, policy, at))
			}
		}
	}
}

// TestACrashAfterACleanEndLeavesEachLineOnce crashes at every operation of a session after a
// closed one. Lines that were appended and not durable must not count as lines of another writer.
func TestACrashAfterACleanEndLeavesEachLineOnce(t *testing.T) {
	t.Parallel()
	eachCrash(t,
		func(r *rig) error { return r.session(t, "one") },
		func(r *rig) error { return r.session(t, "two", "three") },
		func(r *rig, where string) {
			if err := r.session(t, "one", "two", "three", "four"); err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			if got := r.lines(t); !slices.Equal(got, []string{"one", "two", "three", "four"}) {
				t.Fatalf("%s: got %q", where, got)
			}
		})
}

// TestCrashInObserveModeLosesNoLine crashes at every operation of a pipeline
// that observes after a session that crashed, and has a session follow.
func TestCrashInObserveModeLosesNoLine(t *testing.T) {
	t.Parallel()
	var done []string
	eachCrash(t,
		func(r *rig) error {
			if err := r.session(t, "one"); err != nil {
				return err
			}
			var wrote atomic.Bool
			r.disk.SetHook(func(op faultfs.Op) error { // the line is there, its record is not
				if op.Kind == faultfs.Write && op.Name == "/out" {
					wrote.Store(true)
				}
				if wrote.Load() && op.Kind == faultfs.Sync && op.Name == "/out" {
					return errors.New("the disk does not answer")
				}
				return nil
			})
			if r.session(t, "torn") == nil {
				t.Fatal("nothing was torn")
			}
			if got := r.lines(t); len(got) != 2 {
				t.Fatalf("nothing was torn: %q", got)
			}
			r.disk.SetHook(nil)
			return nil
		},
		func(r *rig) (err error) {
			done, err = r.sink(t, "two", "three")
			return err
		},
		func(r *rig, where string) {
			if err := r.session(t, "one", "two", "three", "torn"); err != nil {
				t.Fatalf("%s: %v", where, err)
			}
			got := r.lines(t)
			for _, line := range append([]string{"one", "two", "three", "torn"}, done...) {
				if !slices.Contains(got, line) {
					t.Fatalf("%s: %q is lost: %q", where, line, got)
				}
			}
			if once := strings.Count(strings.Join(got, " "), "torn"); once != 1 {
				t.Fatalf("%s: the torn line is there %d times: %q", where, once, got)
			}
		})
}
