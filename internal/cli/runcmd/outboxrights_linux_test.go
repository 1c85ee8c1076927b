package runcmd_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestARelayNamesTheRightsThatItLacks has a relay whose role lacks first the right to make
// partitions, and then that to take shards. Each time it says what to grant. It reports
// the rows that wait although it owns no shard.
func TestARelayNamesTheRightsThatItLacks(t *testing.T) {
	t.Parallel()
	file, pool := relayConfig(t, "")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	of, err := url.Parse(pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	role := "relay_" + strings.TrimPrefix(of.Path, "/")
	of.User = url.User(role)
	admin := pool.Config().ConnString()
	relay := programtest.WriteFile(t, file+".relay.yaml", strings.NewReplacer(admin, of.String(), "outbox: { store: db }", "outbox: { store: db, keep: 7d }").Replace(string(text)))
	programtest.Run(t, "", "migrate", "up", "--config", file).Check(t, term.ExitDone, "applied 6: outbox log")
	programtest.Exec(t, admin, "CREATE ROLE "+role+" LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "+role+"; REVOKE UPDATE ON semel_outbox_shards FROM "+role)
	t.Cleanup(func() {
		if _, err := pool.Exec(context.Background(), "DROP OWNED BY "+role+"; DROP ROLE "+role); err != nil {
			t.Error(err)
		}
	})
	programtest.Exec(t, admin, "INSERT INTO semel_outbox (aggregate, payload) VALUES ('a', 'x'); UPDATE semel_outbox SET created = created - interval '1 day'")
	shard := programtest.QueryValue[string](t, pool, "SELECT shard::text FROM semel_outbox")
	oldest, owner := fmt.Sprintf("dedup_outbox_oldest_seconds{pipeline=\"events\",shard=%q} 86", shard), `dedup_outbox_owner{owner="`

	address := servicestest.FreeAddr(t)
	stop := programtest.BackgroundUntil(t, "cannot start yet", programtest.NoEnv, "outbox", "relay", relay, "--admin", address)
	programtest.WaitForPage(t, address, "/readyz", time.Minute, http.StatusServiceUnavailable, "permission denied for function semel_outbox_log_maintain: GRANT ")
	if _, page := programtest.GetPage(t, address, "/readyz"); !strings.Contains(page, `GRANT EXECUTE ON FUNCTION "public"."semel_outbox_log_maintain" TO "`+role+`"`) {
		t.Error(page)
	}
	programtest.Exec(t, admin, "GRANT EXECUTE ON FUNCTION semel_outbox_log_maintain TO "+role)
	programtest.WaitForPage(t, address, "/metrics", time.Minute, http.StatusOK, oldest)
	programtest.WaitForPage(t, address, "/readyz", time.Minute, http.StatusServiceUnavailable, "permission denied for table semel_outbox_shards: GRANT ")
	if _, page := programtest.GetPage(t, address, "/metrics"); strings.Contains(page, owner) {
		t.Errorf("an owner: %s", page)
	}
	if got := programtest.Run(t, "", "doctor", relay); !strings.Contains(got.Stdout, " live relays, and 1 shards without a relay whose rows wait") {
		t.Errorf("%+v", got)
	}
	programtest.Exec(t, admin, "GRANT UPDATE ON semel_outbox_shards TO "+role)
	programtest.WaitForPage(t, address, "/metrics", time.Minute, http.StatusOK, owner)
	programtest.WaitForPage(t, address, "/readyz", time.Minute, http.StatusOK, "events: ready")
	programtest.BecomesTrue(t, pool, "SELECT (SELECT count(*) FROM semel_outbox) = 0 AND (SELECT count(*) FROM semel_outbox_log) = 1")
	if got := stop(); got.Status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	if got := programtest.Run(t, "", "doctor", relay); !strings.Contains(got.Stdout, "4 partitions") {
		t.Errorf("%+v", got)
	}
}
