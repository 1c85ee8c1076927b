package kafka

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// binaries is the directory of built programs. TestMain makes and removes it.
var binaries string

var buildSemel = sync.OnceValues(func() (string, error) { return build("cmd/semel", binaries) })

// built is the program, built once.
func built(t *testing.T) string {
	t.Helper()
	name, err := buildSemel()
	must(t, err)
	return name
}

// builtFrom builds a package of this module.
func builtFrom(t *testing.T, dir string) string {
	t.Helper()
	name, err := build(dir, t.TempDir())
	must(t, err)
	return name
}

func build(dir, target string) (string, error) {
	name := filepath.Join(target, filepath.Base(dir))
	if out, err := exec.Command("go", "build", "-ldflags=-w", "-o", name, "github.com/semel-dev/semel/"+dir).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return name, nil
}

// daemon is a run of the program over a configuration, in a directory of its own.
type daemon struct {
	program, config, log string
	admin                string   // what --admin is
	args, env            []string // instead of run, and in addition to the environment
	logged               int64    // how much of the log is of earlier starts
	supervised           bool     // start it again if it ends by itself with an error

	mu     sync.Mutex // guards cmd and ending, while it runs
	cmd    *exec.Cmd
	ending bool
	ended  chan error // nil if it does not run
}

func newDaemon(t *testing.T, program, config string) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{program: program, config: filepath.Join(dir, "semel.yaml"), log: filepath.Join(dir, "log"), admin: "off"}
	must(t, os.WriteFile(d.config, []byte(config), 0o600))
	t.Cleanup(func() {
		if d.ended != nil {
			d.end(t, syscall.SIGKILL)
		}
		showLog(t, "the program", d.log)
	})
	return d
}

// do runs another verb of the program.
func (d *daemon) do(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.Command(d.program, args...)
	cmd.Env = append(os.Environ(), d.env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("semel %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (d *daemon) start(t *testing.T) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ending, d.ended = false, make(chan error, 1)
	must(t, d.launch(t))
}

// launch starts the process, and a goroutine that waits for its end.
func (d *daemon) launch(t *testing.T) error {
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if d.logged, err = log.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	args := d.args
	if args == nil {
		args = []string{"run", d.config, "--admin", d.admin}
	}
	cmd := exec.Command(d.program, args...)
	cmd.Stderr, cmd.Dir, cmd.Env = log, filepath.Dir(d.config), append(os.Environ(), d.env...)
	d.cmd = cmd
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		err := cmd.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.supervised && !d.ending && err != nil {
			t.Logf("%s ended by itself with %v, and is started again", filepath.Base(d.program), err)
			if err = d.launch(t); err == nil {
				return
			}
		}
		d.ended <- err
	}()
	return nil
}

// signal sends a signal to the process. ending says that it will end.
func (d *daemon) signal(s syscall.Signal, ending bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ending = d.ending || ending
	return d.cmd.Process.Signal(s)
}

func (d *daemon) pid() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cmd.Process.Pid
}

func (d *daemon) end(t *testing.T, s syscall.Signal) {
	t.Helper()
	sent := d.signal(s, true)
	itself := d.supervised && errors.Is(sent, os.ErrProcessDone) // and is not started again
	if sent != nil && !itself {
		t.Errorf("the program had ended: %v", sent)
	}
	err := <-d.ended
	d.ended = nil
	if s == syscall.SIGTERM && err != nil && !itself && !neverBegan(d.cmd.ProcessState, d.log, d.logged) {
		t.Errorf("the program ended with %v", err)
	}
}

// feeding writes messages to the topic in until it is stopped or all are written.
type feeding struct {
	client  *kgo.Client
	in      *input
	amounts []int // of each key

	mu     sync.Mutex
	failed error
}

func newFeeding(t *testing.T, addr string, seed uint64) *feeding {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic("in"), kgo.UnknownTopicRetries(-1),
		kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }), kgo.MaxBufferedRecords(5000))
	must(t, err)
	t.Cleanup(client.Close)
	_, err = kadm.NewClient(client).CreateTopic(t.Context(), 4, 1, nil, "in")
	must(t, err)
	return &feeding{client: client, in: &input{random: rand.New(rand.NewPCG(seed, 1))}}
}

// write writes n messages and waits for them.
func (f *feeding) write(t *testing.T, n int) {
	t.Helper()
	must(t, f.send(t.Context(), n))
}

func (f *feeding) send(ctx context.Context, n int) error {
	for range n {
		number := f.in.next()
		if number == len(f.amounts) {
			f.amounts = append(f.amounts, f.in.random.IntN(1000))
		}
		f.produce(ctx, strconv.AppendInt(nil, int64(number), 10), f.body(number))
	}
	return f.flush(ctx)
}

// body is that of all messages of a key.
func (f *feeding) body(number int) string {
	return fmt.Sprintf(`{"id":"%d","amount":%d}`, number, f.amounts[number])
}

func (f *feeding) produce(ctx context.Context, key []byte, body string) {
	f.client.Produce(ctx, &kgo.Record{Key: key, Value: []byte(body)}, func(_ *kgo.Record, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if err != nil && f.failed == nil {
			f.failed = err
		}
	})
}

func (f *feeding) flush(ctx context.Context) error {
	err := f.client.Flush(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(err, f.failed)
}

func (f *feeding) sum() (sum int) {
	for _, n := range f.amounts {
		sum += n
	}
	return sum
}

// settled waits until the group has committed all of the topic in.
func (f *feeding) settled(t *testing.T, group string) {
	t.Helper()
	adm := kadm.NewClient(f.client)
	if !within(settleFor, func() bool { return isSettled(t.Context(), adm, group, "in") }) {
		t.Errorf("the group %s did not commit all of the input", group)
	}
}

// isSettled reports whether a group has committed all of a topic. It looks at offsets alone:
// groups that the broker divides are not described like others.
func isSettled(ctx context.Context, adm *kadm.Client, group, topic string) bool {
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err != nil || ends.Error() != nil {
		return false
	}
	committed, err := adm.FetchOffsets(ctx, group)
	if err != nil || committed.Error() != nil {
		return false
	}
	all := true
	ends.Each(func(end kadm.ListedOffset) {
		at, ok := committed.Lookup(end.Topic, end.Partition)
		all = all && (end.Offset == 0 || ok && at.At == end.Offset)
	})
	return all
}

func chooseSeed(t *testing.T) (uint64, *rand.Rand) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	return seed, rand.New(rand.NewPCG(seed, 0))
}

func shuffled(random *rand.Rand, words string, times int) []string {
	events := strings.Fields(strings.Repeat(words+" ", times))
	random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	return events
}

// disturb lets one event happen.
func disturb(t *testing.T, event string, d *daemon, servers map[string]*services.Server) {
	t.Helper()
	t.Logf("%s %s", time.Now().Format("15:04:05.000"), event)
	how, what, _ := strings.Cut(event, "-")
	if what == "program" {
		d.end(t, map[string]syscall.Signal{"stop": syscall.SIGTERM, "kill": syscall.SIGKILL}[how])
		d.start(t)
		return
	}
	end(t, event, servers[what])
}

// end ends a server, as the event says, and starts it again.
func end(t *testing.T, event string, server *services.Server) {
	t.Helper()
	if strings.HasPrefix(event, "kill-") {
		must(t, server.Kill())
	} else {
		must(t, server.Stop())
	}
	restart(t, server)
}

// databaseEnds are how the database of rows ends.
const databaseEnds = "stop-database kill-database"

// TestRowsAndKeysOfPostgreSQLAreOneTransaction has two runs of the program move
// messages to rows while they and both servers are stopped and killed, and one of
// them stays away until the other has all partitions. The table has no constraint
// that would refuse a second row.
func TestRowsAndKeysOfPostgreSQLAreOneTransaction(t *testing.T) {
	seed, random := chooseSeed(t)
	broker := servicestest.StartKafka(t, nil)
	database := servicestest.StartPostgres(t, nil)
	feed := newFeeding(t, broker.Addr(), seed)
	programs := startRows(t, broker, database, "session_timeout: 1s")

	events := shuffled(random, allEnds+" "+databaseEnds, *kills)
	if testing.Short() { // it is the broker's ends that take long
		events = shuffled(random, allEnds+" "+programEnds+" "+databaseEnds+" "+databaseEnds, 1)
	}
	events = append(events, "absent-program")
	share := *messages / (len(events) + 1)
	for _, event := range events {
		feed.write(t, share)
		within(time.Duration(random.IntN(1500))*time.Millisecond, func() bool { return false })
		i := random.IntN(2)
		t.Logf("%s %s %d", time.Now().Format("15:04:05.000"), event, i)
		switch {
		case event == "absent-program":
			programs[i].end(t, syscall.SIGKILL)
			wantAlone(t.Context(), t, feed.client, 1-i, "rows")
			programs[i].start(t)
		case strings.Contains(databaseEnds, event):
			end(t, event, database)
		default:
			happen(t, event, broker, programs[i], random)
		}
	}
	feed.write(t, *messages-share*len(events))
	feed.settled(t, "rows")
	for _, d := range programs {
		d.end(t, syscall.SIGTERM)
		if parked, _ := filepath.Glob(filepath.Join(filepath.Dir(d.config), "semel-parked", "*")); len(parked) > 1 {
			t.Errorf("messages were parked: %v", parked)
		}
	}
	wantRows(t, database, feed)
	t.Logf("%d messages, %d keys, %v", *messages, len(feed.amounts), events)
}

// startRows starts two runs of the program that move messages to rows, which have
// their keys in the same transactions. The source of run 0 has the instance rows-0.
func startRows(t *testing.T, broker, database *services.Server, source string) (programs [2]*daemon) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), database.URL())
	must(t, err)
	_, err = db.Exec(t.Context(), "CREATE TABLE rows (id text NOT NULL, amount int NOT NULL)")
	must(t, err)
	must(t, db.Close(t.Context()))
	program := built(t)
	for i := range programs {
		programs[i] = newDaemon(t, program, fmt.Sprintf(`
stores:
  db: { postgres: { dsn: %q } }
pipelines:
  rows:
    source: { kafka: { brokers: [%q], topics: [in], group: rows, instance: rows-%d, %s } }
    key: { id: .id }
    window: 1d
    store: db
    parallel: 4
    sink: { postgres: { store: db, statement: "INSERT INTO rows VALUES ($1, $2)", args: [.id, .amount] } }
    on_failure: { attempts: 1000, backoff: 500ms }
`, database.URL(), broker.Addr(), i, source))
		if i == 0 {
			programs[0].do(t, "migrate", "up", "--config", programs[0].config, "--store-name", "db")
		}
		programs[i].start(t)
	}
	return programs
}

// wantRows compares the table with the keys that were written.
func wantRows(t *testing.T, database *services.Server, feed *feeding) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleFor)
	defer cancel()
	db, err := pgx.Connect(ctx, database.URL())
	must(t, err)
	defer db.Close(context.WithoutCancel(ctx))
	var rows, distinct, sum int
	must(t, db.QueryRow(ctx, "SELECT count(*), count(DISTINCT id), coalesce(sum(amount), 0) FROM rows").Scan(&rows, &distinct, &sum))
	if want := len(feed.amounts); rows != want || distinct != want || sum != feed.sum() {
		t.Errorf("%d rows of %d keys with the sum %d; want %d of as many with %d", rows, distinct, sum, want, feed.sum())
	}
}

// wantAlone waits until groups have given all partitions to one of two programs,
// whose instances begin with the group and its number.
func wantAlone(ctx context.Context, t *testing.T, client *kgo.Client, number int, groups ...string) {
	t.Helper()
	adm := kadm.NewClient(client)
	alone := func() bool {
		described, err := adm.DescribeGroups(ctx, groups...)
		if err != nil || described.Error() != nil {
			return false
		}
		for _, g := range described {
			for _, m := range g.Members {
				if m.InstanceID == nil || !strings.HasPrefix(*m.InstanceID, fmt.Sprint(g.Group, "-", number)) {
					return false
				}
			}
			if g.State != "Stable" || len(g.Members) == 0 {
				return false
			}
		}
		return true
	}
	if !within(settleFor, alone) {
		t.Error("the partitions of a program that is gone did not go to the other")
	}
}
