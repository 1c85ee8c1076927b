package outbox_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	relay "github.com/semel-dev/semel/broker/outbox"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/store/pgstore"
)

func TestDoctorFindsWhatWaits(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	if _, err := relay.Examine(t.Context(), address, pgstore.Names{}); !errors.Is(err, pgstore.ErrSchema) {
		t.Error(err)
	}
	pool := migrated(t, address)
	findings, err := relay.Examine(t.Context(), address, pgstore.Names{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"no row waits", "0 live relays, and 0 shards", "0 transactions that write", "autovacuum is on"} {
		if !strings.HasPrefix(findings[i].Found, want) || findings[i].Severity != semel.Fine {
			t.Errorf("%+v, want %s", findings[i], want)
		}
	}
	if err := write(t.Context(), pool, event("a", "1")); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, "UPDATE semel_outbox SET created = created - interval '1 hour'")
	exec(t, pool, "ALTER TABLE semel_outbox SET (autovacuum_enabled = off)")
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if err := outbox.Write(t.Context(), tx, event("a", "2")); err != nil {
		t.Fatal(err)
	}
	if findings, err = relay.Examine(t.Context(), address, pgstore.Names{}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"the oldest row waits for 1h0m", "0 live relays, and 1 shards with rows and without a relay", "1 transactions that write to it are open, the oldest for 0s (pid ", "autovacuum is off"} {
		if !strings.HasPrefix(findings[i].Found, want) || (findings[i].Severity == semel.Warning) != (i != 2) {
			t.Errorf("%+v, want %s", findings[i], want)
		}
	}
}

func TestSampleReadsWithoutAShard(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	exec(t, pool, "INSERT INTO semel_outbox (aggregate, payload) SELECT 'a', convert_to(n::text, 'UTF8') FROM generate_series(1, 1102) AS n")
	var got []string
	if err := relay.Sample(t.Context(), address, pgstore.Names{}, func(m *semel.Message) bool {
		got = append(got, string(m.Body))
		return len(got) < 1101
	}); err != nil || len(got) != 1101 || got[0] != "1" || got[1100] != "1101" {
		t.Errorf("%d messages, %v", len(got), err)
	}
	eventually(t, pool, "SELECT (SELECT count(*) FROM semel_outbox) = 1102 AND (SELECT count(*) FROM semel_outbox_shards WHERE epoch > 0) = 0")
}
