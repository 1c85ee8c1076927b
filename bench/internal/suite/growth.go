package suite

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/bench/internal/machine"
	"github.com/semel-dev/semel/bench/internal/result"
	"github.com/semel-dev/semel/store/logstore"
)

// GrowthStores are the stores whose growth is measured.
func GrowthStores() []string {
	return []string{"embedded", "embedded-1gib", "kafka", "postgres", "redis"}
}

// growing is a store under measurement.
type growing interface {
	// fill claims the new keys from a number to another. It returns the new keys a second
	// over the last ones, of which there are this many.
	fill(ctx context.Context, from, to, last int) (rate float64, err error)
	// late returns the time below which 99 of 100 single claims were answered.
	late(ctx context.Context, keys int) (time.Duration, error)
	// sizes returns memory and disk in MiB.
	sizes(ctx context.Context) (memory, disk float64, err error)
	// restart kills the process that has the keys, starts it again, and returns the time
	// from its start until it has answered for known keys and for a new one.
	restart(ctx context.Context, keys int, cold bool) (time.Duration, error)
	close() error
}

const (
	// grownWindow is longer than a measurement.
	grownWindow = 24 * time.Hour
	// grownKnown is how many known keys are asked for after a restart.
	grownKnown = 1000
	// grownSingle is how many single claims are measured.
	grownSingle = 2000
)

// Grow measures a store at several numbers of keys, at most this many unless most is 0.
func (r *Runner) Grow(ctx context.Context, store string, most int) (err error) {
	e := &r.Env
	millions := map[string][]int{"embedded": {1, 10, 100}, "embedded-1gib": {100, 1000}, "kafka": {1, 10, 100}, "postgres": {1, 10, 50}, "redis": {1, 10, 20}}[store]
	works := map[string]string{
		"embedded":      "embedded store with its default options, fsync: always, batches of 1,024 by one caller. A single claim is by one caller, every second one of a known key. Memory is the peak of the process",
		"embedded-1gib": "embedded store with a MaxIndexBytes of 1 GiB in a process with GOMEMLIMIT=2400MiB, fsync: always, batches of 1,024 by one caller. A single claim is by one caller, every second one of a known key. Memory is the peak of the process",
		"kafka":         "semel run from Kafka to Kafka in transactions, a commit every 100 ms, 4 partitions, records with a key of 16 bytes. A single claim is the time from sending a new record to its committed output, at 200 records a second. Memory is the peak of semel run; disk is its state and the changelog in the broker",
		"postgres":      "PostgreSQL 15, fsync on, 1 GB of shared_buffers, batches of 1,000 on 2 connections. A single claim is by one caller, every second one of a known key. Memory is the proportional share of all processes of the server; disk is tables and indexes",
		"redis":         "Redis 7.0, append-only file synced every second, batches of 64 by 50 goroutines. A single claim is by one caller, every second one of a known key. Memory is the peak of the server; disk is its directory",
	}
	work, known := works[store]
	if !known {
		return fmt.Errorf("suite: there is no growth of %q: name one of %s", store, strings.Join(GrowthStores(), ", "))
	}
	described, err := machine.Describe()
	if err != nil {
		return err
	}
	g, err := e.grow(ctx, store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	from, least := 0, e.size(1_000_000, 10_000)
	for _, m := range millions {
		keys := m * least
		last := max(keys/10, least)
		if most > 0 && keys > most {
			break
		}
		began := time.Now()
		res := result.Growth{Store: store, Keys: keys, Measured: result.Measured{
			Work:    work + fmt.Sprintf(". The rate is over the last %s keys. A restart ends when %s known keys and a new one are answered", count(last), count(grownKnown)),
			Command: e.commandOf("growth", store), Machine: described,
		}}
		if err := grown(ctx, g, from, last, &res); err != nil {
			return fmt.Errorf("suite: %s with %s keys: %w", store, count(keys), err)
		}
		res.Date = time.Now().UTC().Format(time.RFC3339)
		fmt.Fprintf(r.Log, "%s: %s keys: %.4g keys/s, p99 %.3g ms, %.4g MiB memory, %.4g MiB disk, restart %.3g s, cold %.3g s  (took %.0f s)\n",
			store, count(keys), res.Rate, res.P99, res.Memory, res.Disk, res.Restart, res.Restore, time.Since(began).Seconds())
		if err := res.Save(e.results()); err != nil {
			return err
		}
		from = keys
	}
	return nil
}

// grown measures a store that has so many keys and gets more.
func grown(ctx context.Context, g growing, from, last int, res *result.Growth) (err error) {
	if res.Rate, err = g.fill(ctx, from, res.Keys, last); err != nil {
		return err
	}
	late, err := g.late(ctx, res.Keys)
	if err != nil {
		return err
	}
	res.P99 = late.Seconds() * 1e3
	if res.Memory, res.Disk, err = g.sizes(ctx); err != nil {
		return err
	}
	again, err := g.restart(ctx, res.Keys, false)
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	cold, err := g.restart(ctx, res.Keys, true)
	if err != nil {
		return fmt.Errorf("cold start: %w", err)
	}
	res.Restart, res.Restore = again.Seconds(), cold.Seconds()
	return nil
}

func (e *Env) grow(ctx context.Context, store string) (growing, error) {
	switch store {
	case "embedded":
		return e.growEmbedded(ctx, 0)
	case "embedded-1gib":
		return e.growEmbedded(ctx, 1<<30)
	case "kafka":
		return e.growKafka(ctx)
	case "postgres":
		return growPostgres(ctx)
	}
	return growRedis(ctx)
}

// grownID appends the id of key i: 16 bytes that no other number has.
func grownID(dst []byte, i int) []byte {
	z := uint64(i) + 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb // each step keeps different numbers different
	z ^= z >> 31
	var half [8]byte
	for b := range half {
		half[b] = byte(z >> (8 * b))
	}
	return hex.AppendEncode(dst, half[:])
}

// grownNew is the number of the first of the new keys that are asked for apart from the others
// when a store has so many.
func grownNew(keys int) int { return 1<<40 + keys }

// claimNumbers claims keys by their numbers as done, and compares each answer.
func claimNumbers(ctx context.Context, s semel.Store, c *claims, n int, number func(i int) int, want func(i int) semel.Decision) error {
	ids := make([]byte, 0, 16*n)
	for i := range n {
		ids = grownID(ids, number(i))
	}
	text := string(ids)
	for i := range n {
		c.reqs[i] = semel.ClaimRequest{Key: semel.Key{Scope: "bench", ID: text[16*i:][:16]}, Window: grownWindow, Done: true}
		if c.owned {
			c.reqs[i].Owner.Nonce = rand.Uint64() // to know a claim whose answer was lost
		}
	}
	clear(c.answers)
	if err := s.Claim(ctx, c.reqs[:n], c.answers[:n]); err != nil {
		return err
	}
	for i := range n {
		if got := c.answers[i]; got.Err != nil || got.Decision != want(i) {
			return fmt.Errorf("the answer for key %d is %v, %v, want %v", number(i), got.Decision, got.Err, want(i))
		}
	}
	return nil
}

// newClaims returns room for claims. In a server, they have an owner.
func newClaims(s semel.Store, n int) *claims {
	_, here := s.(*logstore.Store)
	return &claims{reqs: make([]semel.ClaimRequest, n), answers: make([]semel.ClaimAnswer, n), owned: !here}
}

func always(d semel.Decision) func(int) semel.Decision { return func(int) semel.Decision { return d } }

// fillNumbers claims new keys in batches by concurrent workers, and returns the rate of the
// last.
func fillNumbers(ctx context.Context, s semel.Store, from, to, last, batch, workers int) (rate float64, err error) {
	part := func(from, to int) error {
		return inParallel(workers, (to-from+batch-1)/batch, func(b int) error {
			at := from + b*batch
			n := min(batch, to-at)
			return claimNumbers(ctx, s, newClaims(s, n), n, func(i int) int { return at + i }, always(semel.Fresh))
		})
	}
	if err := part(from, to-last); err != nil {
		return 0, err
	}
	start := time.Now()
	err = part(to-last, to)
	return float64(last) / time.Since(start).Seconds(), err
}

// lateNumber measures single claims, every second one of a known key.
func lateNumber(ctx context.Context, s semel.Store, keys int) (time.Duration, error) {
	took := make([]time.Duration, grownSingle)
	one := newClaims(s, 1)
	for i := range took {
		number, want := grownNew(keys)+i, semel.Fresh
		if i%2 == 1 {
			number, want = rand.IntN(keys), semel.Duplicate
		}
		start := time.Now()
		if err := claimNumbers(ctx, s, one, 1, func(int) int { return number }, always(want)); err != nil {
			return 0, err
		}
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	return took[len(took)*99/100], nil
}

// answersNumbers claims known keys at random, and one new key.
func answersNumbers(ctx context.Context, s semel.Store, keys int, cold bool) error {
	fresh := grownNew(keys) + grownSingle
	if cold {
		fresh++
	}
	c := newClaims(s, grownKnown)
	if err := claimNumbers(ctx, s, c, grownKnown, func(int) int { return rand.IntN(keys) }, always(semel.Duplicate)); err != nil {
		return err
	}
	return claimNumbers(ctx, s, c, 1, func(int) int { return fresh }, always(semel.Fresh))
}

// grownEmbedded is an embedded store in a process of its own, which is asked with lines.
type grownEmbedded struct {
	dir   string
	most  int64 // logstore.Options.MaxIndexBytes
	cmd   *exec.Cmd
	ask   io.WriteCloser
	lines *bufio.Reader
}

func (e *Env) growEmbedded(ctx context.Context, most int64) (growing, error) {
	dir, err := e.fresh("growth-embedded")
	if err != nil {
		return nil, err
	}
	g := &grownEmbedded{dir: dir, most: most}
	return g, g.start(ctx)
}

func (g *grownEmbedded) start(ctx context.Context) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	g.cmd = exec.CommandContext(ctx, self, "-child", g.dir, "-index", strconv.FormatInt(g.most, 10))
	if g.most > 0 {
		g.cmd.Env = append(os.Environ(), "GOMEMLIMIT=2400MiB") // the garbage would take as much again
	}
	g.cmd.Stderr = os.Stderr
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if g.ask, err = g.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	g.lines = bufio.NewReader(out)
	return g.cmd.Start()
}

// call asks the process and returns its number.
func (g *grownEmbedded) call(verb string, numbers ...int) (float64, error) {
	line := verb
	for _, n := range numbers {
		line += " " + strconv.Itoa(n)
	}
	if _, err := io.WriteString(g.ask, line+"\n"); err != nil {
		return 0, err
	}
	answer, err := g.lines.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("%s: the process has ended: %w", line, err)
	}
	return strconv.ParseFloat(strings.TrimSpace(answer), 64)
}

func (g *grownEmbedded) fill(_ context.Context, from, to, last int) (float64, error) {
	return g.call("fill", from, to, last)
}

func (g *grownEmbedded) late(_ context.Context, keys int) (time.Duration, error) {
	seconds, err := g.call("late", keys)
	return time.Duration(seconds * 1e9), err
}

func (g *grownEmbedded) sizes(context.Context) (memory, disk float64, err error) {
	if memory, err = peakMiB(g.cmd.Process.Pid); err != nil {
		return 0, 0, err
	}
	bytes, err := blocks(g.dir)
	return memory, float64(bytes) / (1 << 20), err
}

func (g *grownEmbedded) restart(ctx context.Context, keys int, cold bool) (time.Duration, error) {
	if err := g.close(); err != nil {
		return 0, err
	}
	if cold {
		if err := evict(g.dir); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	if err := g.start(ctx); err != nil {
		return 0, err
	}
	asked := 0
	if cold {
		asked = 1
	}
	_, err := g.call("answers", keys, asked)
	return time.Since(start), err
}

func (g *grownEmbedded) close() error {
	if err := g.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = g.cmd.Wait() // it was killed
	return nil
}

// GrowthChild has an embedded store, whose index takes a number of bytes or the default, and
// answers the lines of its parent.
func GrowthChild(ctx context.Context, dir string, index int64, in io.Reader, out io.Writer) (err error) {
	s, err := logstore.Open(filepath.Join(dir, "keys"), &logstore.Options{MaxIndexBytes: index})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		numbers := make([]int, 3)
		for i, word := range words[1:] {
			if numbers[i], err = strconv.Atoi(word); err != nil {
				return err
			}
		}
		var value float64
		switch words[0] {
		case "fill":
			value, err = fillNumbers(ctx, s, numbers[0], numbers[1], numbers[2], claimBatch, 1)
		case "late":
			var took time.Duration
			took, err = lateNumber(ctx, s, numbers[0])
			value = took.Seconds()
		case "answers":
			err = answersNumbers(ctx, s, numbers[0], numbers[1] == 1)
		default:
			err = fmt.Errorf("suite: there is no verb %q", words[0])
		}
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintln(out, value); err != nil {
			return err
		}
	}
	return lines.Err()
}
