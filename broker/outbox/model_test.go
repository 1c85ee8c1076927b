package outbox

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/key"
	writer "github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var (
	historySeed = flag.Uint64("history", 0, "seed of the one history to run; 0 runs random ones")
	histories   = flag.Int("histories", 0, "how many histories to run; 0 is 200, or 15 with -short")
)

// TestOutboxMatchesAModelInRandomHistories runs random histories against a model of the outbox. One goroutine
// decides about every step of writers and of two relays, including the steps between the
// statements of a read or an acknowledgement. So a seed is a history. In each of them:
//   - every committed row is delivered, and none of a transaction that is open or was
//     rolled back;
//   - the first deliveries of an aggregate are in the order of its commits;
//   - exactly the acknowledged rows are deleted or moved to the log, and none by a former
//     owner;
//   - no row is delivered before its time, and none is read twice under one lease.
func TestOutboxMatchesAModelInRandomHistories(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"max_prepared_transactions": "20", "fsync": "off"}})
	config, err := pgxpool.ParseConfig(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 2 * mostOpen
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := pgstore.Migrate(t.Context(), pool, nil); err != nil {
		t.Fatal(err)
	}
	gate, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = gate.Close(context.WithoutCancel(t.Context())) })
	aggregates := inShards(t, pool, 2, 6)
	n := *histories
	switch {
	case *historySeed > 0:
		n = 1
	case n == 0 && testing.Short():
		n = 15
	case n == 0:
		n = 200
	}
	total := map[string]int{}
	for range n {
		seed := cmp.Or(*historySeed, rand.Uint64())
		h := &history{T: t, address: server.URL(), pool: pool, gate: gate, random: rand.New(rand.NewPCG(seed, 0)), aggregates: aggregates, rows: map[string]*modelRow{}, orders: map[string][]*modelRow{}, counts: total}
		h.run()
		if t.Failed() {
			t.Fatalf("run it again with -run %s -history %d; its last steps:\n%s", t.Name(), seed, strings.Join(h.log[max(0, len(h.log)-60):], "\n"))
		}
	}
	var said []string
	for _, name := range slices.Sorted(maps.Keys(total)) {
		said = append(said, fmt.Sprint(total[name], " ", name))
	}
	t.Logf("%d histories: %s", n, strings.Join(said, ", "))
}

// inShards returns the names of aggregates: some for each of a few shards. A row that an
// earlier read has passed is in the shard of another aggregate's row, which its
// transaction does not lock.
func inShards(t *testing.T, pool *pgxpool.Pool, shards, each int) (names []string) {
	t.Helper()
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }() // they are only names
	rows, err := tx.Query(t.Context(), "INSERT INTO semel_outbox (aggregate, topic, payload) SELECT 'a' || i, '', '' FROM generate_series(1, 1000) AS i RETURNING aggregate, shard")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int16]int{}
	var name string
	var number int16
	if _, err := pgx.ForEachRow(rows, []any{&name, &number}, func() error {
		if found[number] < each && (len(found) < shards || found[number] > 0) {
			found[number]++
			names = append(names, name)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return names
}

// modelRow is a row as the model knows it. An aggregate has no row that is not yet
// committed of more than one transaction, because writers lock it.
type modelRow struct {
	id, aggregate string
	committed     bool
	later, due    bool // it waits for a time; the time has come
	delivered     bool
	deleted       bool
}

// mostOpen is how many transactions are open at most.
const mostOpen = 5

// transaction is a transaction of a writer that has not ended.
type transaction struct {
	tx       pgx.Tx
	conn     *pgxpool.Conn
	prepared string // its name, if it is prepared
	holds    map[string]bool
	wrote    []*modelRow
}

// history is one history. Only the driver's goroutine changes it.
type history struct {
	*testing.T
	address string
	pool    *pgxpool.Pool
	gate    *pgx.Conn // holds the locks at which the statements of a read wait
	random  *rand.Rand
	turmoil int // how often leases are lost, in a thousand steps
	keep    time.Duration
	most    int // how many transactions are open at a time
	log     []string
	counts  map[string]int

	aggregates []string
	open       []*transaction
	rows       map[string]*modelRow
	orders     map[string][]*modelRow // rows of each aggregate in the order of commit
	relays     [2]*modelRelay
	prepare    int
}

// modelRelay is a source, and the part of a runner that the model needs.
type modelRelay struct {
	number    int
	source    *Source
	leases    *leases
	waiting   []*pipeline.Item // not delivered yet
	delivered []*pipeline.Item // not acknowledged yet
	paused    []*pipeline.Partition
	held      map[string]uint64 // groups of aggregates that are held
	read      map[read]bool
	poll, ack *operation
}

// read is a row that was read under a lease.
type read struct {
	shard *shard
	seq   int64
}

func (h *history) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

// must ends the test.
func (h *history) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatalf("%v\n%s", err, strings.Join(h.log[max(0, len(h.log)-20):], "\n"))
	}
}

func (h *history) exec(sql string, args ...any) {
	h.Helper()
	_, err := h.pool.Exec(h.Context(), sql, args...)
	h.must(err)
}

func (h *history) run() {
	h.exec("TRUNCATE semel_outbox, semel_outbox_relays")
	h.exec("UPDATE semel_outbox_shards SET owner = NULL, until = '-infinity'")
	h.exec("TRUNCATE semel_outbox_log")
	h.keep = time.Duration(h.random.IntN(2)) * time.Hour
	h.most = 1 + h.random.IntN(mostOpen)
	h.turmoil = []int{0, 0, 5, 30}[h.random.IntN(4)]
	for i := range h.relays {
		h.relays[i] = &modelRelay{number: i}
		h.begin(h.relays[i])
	}
	defer h.close()
	for range 150 + h.random.IntN(200) {
		h.step()
		if h.Failed() {
			return
		}
	}
	h.drain()
}

// step does something.
func (h *history) step() {
	r := h.relays[h.random.IntN(len(h.relays))]
	if h.random.IntN(1000) < h.turmoil {
		h.disturb(r)
		return
	}
	switch n := h.random.IntN(100); {
	case n < 20:
		h.write()
	case n < 30:
		h.finish()
	case n < 60:
		h.some(r, &r.poll, h.newPoll)
	case n < 75:
		h.deliver(r)
	case n < 88:
		h.some(r, &r.ack, h.newAck)
	case n < 93:
		h.tend(r)
	case n < 95:
		h.pause(r)
	case n < 98:
		h.hold(r)
	default:
		h.makeDue()
	}
}

// write writes rows in a transaction that is open, or in a new one.
func (h *history) write() {
	var w *transaction
	if i := h.random.IntN(5); i < len(h.open) {
		w = h.open[i]
	}
	if w == nil || w.prepared != "" {
		if len(h.open) >= h.most {
			return
		}
		conn, err := h.pool.Acquire(h.Context())
		h.must(err)
		tx, err := conn.Begin(h.Context())
		h.must(err)
		w = &transaction{tx: tx, conn: conn, holds: map[string]bool{}}
		h.open = append(h.open, w)
		h.counts["transactions"]++
	}
	part, back := w.tx, false
	if h.random.IntN(6) == 0 { // a savepoint
		var err error
		part, err = w.tx.Begin(h.Context())
		h.must(err)
		back = h.random.IntN(2) == 0
	}
	var list []writer.Message
	for range 1 + h.random.IntN(3) {
		row := &modelRow{id: key.NewUUIDv7().String(), aggregate: h.aggregates[h.random.IntN(len(h.aggregates))], later: h.random.IntN(12) == 0}
		if h.random.IntN(10) == 0 {
			row.aggregate = ""
		}
		if held := slices.ContainsFunc(h.open, func(o *transaction) bool { return o != w && o.holds[row.aggregate] }); held && row.aggregate != "" {
			continue // a writer would wait for the lock of the aggregate
		}
		w.holds[row.aggregate] = true
		h.rows[row.id] = row
		if !back {
			w.wrote = append(w.wrote, row)
		}
		m := writer.Message{ID: row.id, Aggregate: row.aggregate, Payload: []byte(row.id)}
		if row.later {
			m.DeliverAt = time.Now().Add(time.Hour)
		}
		list = append(list, m)
		h.say("writes %.13s of %s, later %t, rolls back to a savepoint %t", row.id, row.aggregate, row.later, back)
	}
	h.must(writer.Write(h.Context(), part, list...))
	switch {
	case back:
		h.must(part.Rollback(h.Context()))
	case part != w.tx:
		h.must(part.Commit(h.Context()))
	}
}

// finish commits, prepares or rolls back a transaction.
func (h *history) finish() {
	if len(h.open) > 0 {
		i := max(h.random.IntN(len(h.open)), h.random.IntN(len(h.open))) // some stay open for long
		h.end(i, h.random.IntN(8) == 0, h.random.IntN(5) == 0)
	}
}

func (h *history) end(i int, prepare, roll bool) {
	w := h.open[i]
	if prepare && w.prepared == "" {
		h.prepare++
		w.prepared = fmt.Sprint("p", h.prepare)
		h.say("prepares %s", w.prepared)
		_, err := w.conn.Exec(h.Context(), fmt.Sprintf("PREPARE TRANSACTION '%s'", w.prepared))
		h.must(err)
		w.conn.Release()
		h.counts["prepared"]++
		return
	}
	h.open = slices.Delete(h.open, i, i+1)
	var err error
	switch {
	case w.prepared != "" && roll:
		_, err = h.pool.Exec(h.Context(), fmt.Sprintf("ROLLBACK PREPARED '%s'", w.prepared))
	case w.prepared != "":
		_, err = h.pool.Exec(h.Context(), fmt.Sprintf("COMMIT PREPARED '%s'", w.prepared))
	case roll:
		err = w.tx.Rollback(h.Context())
	default:
		err = w.tx.Commit(h.Context())
	}
	h.must(err)
	if w.prepared == "" {
		w.conn.Release()
	}
	for _, row := range w.wrote {
		h.say("ends %.13s of %s, rolled back %t", row.id, row.aggregate, roll)
		if roll {
			h.counts["rolled back"]++
			continue
		}
		row.committed = true
		h.counts["committed"]++
		if !row.later && row.aggregate != "" {
			h.orders[row.aggregate] = append(h.orders[row.aggregate], row)
		}
	}
}

// makeDue lets the time of a row come.
func (h *history) makeDue() {
	for _, id := range slices.Sorted(maps.Keys(h.rows)) {
		if row := h.rows[id]; row.later && !row.due && row.committed {
			row.due = true
			h.say("the time of %.13s comes", id)
			h.exec("UPDATE semel_outbox SET deliver_at = now() WHERE id = $1", id)
			return
		}
	}
}

// begin opens the source of a relay, as Open does, but without the
// goroutine of its leases: the history calls it.
func (h *history) begin(r *modelRelay) {
	sql, err := newStatements(pgstore.Names{})
	h.must(err)
	config, err := pgxpool.ParseConfig(h.address)
	h.must(err)
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	config.ConnConfig.Tracer = pauses{}
	pool, err := pgxpool.NewWithConfig(h.Context(), config)
	h.must(err)
	opts := Options{Lease: time.Hour, Keep: h.keep, Batch: []int{1, 10, 100, 1000}[h.random.IntN(4)]}
	s := &Source{opts: opts, pool: pool, sql: sql, owner: fmt.Sprint("relay", r.number, "/", h.random.Uint32()), wake: make(chan struct{}, 1), shards: map[int16]*shard{}, stop: func() {}}
	s.reading.most = opts.Batch
	s.archive, err = openArchive(h.Context(), pool, sql, h.keep)
	h.must(err)
	h.say("relay %d begins with a batch of %d", r.number, opts.Batch)
	*r = modelRelay{number: r.number, source: s, leases: &leases{Source: s, leaving: map[*shard]leave{}}, held: map[string]uint64{}, read: map[read]bool{}}
}

// disturb ends a relay, or its leases.
func (h *history) disturb(r *modelRelay) {
	switch h.random.IntN(3) {
	case 0:
		h.settle(r)
		h.say("relay %d closes", r.number)
		h.must(r.source.Close(h.Context()))
		h.begin(r)
		h.counts["closed"]++
	case 1:
		h.settle(r)
		h.expire(r)
		r.source.pool.Close()
		h.say("relay %d died", r.number)
		h.begin(r)
		h.counts["died"]++
	default: // it does not notice
		h.expire(r)
		h.counts["leases lost"]++
	}
}

// expire ends the leases of a relay by the clock of the database.
func (h *history) expire(r *modelRelay) {
	h.say("the leases of relay %d end", r.number)
	h.exec("UPDATE semel_outbox_shards SET until = '-infinity' WHERE owner = $1", r.source.owner)
	h.exec("UPDATE semel_outbox_relays SET until = '-infinity' WHERE owner = $1", r.source.owner)
}

// settle ends the operations of a relay.
func (h *history) settle(r *modelRelay) {
	for r.poll != nil {
		h.advance(r, &r.poll, nil)
	}
	for r.ack != nil {
		h.advance(r, &r.ack, nil)
	}
}

// tend has a relay look after its leases.
func (h *history) tend(r *modelRelay) {
	if h.random.IntN(2) == 0 {
		r.leases.renewed = time.Time{}
	}
	h.must(r.leases.tend(h.Context()))
	h.say("relay %d tends its leases, and has %d shards", r.number, len(r.source.shards))
}

// pause pauses a shard of a relay, or resumes all.
func (h *history) pause(r *modelRelay) {
	if list := r.source.owned(); len(r.paused) < 3 && len(list) > 0 {
		r.paused = append(r.paused, list[h.random.IntN(len(list))].partition)
		r.source.pause(r.paused[len(r.paused)-1], true)
		return
	}
	h.resume(r)
}

func (h *history) resume(r *modelRelay) {
	for _, p := range r.paused {
		r.source.pause(p, false)
	}
	r.paused = nil
}

// hold gives back the messages behind one that waits for its next try, as a scheduler does
// between two reads.
func (h *history) hold(r *modelRelay) {
	h.release(r)
	if r.poll != nil || len(r.waiting) == 0 {
		return
	}
	head := r.waiting[h.random.IntN(len(r.waiting))]
	of := string(head.Message.RecordKey)
	if of == "" || head.Partition.Closed() {
		return
	}
	group := uint64(slices.Index(h.aggregates, of))<<1 | 1
	var back []*pipeline.Item
	behind := false
	r.waiting = slices.DeleteFunc(r.waiting, func(it *pipeline.Item) bool {
		if it == head {
			behind = true
			return false
		}
		gives := behind && string(it.Message.RecordKey) == of && it.Partition == head.Partition
		if gives {
			it.Group = group
			back = append(back, it)
			delete(r.read, read{it.Ref.(*shard), it.Message.Origin.Offset})
		}
		return gives
	})
	if len(back) > 0 {
		h.say("relay %d gives back %d messages of %s", r.number, len(back), of)
		h.counts["given back"] += len(back)
		r.held[of] = group
		r.source.hold(back)
	}
}

// release resumes the aggregates that have no message in progress.
func (h *history) release(r *modelRelay) {
	if r.ack != nil {
		return
	}
	for of, group := range r.held {
		mine := func(it *pipeline.Item) bool { return string(it.Message.RecordKey) == of && !it.Partition.Closed() }
		if !slices.ContainsFunc(r.waiting, mine) && !slices.ContainsFunc(r.delivered, mine) {
			h.say("relay %d resumes %s", r.number, of)
			delete(r.held, of)
			r.source.resume(group)
		}
	}
}

// deliver delivers a message: any that is the first of its aggregate and of a shard that
// the relay has not lost.
func (h *history) deliver(r *modelRelay) {
	r.waiting = slices.DeleteFunc(r.waiting, func(it *pipeline.Item) bool { return it.Partition.Closed() })
	behind := map[string]bool{}
	var first []int
	for i, it := range r.waiting {
		if of := string(it.Message.RecordKey); of == "" || !behind[of] {
			behind[of] = true
			first = append(first, i)
		}
	}
	if len(first) == 0 {
		return
	}
	i := first[h.random.IntN(len(first))]
	it := r.waiting[i]
	r.waiting = slices.Delete(r.waiting, i, i+1)
	r.delivered = append(r.delivered, it)
	h.delivers(r, it)
}

// delivers compares a delivery with the model.
func (h *history) delivers(r *modelRelay, it *pipeline.Item) {
	id := it.Message.ID
	h.say("relay %d delivers %.13s", r.number, id)
	h.counts["deliveries"]++
	row := h.rows[id]
	switch {
	case row == nil || !row.committed:
		h.Errorf("%s was delivered and not committed", id)
	case string(it.Message.Body) != id || string(it.Message.RecordKey) != row.aggregate:
		h.Errorf("%s was delivered with another body or aggregate: %+v", id, it.Message)
	case row.later && !row.due:
		h.Errorf("%s was delivered before its time", id)
	case row.delivered:
		h.counts["repeats"]++
		return
	default:
		row.delivered = true
		if row.later || row.aggregate == "" {
			return
		}
		want := h.orders[row.aggregate][0]
		h.orders[row.aggregate] = h.orders[row.aggregate][1:]
		if want != row {
			h.Errorf("%s of %s was delivered before %s, which was committed first", id, row.aggregate, want.id)
		}
	}
}

// drain ends all transactions, and delivers until the outbox is empty. It fails if a row
// stays.
func (h *history) drain() {
	h.say("drains")
	for _, r := range h.relays {
		h.settle(r)
		h.resume(r)
	}
	for len(h.open) > 0 {
		h.end(0, false, h.random.IntN(4) == 0)
	}
	for _, row := range h.rows {
		if row.later && row.committed {
			row.due = true
		}
	}
	h.exec("UPDATE semel_outbox SET deliver_at = now() WHERE deliver_at IS NOT NULL")
	for round := range 1000 {
		left := 0
		for _, row := range h.rows {
			if row.committed && !row.deleted {
				left++
			}
		}
		if left == 0 || h.Failed() {
			return
		}
		idle := left
		for _, r := range h.relays {
			if round%4 == 0 {
				h.tend(r)
			}
			for first := true; first || r.poll != nil; first = false {
				h.advance(r, &r.poll, h.newPoll)
			}
			for had := -1; had != len(r.waiting) && !h.Failed(); {
				had = len(r.waiting)
				h.deliver(r)
			}
			idle -= len(r.delivered)
			for len(r.delivered) > 0 || r.ack != nil {
				h.advance(r, &r.ack, h.newAck)
			}
			h.release(r)
		}
		if round > 50 && idle == left && round%50 == 0 {
			break // nothing moves any more
		}
	}
	for _, row := range h.rows {
		if row.committed && !row.deleted {
			h.Errorf("%s of %s was committed, and no relay reads it (delivered: %t)", row.id, row.aggregate, row.delivered)
		}
	}
}

// close ends what the history began.
func (h *history) close() {
	for _, r := range h.relays {
		h.settle(r)
		r.source.pool.Close()
	}
	for len(h.open) > 0 {
		h.end(0, false, true)
	}
}

// newPoll begins a read.
func (h *history) newPoll(r *modelRelay) *operation {
	if h.random.IntN(3) > 0 {
		r.source.reading.asked = time.Time{} // it may ask for the writers
	}
	for i := 1; i <= 2; i++ {
		_, err := h.gate.Exec(h.Context(), "SELECT pg_advisory_lock($1, $2)", r.number+1, i)
		h.must(err)
	}
	var items []*pipeline.Item
	o := h.begins(r, func(ctx context.Context) (err error) {
		items, _, err = r.source.poll(ctx)
		return err
	})
	o.after = func(err error) {
		h.must(err)
		for i := o.passed + 1; i <= 2; i++ {
			_, err := h.gate.Exec(h.Context(), "SELECT pg_advisory_unlock($1, $2)", o.relay, i)
			h.must(err)
		}
		h.say("relay %d read %d rows", r.number, len(items))
		for _, it := range items {
			this := read{it.Ref.(*shard), it.Message.Origin.Offset}
			if r.read[this] {
				h.Errorf("%s was read twice under one lease", it.Message.ID)
			}
			r.read[this] = true
		}
		r.waiting = append(r.waiting, items...)
	}
	return o
}

// newAck begins to acknowledge some of the messages that were delivered.
func (h *history) newAck(r *modelRelay) *operation {
	if len(r.delivered) == 0 {
		return nil
	}
	h.random.Shuffle(len(r.delivered), func(i, j int) { r.delivered[i], r.delivered[j] = r.delivered[j], r.delivered[i] })
	some := slices.Clone(r.delivered[:1+h.random.IntN(len(r.delivered))])
	r.delivered = slices.Clone(r.delivered[len(some):])
	o := h.begins(r, func(ctx context.Context) error { return r.source.Ack(ctx, some) })
	o.before = func() { h.acknowledges(r, some) }
	o.after = func(err error) {
		h.must(err)
		h.compare()
	}
	return o
}

// acknowledges notes in the model what a deletion must delete.
func (h *history) acknowledges(r *modelRelay, items []*pipeline.Item) {
	rows, err := h.pool.Query(h.Context(), "SELECT shard, epoch FROM semel_outbox_shards WHERE owner = $1", r.source.owner)
	h.must(err)
	owned := map[int16]int64{}
	var shardOf int16
	var epoch int64
	_, err = pgx.ForEachRow(rows, []any{&shardOf, &epoch}, func() error { owned[shardOf] = epoch; return nil })
	h.must(err)
	for _, it := range items {
		of := it.Ref.(*shard)
		current, yes := owned[of.number]
		yes = yes && current == of.epoch
		h.say("relay %d acknowledges %.13s; it owns the shard: %t", r.number, it.Message.ID, yes)
		if yes {
			h.rows[it.Message.ID].deleted = true
			h.counts["acknowledged"]++
		} else {
			h.counts["acknowledged too late"]++
			delete(r.read, read{of, it.Message.Origin.Offset}) // it may read the row again before it notices
		}
	}
}

// compare compares the tables with the model.
func (h *history) compare() {
	there := h.ids("SELECT id::text FROM semel_outbox")
	kept := h.ids("SELECT id::text FROM semel_outbox_log")
	for id, row := range h.rows {
		switch {
		case there[id] && row.deleted:
			h.Errorf("%s was acknowledged and is still there", id)
		case !there[id] && row.committed && !row.deleted:
			h.Errorf("%s is gone and was not acknowledged by the owner of its shard", id)
		case kept[id] != (row.deleted && h.keep > 0):
			h.Errorf("%s is in the log: %t; it was acknowledged: %t", id, kept[id], row.deleted)
		}
	}
}

// ids returns what a statement returns.
func (h *history) ids(sql string) map[string]bool {
	rows, err := h.pool.Query(h.Context(), sql)
	h.must(err)
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	h.must(err)
	there := map[string]bool{}
	for _, id := range list {
		if there[id] {
			h.Errorf("%s is there twice: %s", id, sql)
		}
		there[id] = true
	}
	return there
}

// TestPreparedTransactionIsAwaitedAcrossARestart prepares a transaction before a row that
// is read, and restarts the server, which gives the transaction another name.
func TestPreparedTransactionIsAwaitedAcrossARestart(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"max_prepared_transactions": "1"}})
	pool := Migrated(t, server.URL())
	h := &history{T: t, address: server.URL(), pool: pool, random: rand.New(rand.NewPCG(1, 1))}
	r := &modelRelay{}
	h.begin(r)
	t.Cleanup(r.source.pool.Close)
	h.must(r.leases.tend(t.Context()))
	poll := func() (ids []string) {
		t.Helper()
		for late := time.Now().Add(5 * time.Minute); ; <-time.After(10 * time.Millisecond) {
			r.source.reading.asked = time.Time{}
			items, _, err := r.source.poll(t.Context())
			for _, it := range items {
				ids = append(ids, string(it.Message.Body))
			}
			if err == nil {
				return ids
			}
			if time.Now().After(late) { // the connections of before the restart are gone
				t.Fatal(err)
			}
		}
	}
	h.exec(`BEGIN; INSERT INTO semel_outbox (aggregate, payload) VALUES ('a', 'first'); PREPARE TRANSACTION 'p'`)
	h.exec(`INSERT INTO semel_outbox (aggregate, payload) VALUES ('a', 'second')`)
	if got := append(poll(), poll()...); !slices.Equal(got, []string{"second"}) {
		t.Fatalf("read %q", got)
	}
	h.must(server.Restart(t.Context()))
	for range 3 {
		if got := poll(); len(got) > 0 {
			t.Errorf("read %q", got)
		}
	}
	pool.Reset() // its connections are gone
	h.exec(`COMMIT PREPARED 'p'`)
	if got := poll(); !slices.Equal(got, []string{"first"}) {
		t.Errorf("read %q after the transaction was committed", got)
	}
}
