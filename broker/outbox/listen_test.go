package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	relay "github.com/semel-dev/semel/broker/outbox"
	"github.com/semel-dev/semel/internal/outboxrow"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestANotificationWakesTheRelay has a relay that would look again in an hour. Its
// connection that listens is cut in between.
func TestANotificationWakesTheRelay(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	s, err := relay.Open(t.Context(), address, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	n := outbox.NewNotifier(func(ctx context.Context, statement string) error {
		_, err := pool.Exec(ctx, statement)
		return err
	})
	defer n.Close()
	if !kafkatest.Within(3*time.Minute, func() bool { return relay.Owned(s) == 64 }) {
		t.Fatal("the relay does not own all shards")
	}
	former := 0
	const listens = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %' AND wait_event = 'ClientRead'"
	for _, body := range []string{"first", "after a cut"} {
		eventually(t, pool, fmt.Sprintf("SELECT count(*) = 1 AND min(pid) <> %d %s", former, listens))
		relay.Postpone(s, time.Now().Add(time.Hour))
		read := make(chan string, 1)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		go func() {
			items, err := s.Read(ctx)
			if err != nil || len(items) != 1 {
				read <- "nothing"
				return
			}
			read <- string(items[0].Message.Body)
		}()
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return outbox.Write(t.Context(), tx, outbox.Message{Payload: []byte(body)})
		}); err != nil {
			t.Fatal(err)
		}
		n.Notify()
		if got := <-read; got != body {
			t.Errorf("read %s, want %s", got, body)
		}
		cancel()
		eventually(t, pool, "SELECT count(*) = 1 "+listens) // it waits for the next one
		if err := pool.QueryRow(t.Context(), "SELECT pid, pg_terminate_backend(pid) "+listens).Scan(&former, new(bool)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestARelayBehindAPoolerDoesNotListen keeps a pooler from lending the connection that
// listens to others.
func TestARelayBehindAPoolerDoesNotListen(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	pooler := servicestest.StartPgBouncer(t, server, nil)
	pool := migrated(t, server.URL())
	for address, pooled := range map[string]bool{server.URL(): false, pooler.URL(): true} {
		s, err := relay.Open(t.Context(), address, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		if !pooled {
			cancel() // it would listen
		}
		if got := relay.Hear(ctx, s); got != pooled {
			t.Errorf("%s: pooled is %v", address, got)
		}
		cancel()
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		findings, err := relay.Examine(t.Context(), address, nil)
		if err != nil {
			t.Fatal(err)
		}
		said := ""
		for _, f := range findings {
			if f.Subject == "outbox.notify" {
				said = f.Found
			}
		}
		if strings.Contains(said, "a pooler is between") != pooled {
			t.Errorf("%s: %s", address, said)
		}
	}
	eventually(t, pool, "SELECT count(*) = 0 FROM pg_stat_activity WHERE query LIKE 'LISTEN %'")
	if channel, err := outboxrow.Channel(pgstore.Names{}); channel != "semel_outbox" || err != nil {
		t.Error(channel, err)
	}
}
