package runcmd_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// walConfig starts a server whose log can be read, and writes a configuration that reads
// its outbox by mode: wal and delivers into another server, which is never restarted.
func walConfig(t *testing.T, more string) (file string, server *services.Server, source, target *pgxpool.Pool) {
	t.Helper()
	server = servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"wal_level": "logical"}})
	sink := programtest.Servers.Database(t)
	file = filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `stores:
  db: { postgres: { dsn: "%s" } }
pipelines:
  events:
    source: { outbox: { store: db, mode: wal, keep: 7d } }
    key: { id: property:message-id }
    sink: { postgres: { dsn: "%s", table: delivered, columns: { id: key, aggregate: record-key, body: body } } }
    parked: { store: db }
%s`, server.URL(), sink, more), 0o600); err != nil {
		t.Fatal(err)
	}
	programtest.Exec(t, sink, "CREATE TABLE delivered (n bigint GENERATED ALWAYS AS IDENTITY, id uuid, aggregate text, body text CHECK (body <> 'poison'))")
	for i, address := range []string{server.URL(), sink} {
		pool, err := pgxpool.New(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		if i == 0 {
			source = pool
		} else {
			target = pool
		}
	}
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "outbox slots")
	return file, server, source, target
}

func writeEvents(t *testing.T, pool *pgxpool.Pool, msgs ...outbox.Message) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return outbox.Write(t.Context(), tx, msgs...) }); err != nil {
		t.Fatal(err)
	}
}

func TestWALOutboxIsExplainedAndExamined(t *testing.T) {
	t.Parallel()
	file, _, source, target := walConfig(t, "    on_failure: { attempts: 3, backoff: 200ms }\n")
	programtest.Run(t, "", "lint", file).Check(t, term.ExitDone, "0 to note, 0 with a warning, 0 broken")
	if got := programtest.Run(t, "", "explain", file); !strings.Contains(got.Stdout, "outbox of db by logical replication → postgres table delivered") || !strings.Contains(got.Stdout, "max_slot_wal_keep_size") {
		t.Errorf("%+v", got)
	}
	if got := programtest.Run(t, "", "doctor", file); !strings.Contains(got.Stdout, "slot semel_outbox is created by the first relay") || !strings.Contains(got.Stdout, "max_slot_wal_keep_size") || !strings.Contains(got.Stdout, "unlimited") || strings.Contains(got.Stdout, "live relays") {
		t.Errorf("%+v", got)
	}
	writeEvents(t, source, outbox.Message{Aggregate: "a", Payload: []byte("poison")}, outbox.Message{Aggregate: "a", Payload: []byte("behind")}, outbox.Message{Aggregate: "b", Payload: []byte("other")})
	programtest.Start(t, "running", "outbox", "relay", file, "--admin", "off", "--no-progress")
	programtest.BecomesTrue(t, target, "SELECT count(*) = 2 FROM delivered")
	programtest.BecomesTrue(t, source, "SELECT (SELECT count(*) FROM semel_outbox) = 0 AND (SELECT count(*) FROM semel_parked) = 1")
	if got := programtest.Run(t, "", "doctor", file); !strings.Contains(got.Stdout, "slot semel_outbox is reserved, read by ") || !strings.Contains(got.Stdout, "of the write-ahead log") {
		t.Errorf("%+v", got)
	}
	programtest.BecomesTrue(t, source, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn) < 100000 FROM pg_replication_slots")
	programtest.Exec(t, target.Config().ConnString(), "ALTER TABLE delivered DROP CONSTRAINT delivered_body_check")
	// It only queues the message: after three seconds it would deliver it, too, while a relay stands still.
	programtest.Run(t, "", "parked", "retry", "--config", file, "--all", "--wait", "1ms")
	programtest.BecomesTrue(t, target, "SELECT count(*) = 1 FROM delivered WHERE body = 'poison'")
	programtest.Start(t, "standby: another relay reads the slot", "outbox", "relay", file, "--admin", "off", "--no-progress")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wrong := strings.Replace(string(text), "mode: wal", "slot: other", 1)
	if err := os.WriteFile(file+".wrong.yaml", []byte(wrong), 0o600); err != nil {
		t.Fatal(err)
	}
	programtest.Run(t, "", "lint", file+".wrong.yaml").Check(t, term.ExitUsage, "it needs mode: wal")
}

// TestRelayNamesAServerWithoutLogicalReplication has a server with the default wal_level.
func TestRelayNamesAServerWithoutLogicalReplication(t *testing.T) {
	t.Parallel()
	file, _ := relayConfig(t, "")
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "outbox slots")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), "outbox: { store: db }", "outbox: { store: db, mode: wal }", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	const cause, remedy = "mode: wal needs the server setting wal_level = logical, and it is replica", "ALTER SYSTEM SET wal_level = 'logical', and restart the server"
	programtest.Start(t, cause+": "+remedy, "outbox", "relay", file, "--admin", "off") // it waits
	if got := programtest.Run(t, "", "doctor", file); got.Status != term.ExitFound || !strings.Contains(got.Stdout, cause) || !strings.Contains(got.Stdout, remedy) {
		t.Errorf("%+v", got)
	}
}

// relay is a process of its own that relays an outbox.
type relay struct {
	programtest.Running
	command *exec.Cmd
}

// startRelay starts a relay and waits until it runs. It ends with the test at the latest.
func startRelay(t *testing.T, file string) *relay {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{
		Running: programtest.Running{T: t, Log: &programtest.Log{Lines: make(chan string, 10_000)}},
		command: exec.CommandContext(t.Context(), program, "outbox", "relay", file, "--admin", "off", "--no-progress"),
	}
	r.command.Env = append(os.Environ(), programtest.Variable+"=1")
	r.command.Stderr = r.Log
	if err := r.command.Start(); err != nil {
		t.Fatal(err)
	}
	r.Line(`"msg":"running"`)
	return r
}

// kill ends a relay that must not have ended by itself.
func (r *relay) kill() {
	r.T.Helper()
	if err := r.command.Process.Kill(); err != nil {
		r.T.Fatal(err)
	}
	_ = r.command.Wait() // it was killed
	if r.command.ProcessState.Exited() {
		r.T.Errorf("the relay has ended by itself: %v\n%s", r.command.ProcessState, r.Log.Text())
	}
}

// TestWALRelayLosesNothing compares what relays deliver with what writers committed,
// while relays are killed, the server is restarted, and the slot is dropped. The changes of
// an order are numbered without gaps, because a number that was rolled back is used again.
func TestWALRelayLosesNothing(t *testing.T) {
	t.Parallel()
	rounds := 1
	if !testing.Short() {
		rounds = 5
	}
	file, server, source, target := walConfig(t, "")
	programtest.Exec(t, server.URL(), "CREATE TABLE orders AS SELECT id, 0 AS n FROM generate_series(0, 19) AS id")
	// Deliveries take their time, so that rows are in flight at any moment.
	programtest.Exec(t, target.Config().ConnString(), "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.003); RETURN NEW; END $$; CREATE TRIGGER slow BEFORE INSERT ON delivered FOR EACH ROW EXECUTE FUNCTION slow()")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	writing := make(chan struct{})
	var writers sync.WaitGroup
	for i := range 8 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		writers.Go(func() {
			for {
				select {
				case <-writing:
					return
				default:
				}
				if order(t.Context(), source, random) != nil {
					<-time.After(50 * time.Millisecond) // the server is being restarted
				}
			}
		})
	}
	// A row that is in the table when the slot is confirmed behind its commit would be one
	// that the log never returns again. The rows carry no position, so each look compares
	// two moments: a row of before the first one is deleted when the slot passes it.
	watching, watched := make(chan struct{}), make(chan struct{})
	var compared atomic.Int64
	go func() {
		defer close(watched)
		watchPosition(t, source, watching, &compared)
	}()
	begin := func() *relay { return startRelay(t, file) }
	const reads = "SELECT count(*) = 1 FROM pg_stat_replication"
	becomes := func(pool *pgxpool.Pool, sql string) { // even while the server is being restarted
		t.Helper()
		for late := time.Now().Add(5 * time.Minute); ; <-time.After(20 * time.Millisecond) {
			var yes bool
			if err := pool.QueryRow(t.Context(), sql).Scan(&yes); yes {
				return
			} else if time.Now().After(late) {
				t.Fatalf("never: %s: %v", sql, err)
			}
		}
	}
	progress := func() {
		t.Helper()
		becomes(target, fmt.Sprintf("SELECT count(*) > %d FROM delivered", programtest.QueryValue[int](t, target, "SELECT count(*) FROM delivered")+20))
	}
	first, second := begin(), begin()
	for range rounds {
		becomes(source, reads)
		progress()
		first.kill()
		progress() // by the standby
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		progress()
		first = begin()
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		progress()
		second.kill()
		second = begin()
		progress()
	}
	for late := time.Now().Add(5 * time.Minute); compared.Load() < 3; <-time.After(20 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatalf("the position was compared %d times", compared.Load())
		}
	}
	close(watching)
	<-watched
	// The slot is dropped. Both relays wait, say what to do, and continue by themselves when
	// it is done.
	for late := time.Now().Add(5 * time.Minute); ; <-time.After(20 * time.Millisecond) {
		_, err := source.Exec(t.Context(), "DO $$ BEGIN PERFORM pg_terminate_backend(pid, 5000) FROM pg_stat_replication; PERFORM pg_drop_replication_slot('semel_outbox'); END $$")
		if err == nil {
			break
		}
		if time.Now().After(late) {
			t.Fatal(err)
		}
	}
	var way string
	for _, of := range []*relay{first, second} {
		line := of.Line("replication slot semel_outbox is gone", "restored or promoted one: ", "; a relay that waits, or the next one that starts, creates it again")
		_, line, _ = strings.Cut(line, "restored or promoted one: ")
		way, _, _ = strings.Cut(line, "; a relay that waits")
	}
	for sql := range strings.SplitSeq(strings.ReplaceAll(way, `\"`, `"`), "; ") {
		programtest.Exec(t, server.URL(), sql)
	}
	for _, of := range []*relay{first, second} {
		of.Line(`"msg":"running"`)
	}
	becomes(source, reads)
	progress()
	first.kill()
	progress() // by the other one, whichever was the standby
	close(writing)
	writers.Wait()
	programtest.Exec(t, target.Config().ConnString(), "DROP TRIGGER slow ON delivered")
	becomes(source, "SELECT count(*) = 0 FROM semel_outbox")
	checkEvents(t, source, target)
}

// watchPosition looks again and again for a row that is in the table although the slot is
// confirmed behind its commit. A row that a statement sees was committed before the
// position that a later statement reads.
func watchPosition(t *testing.T, pool *pgxpool.Pool, until <-chan struct{}, compared *atomic.Int64) {
	type look struct {
		seqs []int64
		end  int64
	}
	var looks []look
	for {
		select {
		case <-until:
			t.Logf("the position was compared %d times", compared.Load())
			return
		case <-time.After(20 * time.Millisecond):
		}
		var of look
		var confirmed int64
		if pool.QueryRow(t.Context(), "SELECT pg_wal_lsn_diff(confirmed_flush_lsn, '0/0')::bigint FROM pg_replication_slots").Scan(&confirmed) != nil {
			continue // the server is being restarted
		}
		for len(looks) > 0 && looks[0].end <= confirmed {
			var left int
			if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM semel_outbox WHERE seq = ANY ($1)", looks[0].seqs).Scan(&left); err == nil && left > 0 {
				t.Errorf("the slot is confirmed up to %d, and %d rows from before %d are not delivered", confirmed, left, looks[0].end)
			}
			looks = looks[1:]
			compared.Add(1)
		}
		if pool.QueryRow(t.Context(), "SELECT coalesce(array_agg(seq), '{}') FROM semel_outbox").Scan(&of.seqs) != nil || len(of.seqs) == 0 {
			continue
		}
		if pool.QueryRow(t.Context(), "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint").Scan(&of.end) == nil {
			looks = append(looks, of)
		}
	}
}

func TestRelayWaitsForItsDatabase(t *testing.T) {
	t.Parallel()
	file, server, source, target := walConfig(t, "")
	writeEvents(t, source, outbox.Message{Aggregate: "a", Payload: []byte("1")})
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i, config := range []string{string(text), strings.Replace(string(text), "mode: wal, ", "", 1)} {
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "relay.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		relay := programtest.Start(t, "cannot start yet", "outbox", "relay", file, "--admin", "off", "--no-progress")
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		source.Reset()
		// A relay that is killed may have delivered a row that it has not removed yet.
		programtest.BecomesTrue(t, target, fmt.Sprintf("SELECT count(DISTINCT id) = %d FROM delivered", i+1))
		writeEvents(t, source, outbox.Message{Aggregate: "a", Payload: []byte("more")})
		programtest.BecomesTrue(t, target, fmt.Sprintf("SELECT count(DISTINCT id) = %d FROM delivered", i+2))
		if err := relay.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = relay.Wait() // it was killed
	}
}
