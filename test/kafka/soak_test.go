package kafka

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var (
	soakFor  = flag.Duration("soak", 0, "how long TestSoak runs; 0 skips it")
	soakRate = flag.Int("soak-rate", 400, "how many messages TestSoak writes in a second")
)

const (
	// soakWindow is how long keys are remembered in a soak, so that what is kept of
	// them ends to grow. A message is repeated at most 5000 keys later, all of which
	// are written in a shorter time.
	soakWindow = "3m"
	// settleFor is how long the test waits for what must come. Only what hangs
	// should need it.
	settleFor = 10 * time.Minute
)

// soakConfig has the three ways from Kafka. The first run is there all the time,
// the second comes and goes.
const soakConfig = `
stores:
  cache: { redis: { url: %[1]q } }
  db: { postgres: { dsn: %[2]q } }
  both: { tiered: [cache, db] }
pipelines:
  once:
    source: { kafka: { brokers: [%[3]q], topics: [in], group: %[6]s, instance: %[6]s-%[5]d, session_timeout: 3s } }
    key: { id: .id }
    window: ` + soakWindow + `
    sink: { kafka: { brokers: [%[3]q], topic: %[6]s-out } }
    parked: { topic: %[6]s-parked }
  rows:
    source: { kafka: { brokers: [%[3]q], topics: [in], group: rows, instance: rows-%[5]d, session_timeout: 3s } }
    key: { id: .id }
    window: ` + soakWindow + `
    store: db
    sink: { postgres: { store: db, statement: "INSERT INTO rows VALUES ($1, $2)", args: [.id, .amount] } }
    on_failure: { attempts: 1000, backoff: 500ms }
    parked: { store: db }
  calls:
    source: { kafka: { brokers: [%[3]q], topics: [in], group: calls, instance: calls-%[5]d, session_timeout: 3s } }
    key: { id: .id }
    window: ` + soakWindow + `
    lease: 3s
    store: both
    parallel: %[7]d
    sink: { webhook: { url: %[4]q, allow_private: true } }
    on_failure: { attempts: 1000, backoff: 500ms }
    parked: { store: db }
`

// soakFaults are what happens, in a random order that has all of them before one
// comes again.
const soakFaults = "stop-program kill-program pause-program absent-program pause-steady stop-broker kill-broker pause-broker " +
	"stop-database kill-database pause-database stop-cache kill-cache pause-cache"

// soak is one run of TestSoak.
type soak struct {
	t        *testing.T
	ctx      context.Context
	random   *rand.Rand
	servers  map[string]*services.Server
	feed     *feeding
	writing  sync.Mutex // held by who writes, and by who wants quiet
	missing  int        // messages without an id that were written
	refused  int        // messages that sinks refuse permanently
	once     *once
	calls    *journal
	receiver string  // the address of calls
	steady   *daemon // never ends but where once begins again
	other    *daemon // comes and goes
	deck     []string
	happened map[string]int
	// mayRepeat is how many effects of calls may be repeated although their
	// answers came.
	mayRepeat int
	samples   []sample
	lives     [][]sample // of steady, before it was started last
}

// TestSoak runs the program with pipelines from Kafka to Kafka, to PostgreSQL and
// to a receiver of requests, while programs and servers are stopped, killed and
// paused at random. Now and then nothing is written until all is settled; then
// the outputs are compared, and memory and goroutines of a program that lives
// through all of it are looked at. They must be flat.
func TestSoak(t *testing.T) {
	if *soakFor == 0 {
		t.Skip("it takes as long as it is told: make soak (30m), or go test -v ./test/kafka -run '^TestSoak$' -soak 2m")
	}
	s := newSoak(t)
	began := time.Now()
	for time.Since(began) < *soakFor || len(s.happened) < len(strings.Fields(soakFaults)) {
		if s.ctx.Err() != nil {
			t.Fatal("the run took more than twice its time")
		}
		s.round()
		t.Logf("%v: %d keys, %d parked, %v", time.Since(began).Round(time.Second), len(s.feed.amounts), s.missing+s.refused, s.samples[len(s.samples)-1])
	}
	s.end()
}

func newSoak(t *testing.T) *soak {
	seed, random := chooseSeed(t)
	// This is Kafka's default: a paused node does not take itself for dead, and then it could
	// lose a transaction like a node that ends.
	soakBroker := map[string]string{"broker.session.timeout.ms": "9000", "controlled.shutdown.enable": "true"}
	ctx, cancel := context.WithTimeout(t.Context(), 2**soakFor+settleFor)
	t.Cleanup(cancel)
	s := &soak{t: t, ctx: ctx, random: random, happened: map[string]int{}, calls: newJournal(seed)}
	s.servers = map[string]*services.Server{
		"broker": servicestest.StartKafka(t, &services.KafkaOptions{Properties: soakBroker}), "database": servicestest.StartPostgres(t, nil), "cache": servicestest.StartRedis(t, nil),
	}
	s.feed = newFeeding(t, s.servers["broker"].Addr(), seed)
	s.query("CREATE TABLE rows (id text NOT NULL, amount int NOT NULL)")
	receiver := httptest.NewServer(s.calls)
	t.Cleanup(receiver.Close)
	s.receiver = receiver.URL

	program := built(t)
	s.steady, s.other = newDaemon(t, program, ""), newDaemon(t, program, "")
	s.beginOnce(0)
	s.steady.do(t, "migrate", "up", "--config", s.steady.config, "--store-name", "db")
	s.steady.admin = "127.0.0.1:0"
	s.steady.start(t)
	s.other.start(t)
	return s
}

// query asks the database, over a connection of its own.
func (s *soak) query(statement string, into ...any) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, settleFor)
	defer cancel()
	db, err := pgx.Connect(ctx, s.servers["database"].URL())
	must(s.t, err)
	defer db.Close(context.WithoutCancel(ctx))
	if len(into) == 0 {
		_, err = db.Exec(ctx, statement)
	} else {
		err = db.QueryRow(ctx, statement).Scan(into...)
	}
	must(s.t, err)
}

// round writes for a while, lets faults happen in the meantime, and compares.
func (s *soak) round() {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	written := make(chan error, 1)
	go func() { written <- s.write(ctx) }()
	for range 2 {
		s.wait(time.Second, 3*time.Second)
		if len(s.deck) == 0 {
			s.deck = shuffled(s.random, soakFaults, 1)
		}
		event := s.deck[0]
		s.deck = s.deck[1:]
		s.happen(event)
		s.happened[event]++
	}
	s.wait(time.Second, 2*time.Second)
	stop()
	must(s.t, <-written)
	s.compareOnce()
	for _, group := range []string{"rows", "calls"} {
		s.feed.settled(s.t, group)
	}
	s.compare()
	s.sample()
	if s.t.Failed() {
		s.t.FailNow() // it does not get better
	}
}

// write writes messages at the rate until ctx ends.
func (s *soak) write(ctx context.Context) error {
	const often = 10 // in a second
	tick := time.NewTicker(time.Second / often)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := s.writeSome(*soakRate / often); err != nil {
			return err
		}
	}
}

func (s *soak) writeSome(n int) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	switch s.feed.in.random.IntN(20) {
	case 0:
		s.feed.produce(s.ctx, nil, fmt.Sprintf(`{"missing":%d}`, s.missing))
		s.missing++
	case 1:
		s.feed.produce(s.ctx, nil, s.refusedBody(s.refused))
		s.refused++
	}
	return s.feed.send(s.ctx, n)
}

func (s *soak) refusedBody(n int) string {
	return fmt.Sprintf(`{"id":"%s%d","amount":"much"}`, refusedID, n)
}

func (s *soak) wait(from, to time.Duration) {
	within(from+time.Duration(s.random.Int64N(int64(to-from))), func() bool { return false })
}

// happen lets one fault happen, and end.
func (s *soak) happen(event string) {
	s.t.Helper()
	how, what, _ := strings.Cut(event, "-")
	s.mayRepeat += mayRepeat(event, 2)
	server := s.servers[what]
	if what == "broker" && how != "pause" {
		// A transaction that is under way while a Kafka of one node ends may never
		// end there (see services.StartKafka). The other pipelines need not be quiet.
		s.writing.Lock()
		defer s.writing.Unlock()
		s.settleOnce()
	}
	if how != "pause" && how != "absent" {
		disturb(s.t, event, s.other, s.servers)
		return
	}
	s.t.Logf("%s %s", time.Now().Format("15:04:05.000"), event)
	switch {
	case event == "absent-program":
		s.other.end(s.t, syscall.SIGTERM)
		wantAlone(s.ctx, s.t, s.feed.client, 0, s.once.group, "rows", "calls")
		s.other.start(s.t)
	case server == nil:
		d := map[string]*daemon{"program": s.other, "steady": s.steady}[what]
		must(s.t, d.signal(syscall.SIGSTOP, false))
		s.wait(time.Second, 5*time.Second) // also longer than a lease and a session
		must(s.t, d.signal(syscall.SIGCONT, false))
	default:
		must(s.t, server.Pause())
		s.wait(time.Second, 4*time.Second)
		must(s.t, server.Continue())
	}
}

// compare compares rows and requests with the messages that were written, all of
// which are settled.
func (s *soak) compare() {
	s.t.Helper()
	var rows, distinct, sum int
	s.query("SELECT count(*), count(DISTINCT id), coalesce(sum(amount), 0) FROM rows", &rows, &distinct, &sum)
	if want := len(s.feed.amounts); rows != want || distinct != want || sum != s.feed.sum() {
		s.t.Errorf("%d rows of %d keys with the sum %d; want %d of as many with %d", rows, distinct, sum, want, s.feed.sum())
	}
	s.calls.check(s.t, len(s.feed.amounts), s.mayRepeat)
}

// end ends the programs and looks at what is left.
func (s *soak) end() {
	t := s.t
	t.Helper()
	s.wantParked()
	for _, d := range []*daemon{s.steady, s.other} {
		d.end(t, syscall.SIGTERM)
	}
	for _, event := range slices.Sorted(maps.Keys(s.happened)) {
		t.Logf("%s: %d times", event, s.happened[event])
	}
	s.calls.check(t, len(s.feed.amounts), s.mayRepeat)
	t.Logf("%d keys, %d messages without an id, %d that sinks refused; %d requests came late with a lower token",
		len(s.feed.amounts), s.missing, s.refused, s.calls.late)
	s.beganAgain(t)
	wantFlat(t, s.longestLife())
}

// wantParked asks the program what the pipelines parked. The one within Kafka has
// no sink that refuses.
func (s *soak) wantParked() {
	s.t.Helper()
	list, err := exec.Command(s.steady.program, "parked", "ls", "--json", "--config", s.steady.config).Output()
	must(s.t, err)
	got := map[string]int{}
	places := map[string]bool{}
	for lines := bufio.NewScanner(bytes.NewReader(list)); lines.Scan(); {
		var line struct {
			Pipeline, Reason  string
			Partition, Offset int64
		}
		must(s.t, json.Unmarshal(lines.Bytes(), &line))
		// A crash between parking and acknowledging may do it again.
		if place := fmt.Sprint(line.Pipeline, line.Partition, "/", line.Offset); !places[place] {
			places[place] = true
			got[line.Pipeline+" "+line.Reason]++
		}
	}
	want := map[string]int{
		"rows key-missing": s.missing, "calls key-missing": s.missing, "once key-missing": s.missing,
		"rows permanent": s.refused, "calls permanent": s.refused,
	}
	if !maps.Equal(got, want) {
		s.t.Errorf("parked were %v; want %v", got, want)
	}
}
