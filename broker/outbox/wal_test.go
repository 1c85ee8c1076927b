package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/brokertest"
	relay "github.com/semel-dev/semel/broker/outbox"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// logical starts a server whose log can be read.
func logical(t testing.TB) *services.Server {
	t.Helper()
	return servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"wal_level": "logical", "max_replication_slots": "20", "max_wal_senders": "20"}})
}

// openWAL opens a source. The test closes it.
func openWAL(t *testing.T, address string, opts *relay.WALOptions) *relay.WALSource {
	t.Helper()
	s, err := relay.OpenWAL(t.Context(), address, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeWAL(t *testing.T, s *relay.WALSource) {
	t.Helper()
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func ack(t *testing.T, s pipeline.Source, items ...*pipeline.Item) {
	t.Helper()
	if err := s.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
}

const (
	reads     = "SELECT count(*) = 1 FROM pg_replication_slots WHERE slot_name = 'semel_outbox' AND active_pid IN (SELECT pid FROM pg_stat_replication)"
	noneReads = "SELECT count(*) = 0 FROM pg_replication_slots WHERE slot_name = 'semel_outbox' AND active"
)

func TestWALSourcePassesTheSuite(t *testing.T) {
	t.Parallel()
	server := logical(t)
	brokertest.RunSource(t, brokertest.SourceHarness{Messages: 300, Alone: true, New: func(tb testing.TB) brokertest.SourcePlace {
		address := servicestest.NewDatabase(tb, server.URL())
		pool := migrated(tb, address)
		slot := "t" + strings.ToLower(servicestest.Topic()[2:])
		tb.Cleanup(func() {
			for deadline := time.Now().Add(2 * time.Minute); ; <-time.After(50 * time.Millisecond) {
				_, err := pool.Exec(context.Background(), "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", slot)
				if err == nil || time.Now().After(deadline) {
					return
				}
			}
		})
		open := func(ctx context.Context, address string) (pipeline.Source, error) {
			for {
				s, err := relay.OpenWAL(ctx, address, &relay.WALOptions{Slot: slot})
				if err == nil {
					return s, nil
				}
				if ctx.Err() != nil {
					return nil, err
				}
				<-time.After(10 * time.Millisecond)
			}
		}
		return brokertest.SourcePlace{
			Partitions: 3,
			Produce: func(ctx context.Context, list []brokertest.Numbered) error {
				return produce(ctx, pool, list)
			},
			Open:   func(ctx context.Context) (pipeline.Source, error) { return open(ctx, address) },
			Server: server.Addr(),
			OpenAt: func(ctx context.Context, other string) (pipeline.Source, error) {
				return open(ctx, strings.Replace(address, server.Addr(), other, 1))
			},
			Again:   func(ctx context.Context) error { return startAgain(ctx, pool) },
			Restart: func(ctx context.Context) error { return errors.Join(server.Kill(), server.Restart(ctx)) },
		}
	}})
}

// TestWALIsReadInTheOrderOfCommits has rows from before the slot, of transactions that commit in
// another order, of a rolled-back transaction, and with a time.
func TestWALIsReadInTheOrderOfCommits(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	if err := write(t.Context(), pool, event("a", "before1"), event("b", "before2")); err != nil {
		t.Fatal(err)
	}
	begin := func(msgs ...outbox.Message) pgx.Tx {
		t.Helper()
		tx, err := pool.Begin(t.Context())
		if err == nil {
			err = outbox.Write(t.Context(), tx, msgs...)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	s := openWAL(t, server.URL(), nil)
	items, got := readFrom(t, s, 2)
	if got != "before1 before2" {
		t.Fatalf("read %s", got)
	}
	first, undone := begin(event("a", "first1"), event("b", "first2")), begin(event("a", "undone"))
	later := event("a", "later")
	later.DeliverAt = time.Now().Add(time.Hour)
	if err := errors.Join(write(t.Context(), pool, event("a", "second"), later), undone.Rollback(t.Context()), first.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	more, got := readFrom(t, s, 3)
	if got != "second first1 first2" {
		t.Errorf("read %s", got)
	}
	if m := more[0].Message; m.ID == "" || string(m.RecordKey) != "a" || m.Origin.Source != "events" || time.Since(m.Time) > time.Minute || time.Until(m.Time) > time.Minute {
		t.Errorf("%+v", m)
	}
	exec(t, pool, "UPDATE semel_outbox SET deliver_at = now() WHERE deliver_at IS NOT NULL")
	last, got := readFrom(t, s, 1)
	if got != "later" {
		t.Errorf("read %s", got)
	}
	ack(t, s, append(append(items, more...), last...)...)
	eventually(t, pool, "SELECT count(*) = 0 FROM semel_outbox")
	closeWAL(t, s)
	eventually(t, pool, "SELECT pg_current_wal_lsn() - confirmed_flush_lsn < 10000 FROM pg_replication_slots")
}

// readFrom is read for any source.
func readFrom(t *testing.T, s pipeline.Source, n int) (items []*pipeline.Item, bodies string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var all []string
	for len(items) < n {
		list, err := s.Read(ctx)
		if err != nil {
			t.Fatalf("%v, with %d messages: %v", err, len(items), all)
		}
		items = append(items, list...)
		for _, it := range list {
			all = append(all, string(it.Message.Body))
		}
	}
	return items, strings.Join(all, " ")
}

// TestSlotIsConfirmedUpToTheFirstRowInFlight acknowledges transactions out of order.
func TestSlotIsConfirmedUpToTheFirstRowInFlight(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	s := openWAL(t, server.URL(), nil)
	eventually(t, pool, reads)
	var ends []string
	var items []*pipeline.Item
	for i := range 3 {
		if err := write(t.Context(), pool, event("a", fmt.Sprint(i, "a")), event("b", fmt.Sprint(i, "b"))); err != nil {
			t.Fatal(err)
		}
		list, _ := readFrom(t, s, 2)
		var end string
		if err := pool.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
			t.Fatal(err)
		}
		items, ends = append(items, list...), append(ends, end)
	}
	ack(t, s, items[2], items[3], items[0], items[4], items[5]) // the second row of the first transaction is in flight
	var before string
	if err := pool.QueryRow(t.Context(), "SELECT confirmed_flush_lsn::text FROM pg_replication_slots").Scan(&before); err != nil {
		t.Fatal(err)
	}
	// A round trip of the position takes a second at most.
	late := time.Now().Add(3 * time.Second)
	for time.Now().Before(late) {
		var wrong bool
		if err := pool.QueryRow(t.Context(), "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots", ends[0]).Scan(&wrong); err != nil || wrong {
			t.Fatalf("the slot is confirmed behind a row in flight: %v (it was %s)", err, before)
		}
		<-time.After(50 * time.Millisecond)
	}
	ack(t, s, items[1])
	eventually(t, pool, "SELECT confirmed_flush_lsn >= '"+ends[2]+"' FROM pg_replication_slots")
	closeWAL(t, s)
}

// TestIdleOutboxRetainsNoWAL has only other tables change.
func TestIdleOutboxRetainsNoWAL(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	s := openWAL(t, server.URL(), nil)
	eventually(t, pool, reads)
	exec(t, pool, "CREATE TABLE other AS SELECT n, repeat('x', 500) AS filling FROM generate_series(1, 20000) AS n")
	exec(t, pool, "CHECKPOINT")
	var end string
	if err := pool.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
		t.Fatal(err)
	}
	eventually(t, pool, "SELECT confirmed_flush_lsn >= '"+end+"' FROM pg_replication_slots")
	lag, err := s.Lag(t.Context())
	if err != nil || len(lag) != 1 || lag[0].Messages != 0 || lag[0].Bytes < 0 || lag[0].Bytes > 1<<20 {
		t.Errorf("%+v, %v", lag, err)
	}
	closeWAL(t, s)
}

// TestStandbyRelayTakesOver has two sources, of which the first ends.
func TestStandbyRelayTakesOver(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	first := openWAL(t, server.URL(), relay.NamedWAL(relay.WALOptions{}, "first"))
	eventually(t, pool, reads)
	heard := make(events, 100)
	second := openWAL(t, server.URL(), relay.NamedWAL(relay.WALOptions{Observer: heard}, "second"))
	if got := heard.next(t); !strings.Contains(got, "standby: another relay reads the slot (first/") {
		t.Errorf("it says %s", got)
	}
	if err := second.Ready(t.Context()); err != nil {
		t.Errorf("a standby is not ready: %v", err)
	}
	if err := write(t.Context(), pool, event("a", "1"), event("b", "2")); err != nil {
		t.Fatal(err)
	}
	items, _ := readFrom(t, first, 2)
	ack(t, first, items[0])
	closeWAL(t, first)
	if _, got := readFrom(t, second, 1); got != string(items[1].Message.Body) {
		t.Errorf("the second one reads %s", got)
	}
	closeWAL(t, second)
}

// TestWALSourceKeepsDeliveredRows has a partition that is missing, a row that is parked, and a
// standby, which reports who reads the slot.
func TestWALSourceKeepsDeliveredRows(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	first := openWAL(t, server.URL(), relay.NamedWAL(relay.WALOptions{Keep: week}, "first"))
	eventually(t, pool, reads)
	for _, day := range strings.Fields(text(t, pool, partitions)) {
		exec(t, pool, "DROP TABLE semel_outbox_log_"+day)
	}
	second := openWAL(t, server.URL(), relay.NamedWAL(relay.WALOptions{}, "second"))
	if err := write(t.Context(), pool, event("a", "1"), event("b", "2"), outbox.Message{Aggregate: "c", DeliverAt: time.Now().Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	gaugesOf := func(s *relay.WALSource) (oldest float64, owner string) {
		t.Helper()
		gauges, err := s.Gauges(t.Context())
		if err != nil || len(gauges) == 0 {
			t.Fatalf("%+v, %v", gauges, err)
		}
		for _, g := range gauges[1:] {
			owner += g.Name + " " + strings.Join(g.Labels, " ")
		}
		return gauges[0].Value, owner
	}
	for _, s := range []*relay.WALSource{first, second} {
		if oldest, owner := gaugesOf(s); oldest < 3600 || oldest > 3700 || !strings.HasPrefix(owner, "dedup.outbox.owner all first/") {
			t.Errorf("the oldest row waits for %v s, and %q reads", oldest, owner)
		}
	}
	items, _ := readFrom(t, first, 3)
	for _, it := range items {
		it.Attempt = 1
		if string(it.Message.Body) == "2" {
			it.Parked = pipeline.ReasonPermanent
		}
	}
	ack(t, first, items...)
	if got := text(t, pool, "SELECT string_agg(aggregate || ' ' || attempts || ' ' || coalesce(failure, '-') || ' ' || (relay LIKE 'first/%'), ', ' ORDER BY aggregate) FROM semel_outbox_log"); got != "a 1 - true, b 1 permanent true, c 1 - true" {
		t.Errorf("kept %s", got)
	}
	eventually(t, pool, "SELECT count(*) = 0 FROM semel_outbox")
	closeWAL(t, second)
	closeWAL(t, first)
	eventually(t, pool, noneReads)
	watcher := openWAL(t, server.URL(), &relay.WALOptions{Slot: "another"})
	defer closeWAL(t, watcher)
	eventually(t, pool, strings.Replace(reads, "semel_outbox", "another", 1)) // and no longer creates it
	if oldest, owner := gaugesOf(watcher); oldest != 0 || !strings.HasPrefix(owner, "dedup.outbox.owner all ") {
		t.Errorf("the oldest row waits for %v s, and %q reads", oldest, owner)
	}
	if findings, err := relay.ExamineWAL(t.Context(), server.URL(), &relay.WALOptions{Keep: week}); err != nil || !has(findings, doctor.Fine, "outbox.log", "4 partitions") {
		t.Errorf("%+v, %v", findings, err)
	}
}

// events hears reasons.
type events chan string

// next waits for the next reason.
func (e events) next(t *testing.T) string {
	t.Helper()
	select {
	case got := <-e:
		return got
	case <-time.After(2 * time.Minute):
		t.Fatal("nothing was heard")
		return ""
	}
}

func (e events) Observe(semel.Event) {}

func (e events) ObservePipeline(of pipeline.Event) {
	select {
	case e <- fmt.Sprint(of.Reason, " ", of.Err):
	default:
	}
}

// TestLostConnectionIsReplaced ends the connections of a source while rows are in flight.
func TestLostConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	s := openWAL(t, server.URL(), nil)
	for i := range 3 {
		if err := write(t.Context(), pool, event("a", fmt.Sprint("a", i)), event("b", fmt.Sprint("b", i))); err != nil {
			t.Fatal(err)
		}
		items, got := readFrom(t, s, 2)
		if got != fmt.Sprintf("a%d b%[1]d", i) {
			t.Fatalf("read %s", got)
		}
		exec(t, pool, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
		again, got := readFrom(t, s, 2)
		if got != fmt.Sprintf("a%d b%[1]d", i) || !items[0].Partition.Closed() {
			t.Fatalf("read %s after the connection was lost", got)
		}
		ack(t, s, items[0]) // of the session that was lost
		ack(t, s, again...)
	}
	eventually(t, pool, "SELECT count(*) = 0 FROM semel_outbox")
	closeWAL(t, s)
}

// TestALostSlotIsAnErrorWithARemedy drops the slot, and follows what the error says.
func TestALostSlotIsAnErrorWithARemedy(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	s := openWAL(t, server.URL(), nil)
	eventually(t, pool, "SELECT count(*) = 1 FROM semel_outbox_slots")
	closeWAL(t, s)
	eventually(t, pool, noneReads)
	exec(t, pool, "SELECT pg_drop_replication_slot('semel_outbox')")
	if err := write(t.Context(), pool, event("a", "1")); err != nil {
		t.Fatal(err)
	}
	var wrong *relay.SlotError
	if _, err := relay.OpenWAL(t.Context(), server.URL(), nil); !errors.As(err, &wrong) || !strings.Contains(wrong.Cause, "is gone") {
		t.Fatal(err)
	}
	way, _, _ := strings.Cut(wrong.Remedy, "; a relay that waits")
	for sql := range strings.SplitSeq(way, "; ") {
		exec(t, pool, sql)
	}
	s = openWAL(t, server.URL(), nil)
	if err := write(t.Context(), pool, event("a", "2")); err != nil {
		t.Fatal(err)
	}
	items, got := readFrom(t, s, 2)
	if got != "1 2" {
		t.Errorf("read %s", got)
	}
	ack(t, s, items...)
	// And while a relay reads it.
	for late := time.Now().Add(2 * time.Minute); ; <-time.After(10 * time.Millisecond) { // it may connect again in between
		_, err := pool.Exec(t.Context(), "DO $$ BEGIN PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_replication; PERFORM pg_drop_replication_slot('semel_outbox'); END $$")
		if err == nil {
			break
		}
		if time.Now().After(late) {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := s.Read(ctx); !errors.As(err, &wrong) || !strings.Contains(wrong.Cause, "is gone") {
		t.Error(err)
	}
	closeWAL(t, s)
}

// TestRelayNamesTheMissingServerAbility has servers, roles and publications that do not suffice.
func TestRelayNamesTheMissingServerAbility(t *testing.T) {
	t.Parallel()
	plain := servers.Database(t)
	migrated(t, plain)
	server := logical(t)
	pool := migrated(t, server.URL())
	exec(t, pool, "CREATE ROLE weak LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO weak")
	weak := strings.Replace(server.URL(), "postgres@", "weak@", 1)
	pooler := servicestest.StartPgBouncer(t, server, nil)
	for _, c := range []struct{ before, address, cause, remedy string }{
		{"", plain, "wal_level", "ALTER SYSTEM SET wal_level"},
		{"", weak, "may not create it", "CREATE PUBLICATION"},
		{"CREATE PUBLICATION semel_outbox FOR TABLE semel_keys", server.URL(), "does not have the table", `ALTER PUBLICATION "semel_outbox" ADD TABLE "public"."semel_outbox"`},
		{"ALTER PUBLICATION semel_outbox SET TABLE semel_outbox WHERE (seq > 5)", server.URL(), "has only the rows with", `ALTER PUBLICATION "semel_outbox" SET TABLE`},
		{"ALTER PUBLICATION semel_outbox SET TABLE semel_outbox", weak, "user weak may not replicate", `ALTER ROLE "weak" REPLICATION`},
		{"ALTER PUBLICATION semel_outbox SET (publish = 'delete')", server.URL(), "has no inserts", "SET (publish = 'insert')"},
		{"ALTER PUBLICATION semel_outbox SET (publish = 'insert')", pooler.URL(), "passes no replication connections", "the PostgreSQL server itself"},
		{"SELECT pg_create_physical_replication_slot('semel_outbox')", server.URL(), "is not one for this outbox", "source.outbox.slot"},
	} {
		if c.before != "" {
			exec(t, pool, c.before)
		}
		began := time.Now()
		_, err := relay.OpenWAL(t.Context(), c.address, nil)
		wrong, ok := errors.AsType[*relay.SlotError](err)
		if !ok || !strings.Contains(wrong.Cause, c.cause) || !strings.Contains(wrong.Remedy, c.remedy) || time.Since(began) > time.Minute {
			t.Errorf("%s: %v after %v", c.before, err, time.Since(began))
		}
		findings, err := relay.ExamineWAL(t.Context(), c.address, nil)
		if c.cause != "may not create it" && (err != nil || !strings.Contains(fmt.Sprint(findings), c.cause)) {
			t.Errorf("%s: doctor finds %v, %v", c.before, findings, err)
		}
	}
	if _, err := relay.OpenWAL(t.Context(), server.URL(), &relay.WALOptions{Slot: "A"}); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Error(err)
	}
}

// TestPausedPartitionStopsNoOther has a partition that is paused, as the runner does for an
// aggregate that is retried for long. Its rows come when it is resumed, in their order.
func TestPausedPartitionStopsNoOther(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	if err := write(t.Context(), pool, event("a", "a0")); err != nil {
		t.Fatal(err)
	}
	s := openWAL(t, server.URL(), &relay.WALOptions{Batch: 2})
	items, _ := readFrom(t, s, 1)
	pause := s.Traits().Pause
	pause(items[0].Partition, true)
	long := strings.Repeat("x", 5<<20)
	for i := range 5 {
		if err := write(t.Context(), pool, event("a", fmt.Sprint("a", i+1, long)), event("b", fmt.Sprint("b", i))); err != nil {
			t.Fatal(err)
		}
	}
	more, got := readFrom(t, s, 5)
	if got != "b0 b1 b2 b3 b4" {
		t.Errorf("read %s", got)
	}
	exec(t, pool, "DELETE FROM semel_outbox WHERE seq = (SELECT max(seq) FROM semel_outbox WHERE aggregate = 'a')")
	pause(items[0].Partition, false)
	last, got := readFrom(t, s, 4)
	if want := fmt.Sprintf("a1%s a2%[1]s a3%[1]s a4%[1]s", long); got != want {
		t.Errorf("read %d bytes, not %d", len(got), len(want))
	}
	ack(t, s, append(append(items, more...), last...)...)
	reading, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { // it finds that the last row is gone
		if list, err := s.Read(reading); !errors.Is(err, context.Canceled) {
			t.Errorf("read %d rows, %v", len(list), err)
		}
	})
	var end string
	if err := pool.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&end); err != nil {
		t.Fatal(err)
	}
	eventually(t, pool, "SELECT confirmed_flush_lsn >= '"+end+"' FROM pg_replication_slots")
	stop()
	ended.Wait()
	closeWAL(t, s)
}

// TestRowThatIsNotVisibleYetIsDeletedLater has commits wait for a standby that does not
// exist. The server sends them to the relay before anybody sees them. The relay does not
// wait for its own commits.
func TestRowThatIsNotVisibleYetIsDeletedLater(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	address, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	query := address.Query()
	query.Set("synchronous_commit", "local")
	address.RawQuery = query.Encode()
	s := openWAL(t, address.String(), nil)
	eventually(t, pool, reads)
	exec(t, pool, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	exec(t, pool, "SELECT pg_reload_conf()")
	// Commits wait as soon as the checkpointer has read the setting. It shows nowhere else.
	var probe sync.WaitGroup
	defer probe.Wait()
	probing, stop := context.WithCancel(t.Context())
	defer stop()
	probe.Go(func() {
		for probing.Err() == nil {
			_, _ = pool.Exec(probing, "SELECT pg_logical_emit_message(true, 'probe', '')")
		}
	})
	eventually(t, pool, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	written := make(chan error, 1)
	go func() { written <- write(t.Context(), pool, event("a", "1")) }()
	items, got := readFrom(t, s, 1)
	if got != "1" {
		t.Errorf("read %s", got)
	}
	eventually(t, pool, "SELECT count(*) = 0 FROM semel_outbox")
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := s.Ack(short, items); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a row that is not visible is acknowledged: %v", err)
	}
	exec(t, pool, "ALTER SYSTEM RESET synchronous_standby_names")
	exec(t, pool, "SELECT pg_reload_conf()")
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	ack(t, s, items...)
	eventually(t, pool, "SELECT count(*) = 0 FROM semel_outbox")
	closeWAL(t, s)
}

// TestTransactionThatEndsWhileTheSlotIsCreatedKeepsItsPlace has a transaction whose commit
// is in the log before the slot begins, and which becomes visible later, because it waits for
// a standby that does not exist. So the log does not return it.
func TestTransactionThatEndsWhileTheSlotIsCreatedKeepsItsPlace(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	address, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	query := address.Query()
	query.Set("synchronous_commit", "local")
	address.RawQuery = query.Encode()
	exec(t, pool, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
	exec(t, pool, "SELECT pg_reload_conf()")
	// The setting shows nowhere else than in commits that wait.
	probing, stop := context.WithCancel(t.Context())
	var probe sync.WaitGroup
	defer probe.Wait()
	defer stop()
	probe.Go(func() {
		for probing.Err() == nil {
			_, _ = pool.Exec(probing, "SELECT pg_logical_emit_message(true, 'probe', '')")
		}
	})
	eventually(t, pool, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	stop()
	probe.Wait()
	eventually(t, pool, "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()")
	begin := func() (tx pgx.Tx, waited string) { // a statement that is true when a new slot waits for it
		t.Helper()
		tx, err := pool.Begin(t.Context())
		var xid string
		if err == nil {
			err = tx.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text").Scan(&xid)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx, "SELECT count(*) = 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid' AND transactionid::text = '" + xid + "'"
	}
	rollback := func(tx pgx.Tx) {
		t.Helper()
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	first, waited := begin()
	s := openWAL(t, address.String(), nil)
	eventually(t, pool, waited)
	second, waited := begin()
	rollback(first)
	eventually(t, pool, waited)
	written := make(chan error, 1)
	go func() { written <- write(t.Context(), pool, event("a", "1")) }()
	eventually(t, pool, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	rollback(second)
	eventually(t, pool, "SELECT confirmed_flush_lsn IS NOT NULL AND active_pid IS NULL FROM pg_replication_slots")
	for late := time.Now().Add(2 * time.Minute); ; <-time.After(50 * time.Millisecond) {
		if err := s.Ready(t.Context()); err != nil && strings.Contains(err.Error(), "is being created, which waits for transactions that have written") {
			break
		} else if time.Now().After(late) {
			t.Errorf("the source does not wait: %v", err)
			break
		}
	}
	exec(t, pool, "ALTER SYSTEM RESET synchronous_standby_names")
	exec(t, pool, "SELECT pg_reload_conf()")
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	eventually(t, pool, reads)
	if err := write(t.Context(), pool, event("a", "2")); err != nil {
		t.Fatal(err)
	}
	items, got := readFrom(t, s, 2)
	if got != "1 2" {
		t.Errorf("read %s", got)
	}
	ack(t, s, items...)
	closeWAL(t, s)
}

// TestAnInvalidatedSlotIsAnErrorWithARemedy has a server that keeps little of its log.
func TestAnInvalidatedSlotIsAnErrorWithARemedy(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{
		"wal_level": "logical", "max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "min_wal_size": "32MB",
	}})
	pool := migrated(t, server.URL())
	s := openWAL(t, server.URL(), nil)
	eventually(t, pool, reads)
	gauges, err := s.Gauges(t.Context())
	if n := len(gauges); err != nil || n < 4 || gauges[n-2].Name != "dedup.outbox.slot.retained" || !slices.Equal(gauges[n-2].Labels, []string{"reserved"}) || gauges[n-1].Name != "dedup.outbox.slot.safe" || gauges[n-1].Value < 1<<20 {
		t.Errorf("%+v, %v", gauges, err)
	}
	closeWAL(t, s)
	eventually(t, pool, noneReads)
	if err := write(t.Context(), pool, event("a", "1")); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		exec(t, pool, "SELECT pg_logical_emit_message(false, 'filling', repeat('x', 1000000)) FROM generate_series(1, 20)")
		exec(t, pool, "SELECT pg_switch_wal()")
		exec(t, pool, "CHECKPOINT")
	}
	eventually(t, pool, "SELECT wal_status = 'lost' FROM pg_replication_slots")
	_, err = relay.OpenWAL(t.Context(), server.URL(), nil)
	wrong, ok := errors.AsType[*relay.SlotError](err)
	if !ok || !strings.Contains(wrong.Cause, "has invalidated replication slot semel_outbox") {
		t.Fatal(err)
	}
	way, _, _ := strings.Cut(wrong.Remedy, "; a relay that waits")
	for sql := range strings.SplitSeq(way, "; ") {
		exec(t, pool, sql)
	}
	s = openWAL(t, server.URL(), nil)
	items, got := readFrom(t, s, 1)
	if got != "1" {
		t.Errorf("read %s", got)
	}
	ack(t, s, items...)
	closeWAL(t, s)
}

// TestNewSlotWaitsForOpenTransactions has a transaction that is open for long, and a source
// that is closed before the slot is there.
func TestNewSlotWaitsForOpenTransactions(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	tx, err := pool.Begin(t.Context())
	if err == nil {
		err = outbox.Write(t.Context(), tx, event("a", "1"))
	}
	if err != nil {
		t.Fatal(err)
	}
	first := openWAL(t, server.URL(), nil)
	for late := time.Now().Add(2 * time.Minute); ; <-time.After(50 * time.Millisecond) {
		err := first.Ready(t.Context())
		if wrong, ok := errors.AsType[*relay.SlotError](err); ok && strings.Contains(wrong.Cause, "waits for transactions that have written") && strings.Contains(wrong.Remedy, "SELECT pg_terminate_backend(") {
			break
		}
		if time.Now().After(late) {
			t.Fatal(err)
		}
	}
	heard := make(events, 100)
	second := openWAL(t, server.URL(), &relay.WALOptions{Observer: heard})
	if got := heard.next(t); !strings.Contains(got, "standby: another relay reads the slot") {
		t.Errorf("it says %s", got)
	}
	closeWAL(t, first)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	items, got := readFrom(t, second, 1)
	if got != "1" {
		t.Errorf("read %s", got)
	}
	ack(t, second, items...)
	closeWAL(t, second)
}

// TestRowInFlightDoesNotDelayServerShutdown has a row that is never acknowledged,
// and a pipeline that does not read because it has enough.
func TestRowInFlightDoesNotDelayServerShutdown(t *testing.T) {
	t.Parallel()
	server := logical(t)
	pool := migrated(t, server.URL())
	s := openWAL(t, server.URL(), nil)
	eventually(t, pool, reads)
	if err := write(t.Context(), pool, event("a", "1")); err != nil {
		t.Fatal(err)
	}
	readFrom(t, s, 1)
	if err := server.Stop(); err != nil { // it says if it had to kill the server
		t.Error(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, got := readFrom(t, s, 1)
	if got != "1" {
		t.Errorf("read %s", got)
	}
	ack(t, s, again...)
	closeWAL(t, s)
}
