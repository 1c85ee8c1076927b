package file_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/vfs"
)

// childOf is set in a process that is to run a pipeline in that directory.
const childOf = "FILEIO_TEST_DIRECTORY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childOf); dir != "" {
		if err := runFiles(context.Background(), vfs.OS{}, dir, os.Getenv("FILEIO_TEST_MODE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runFiles runs a pipeline from the files in.* of a directory to out, with the
// store and the output on a file layer.
func runFiles(ctx context.Context, fsys vfs.FS, dir, mode string) (err error) {
	store, err := logstore.Open(filepath.Join(dir, "keys"), &logstore.Options{FS: fsys, SegmentSize: 1 << 20, KeepIDs: mode == "session with ids"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	opts := &file.SourceOptions{FS: fsys, SaveEvery: time.Millisecond}
	if strings.HasSuffix(mode, "csv") {
		opts.Format = file.CSV
	}
	if mode == "two-phase" {
		opts.State = filepath.Join(dir, "state", "positions")
	}
	source, err := file.OpenSource([]string{filepath.Join(dir, "in.*")}, opts)
	if err != nil {
		return err
	}
	var session pipeline.Session
	if mode == "two-phase" {
		sink, err := file.OpenSink(filepath.Join(dir, "out"), &file.SinkOptions{FS: fsys})
		if err != nil {
			return errors.Join(err, source.Close(ctx))
		}
		session, err = pipeline.NewTwoPhase(store, sink, nil)
		if err != nil {
			return err
		}
	} else {
		session, err = file.OpenSession(ctx, store, filepath.Join(dir, "out"), file.InParts(file.SessionOptions{FS: fsys, Source: source, Window: semel.Forever}, 30))
		if err != nil {
			return errors.Join(err, source.Close(ctx))
		}
	}
	rule, err := key.ParseRule(".id")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	runner, err := pipeline.NewRunner(source, session, &pipeline.Options{
		Key: rule, Order: pipeline.OrderPartition, Batch: 200, MaxItems: 1000, Shutdown: 10 * time.Millisecond,
		OnMissing: pipeline.MissingStop, OnLate: pipeline.Stop, OnMismatch: pipeline.Stop,
		Failure:  pipeline.Failure{Then: pipeline.Stop, From: time.Microsecond, To: time.Microsecond},
		Observer: endsAtStoreFailure{cancel},
	})
	if err != nil {
		return err
	}
	if err := runner.Run(ctx); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// endsAtStoreFailure ends a pipeline whose store or sink does not answer: in
// these tests it never will.
type endsAtStoreFailure struct{ cancel context.CancelFunc }

func (endsAtStoreFailure) Observe(semel.Event) {}

func (o endsAtStoreFailure) ObservePipeline(e pipeline.Event) {
	if e.Kind == pipeline.EventPaused {
		o.cancel()
	}
}

// writeInputs makes two files, a fifth of whose lines have a key that was there
// before, and returns the bytes to write.
func writeInputs(t *testing.T, dir string, random *rand.Rand, lines int) []byte {
	t.Helper()
	var in [2]bytes.Buffer
	var want bytes.Buffer
	for n := range lines {
		id, again := n, n > 0 && random.IntN(5) == 0
		if again {
			id = random.IntN(n)
		}
		line := fmt.Sprintf("{\"id\":\"k-%d\",\"pad\":%q}\n", id, strings.Repeat("x", id%90))
		in[n*2/lines].WriteString(line)
		if !again || !bytes.Contains(want.Bytes(), []byte(line)) {
			want.WriteString(line)
		}
	}
	for i := range in {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("in.%d", i)), in[i].Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return want.Bytes()
}

// sameLines compares lines in any order: those of two files come side by side.
func sameLines(a, b []byte) bool {
	x, y := split(a), split(b)
	slices.SortFunc(x, bytes.Compare)
	slices.SortFunc(y, bytes.Compare)
	return slices.EqualFunc(x, y, bytes.Equal)
}

func newRandom(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// TestKilledSessionWritesEachLineOnce kills a process of its own again and again.
func TestKilledSessionWritesEachLineOnce(t *testing.T) {
	t.Parallel()
	random := newRandom(t)
	dir := t.TempDir()
	want := writeInputs(t, dir, random, 20_000)
	writesOnce(t, random, dir, "session", want)
}

// TestKilledSessionWritesEachRowOnce does it with rows, whose header is read again after a kill.
func TestKilledSessionWritesEachRowOnce(t *testing.T) {
	t.Parallel()
	random := newRandom(t)
	dir := t.TempDir()
	want := writeInputs(t, dir, random, 20_000)
	for i := range 2 {
		name := filepath.Join(dir, fmt.Sprintf("in.%d", i))
		lines, err := linesOf(name)
		if err != nil {
			t.Fatal(err)
		}
		rows := []byte("id,pad\n")
		for _, line := range lines {
			row := bytes.Replace(bytes.TrimPrefix(line, []byte(`{"id":`)), []byte(`,"pad":`), []byte(","), 1)
			rows = append(append(rows, bytes.TrimSuffix(row, []byte("}"))...), '\n')
		}
		if err := os.WriteFile(name, rows, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	writesOnce(t, random, dir, "session csv", want)
}

// writesOnce kills a program until it has copied the inputs, and compares what it has written.
func writesOnce(t *testing.T, random *rand.Rand, dir, how string, want []byte) {
	t.Helper()
	killed := killUntilDone(t, random, dir, how, 4)
	got, err := os.ReadFile(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	if !sameLines(got, want) {
		t.Errorf("after %d kills the output has %d bytes that are not the %d that an undisturbed run writes", killed, len(got), len(want))
	}
}

// TestKilledTwoPhaseLosesNoLine does the same with a sink of its own, where lines
// may come twice but none is lost.
func TestKilledTwoPhaseLosesNoLine(t *testing.T) {
	t.Parallel()
	random := newRandom(t)
	dir := t.TempDir()
	want := writeInputs(t, dir, random, 10_000)
	killed := killUntilDone(t, random, dir, "two-phase", 4)
	lines, err := linesOf(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	times := map[string]int{}
	for _, line := range lines {
		times[string(line)]++
	}
	repeated := 0
	for _, line := range split(want) {
		switch n := times[string(line)]; {
		case n == 0:
			t.Fatalf("after %d kills the line %s is lost", killed, line)
		case n > 1:
			repeated++
		}
	}
	// Each kill may repeat what was delivered and not yet completed.
	if most := killed * 1000; repeated > most {
		t.Errorf("%d lines came again after %d kills, at most %d can", repeated, killed, most)
	}
}

// killUntilDone runs the pipeline in processes that are killed, the first times
// of them, and returns how many kills hit a running one.
func killUntilDone(t *testing.T, random *rand.Rand, dir, mode string, times int) (killed int) {
	t.Helper()
	for range 100 {
		command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		command.Env = append(os.Environ(), childOf+"="+dir, "FILEIO_TEST_MODE="+mode)
		var complaint bytes.Buffer
		command.Stderr = &complaint
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- command.Wait() }()
		var timeout <-chan time.Time
		if killed < times {
			// Not before it has written something more, most of the times.
			before := size(filepath.Join(dir, "out"))
			grown := before + int64(random.IntN(60_000))
			timeout = whenGrown(filepath.Join(dir, "out"), grown)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("the pipeline: %v\n%s", err, &complaint)
			}
			if killed > 0 {
				return killed
			}
			startOver(t, dir) // it was over before this process noticed what it wrote
		case <-timeout:
			_ = command.Process.Kill() // it may have ended just now
			if <-ended; command.ProcessState.ExitCode() != 0 {
				killed++
			}
		}
	}
	t.Fatal("the pipeline does not end")
	return killed
}

// startOver removes what a pipeline wrote.
func startOver(t *testing.T, dir string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(filepath.Base(name), "in.") {
			continue
		}
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
	}
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// whenGrown sends when a file has a size, or after a while.
func whenGrown(path string, bytes int64) <-chan time.Time {
	c := make(chan time.Time, 1)
	ticker := time.NewTicker(time.Millisecond)
	go func() {
		defer ticker.Stop()
		for range 2000 {
			if now := <-ticker.C; size(path) > bytes {
				c <- now
				return
			}
		}
		c <- time.Time{}
	}()
	return c
}

// TestSessionSurvivesLossOfPower loses power at many operations of the file layer,
// and again while the pipeline runs again. What the disk has kept must be enough.
func TestSessionSurvivesLossOfPower(t *testing.T) {
	t.Parallel()
	random := newRandom(t)
	dir := t.TempDir()
	want := writeInputs(t, dir, random, 3000)
	total, rounds := 0, 25
	if testing.Short() {
		rounds = 8
	}
	defer func() {
		if t.Logf("%d losses of power", total); total < rounds {
			t.Errorf("too few losses of power")
		}
	}()
	for round := range rounds {
		mode := []string{"session", "session with ids"}[round%2]
		disk := faultfs.New()
		crashes := 0
		for attempt := 0; ; attempt++ {
			if attempt < 4 {
				disk.CrashAt(1 + random.IntN(60))
			}
			err := runFiles(t.Context(), disk, dir, mode)
			if err == nil && !disk.Crashed() {
				break
			}
			if !disk.Crashed() {
				t.Fatalf("round %d: %v", round, err)
			}
			crashes++
			total++
			policy := []faultfs.Policy{faultfs.OnlySynced, faultfs.Torn, faultfs.Everything}[random.IntN(3)]
			disk = disk.Survive(policy, random)
		}
		got, err := disk.ReadFile(filepath.Join(dir, "out"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) || !sameLines(got, want) {
			t.Fatalf("round %d: after %d losses of power the output has %d bytes that are not the %d of an undisturbed run: %v", round, crashes, len(got), len(want), err)
		}
		if mode == "session with ids" {
			if ids := listedIDs(t, disk, dir); ids != bytes.Count(want, []byte{'\n'}) {
				t.Fatalf("round %d: after %d losses of power %d ids are listed, of %d lines", round, crashes, ids, bytes.Count(want, []byte{'\n'}))
			}
		}
	}
}

// listedIDs returns how many ids the store of a pipeline lists. Each key must be
// readable.
func listedIDs(t *testing.T, disk vfs.FS, dir string) int {
	t.Helper()
	store, err := logstore.Open(filepath.Join(dir, "keys"), &logstore.Options{FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	n := 0
	for r, err := range store.List(t.Context(), semel.ListOptions{State: semel.Done}) {
		if err != nil || !strings.HasPrefix(r.Key.ID, "k-") {
			t.Fatalf("listed: %s, %v", r.Key, err)
		}
		n++
	}
	return n
}

// TestSessionContinuesWhenTheDiskHasSpaceAgain fills the disk.
func TestSessionContinuesWhenTheDiskHasSpaceAgain(t *testing.T) {
	t.Parallel()
	random := newRandom(t)
	for _, mode := range []string{"session", "two-phase"} {
		dir := t.TempDir()
		want := writeInputs(t, dir, random, 3000)
		disk := faultfs.New()
		full := 0
		for free := int64(0); ; free += 40_000 + random.Int64N(20_000) {
			if free < 3<<20 {
				disk.SetFree(free)
			} else {
				disk.SetFree(-1)
			}
			if err := runFiles(t.Context(), disk, dir, mode); err == nil {
				break
			}
			full++
		}
		got, err := disk.ReadFile(filepath.Join(dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		if full == 0 {
			t.Errorf("%s: the disk was never full", mode)
		}
		if mode == "session" && !sameLines(got, want) {
			t.Errorf("after a full disk the output has %d bytes that are not the %d of an undisturbed run", len(got), len(want))
		}
		for _, line := range split(want) {
			if !bytes.Contains(got, append(line, '\n')) {
				t.Fatalf("%s: after a full disk the line %s is lost", mode, line)
			}
		}
	}
}
