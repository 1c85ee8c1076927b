//go:build !race

// Package crash kills the real program at random moments, runs it again until
// it is done, and compares what it left with what an undisturbed run leaves.
//
// Plain go test kills a few times. make crash, or -kills 200, kills until that
// many kills have hit a running program. The program is built without the race
// detector, which would only slow down the making and comparing of files here.
package crash

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
)

var (
	kills    = flag.Int("kills", 0, "how many times to kill the program; 0 stands for 12, with -short for 4")
	seedFlag = flag.Uint64("seed", 0, "seed of the input and of the moments; 0 chooses one")
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	flag.Parse()
	if *kills == 0 && testing.Short() {
		*kills = 4
	}
	*kills = cmp.Or(*kills, 12)
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "semel-crash")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "semel")
	build := exec.Command("go", "build", "-ldflags=-w", "-o", binary, "github.com/semel-dev/semel/cmd/semel")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// random returns a source whose seed is printed.
func random(t *testing.T) *rand.Rand {
	seed := *seedFlag
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("to repeat the input and the order of the kills: -seed %d", seed)
	return rand.New(rand.NewPCG(seed, 2))
}

// bench is a directory with an input, what an undisturbed run makes of it, and
// a command that is to make the same.
type bench struct {
	*testing.T
	dir      string
	inputs   []string
	expected map[string][]byte
	took     time.Duration // by the undisturbed run
	// endings are of the names of compressed sides.
	endings map[string]string
}

// sides are the files that a command writes.
var sides = []string{"out", "dups", "rejected"}

// packed are endings with which a command compresses its files.
var packed = map[string]string{"out": ".gz", "dups": ".zst", "rejected": ".zst"}

// side returns the path of a file that the command writes.
func (b *bench) side(dir, name string) string { return filepath.Join(dir, name+b.endings[name]) }

// content returns the content of a file that the command wrote, decompressed.
func (b *bench) content(dir, name string) []byte {
	b.Helper()
	file, err := os.Open(b.side(dir, name))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	var content io.Reader = file
	switch b.endings[name] {
	case ".gz":
		content, err = gzip.NewReader(file)
	case ".zst":
		content, err = zstd.NewReader(file)
	}
	if err != nil {
		b.Fatalf("%s: %v", file.Name(), err)
	}
	data, err := io.ReadAll(content)
	if err != nil {
		b.Fatalf("%s: %v", file.Name(), err)
	}
	return data
}

// newBench makes inputs of about size bytes and has them deduplicated once.
func newBench(t *testing.T, r *rand.Rand, size int) *bench {
	b := &bench{T: t, dir: t.TempDir(), expected: map[string][]byte{}}
	for i := range 3 {
		name := filepath.Join(b.dir, fmt.Sprintf("in%d.jsonl", i))
		if err := os.WriteFile(name, makeInput(r, size/3), 0o644); err != nil {
			t.Fatal(err)
		}
		b.inputs = append(b.inputs, name)
	}
	dir := filepath.Join(b.dir, "undisturbed")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	cmd := b.command(t.Context(), dir, 2)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("undisturbed run: %v\n%s", err, out)
	}
	b.took = time.Since(begin)
	for _, side := range sides {
		data, err := os.ReadFile(filepath.Join(dir, side))
		if err != nil {
			t.Fatal(err)
		}
		if len(data) == 0 {
			t.Fatalf("the undisturbed run left %s empty: the input tests nothing of it", side)
		}
		b.expected[side] = data
	}
	return b
}

// makeInput makes JSON lines, one in five of which repeats an id from near or
// far, some with other content, and a few without an id.
func makeInput(r *rand.Rand, size int) []byte {
	var text bytes.Buffer
	for n := uint64(0); text.Len() < size; n++ {
		id := n
		switch r.IntN(10) {
		case 0:
			id = n - min(n, uint64(r.IntN(100)))
		case 1:
			id = r.Uint64N(n + 1)
		}
		if r.IntN(5000) == 0 {
			fmt.Fprintf(&text, "{\"n\":%d}\n", n)
			continue
		}
		fmt.Fprintf(&text, "{\"event_id\":\"id-%08x\",\"cents\":%d,\"note\":%q}\n", id*2654435761, r.IntN(2), strings.Repeat("x", r.IntN(200)))
	}
	return text.Bytes()
}

// command is what is killed. It always writes to the same files of a directory.
func (b *bench) command(ctx context.Context, dir string, threads int) *exec.Cmd {
	args := []string{
		"dedup", "--key", ".event_id", "--store", filepath.Join(dir, "store"),
		"--output", b.side(dir, "out"), "--duplicates", b.side(dir, "dups"),
		"--on-missing", "reject", "--rejected", b.side(dir, "rejected"),
		"--threads", fmt.Sprint(threads), "--report", filepath.Join(dir, "report.json"),
	}
	cmd := exec.CommandContext(ctx, binary, append(args, b.inputs...)...)
	// The program must not outlive a harness that is itself killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// verify compares the files of a directory with the expected ones, byte for byte. If they
// differ, it counts the lost and the repeated lines.
// It returns 1 if the last run was a resumption.
func (b *bench) verify(dir string) (resumed int) {
	b.Helper()
	for _, side := range sides {
		got := b.content(dir, side)
		if !bytes.Equal(got, b.expected[side]) {
			lost, repeated := compareLines(got, b.expected[side])
			b.Fatalf("%s differs from the undisturbed run's: %d lines lost, %d repeated or invented, %d bytes instead of %d",
				side, lost, repeated, len(got), len(b.expected[side]))
		}
	}
	report := b.report(dir)
	if report.Read != report.Fresh+report.Duplicate+report.Rejected {
		b.Fatalf("the report does not add up: %+v", report)
	}
	if err := os.RemoveAll(dir); err != nil && !errors.Is(err, syscall.EBUSY) {
		b.Fatal(err)
	}
	if report.Resumed {
		return 1
	}
	return 0
}

// newDir returns a directory for one command.
func (b *bench) newDir() string {
	b.Helper()
	dir, err := os.MkdirTemp(b.dir, "round")
	if err != nil {
		b.Fatal(err)
	}
	return dir
}

// mount makes a disk of a size. Only root may.
func (b *bench) mount(disk string, size int) {
	b.Helper()
	if err := os.Mkdir(disk, 0o755); err != nil {
		b.Fatal(err)
	}
	err := syscall.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprintf("size=%d", size))
	if errors.Is(err, syscall.EPERM) {
		if os.Getenv("SEMEL_SERVICES") == "required" {
			b.Fatal("only root may mount a full disk: run the tests as root")
		}
		b.Skip("only root may mount a full disk: sudo go test ./test/crash -run " + b.Name())
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			b.Errorf("unmount %s: %v", disk, err)
		}
	})
}

func (b *bench) remount(disk string, size int) {
	b.Helper()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%d", size)); err != nil {
		b.Fatal(err)
	}
}

func compareLines(got, want []byte) (lost, repeated int) {
	count := map[[32]byte]int{}
	for line := range bytes.Lines(want) {
		count[sha256.Sum256(line)]++
	}
	for line := range bytes.Lines(got) {
		count[sha256.Sum256(line)]--
	}
	for _, n := range count {
		lost += max(n, 0)
		repeated += max(-n, 0)
	}
	return lost, repeated
}

// ending is how one attempt went.
type ending struct {
	status int // -1 if it was killed
	output string
}

// attempt runs the command and disturbs it after a delay, if it still runs.
func (b *bench) attempt(cmd *exec.Cmd, delay time.Duration, disturb func(*os.Process)) ending {
	b.Helper()
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var err error
	if wait(ended, delay, &err) {
		disturb(cmd.Process)
		err = <-ended
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.Fatal(err)
	}
	return ending{cmd.ProcessState.ExitCode(), output.String()}
}

// wait waits for the end of a program, but not longer than a delay, and reports
// whether the delay is over.
func wait(ended <-chan error, delay time.Duration, err *error) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case *err = <-ended:
		return false
	case <-timer.C:
		return true
	}
}

func kill(p *os.Process) { _ = p.Kill() }

// report reads the report of the last run in a directory.
func (b *bench) report(dir string) (r struct {
	Read, Fresh, Duplicate, Rejected int64
	Resumed                          bool
}) {
	b.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "report.json"))
	if err != nil {
		b.Fatal(err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		b.Fatal(err)
	}
	return r
}

func TestOutputIsTheSameAfterKills(t *testing.T) {
	r := random(t)
	b := newBench(t, r, 80<<20)
	b.killUntilDone(r, *kills)
	t.Run("compressed", func(t *testing.T) {
		b := b.in(t, packed)
		b.took *= 2 // it has more to do
		b.killUntilDone(r, max(4, *kills/4))
	})
}

// in returns the same bench for a part of the test that may compress its files.
func (b *bench) in(t *testing.T, endings map[string]string) *bench {
	return &bench{T: t, dir: b.dir, inputs: b.inputs, expected: b.expected, took: b.took, endings: endings}
}

// killUntilDone kills runs until so many kills have hit one, and a run has resumed. It
// measures how long a run takes again, because the machine may be busier now, or less.
func (b *bench) killUntilDone(r *rand.Rand, kills int) {
	b.Helper()
	done, resumed := 0, 0
	for rounds := 0; done < kills || resumed == 0 && rounds < 100; rounds++ {
		dir := b.newDir()
		hit := 0
		for {
			delay := time.Duration(r.Int64N(int64(b.took) * 5 / 4))
			if hit > 20 { // enough of this one: it takes longer
				delay = time.Hour
			}
			begin := time.Now()
			end := b.attempt(b.command(b.Context(), dir, 1+r.IntN(4)), delay, kill)
			if end.status == 0 {
				if hit == 0 || hit > 20 {
					b.took = time.Since(begin)
				}
				break
			}
			if end.status > 0 {
				b.Fatalf("status %d: %s", end.status, end.output)
			}
			hit++
		}
		resumed += b.verify(dir)
		done += hit
	}
	if resumed == 0 {
		b.Fatal("no run resumed: the kills tested nothing")
	}
	b.Logf("%d kills: no line lost, none repeated; %d runs ended by a resumption", done, resumed)
}

func TestStoppedProcessesContinue(t *testing.T) {
	r := random(t)
	b := newBench(t, r, 80<<20)
	for range max(2, *kills/20) {
		dir := b.newDir()
		for killed := true; killed; {
			end := b.attempt(b.command(t.Context(), dir, 2), time.Duration(r.Int64N(int64(b.took))), func(p *os.Process) {
				_ = p.Signal(syscall.SIGSTOP)
				// Longer than the time after which a run commits.
				<-time.After(1200 * time.Millisecond)
				_ = p.Signal(syscall.SIGCONT)
				if killed = r.IntN(2) == 0; killed {
					<-time.After(time.Duration(r.Int64N(int64(b.took))))
					kill(p)
				}
			})
			if killed = end.status < 0; end.status > 0 {
				t.Fatalf("status %d: %s", end.status, end.output)
			}
		}
		b.verify(dir)
	}
}

func TestInterruptedRunsDrainAndAreResumed(t *testing.T) {
	r := random(t)
	b := newBench(t, r, 80<<20)
	interrupted := 0
	// What took long to measure, on a machine that did other things then, may now be
	// over before the signals come: more of them find it at work.
	for round := 0; round < max(4, *kills/10) || interrupted == 0 && round < 100; round++ {
		dir := b.newDir()
		for {
			sig := []os.Signal{syscall.SIGINT, syscall.SIGTERM}[round%2]
			end := b.attempt(b.command(t.Context(), dir, 2), time.Duration(r.Int64N(int64(b.took))), func(p *os.Process) { _ = p.Signal(sig) })
			if end.status == 0 {
				break
			}
			// A signal that comes before the program handles it ends it immediately.
			if end.status != 130 && end.status != -1 {
				t.Fatalf("status %d after %v: %s", end.status, sig, end.output)
			}
			if end.status == 130 {
				interrupted++
				if !strings.Contains(end.output, "run the same command again to resume") {
					t.Fatalf("the message does not say how to resume: %s", end.output)
				}
			}
		}
		b.verify(dir)
	}
	if interrupted == 0 {
		t.Fatal("no run was interrupted: the signals tested nothing")
	}
}

func TestAFullDiskStopsARunUntilThereIsSpace(t *testing.T) {
	r := random(t)
	b := newBench(t, r, 24<<20)
	for _, full := range []string{"everything", "store", "outputs", "compressed outputs"} {
		t.Run(full, func(t *testing.T) {
			b := b.in(t, nil)
			if full == "compressed outputs" {
				b.endings = packed
			}
			dir := b.newDir()
			disk := filepath.Join(dir, "disk")
			size := 1 + r.IntN(1<<20)
			b.mount(disk, size)
			for _, name := range append([]string{"store", "report.json"}, sides...) {
				place := dir
				if full == "everything" || (full == "store") == (name == "store") {
					place = disk
				}
				name += b.endings[name]
				if place != dir {
					if err := os.Symlink(filepath.Join(place, name), filepath.Join(dir, name)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if full == "everything" || full == "store" {
				if err := os.Mkdir(filepath.Join(disk, "store"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			stops := 0
			for {
				end := b.attempt(b.command(t.Context(), dir, 2), time.Hour, kill)
				if end.status == 0 {
					break
				}
				if end.status != 1 || !strings.Contains(end.output, "no space left") {
					t.Fatalf("status %d: %s", end.status, end.output)
				}
				stops++
				size += 2<<20 + r.IntN(8<<20)
				b.remount(disk, size)
			}
			if stops == 0 {
				t.Fatal("the disk was never full: this tested nothing")
			}
			t.Logf("stopped %d times by a full disk", stops)
			b.verify(dir)
		})
	}
}
