package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	relay "github.com/semel-dev/semel/broker/outbox"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

const week = 7 * 24 * time.Hour

// partitions is a query for the days of the partitions that the log has.
const partitions = "SELECT coalesce(string_agg(right(inhrelid::regclass::text, 8), ' ' ORDER BY 1), '') FROM pg_inherits WHERE inhparent = 'semel_outbox_log'::regclass"

// text returns a text of the database.
func text(t *testing.T, pool *pgxpool.Pool, sql string) (value string) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// day returns the name of a partition.
func day(t *testing.T, pool *pgxpool.Pool, days int) string {
	t.Helper()
	return text(t, pool, fmt.Sprintf("SELECT to_char((now() AT TIME ZONE 'UTC')::date + %d, 'YYYYMMDD')", days))
}

// attach adds a partition for a day to the log.
func attach(t *testing.T, pool *pgxpool.Pool, days int) (name string) {
	t.Helper()
	name = "semel_outbox_log_" + day(t, pool, days)
	exec(t, pool, "SET timezone = 'UTC'; CREATE TABLE "+name+" (LIKE semel_outbox_log); ALTER TABLE semel_outbox_log ATTACH PARTITION "+name+" FOR VALUES FROM ('"+day(t, pool, days)+"') TO ('"+day(t, pool, days+1)+"')")
	return name
}

func TestDeliveredRowsAreKeptAndSentAgain(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	attach(t, pool, -8)
	old := attach(t, pool, -3)
	s := open(t, address, relay.Named(relay.Options{Keep: week}, "keeper"))
	closeAfter(t, s)
	if got, want := text(t, pool, partitions), strings.Join([]string{day(t, pool, -3), day(t, pool, 0), day(t, pool, 1), day(t, pool, 2), day(t, pool, 3)}, " "); got != want {
		t.Errorf("partitions %s, want %s: the old one is gone, and those of the days ahead are made", got, want)
	}
	const id = "018f3c5a-0000-7000-8000-000000000001"
	if err := write(t.Context(), pool, outbox.Message{ID: id, Aggregate: "a", Topic: "orders", Payload: []byte("1"), Headers: []semel.Header{{Name: "semel-key", Value: []byte("order-1")}}}, event("b", "2"), event("c", "3")); err != nil {
		t.Fatal(err)
	}
	items, _ := read(t, s, 3)
	for _, it := range items {
		it.Attempt = 2
		switch string(it.Message.Body) {
		case "2":
			it.Parked = pipeline.ReasonAttempts
		case "3":
			it.Err = errors.New("dropped")
		}
	}
	if err := s.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	eventually(t, pool, "SELECT count(*) = 0 FROM semel_outbox")
	got := text(t, pool, "SELECT string_agg(convert_from(payload, 'UTF8') || ' ' || attempts || ' ' || coalesce(failure, 'delivered') || ' ' || (relay LIKE 'keeper/%') || ' ' || (delivered > created), ', ' ORDER BY seq) FROM semel_outbox_log")
	if want := "1 2 delivered true true, 2 2 attempts true true, 3 2 dropped true true"; got != want {
		t.Errorf("kept %s, want %s", got, want)
	}
	for _, ids := range [][]string{{id}, {"order-1"}, {id, "order-1"}} {
		found, err := relay.FindKept(t.Context(), address, pgstore.Names{}, ids, time.Now().Add(-time.Hour))
		if err != nil || len(found) != 1 || found[0].ID != id || string(found[0].Body) != "1" || found[0].Attempts != 2 || found[0].Failure != "" || !strings.HasPrefix(found[0].Relay, "keeper/") {
			t.Errorf("%q: found %+v, %v", ids, found, err)
		}
	}
	if found, err := relay.FindKept(t.Context(), address, pgstore.Names{}, []string{"order-1"}, time.Now().Add(time.Hour)); err != nil || len(found) != 0 {
		t.Errorf("since later: found %+v, %v", found, err)
	}
	// The statement of docs/guides/outbox.md.
	exec(t, pool, "INSERT INTO semel_outbox (id, aggregate, topic, headers, payload) SELECT id, aggregate, topic, headers, payload FROM semel_outbox_log WHERE topic = 'orders' AND failure IS NULL AND delivered > now() - interval '1 hour' ORDER BY seq")
	again, bodies := read(t, s, 1)
	if bodies != "1" || again[0].Message.ID != id || again[0].Message.Headers[0].Name != "semel-key" {
		t.Errorf("sent again: %s, %+v", bodies, again[0].Message)
	}
	// A partition that is in use stays for now, and stops nothing.
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), "SELECT FROM "+old); err != nil {
		t.Fatal(err)
	}
	if got := text(t, pool, "SELECT semel_outbox_log_maintain('0', 5)"); !strings.HasPrefix(got, old+": ") || !strings.Contains(text(t, pool, partitions), day(t, pool, 5)) {
		t.Errorf("in use: %s", got)
	}
	if findings, err := relay.Examine(t.Context(), address, &relay.Options{Keep: time.Minute}); err != nil || !has(findings, doctor.Warning, "outbox.log", "7 partitions, the oldest should be gone for ") {
		t.Errorf("%+v, %v", findings, err)
	}
}

// has reports whether a finding begins so.
func has(findings []doctor.Finding, severity doctor.Severity, subject, found string) bool {
	for _, f := range findings {
		if f.Severity == severity && f.Subject == subject && strings.HasPrefix(f.Found, found) {
			return true
		}
	}
	return false
}

func TestRelayThatLostAShardArchivesNoRows(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	s := open(t, address, &relay.Options{Keep: week})
	closeAfter(t, s)
	if err := write(t.Context(), pool, event("a", "1")); err != nil {
		t.Fatal(err)
	}
	items, _ := read(t, s, 1)
	exec(t, pool, "UPDATE semel_outbox_shards SET owner = 'another', epoch = epoch + 1, until = now() + interval '1 hour'")
	if err := s.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	if got := text(t, pool, "SELECT (SELECT count(*) FROM semel_outbox) || ' ' || (SELECT count(*) FROM semel_outbox_log)"); got != "1 0" {
		t.Errorf("rows that wait, and rows that are kept: %s", got)
	}
}

func TestRelaysMakePartitionsTogether(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	var opening sync.WaitGroup
	for range 6 {
		opening.Go(func() {
			s, err := relay.Open(t.Context(), address, &relay.Options{Keep: week})
			if err == nil {
				err = s.Close(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	opening.Wait()
	if got := strings.Fields(text(t, pool, partitions)); len(got) != 4 {
		t.Errorf("partitions %q", got)
	}
}

// TestMissingArchivePartitionLosesNoRow has a relay whose role may do what the guide grants. A
// partition that is missing is made when it is needed. If that cannot be done, the relay
// says why, and the row stays.
func TestMissingArchivePartitionLosesNoRow(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	role := "relay_" + text(t, pool, "SELECT current_database()")
	exec(t, pool, "CREATE ROLE "+role+" LOGIN")
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	exec(t, pool, "GRANT SELECT, INSERT, UPDATE, DELETE ON semel_outbox, semel_outbox_shards, semel_outbox_relays TO "+role+"; GRANT SELECT, INSERT ON semel_outbox_log TO "+role)
	of, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	of.User = url.User(role)
	opts := &relay.Options{Keep: week, Lease: time.Second}
	if _, err := relay.Open(t.Context(), of.String(), opts); !errors.Is(err, semel.ErrStoreUnavailable) || !strings.Contains(err.Error(), "permission denied for function semel_outbox_log_maintain") {
		t.Errorf("without EXECUTE: %v", err)
	}
	if findings, err := relay.Examine(t.Context(), of.String(), opts); err != nil || !has(findings, doctor.Broken, "outbox.log", "this role lacks a right") {
		t.Errorf("%+v, %v", findings, err)
	}
	exec(t, pool, "GRANT EXECUTE ON FUNCTION semel_outbox_log_maintain TO "+role)
	s := open(t, of.String(), opts)
	closeAfter(t, s)
	drop := func() {
		for _, day := range strings.Fields(text(t, pool, partitions)) {
			exec(t, pool, "DROP TABLE semel_outbox_log_"+day)
		}
	}
	drop()
	if err := write(t.Context(), pool, event("a", "1"), event("b", "2")); err != nil {
		t.Fatal(err)
	}
	items, _ := read(t, s, 2)
	if err := s.Ack(t.Context(), items[:1]); err != nil {
		t.Errorf("the partition is made: %v", err)
	}
	drop()
	exec(t, pool, "REVOKE EXECUTE ON FUNCTION semel_outbox_log_maintain FROM "+role)
	if err := s.Ack(t.Context(), items[1:]); err == nil || !strings.Contains(err.Error(), "permission denied for function") {
		t.Errorf("it cannot be made: %v", err)
	}
	if got := text(t, pool, "SELECT convert_from(payload, 'UTF8') FROM semel_outbox"); got != string(items[1].Message.Body) {
		t.Errorf("%s is left", got)
	}
	exec(t, pool, "GRANT EXECUTE ON FUNCTION semel_outbox_log_maintain TO "+role)
	if err := s.Ack(t.Context(), items[1:]); err != nil {
		t.Error(err)
	}
	eventually(t, pool, "SELECT (SELECT count(*) FROM semel_outbox) = 0 AND (SELECT count(*) FROM semel_outbox_log) = 1")
}
