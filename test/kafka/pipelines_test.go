package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
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

	"github.com/semel-dev/semel/internal/services"
	"github.com/semel-dev/semel/internal/services/servicestest"
)

// built is the program, built once for each test.
func built(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "semel")
	build := exec.Command("go", "build", "-o", name, "github.com/semel-dev/semel/cmd/semel")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return name
}

// daemon is a run of the program over a configuration, in a directory of its own.
type daemon struct {
	program, config, log string
	admin                string // what --admin is
	logged               int64  // how much of the log is of earlier starts
	cmd                  *exec.Cmd
}

func newDaemon(t *testing.T, program, config string) *daemon {
	t.Helper()
	dir := t.TempDir()
	d := &daemon{program: program, config: filepath.Join(dir, "semel.yaml"), log: filepath.Join(dir, "log"), admin: "off"}
	must(t, os.WriteFile(d.config, []byte(config), 0o600))
	t.Cleanup(func() {
		if d.cmd != nil && d.cmd.ProcessState == nil {
			d.end(t, syscall.SIGKILL)
		}
		showLog(t, "the program", d.log)
	})
	return d
}

// do runs another verb of the program.
func (d *daemon) do(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(d.program, args...).CombinedOutput(); err != nil {
		t.Fatalf("semel %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func (d *daemon) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer log.Close()
	d.logged, err = log.Seek(0, io.SeekEnd)
	must(t, err)
	d.cmd = exec.Command(d.program, "run", d.config, "--admin", d.admin)
	d.cmd.Stderr, d.cmd.Dir = log, filepath.Dir(d.config)
	must(t, d.cmd.Start())
}

func (d *daemon) end(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		t.Errorf("the program had ended: %v", err)
	}
	if err := d.cmd.Wait(); s == syscall.SIGTERM && err != nil {
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
func (f *feeding) settled(t *testing.T, group string, most time.Duration) {
	t.Helper()
	adm := kadm.NewClient(f.client)
	if !within(most, func() bool { return isSettled(t.Context(), adm, group) }) {
		t.Errorf("the group %s did not commit all of the input", group)
	}
}

// isSettled looks at offsets alone: groups that the broker divides are not
// described like others.
func isSettled(ctx context.Context, adm *kadm.Client, group string) bool {
	ends, err := adm.ListEndOffsets(ctx, "in")
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
	server := servers[what]
	if how == "kill" {
		must(t, server.Kill())
	} else {
		must(t, server.Stop())
	}
	restart(t, server)
}

// TestRowsAndKeysOfPostgreSQLAreOneTransaction moves messages to rows while the
// program and both servers are stopped and killed. The table has no constraint
// that would refuse a second row.
func TestRowsAndKeysOfPostgreSQLAreOneTransaction(t *testing.T) {
	seed, random := chooseSeed(t)
	broker := servicestest.StartKafka(t, nil)
	database := servicestest.StartPostgres(t, nil)
	feed := newFeeding(t, broker.Addr(), seed)
	connect := func() (*pgx.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		return pgx.Connect(ctx, database.URL())
	}
	db, err := connect()
	must(t, err)
	_, err = db.Exec(t.Context(), "CREATE TABLE rows (id text NOT NULL, amount int NOT NULL)")
	must(t, err)
	must(t, db.Close(t.Context()))
	d := newDaemon(t, built(t), fmt.Sprintf(`
stores:
  db: { postgres: { dsn: %q } }
pipelines:
  rows:
    source: { kafka: { brokers: [%q], topics: [in], group: rows } }
    key: { id: .id }
    window: 1d
    store: db
    parallel: 4
    sink: { postgres: { store: db, statement: "INSERT INTO rows VALUES ($1, $2)", args: [.id, .amount] } }
    on_failure: { attempts: 1000, backoff: { from: 20ms, to: 500ms } }
`, database.URL(), broker.Addr()))
	d.do(t, "migrate", "up", "--config", d.config, "--store-name", "db")
	d.start(t)

	events := shuffled(random, "stop-program kill-program stop-database kill-database", *kills)
	events = append(events, "kill-broker")
	servers := map[string]*services.Server{"database": database, "broker": broker}
	share := *messages / (len(events) + 1)
	for _, event := range events {
		feed.write(t, share)
		within(time.Duration(random.IntN(1500))*time.Millisecond, func() bool { return false })
		disturb(t, event, d, servers)
	}
	feed.write(t, *messages-share*len(events))
	feed.settled(t, "rows", 4*time.Minute)
	d.end(t, syscall.SIGTERM)

	db, err = connect()
	must(t, err)
	defer db.Close(t.Context())
	wantRows(t, db, feed)
	if parked, _ := filepath.Glob(filepath.Join(filepath.Dir(d.config), "semel-parked", "*")); len(parked) > 1 {
		t.Errorf("messages were put aside: %v", parked)
	}
	t.Logf("%d messages, %d keys, %v", *messages, len(feed.amounts), events)
}

// journal is what a receiver of requests saw.
type journal struct {
	random *rand.Rand

	mu       sync.Mutex
	accepted map[string]int
	attempts map[string]int    // the highest of each key
	tokens   map[string]uint64 // the highest of each key
	late     int               // repeats with a token that is lower than one before
	wrong    []string
}

func newJournal(seed uint64) *journal {
	return &journal{random: rand.New(rand.NewPCG(seed, 2)), accepted: map[string]int{}, attempts: map[string]int{}, tokens: map[string]uint64{}}
}

// ServeHTTP implements http.Handler. It refuses some requests, and loses some
// answers.
func (j *journal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct{ ID string }
	data, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(data, &body)
	}
	attempt, err2 := strconv.Atoi(r.Header.Get("Semel-Attempt"))
	token, err3 := strconv.ParseUint(r.Header.Get("Semel-Token"), 10, 64)
	j.mu.Lock()
	defer j.mu.Unlock()
	if errors.Join(err, err2, err3) != nil || r.Header.Get("Idempotency-Key") != body.ID {
		j.wrong = append(j.wrong, fmt.Sprintf("%s with %v", data, r.Header))
	}
	chance := j.random.IntN(100)
	switch {
	case strings.HasPrefix(body.ID, refusedID):
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	case chance == 0:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	j.accepted[body.ID]++
	// Attempts within a claim that a crash ended are not counted, so that a number
	// may come twice.
	switch repeated := j.accepted[body.ID] > 1; {
	case repeated && token < j.tokens[body.ID]:
		j.late++
	case repeated && (attempt < 2 || attempt < j.attempts[body.ID]):
		j.wrong = append(j.wrong, fmt.Sprintf("key %s had its effect again at attempt %d, after attempt %d", body.ID, attempt, j.attempts[body.ID]))
	}
	j.attempts[body.ID] = max(j.attempts[body.ID], attempt)
	j.tokens[body.ID] = max(j.tokens[body.ID], token)
	if chance == 1 { // it had its effect, and the answer is lost
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			conn.Close()
		}
	}
}

// refusedID begins the ids of messages that a receiver refuses for good.
const refusedID = "p"

// check compares the journal with the keys that were written, and returns how
// often an effect was repeated.
func (j *journal) check(t *testing.T, keys int) (repeats int) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	lost := 0
	for number := range keys {
		n := j.accepted[strconv.Itoa(number)]
		if n == 0 {
			lost++
			if lost <= 10 {
				t.Errorf("key %d is lost", number)
			}
		}
		repeats += max(n-1, 0)
	}
	if lost > 10 {
		t.Errorf("%d keys are lost", lost)
	}
	for i, text := range j.wrong {
		if i == 10 {
			t.Errorf("and %d more", len(j.wrong)-i)
			break
		}
		t.Error(text)
	}
	return repeats
}

// TestRequestsRepeatOnlyWithTheirAttempts moves messages to a receiver of requests,
// with keys in PostgreSQL and a cache in Redis above, while the program and the
// servers are killed.
func TestRequestsRepeatOnlyWithTheirAttempts(t *testing.T) {
	seed, random := chooseSeed(t)
	broker := servicestest.StartKafka(t, nil)
	database := servicestest.StartPostgres(t, nil)
	cache := servicestest.StartRedis(t, nil)
	feed := newFeeding(t, broker.Addr(), seed)
	seen := newJournal(seed)
	receiver := httptest.NewServer(seen)
	defer receiver.Close()
	d := newDaemon(t, built(t), fmt.Sprintf(`
stores:
  cache: { redis: { url: %q } }
  db: { postgres: { dsn: %q } }
  both: { tiered: [cache, db] }
pipelines:
  calls:
    source: { kafka: { brokers: [%q], topics: [in], group: calls } }
    key: { id: .id }
    window: 1d
    lease: 3s
    store: both
    sink: { webhook: { url: %q, allow_private: true } }
    on_failure: { attempts: 1000, backoff: { from: 20ms, to: 500ms } }
`, cache.URL(), database.URL(), broker.Addr(), receiver.URL))
	d.do(t, "migrate", "up", "--config", d.config, "--store-name", "db")
	d.start(t)

	total := *messages / 5
	events := shuffled(random, "stop-program kill-program kill-cache kill-database", max(*kills-1, 1))
	events = append(events, "kill-broker")
	servers := map[string]*services.Server{"database": database, "broker": broker, "cache": cache}
	share := total / (len(events) + 1)
	for _, event := range events {
		feed.write(t, share)
		within(time.Duration(random.IntN(1500))*time.Millisecond, func() bool { return false })
		disturb(t, event, d, servers)
	}
	feed.write(t, total-share*len(events))
	feed.settled(t, "calls", 4*time.Minute)
	d.end(t, syscall.SIGTERM)

	repeats := seen.check(t, len(feed.amounts))
	if seen.late > 0 {
		t.Errorf("%d requests came after one with a higher token, but no program stood still", seen.late)
	}
	t.Logf("%d messages, %d keys, %d repeats, %v", total, len(feed.amounts), repeats, events)
}
