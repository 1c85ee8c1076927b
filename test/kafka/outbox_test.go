package kafka

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/test/sampletest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// How relays end while they deliver, and how a database does.
const (
	killRelay, stopRelay = "kill-relay", "pause-relay"
	fast, immediate      = "stop-database", "quit-database"
	relayLease           = "2s"
)

// upset lets an event happen to a server.
func upset(t *testing.T, event string, broker, database *services.Server) {
	t.Helper()
	switch event {
	case fast:
		must(t, database.Stop())
		restart(t, database)
	case immediate: // SIGQUIT: it aborts what it does, and recovers when it starts
		must(t, syscall.Kill(database.PID(), syscall.SIGQUIT))
		if !within(settleFor, func() bool { return !database.Running() }) {
			t.Fatal("PostgreSQL does not end")
		}
		restart(t, database)
	default:
		end(t, event, broker)
	}
}

// mode is a way in which relays read the outbox.
type mode struct {
	name, source string
	settings     map[string]string // of the database
	works        string            // a statement that is true when the relays do what they should
	tookOver     func(other *daemon) string
}

// modes are all of them. In the mode table, relays share the shards. In the mode wal, one
// reads the slot, and the other stands by.
var modes = []mode{
	{
		name: "table", source: "source: { outbox: { store: db } }\n    lease: " + relayLease,
		works: "SELECT count(*) = 64 AND count(DISTINCT owner) = 2 FROM semel_outbox_shards WHERE until > now()",
		tookOver: func(*daemon) string {
			return "SELECT count(*) = 64 AND count(DISTINCT owner) = 1 FROM semel_outbox_shards WHERE until > now()"
		},
	},
	{
		name: "wal", source: "source: { outbox: { store: db, mode: wal } }",
		settings: map[string]string{"wal_level": "logical", "wal_sender_timeout": relayLease},
		works:    "SELECT count(*) = 1 FROM pg_replication_slots WHERE active",
		tookOver: func(other *daemon) string {
			return fmt.Sprintf("SELECT count(*) = 1 FROM pg_stat_replication WHERE application_name LIKE '%%/%d/%%'", other.pid())
		},
	},
}

// upset kills a relay, or stops it until the other has taken over.
func (m *mode) upset(t *testing.T, event string, relays [2]*daemon, i int, pool *pgxpool.Pool) {
	t.Helper()
	becomes(t, pool, m.works)
	d := relays[i]
	if event == killRelay {
		d.end(t, syscall.SIGKILL)
		d.start(t)
		return
	}
	must(t, d.signal(syscall.SIGSTOP, false))
	becomes(t, pool, m.tookOver(relays[1-i]))
	must(t, d.signal(syscall.SIGCONT, false))
}

// becomes waits until a statement is true. The database may be away.
func becomes(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	var yes bool
	var err error
	if !within(settleFor, func() bool {
		err = pool.QueryRow(t.Context(), sql).Scan(&yes)
		return err == nil && yes
	}) {
		t.Fatalf("never: %s: %v", sql, err)
	}
}

// meter tells several goroutines how much to do, and how much they have done.
type meter struct {
	mu            sync.Mutex // guards the fields below
	changed       *sync.Cond
	count, target int
	last          bool // the target is final
	failed        bool // one of them has given up
}

func newMeter() *meter {
	m := &meter{}
	m.changed = sync.NewCond(&m.mu)
	return m
}

// more raises the target by n, and waits until some of it are done.
func (m *meter) more(n, wait int, last bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.target, m.last = m.target+n, last
	m.changed.Broadcast()
	for until := min(m.count+wait, m.target); m.count < until && !m.failed; {
		m.changed.Wait()
	}
}

// short waits until there is something to do. It returns false if all is done.
func (m *meter) short() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.count >= m.target && !m.last && !m.failed {
		m.changed.Wait()
	}
	return m.count < m.target && !m.failed
}

// fail ends all waiting.
func (m *meter) fail() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = true
	m.changed.Broadcast()
}

// add notes that n are done. do is called with the lock.
func (m *meter) add(n int, do func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	do()
	m.count += n
	m.changed.Broadcast()
}

// shop is a table of aggregates with writers. An event is numbered within its aggregate,
// in the transaction that locks the aggregate, and has a mark that no other event has.
type shop struct {
	*meter     // of events that were committed
	pool       *pgxpool.Pool
	aggregates int

	// The meter guards these.
	committed  map[string][]string // the marks of each aggregate
	rolledBack int
	unknown    int // commits whose outcome the writer had to ask for
}

// openShop creates the tables.
func openShop(t *testing.T, pool *pgxpool.Pool, aggregates int) *shop {
	t.Helper()
	_, err := pool.Exec(t.Context(), fmt.Sprintf("CREATE TABLE transactions (id bigint PRIMARY KEY); CREATE TABLE aggregates AS SELECT id, 0 AS n FROM generate_series(0, %d) AS id", aggregates-1))
	must(t, err)
	return &shop{meter: newMeter(), pool: pool, aggregates: aggregates, committed: map[string][]string{}}
}

// write commits transactions as long as the meter says so.
func (s *shop) write(ctx context.Context, random *rand.Rand) error {
	for s.short() {
		if err := s.transact(ctx, random); err != nil && (!away(err) || ctx.Err() != nil) {
			return err
		}
	}
	return nil
}

// away reports whether an error may be one of a server that is restarted.
func away(err error) bool {
	of, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	return !ok || strings.HasPrefix(of.SQLState(), "57P") || strings.HasPrefix(of.SQLState(), "08")
}

// transact changes some aggregates and writes events about them, in one transaction that
// may take two seconds, and that may be rolled back.
func (s *shop) transact(ctx context.Context, random *rand.Rand) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		within(100*time.Millisecond, func() bool { return false })
		return err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // no effect after a commit
	id := random.Int64()
	if _, err := tx.Exec(ctx, "INSERT INTO transactions VALUES ($1)", id); err != nil {
		return err
	}
	of := random.Perm(s.aggregates)[:1+random.IntN(3)]
	slices.Sort(of) // so that writers do not wait for each other in a circle
	var list []outbox.Message
	var marks [][2]string
	for _, id := range of {
		events := 1 + random.IntN(8)
		var n int
		if err := tx.QueryRow(ctx, "UPDATE aggregates SET n = n + $2 WHERE id = $1 RETURNING n", id, events).Scan(&n); err != nil {
			return err
		}
		for i := range events {
			mark := fmt.Sprintf("%d/%d/%x", id, n-events+1+i, random.Uint64())
			list = append(list, outbox.Message{Aggregate: fmt.Sprint(id), Topic: "events", Payload: []byte(mark)})
			marks = append(marks, [2]string{fmt.Sprint(id), mark})
		}
		if err := outbox.Write(ctx, tx, list...); err != nil {
			return err
		}
		list = nil
		if random.IntN(150) == 0 {
			if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", random.Float64()*2); err != nil {
				return err
			}
		}
	}
	if random.IntN(10) == 0 {
		s.add(0, func() { s.rolledBack += len(marks) })
		return tx.Rollback(ctx)
	}
	committed, asked := true, 0
	if err := tx.Commit(ctx); err != nil {
		if committed, err = s.outcome(ctx, id); err != nil {
			return err
		}
		asked = 1
	}
	n := len(marks)
	if !committed {
		n, marks = 0, nil
	}
	s.add(n, func() {
		s.unknown += asked
		for _, m := range marks {
			s.committed[m[0]] = append(s.committed[m[0]], m[1])
		}
	})
	return nil
}

// outcome asks the database whether a transaction was committed, when it has come back. It
// does not ask for the status of the transaction id: after a crash, that may be the id of
// another transaction.
func (s *shop) outcome(ctx context.Context, id int64) (committed bool, err error) {
	if !within(settleFor, func() bool {
		err = s.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM transactions WHERE id = $1)", id).Scan(&committed)
		return err == nil
	}) {
		return false, fmt.Errorf("whether a transaction was committed: %w", err)
	}
	return committed, nil
}

// TestOutboxDeliversCommittedMessagesInOrder has two relays deliver what eight writers
// commit, while relays are killed and stopped for longer than their lease, and PostgreSQL
// and Kafka are restarted. The journal of the writers is compared with the topic, and with
// the rows of a consumer that remembers keys.
func TestOutboxDeliversCommittedMessagesInOrder(t *testing.T) {
	t.Parallel()
	for _, m := range sampletest.OneOf(modes...) {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			deliverInOrder(t, &m)
		})
	}
}

func deliverInOrder(t *testing.T, m *mode) {
	seed, random := chooseSeed(t)
	total, aggregates := 200_000, 400
	events := slices.Concat(slices.Repeat([]string{killRelay, stopRelay}, 10), []string{fast, fast, immediate, immediate, immediate, "stop-broker", "kill-broker"})
	if testing.Short() {
		total, aggregates, events = 4000, 50, []string{killRelay, stopRelay, []string{fast, immediate}[random.IntN(2)]}
	}
	random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	began := time.Now()
	addr, name := servers.Kafka(t), servicestest.Topic()
	var broker *services.Server // with -short, no event ends it
	if !testing.Short() {
		broker = servicestest.StartKafka(t, nil)
		addr = broker.Addr()
	}
	database := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: m.settings})
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	must(t, err)
	defer client.Close()
	adm := kadm.NewClient(client)
	_, err = adm.CreateTopic(t.Context(), 4, 1, nil, name)
	must(t, err)
	config, err := pgxpool.ParseConfig(database.URL())
	must(t, err)
	config.MaxConns = 12
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	defer pool.Close()
	_, err = pool.Exec(t.Context(), "CREATE TABLE effects (n bigint GENERATED ALWAYS AS IDENTITY, aggregate text, mark text)")
	must(t, err)

	program := built(t)
	var relays [2]*daemon
	for i := range relays {
		relays[i] = newDaemon(t, program, fmt.Sprintf(`
stores: { db: { postgres: { dsn: %q } } }
pipelines:
  relay:
    %s
    key: { id: property:message-id }
    sink: { kafka: { brokers: [%q], topic: %s } }
    on_failure: { attempts: 3 }
    parked: { store: db }
`, database.URL(), m.source, addr, name))
	}
	relays[0].do(t, "migrate", "up", "--config", relays[0].config, "-q")
	consumer := newDaemon(t, program, fmt.Sprintf(`
stores: { db: { postgres: { dsn: %[1]q } } }
pipelines:
  consumer:
    source: { kafka: { brokers: [%[2]q], topics: [%[3]s], group: %[3]s, session_timeout: 1s } }
    key: { id: header:semel-key }
    window: 1d
    store: db
    sink: { postgres: { store: db, table: effects, columns: { aggregate: record-key, mark: body } } }
    on_failure: { attempts: 1000, backoff: 500ms }
    parked: { store: db }
`, database.URL(), addr, name))
	programs := []*daemon{relays[0], relays[1], consumer}
	for _, d := range programs {
		d.supervised = true // it may find no server when it starts
		d.start(t)
	}

	s := openShop(t, pool, aggregates)
	var writers sync.WaitGroup
	for i := range 8 {
		own := rand.New(rand.NewPCG(seed, uint64(10+i)))
		writers.Go(func() {
			if err := s.write(t.Context(), own); err != nil {
				t.Errorf("a writer: %v", err)
				s.fail()
			}
		})
	}
	share := total / (len(events) + 1)
	for _, event := range events {
		s.more(share, random.IntN(share), false)
		i := random.IntN(2)
		t.Logf("%s %s %d", time.Now().Format("15:04:05.000"), event, i)
		if event == killRelay || event == stopRelay {
			m.upset(t, event, relays, i, pool)
		} else {
			upset(t, event, broker, database)
		}
		if random.IntN(8) == 0 {
			consumer.end(t, syscall.SIGKILL)
			consumer.start(t)
		}
	}
	s.more(total-share*len(events), 0, true)
	writers.Wait()
	becomes(t, pool, "SELECT NOT EXISTS (SELECT FROM semel_outbox)")
	if !within(settleFor, func() bool { return isSettled(t.Context(), adm, name, name) }) {
		t.Error("the consumer did not commit all of the topic")
	}
	for _, d := range programs {
		d.end(t, syscall.SIGTERM)
	}
	s.compare(t, addr, name, adm)
	t.Logf("%d events committed, %d rolled back, %d commits whose outcome was asked for, in %v: %v", s.count, s.rolledBack, s.unknown, time.Since(began).Round(time.Second), events)
}

// compare compares the journal of the writers with the topic, and with the effects of the
// consumer.
func (s *shop) compare(t *testing.T, broker, topic string, adm *kadm.Client) {
	t.Helper()
	for _, marks := range s.committed { // a transaction has its number until it has committed
		slices.SortFunc(marks, func(a, b string) int { return number(a) - number(b) })
	}
	var parked int
	must(t, s.pool.QueryRow(t.Context(), "SELECT count(*) FROM semel_parked").Scan(&parked))
	if parked > 0 {
		t.Errorf("%d messages were parked", parked)
	}
	rows, err := s.pool.Query(t.Context(), "SELECT aggregate, mark FROM effects ORDER BY n")
	must(t, err)
	effects := map[string][]string{}
	var of, mark string
	_, err = pgx.ForEachRow(rows, []any{&of, &mark}, func() error {
		effects[of] = append(effects[of], mark)
		return nil
	})
	must(t, err)
	s.equal(t, "effects", effects)

	type message struct{ id, aggregate string }
	first, firsts, repeats := map[string]message{}, map[string][]string{}, 0
	ids := map[string]string{}
	for _, r := range wholeTopic(t, broker, topic, adm) {
		m, mark := message{header(r, "semel-key"), string(r.Key)}, string(r.Value)
		was, again := first[mark]
		switch {
		case again && was != m:
			t.Errorf("%s was %+v at first, and is %+v when it is repeated", mark, was, m)
		case again:
			repeats++
		case ids[m.id] != "":
			t.Errorf("%s and %s have the id %s", mark, ids[m.id], m.id)
		default:
			first[mark], ids[m.id] = m, mark
			firsts[m.aggregate] = append(firsts[m.aggregate], mark)
		}
	}
	s.equal(t, "messages in the topic, without repeats,", firsts)
	t.Logf("%d messages in the topic, %d of them repeats", len(first)+repeats, repeats)
}

// equal compares what there is of each aggregate with the journal.
func (s *shop) equal(t *testing.T, what string, got map[string][]string) {
	t.Helper()
	for of := range got {
		if s.committed[of] == nil {
			t.Errorf("%s of the aggregate %q, which the test never wrote", what, of)
		}
	}
	for of, want := range s.committed {
		have := got[of]
		if slices.Equal(have, want) {
			continue
		}
		i := 0
		for i < min(len(have), len(want)) && have[i] == want[i] {
			i++
		}
		t.Errorf("%s of aggregate %s: %d, and %d were committed; from number %d on they are %q and %q", what, of, len(have), len(want), i+1, have[i:min(len(have), i+3)], want[i:min(len(want), i+3)])
	}
}

// number is the number of an event within its aggregate.
func number(mark string) (n int) {
	var id int
	_, _ = fmt.Sscanf(mark, "%d/%d/", &id, &n) // the test has made it
	return n
}

// header returns a header of a record.
func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// wholeTopic reads all records of a topic.
func wholeTopic(t *testing.T, broker, topic string, adm *kadm.Client) (list []*kgo.Record) {
	t.Helper()
	ends, err := adm.ListEndOffsets(t.Context(), topic)
	must(t, errors.Join(err, ends.Error()))
	left := map[int32]bool{}
	ends.Each(func(end kadm.ListedOffset) { left[end.Partition] = end.Offset > 0 })
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	must(t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), settleFor)
	defer cancel()
	for slices.Contains([]bool{left[0], left[1], left[2], left[3]}, true) {
		fetches := client.PollFetches(ctx)
		must(t, errors.Join(ctx.Err(), fetches.Err()))
		for r := range fetches.RecordsAll() {
			list = append(list, r)
			if end, _ := ends.Lookup(topic, r.Partition); r.Offset == end.Offset-1 {
				left[r.Partition] = false
			}
		}
	}
	return list
}
