package faults

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// The size of the race: each process claims shared keys, which all others claim
// as well, and as many keys of its own.
const (
	raceProcesses   = 8
	raceConnections = 4
)

// raceSets returns how many keys all processes share, and how many each has to
// itself, so that there are n in all and half of those of each are shared.
func raceSets(n int) (shared, own int) {
	own = n / (raceProcesses + 1)
	return n - raceProcesses*own, own
}

// raceJob is the part of one process.
type raceJob struct {
	Setting     setting
	Number      int
	Shared, Own int
	Seed        uint64
	// Time is in the ids of the keys, in milliseconds.
	Time int64
	// Won is the beginning of the names of files with the numbers of the keys
	// that were won, one for each connection.
	Won string
}

// raceCount is what a process prints when it has ended.
type raceCount struct{ claims, fresh, duplicates, inFlight, again int }

// run says that it is ready, waits for a line, and claims.
func (j *raceJob) run(ctx context.Context) error {
	stores := make([]*opened, raceConnections)
	for i := range stores {
		store, err := j.Setting.open(ctx)
		if err != nil {
			return err
		}
		defer store.close()
		stores[i] = store
	}
	fmt.Println("ready")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	counts, failed := make([]raceCount, len(stores)), make([]error, len(stores))
	var wg sync.WaitGroup
	for i, store := range stores {
		wg.Go(func() { counts[i], failed[i] = j.claim(ctx, store, i) })
	}
	wg.Wait()
	var sum raceCount
	for _, c := range counts {
		sum.claims += c.claims
		sum.fresh += c.fresh
		sum.duplicates += c.duplicates
		sum.inFlight += c.inFlight
		sum.again += c.again
	}
	fmt.Println(sum.claims, sum.fresh, sum.duplicates, sum.inFlight, sum.again)
	return errors.Join(failed...)
}

// keys returns the numbers of the keys of one connection in a random order.
func (j *raceJob) keys(connection int) []int {
	var keys []int
	for i := connection; i < j.Shared; i += raceConnections {
		keys = append(keys, i)
	}
	for i := connection; i < j.Own; i += raceConnections {
		keys = append(keys, j.Shared+j.Number*j.Own+i)
	}
	// All processes go through their keys in one order with small disorder: so
	// they meet at the same key at the same moment.
	r := rand.New(rand.NewPCG(j.Seed, uint64(j.Number*raceConnections+connection)))
	order := rand.New(rand.NewPCG(j.Seed, uint64(connection)))
	order.Shuffle(len(keys), func(a, b int) { keys[a], keys[b] = keys[b], keys[a] })
	for i := range keys {
		k := min(i+r.IntN(100), len(keys)-1)
		keys[i], keys[k] = keys[k], keys[i]
	}
	return keys
}

// raceKey returns a key by its number. Its id has the form of UUIDv7, in which
// there is a time: one of the stores keeps keys by that.
func raceKey(time int64, n int) semel.Key {
	return semel.Key{Scope: "race", ID: fmt.Sprintf("%08x-%04x-7000-8000-%012x", time>>16, time&0xffff, n)}
}

// claim claims the keys of one connection in batches of random length and
// completes what it wins.
func (j *raceJob) claim(ctx context.Context, store *opened, connection int) (count raceCount, err error) {
	file, err := os.Create(j.Won + strconv.Itoa(connection))
	if err != nil {
		return count, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	r := rand.New(rand.NewPCG(j.Seed, uint64(j.Number*raceConnections+connection)))
	nonce := uint64(0)
	for keys := j.keys(connection); len(keys) > 0; {
		n := min(1+r.IntN(64), len(keys))
		reqs := make([]semel.ClaimRequest, n)
		for i, k := range keys[:n] {
			nonce++
			reqs[i] = semel.ClaimRequest{
				Key: raceKey(j.Time, k), Owner: semel.Owner{Name: fmt.Sprint(j.Number, ".", connection), Nonce: nonce},
				Lease: 10 * time.Minute, Window: semel.DefaultWindow,
			}
		}
		answers := make([]semel.ClaimAnswer, n)
		for try := 1; ; try++ {
			clear(answers)
			err := store.Claim(ctx, reqs, answers)
			for i := 0; i < n && err == nil; i++ {
				err = answers[i].Err
			}
			if err == nil {
				break
			}
			// A store that is overrun may refuse; the same owners ask again.
			if c := semel.Classify(err); try == 20 || c == semel.ClassPermanent {
				return count, err
			}
			count.again++
		}
		if err := j.finish(ctx, store, keys[:n], answers, file, &count); err != nil {
			return count, err
		}
		keys = keys[n:]
	}
	return count, nil
}

// finish notes and completes what was won.
func (j *raceJob) finish(ctx context.Context, store *opened, keys []int, answers []semel.ClaimAnswer, file io.Writer, count *raceCount) error {
	var won []byte
	var reqs []semel.CompleteRequest
	for i, answer := range answers {
		count.claims++
		switch answer.Decision {
		case semel.Fresh:
			count.fresh++
			won = binary.LittleEndian.AppendUint32(won, uint32(keys[i]))
			reqs = append(reqs, semel.CompleteRequest{Key: raceKey(j.Time, keys[i]), Token: answer.Claim.Token, Window: semel.DefaultWindow})
		case semel.Duplicate:
			count.duplicates++
		case semel.InFlight:
			count.inFlight++
		default:
			return fmt.Errorf("key %d: %v", keys[i], answer.Decision)
		}
	}
	if _, err := file.Write(won); err != nil || len(reqs) == 0 {
		return err
	}
	failed := make([]error, len(reqs))
	for try := 1; ; try++ {
		clear(failed)
		err := errors.Join(store.Complete(ctx, reqs, failed), errors.Join(failed...))
		if err == nil || try == 20 || semel.Classify(err) == semel.ClassPermanent {
			return err
		}
		count.again++ // the same claims are completed once
	}
}

// raceSettings are the stores that processes can share. The embedded store is
// of one process, which its own suite races.
var raceSettings = []struct {
	name  string
	start func(t *testing.T) setting
}{
	{onRedis, func(t *testing.T) setting {
		return setting{Kind: onRedis, Redis: servicestest.StartRedis(t, nil).URL()}
	}},
	{onCompact, func(t *testing.T) setting {
		return setting{Kind: onCompact, Redis: servicestest.StartRedis(t, nil).URL()}
	}},
	{"redis cluster", func(t *testing.T) setting {
		cluster := servicestest.StartRedisCluster(t, nil)
		return setting{Kind: onRedis, Redis: "redis://" + cluster.Addrs()[0]}
	}},
	{onPostgres, func(t *testing.T) setting { return inPostgres(t, onPostgres, pgstore.CleanupDelete) }},
	{"postgres message-time", func(t *testing.T) setting { return inPostgres(t, onPostgres, pgstore.CleanupMessageTime) }},
	{onDual, func(t *testing.T) setting {
		s := inPostgres(t, onDual, pgstore.CleanupDelete)
		s.Redis = servicestest.StartRedis(t, nil).URL()
		return s
	}},
}

// inPostgres starts a server with the tables of a store.
func inPostgres(t *testing.T, kind string, cleanup pgstore.Cleanup) setting {
	t.Helper()
	server := servicestest.StartPostgres(t, nil)
	migrate(t, server, cleanup)
	return setting{Kind: kind, Postgres: server.URL()}
}

func migrate(t *testing.T, server *services.Server, cleanup pgstore.Cleanup) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := pgstore.Migrate(t.Context(), conn, &pgstore.MigrateOptions{Cleanup: cleanup}); err != nil {
		t.Fatal(err)
	}
}

// TestRaceHasOneWinnerForEachKey has processes claim keys of which half are
// claimed by all of them: each key has exactly one winner.
func TestRaceHasOneWinnerForEachKey(t *testing.T) {
	// Not parallel: the processes of one race are more than the machine has
	// processors for.
	for _, s := range raceSettings {
		t.Run(s.name, func(t *testing.T) {
			store := s.start(t)
			race(t, store)
		})
	}
}

func race(t *testing.T, s setting) {
	dir := t.TempDir()
	seed := random(t).Uint64()
	shared, own := raceSets(*raceKeys)
	began := time.Now()
	stop := keepCleaning(t, s, strict)
	racers := make([]*racer, raceProcesses)
	for i := range racers {
		racers[i] = startRacer(t, raceJob{
			Setting: s, Number: i, Shared: shared, Own: own, Seed: seed, Time: began.UnixMilli(), Won: filepath.Join(dir, fmt.Sprint("won-", i, "-")),
		})
	}
	for _, r := range racers {
		r.waitReady()
	}
	start := time.Now()
	for _, r := range racers {
		r.start()
	}
	var sum raceCount
	for _, r := range racers {
		c := r.wait()
		sum.claims += c.claims
		sum.fresh += c.fresh
		sum.duplicates += c.duplicates
		sum.inFlight += c.inFlight
		sum.again += c.again
	}
	elapsed := time.Since(start)
	stop()
	keys := shared + raceProcesses*own
	winners := make([]int, keys)
	files, err := filepath.Glob(filepath.Join(dir, "won-*"))
	if err != nil || len(files) != raceProcesses*raceConnections {
		t.Fatalf("%d files of winners, error %v; want %d", len(files), err, raceProcesses*raceConnections)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for ; len(data) >= 4; data = data[4:] {
			winners[binary.LittleEndian.Uint32(data)]++
		}
	}
	none, many := 0, 0
	for _, n := range winners {
		switch {
		case n == 0:
			none++
		case n > 1:
			many++
		}
	}
	t.Logf("%d keys, %d claims by %d processes with %d connections each in %v: %d fresh, %d duplicates, %d in flight; %d calls asked again",
		keys, sum.claims, raceProcesses, raceConnections, elapsed.Round(time.Millisecond), sum.fresh, sum.duplicates, sum.inFlight, sum.again)
	if none > 0 || many > 0 || sum.fresh != keys {
		t.Errorf("%d keys have no winner and %d have several", none, many)
	}
	if want := raceProcesses * (shared + own); sum.claims != want || sum.fresh+sum.duplicates+sum.inFlight != want {
		t.Errorf("%d claims with %d answers; want %d", sum.claims, sum.fresh+sum.duplicates+sum.inFlight, want)
	}
	wantAllDone(t, s, began, keys)
}

// wantAllDone looks at each key once more, when the race is over.
func wantAllDone(t *testing.T, s setting, began time.Time, n int) {
	t.Helper()
	store, err := s.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer store.close()
	keys := make([]semel.Key, n)
	for i := range keys {
		keys[i] = raceKey(began.UnixMilli(), i)
	}
	records, err := store.states(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range records {
		if r.State != semel.Done {
			t.Fatalf("key %d is %v after the race", i, r.State)
		}
	}
}

// What keepCleaning makes of a clean-up that fails.
const (
	strict   = false
	tolerant = true // servers have faults at the same time
)

// keepCleaning purges a store in PostgreSQL all along, until the function that it
// returns is called.
func keepCleaning(t *testing.T, s setting, mayFail bool) (stop func()) {
	t.Helper()
	if s.Postgres == "" {
		return func() {}
	}
	store, err := s.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		passes, failed := 0, 0
		for pause(ctx, 100*time.Millisecond) == nil {
			_, err := store.postgres.Purge(ctx)
			switch {
			case err == nil:
				passes++
			case ctx.Err() != nil:
			case !mayFail:
				t.Errorf("clean-up during the work: %v", err)
				return
			default:
				failed++
			}
		}
		t.Logf("%d clean-ups during the work, and %d that failed", passes, failed)
		if passes == 0 {
			t.Error("no clean-up ran during the work")
		}
	})
	return func() {
		cancel()
		wg.Wait()
		store.close()
	}
}

// racer is one process of a race.
type racer struct {
	t       *testing.T
	command *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
}

func startRacer(t *testing.T, j raceJob) *racer {
	t.Helper()
	r := &racer{t: t, command: process(t, job{Race: &j})}
	var err error
	if r.in, err = r.command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.out = bufio.NewReader(out)
	if err := r.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.command.Process.Kill()
		_ = r.command.Wait()
	})
	return r
}

func (r *racer) waitReady() {
	r.t.Helper()
	if line, err := r.out.ReadString('\n'); err != nil || line != "ready\n" {
		r.t.Fatalf("a process says %q, error %v; want it ready", line, err)
	}
}

func (r *racer) start() {
	r.t.Helper()
	if _, err := io.WriteString(r.in, "go\n"); err != nil {
		r.t.Fatal(err)
	}
}

func (r *racer) wait() (c raceCount) {
	r.t.Helper()
	line, err := r.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &c.claims, &c.fresh, &c.duplicates, &c.inFlight, &c.again)
	}
	if err := errors.Join(err, r.command.Wait()); err != nil {
		r.t.Fatalf("a process failed: %v", err)
	}
	return c
}
