package keys

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/internal/table"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/test/kafkatest"
)

// small is a partition whose keys leave memory after some transactions. Its topic has all that was
// committed.
type small struct {
	w     *Windowing
	now   int64
	topic []*kgo.Record
	lost  error // of the copy
	end   int64
	next  int // the first key that was never used
	log   *state.Log
	state *State
}

// smallFile and smallSpill let keys leave memory with every second transaction of smallKeys.
const (
	smallKeys  = 20
	smallSpill = 2 * smallKeys
	smallFile  = state.HeaderSize + 2*(state.FrameSize+headerSize+smallKeys*EntrySize)
)

func newSmall(t *testing.T, window time.Duration) *small {
	return &small{w: testWindowing(t, window, time.Second, true), now: 1_000_000}
}

// open starts a process, which reads the records that the copy lacks. As a session, it tries
// again if the state must be built again.
func (p *small) open(files *faultfs.FS) error {
	disk := state.NewDisk(files, "state", ".keys", state.ID{1})
	disk.SetFileSize(smallFile)
	p.lost = nil
	var err error
	p.log, err = state.OpenLog(context.Background(), state.LogOptions{Topic: "changelog", Input: state.ID{7}, ByTime: true, Disk: disk,
		Detached: func(err error) { p.lost = err },
		New: func(*state.Disk) state.State {
			p.state = New(&Options{Windowing: p.w, Topic: state.ID{7}, Now: func() int64 { return p.now }, Spill: smallSpill})
			return p.state
		}})
	if err != nil {
		return err
	}
	at, err := p.log.Start(0, 0, p.end)
	if err == nil {
		_, _, err = p.log.Read(context.Background(), p.topic[at:], state.ID{})
	}
	p.state.Begin()
	return err
}

// add commits a transaction with new keys, and waits for the tasks that it started.
func (p *small) add() error {
	from := p.next
	p.next += smallKeys
	p.now += 100
	for n := from; n < p.next; n++ {
		d := testDigest(n)
		if v := p.state.Decide(&d, p.now, p.now, int64(n)); v != Fresh {
			return fmt.Errorf("new key %d is %d", n, v)
		}
		p.state.Learn(&d, p.now, int64(n))
	}
	err := p.log.Write(0, func(r *kgo.Record) {
		r.Offset = p.end
		p.end++
	})
	if err != nil {
		p.next = from
		return err
	}
	for _, r := range p.log.Written() {
		stored := *r
		stored.Value = append([]byte(nil), r.Value...)
		p.topic = append(p.topic, &stored)
	}
	if err := p.log.Commit(); err != nil {
		return err
	}
	p.wait()
	return p.lost
}

// wait waits for the tasks of the state.
func (p *small) wait() {
	for _, task := range []*task{p.state.spilled.writing, p.state.spilled.merging} {
		if task != nil {
			<-task.done
		}
	}
}

// check compares the decisions on all keys with the committed keys.
func (p *small) check() error {
	committed := len(p.topic) * smallKeys
	var wrong error
	for n := range committed + smallKeys {
		d := testDigest(n)
		want, expiry := Fresh, p.w.expiry(1_000_000+100*int64(n/smallKeys+1))
		if n < committed && (expiry == table.Forever || nanos(p.now) < p.w.scale.Time(expiry)-int64(p.w.Grace)) {
			want = Again
		}
		if got := p.state.Decide(&d, p.now, p.now, int64(n)); got != want && wrong == nil {
			wrong = fmt.Errorf("key %d of %d at %d: got %d, want %d", n, committed, p.now, got, want)
		}
	}
	return cmp.Or(p.log.Write(0, func(*kgo.Record) {}), wrong)
}

func runsOf(files *faultfs.FS) (names []string) {
	for _, name := range files.Files() {
		if strings.HasSuffix(name, run.Suffix) {
			names = append(names, filepath.Base(name))
		}
	}
	return names
}

func TestKeysLeaveMemoryAndAreKnownAgain(t *testing.T) {
	t.Parallel()
	files, p := faultfs.New(), newSmall(t, semel.Forever)
	kafkatest.Must(t, p.open(files))
	for range 50 {
		kafkatest.Must(t, p.add())
	}
	kafkatest.Must(t, p.check())
	if p.state.count > smallSpill || len(runsOf(files)) > 10 {
		t.Errorf("%d keys are in the table, runs %v", p.state.count, runsOf(files))
	}
	p.log.Drop()
	p.log.Close()
	kafkatest.Must(t, p.open(files))
	if p.state.count > 2*smallSpill {
		t.Errorf("%d keys were read at the start", p.state.count)
	}
	kafkatest.Must(t, p.check())
	p.log.Close()
}

func TestRunsOfExpiredKeysAreDeleted(t *testing.T) {
	t.Parallel()
	files, p := faultfs.New(), newSmall(t, 5*time.Second)
	kafkatest.Must(t, p.open(files))
	for range 300 {
		kafkatest.Must(t, p.add())
	}
	kafkatest.Must(t, p.check())
	if names := runsOf(files); len(names) == 0 || len(names) > 40 || strings.HasPrefix(names[0], "00000001-") {
		t.Errorf("runs %v", names)
	}
	p.log.Close()
	kafkatest.Must(t, p.open(files))
	kafkatest.Must(t, p.check())
	p.log.Close()
}

// TestADamagedRunIsBuiltAgainFromTheChangelog damages one of the runs while they are open, or
// between two processes.
func TestADamagedRunIsBuiltAgainFromTheChangelog(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0))
	for _, open := range []bool{true, false} {
		for damaged := range 4 {
			files, p := faultfs.New(), newSmall(t, semel.Forever)
			kafkatest.Must(t, p.open(files))
			for len(runsOf(files)) < 4 {
				kafkatest.Must(t, p.add())
			}
			kafkatest.Must(t, p.add())
			name := filepath.Join("state", runsOf(files)[damaged])
			if !open {
				p.log.Close()
				kafkatest.Must(t, files.Remove(name))
			} else {
				kafkatest.Must(t, files.FlipBit(name, 4096+random.Int64N(4096), 1))
				if err := p.check(); !errors.Is(err, state.ErrAgain) {
					t.Fatalf("with %s damaged: %v", name, err)
				}
				p.log.Drop()
				p.log.Close()
			}
			kafkatest.Must(t, p.open(files))
			if err := p.check(); err != nil {
				t.Errorf("without %s, open %v: %v", name, open, err)
			}
			p.log.Close()
		}
	}
}

// TestKeysSurviveACrashAtEveryOperation lets the machine or the process end at each operation of
// spills, merges and deletions.
func TestKeysSurviveACrashAtEveryOperation(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0))
	for _, window := range []time.Duration{semel.Forever, 2 * time.Second} {
		work := func(files *faultfs.FS) (*small, error) {
			p := newSmall(t, window)
			if err := p.open(files); err != nil {
				return p, err
			}
			defer p.log.Close()
			for range 40 {
				if err := p.add(); err != nil {
					return p, err
				}
			}
			return p, nil
		}
		whole, seen := faultfs.New(), map[string]bool{}
		var mu sync.Mutex
		whole.SetHook(func(op faultfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			seen[op.Kind.String()+" "+filepath.Ext(strings.TrimSuffix(op.Name, ".tmp"))] = true
			return nil
		})
		_, err := work(whole)
		kafkatest.Must(t, err)
		for _, kind := range []faultfs.OpKind{faultfs.Create, faultfs.Write, faultfs.Sync, faultfs.Rename, faultfs.Remove} {
			for _, suffix := range []string{run.Suffix, run.IndexSuffix} {
				if !seen[kind.String()+" "+suffix] {
					t.Errorf("no %s of a %s file among %v", kind, suffix, seen)
				}
			}
		}
		step := 1
		if testing.Short() {
			step = 17
		}
		for at := 1 + random.IntN(step); at <= whole.Ops(); at += step {
			files := faultfs.New()
			files.CrashAt(at)
			p, _ := work(files) // the process ends at its first error
			for _, policy := range []faultfs.Policy{faultfs.OnlySynced, faultfs.Torn, faultfs.Everything} {
				left := files.Survive(policy, random)
				if err := p.open(left); err != nil {
					t.Fatalf("window %v, crash at operation %d of %d, %s: open: %v", window, at, whole.Ops(), policy, err)
				}
				if err := p.check(); err != nil {
					t.Fatalf("window %v, crash at operation %d of %d, %s: %v, files %v", window, at, whole.Ops(), policy, err, left.Files())
				}
				p.log.Drop()
				p.log.Close()
			}
		}
	}
}

func TestARunKeepsTheOrderOfATable(t *testing.T) {
	t.Parallel()
	keys := table.New[uint64](0)
	for n := range 5000 {
		d := testDigest(n)
		keys.Set(&d, uint64(n), 0, table.Forever)
	}
	var last semel.Digest
	count := 0
	keys.Each(0, func(d *semel.Digest, n uint64, expiry table.Tick) bool {
		key, want := ordered(d), testDigest(int(n))
		want[15] = 0
		if count > 0 && run.Compare(&last, &key) >= 0 || *d != want || expiry != table.Forever {
			t.Fatalf("key %d, %x after %x, want %x", n, *d, last, want)
		}
		last, count = key, count+1
		return true
	})
	if count != 5000 {
		t.Errorf("%d keys", count)
	}
}

// TestKeysAreKnownAfterAnyOperationFailed lets each operation fail once. The state is then built
// again, as a session does.
func TestKeysAreKnownAfterAnyOperationFailed(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0))
	step := 1
	if testing.Short() {
		step = 31
	}
	for at, done := 1+random.IntN(step), false; !done; at += step {
		files, p := faultfs.New(), newSmall(t, semel.Forever)
		var failed string
		var mu sync.Mutex
		n := 0
		files.SetHook(func(op faultfs.Op) error {
			mu.Lock()
			defer mu.Unlock()
			if n++; n != at {
				return nil
			}
			failed = op.String()
			return errors.New("it fails")
		})
		again := func() {
			for range 3 {
				if p.log != nil {
					p.log.Close()
				}
				if err := p.open(files); err == nil {
					return
				}
			}
			t.Fatalf("after %s failed, the state cannot be built again", failed)
		}
		again()
		for range 40 {
			if err := p.add(); err != nil {
				again()
			}
		}
		err := p.check()
		if done = n < at; errors.Is(err, state.ErrAgain) {
			again()
			err = p.check()
		}
		if err != nil {
			t.Errorf("after operation %d, %s, failed: %v, files %v", at, failed, err, files.Files())
		}
		p.log.Close()
	}
}

// TestKeysOfAnotherWindowAreKnownForThePresentOne restarts with a longer and with a shorter window.
func TestKeysOfAnotherWindowAreKnownForThePresentOne(t *testing.T) {
	t.Parallel()
	for _, windows := range [][2]time.Duration{{10 * time.Second, 20 * time.Second}, {20 * time.Second, 10 * time.Second}, {semel.Forever, 10 * time.Second}, {10 * time.Second, semel.Forever}} {
		files, p := faultfs.New(), newSmall(t, windows[0])
		kafkatest.Must(t, p.open(files))
		for range 50 {
			kafkatest.Must(t, p.add())
		}
		p.log.Close()
		if len(runsOf(files)) == 0 {
			t.Fatal("no key has left memory")
		}
		p.w = testWindowing(t, windows[1], time.Second, true)
		for _, later := range []int64{0, 8_000, 8_000} {
			p.now += later
			kafkatest.Must(t, p.open(files))
			if err := p.check(); err != nil {
				t.Errorf("windows %v, %d ms later: %v", windows, later, err)
			}
			p.log.Drop()
			p.log.Close()
		}
	}
}

// TestAStateThatCannotBeDroppedIsBuiltAgain has a topic that was emptied, and a disk that keeps a
// file of the copy once.
func TestAStateThatCannotBeDroppedIsBuiltAgain(t *testing.T) {
	t.Parallel()
	for at, done := 1, false; !done; at++ {
		files, p := faultfs.New(), newSmall(t, semel.Forever)
		kafkatest.Must(t, p.open(files))
		for range 50 {
			kafkatest.Must(t, p.add())
		}
		p.topic, p.end, p.next = nil, 0, 0
		n := 0
		files.SetHook(func(op faultfs.Op) error {
			if n++; n == at {
				return errors.New("it fails")
			}
			return nil
		})
		_, err := p.log.Start(0, 0, p.end)
		files.SetHook(nil)
		if done = n < at; err != nil && !p.log.Broken() {
			t.Errorf("operation %d failed, and the state stays: %v", at, err)
		}
		if p.log.Broken() {
			p.log.Close()
			kafkatest.Must(t, p.open(files))
		}
		if err := p.check(); err != nil {
			t.Errorf("operation %d failed: %v", at, err)
		}
		p.log.Drop()
		p.log.Close()
	}
}

// TestWhatWasDroppedDoesNotComeBack loses the power after a state was dropped, because brokers had
// lost its last record. The deletions of its files reach the disk in any order.
func TestWhatWasDroppedDoesNotComeBack(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0))
	for _, transactions := range []int{3, 50, 51} {
		files, p := faultfs.New(), newSmall(t, semel.Forever)
		kafkatest.Must(t, p.open(files))
		for range transactions {
			kafkatest.Must(t, p.add())
		}
		p.log.Close()
		files = files.Survive(faultfs.Everything, random)
		last := p.topic[len(p.topic)-1]
		c, err := Parse(last.Value)
		kafkatest.Must(t, err)
		c.StreamTime++
		var entries []Entry
		for i := range c.Len() {
			var e Entry
			c.At(i, &e)
			entries = append(entries, e)
		}
		last.Value = Encode(&c.Header, entries...)
		if err := p.open(files); !errors.Is(err, state.ErrAgain) {
			t.Fatalf("another record than before: %v", err)
		}
		p.log.Close()
		losses := 200
		if testing.Short() {
			losses = 40
		}
		for range losses {
			left := files.Survive(faultfs.Torn, random)
			names := left.Files()
			err := p.open(left)
			if errors.Is(err, state.ErrAgain) {
				p.log.Close()
				err = p.open(left)
			}
			if err == nil {
				err = p.check()
			}
			p.log.Drop()
			p.log.Close()
			if err != nil {
				t.Fatalf("%d transactions, with %v: %v", transactions, names, err)
			}
		}
	}
}

// TestADamagedRunThatIsOpenIsRemovedWhenItIsClosed has a system that removes no open file.
func TestADamagedRunThatIsOpenIsRemovedWhenItIsClosed(t *testing.T) {
	t.Parallel()
	files, p := faultfs.New(), newSmall(t, semel.Forever)
	kafkatest.Must(t, p.open(files))
	for len(runsOf(files)) < 4 {
		kafkatest.Must(t, p.add())
	}
	name := filepath.Join("state", runsOf(files)[0])
	kafkatest.Must(t, files.FlipBit(name, 4096+100, 1))
	files.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.Remove && op.Name == name {
			return errors.New("it is open")
		}
		return nil
	})
	if err := p.check(); !errors.Is(err, state.ErrAgain) {
		t.Fatalf("with %s damaged: %v", name, err)
	}
	files.SetHook(nil)
	p.log.Drop()
	p.log.Close()
	kafkatest.Must(t, p.open(files))
	kafkatest.Must(t, p.check())
	p.log.Close()
}
