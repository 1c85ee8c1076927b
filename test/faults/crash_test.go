package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// newJournal starts the process of a journal and returns its address and file.
func newJournal(t *testing.T) (addr, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "journal")
	command := process(t, job{Journal: file})
	if _, err := command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	addr, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the journal does not start: %v", err)
	}
	return strings.TrimSpace(addr), file
}

// crew is some worker processes that are killed and started again.
type crew struct {
	t *testing.T
	workJob
	workers int

	mu     sync.Mutex // guards the fields below
	killed int        // by us or by themselves
	failed error
}

// run runs the workers until all have ended well.
func (c *crew) run(ctx context.Context) {
	c.t.Helper()
	var wg sync.WaitGroup
	for n := range c.workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(c.Seed, uint64(n)))
			for life := 0; ; life++ {
				ended, err := c.live(ctx, n, life, r)
				if err != nil {
					c.mu.Lock()
					c.failed = errors.Join(c.failed, err)
					c.mu.Unlock()
				}
				if ended || err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if c.failed != nil {
		c.t.Fatal(c.failed)
	}
}

// live runs a worker until it ends, or was killed.
func (c *crew) live(ctx context.Context, n, life int, r *rand.Rand) (ended bool, err error) {
	c.mu.Lock()
	killing := c.killed < *kills
	c.mu.Unlock()
	j := c.workJob
	j.Worker, j.Seed = fmt.Sprint("worker", n), c.Seed+uint64(n+life*c.workers)
	if !killing {
		j.Deaths = 0
	}
	command := process(c.t, job{Work: &j})
	if _, err := command.StdinPipe(); err != nil {
		return false, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := command.Start(); err != nil {
		return false, err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err == nil && killing {
		doom := time.AfterFunc(time.Duration(r.IntN(300))*time.Millisecond, func() { _ = command.Process.Kill() })
		defer doom.Stop()
	}
	over := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	defer over()
	err = command.Wait()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return false, fmt.Errorf("worker %d: %w", n, context.Cause(ctx))
	case err == nil:
		return true, nil
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		c.mu.Lock()
		c.killed++
		c.mu.Unlock()
		return false, nil
	}
	return false, fmt.Errorf("worker %d: %w", n, err)
}

// crashSettings are the stores whose workers are killed.
var crashSettings = []struct {
	name    string
	modes   []mode
	workers int
	grow    order
	start   func(t *testing.T) setting
}{
	{onRedis, []mode{retry, hold}, 3, byAttempt, func(t *testing.T) setting {
		return setting{Kind: onRedis, Redis: startSynced(t).URL()}
	}},
	{onCompact, []mode{retry, hold}, 3, byAttempt, func(t *testing.T) setting {
		return setting{Kind: onCompact, Redis: startSynced(t).URL()}
	}},
	{onPostgres, []mode{retry, hold, sameTx}, 3, byAttempt, func(t *testing.T) setting {
		return inPostgres(t, onPostgres, pgstore.CleanupDelete)
	}},
	{"postgres message-time", []mode{retry, hold, sameTx}, 3, byAttempt, func(t *testing.T) setting {
		s := inPostgres(t, onPostgres, pgstore.CleanupMessageTime)
		s.Began = time.Now().UnixMilli()
		return s
	}},
	{onDual, []mode{retry, hold}, 3, byAttempt, func(t *testing.T) setting {
		s := inPostgres(t, onDual, pgstore.CleanupDelete)
		s.Redis = startSynced(t).URL()
		return s
	}},
	// The embedded store is of one process at a time, and its claims in retry
	// mode end with the process: a repeat shows by its token.
	{onDisk, []mode{retry, hold}, 1, byToken, func(t *testing.T) setting {
		return setting{Kind: onDisk, Dir: t.TempDir()}
	}},
}

// startSynced starts a Redis that syncs what it acknowledges.
func startSynced(t *testing.T) *services.Server {
	t.Helper()
	return servicestest.StartRedis(t, &services.RedisOptions{Args: []string{"--appendfsync", "always"}})
}

// TestCrashedWorkersLoseNothing kills workers at random moments, and at chosen
// points between claim, effect and completion.
func TestCrashedWorkersLoseNothing(t *testing.T) {
	for _, s := range crashSettings {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			store := s.start(t)
			journal, reports := crash(t, store, s.modes, s.workers, s.grow)
			for m, r := range reports {
				r.wantSafe(t)
				switch m {
				case retry:
					if r.Deaths["retry "+afterEffect] > 0 && len(r.Repeated) == 0 {
						t.Error("no effect was repeated although a worker died after one")
					}
				case hold:
					wantHeld(t, store, journal, r)
				case sameTx:
					if len(r.Repeated) > 0 || len(r.Parked) > 0 {
						t.Errorf("effects in a transaction: %d keys repeated, %d parked", len(r.Repeated), len(r.Parked))
					}
				}
			}
		})
	}
}

// crash has a crew process inputs of each mode and returns the journal and what
// it says of each mode.
func crash(t *testing.T, s setting, modes []mode, workers int, grow order) ([]entry, map[mode]*report) {
	t.Helper()
	keys := max(150, 10**kills) * 3 / workers // as many deliveries for any crew
	for _, m := range modes {
		if m == sameTx {
			execute(t, s.Postgres, effectsTable)
		}
	}
	addr, file := newJournal(t)
	c := &crew{t: t, workers: workers, workJob: workJob{
		Setting: s, Journal: addr, File: file, Modes: modes, Keys: keys, Lanes: 4, Lease: time.Second,
		Seed: random(t).Uint64(), Deaths: 0.02,
	}}
	touch(t, file)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	stop := keepCleaning(t, s, strict)
	c.run(ctx)
	stop()
	journal := readAll(t, s, file, modes)
	if c.killed < *kills {
		t.Errorf("%d workers were killed, want %d: the faults did not happen", c.killed, *kills)
	}
	t.Logf("%d workers killed", c.killed)
	return journal, reportAll(t, modes, keys, journal, grow)
}

// touch makes the file of a journal before anything is in it.
func touch(t *testing.T, file string) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// readAll reads the journal with the effects that are rows before all others.
func readAll(t *testing.T, s setting, file string, modes []mode) []entry {
	t.Helper()
	journal, err := readJournal(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range modes {
		if m != sameTx {
			continue
		}
		rows, err := committed(t.Context(), s.Postgres)
		if err != nil {
			t.Fatal(err)
		}
		journal = append(rows, journal...)
	}
	return journal
}

// reportAll reads a journal for each mode.
func reportAll(t *testing.T, modes []mode, keys int, journal []entry, grow order) map[mode]*report {
	t.Helper()
	reports := map[mode]*report{}
	for _, m := range modes {
		var part []entry
		for _, e := range journal {
			if strings.HasPrefix(e.Key, string(m)+"/") {
				part = append(part, e)
			}
		}
		reports[m] = check(inputs(m, 0, keys), part, grow)
		t.Logf("%-5s %v", m, reports[m])
	}
	return reports
}

// wantSafe fails the test if anything is wrong in any mode.
func (r *report) wantSafe(t *testing.T) {
	t.Helper()
	for _, wrong := range r.wrongs() {
		t.Error(wrong)
	}
}

// wantHeld fails the test if an effect under hold happened twice, or a doubtful
// key is anything but unknown.
func wantHeld(t *testing.T, s setting, journal []entry, r *report) {
	t.Helper()
	if len(r.Repeated) > 0 {
		t.Errorf("held keys had their effect twice: %v", r.Repeated)
	}
	store, err := s.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer store.close()
	type fate struct{ happened, settled bool }
	fates := map[string]*fate{}
	for _, e := range journal {
		if !strings.HasPrefix(e.Key, string(hold)+"/") {
			continue
		}
		if fates[e.Key] == nil {
			fates[e.Key] = &fate{}
		}
		fates[e.Key].happened = fates[e.Key].happened || e.Kind == effect
		fates[e.Key].settled = fates[e.Key].settled || e.Kind == settled
	}
	names := slices.Sorted(maps.Keys(fates))
	records, err := store.states(t.Context(), keysOf(names))
	if err != nil {
		t.Fatal(err)
	}
	unknown := 0
	for i, name := range names {
		switch f, state := fates[name], records[i].State; {
		case state == semel.Unknown && !f.settled:
			unknown++
		case state == semel.Done && f.happened: // perhaps completed too late for anybody to hear of it
		default:
			t.Errorf("%s is %v; its effect happened: %t, and was settled: %t", name, state, f.happened, f.settled)
		}
	}
	t.Logf("%d held keys are unknown", unknown)
	if r.Deaths["hold "+afterEffect] > 0 && unknown == 0 {
		t.Error("no key is unknown although a worker died with one")
	}
}

// execute runs a statement.
func execute(t *testing.T, address, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}
