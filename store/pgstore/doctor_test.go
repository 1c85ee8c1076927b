package pgstore

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/services"
	"github.com/semel-dev/semel/internal/services/servicestest"
)

func TestServerWithDefaultsIsFine(t *testing.T) {
	t.Parallel()
	b := openedAt(t, servicestest.StartPostgres(t, nil).URL(), nil)
	findings, err := b.Examine(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range findings {
		switch {
		case f.Subject == "" || f.Found == "":
			t.Errorf("a finding says too little: %+v", f)
		case f.Severity > semel.Notice:
			t.Errorf("a server with defaults is found %+v", f)
		case f.Severity == semel.Fine && f.Cost != "":
			t.Errorf("what is fine has a cost: %+v", f)
		}
	}
	if len(findings) < 12 {
		t.Errorf("only %d things were looked at", len(findings))
	}
}

func TestDangerousSettingsAreFoundWithTheirCost(t *testing.T) {
	t.Parallel()
	b := openedAt(t, servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{
		"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "autovacuum": "off",
	}}).URL(), nil)
	for subject, want := range map[string]semel.Severity{
		"fsync": semel.Broken, "full_page_writes": semel.Broken, "synchronous_commit": semel.Broken, "autovacuum": semel.Warning,
	} {
		if f := finding(t, b.Store, subject); f.Severity != want || f.Found != "off" || f.Cost == "" || f.Remedy == "" {
			t.Errorf("%s is found %+v, want %s", subject, f, want)
		}
	}
}

func TestSettingsOfTheRoleAreFound(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	b := openedAt(t, address, nil)
	for setting, subject := range map[string]string{
		"default_transaction_isolation=serializable": "default_transaction_isolation",
		"default_transaction_read_only=on":           "default_transaction_read_only",
		"synchronous_commit=off":                     "synchronous_commit",
	} {
		s := openSame(t, b)
		s.pool = pool(t, address+"&"+setting)
		if f := finding(t, s, subject); f.Severity != semel.Broken {
			t.Errorf("under %s the examination says %+v", setting, f)
		}
	}
}

func TestSynchronousStandbyIsFine(t *testing.T) {
	t.Parallel()
	primary := servicestest.StartPostgres(t, nil)
	b := openedAt(t, primary.URL(), nil)
	servicestest.StartStandby(t, primary, nil)
	b.exec("ALTER SYSTEM SET synchronous_standby_names = '*'")
	b.exec("SELECT pg_reload_conf()")
	eventually(t, "the standby is synchronous", func() bool {
		return b.number("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
	})
	if f := finding(t, b.Store, "synchronous_standby_names"); f.Severity != semel.Fine || !strings.Contains(f.Found, "1 standbys") {
		t.Errorf("with a synchronous standby the examination says %+v", f)
	}
	s := openSame(t, b)
	s.pool = pool(t, primary.URL()+"&synchronous_commit=local")
	if f := finding(t, s, "synchronous standbys"); f.Severity != semel.Warning {
		t.Errorf("with commits that do not wait the examination says %+v", f)
	}
}

func TestPoolerIsFound(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	b := openedAt(t, server.URL(), nil)
	if f := finding(t, b.Store, "pooler"); f.Severity != semel.Fine {
		t.Errorf("without a pooler the examination says %+v", f)
	}
	behind := servicestest.StartPgBouncer(t, server, nil).URL()
	if f := finding(t, connectedDesk(t, behind, nil).store, "pooler"); f.Severity != semel.Notice {
		t.Errorf("behind a pooler the examination says %+v", f)
	}
	// Named statements are what a pooler in transaction mode loses.
	one := servicestest.StartPgBouncer(t, server, map[string]string{"pool_mode": "session"})
	preparing := openAt(t, one.URL(), &Options{Prepare: true})
	if f := finding(t, preparing.Store, "pooler"); f.Severity != semel.Warning {
		t.Errorf("behind a pooler with Prepare the examination says %+v", f)
	}
	naming := openAt(t, one.URL(), nil) // on a pool in the default mode of pgx
	if f := finding(t, naming.Store, "pooler"); f.Severity != semel.Warning || !strings.Contains(f.Remedy, "cache_describe") {
		t.Errorf("behind a pooler with a pool that prepares by name the examination says %+v", f)
	}
}

func TestOldTransactionAndDeadRowsAreFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		look     func(e *examination)
		subject  string
		severity semel.Severity
	}{
		{func(e *examination) { e.judgeTransactions(old + 1) }, "oldest transaction", semel.Warning},
		{func(e *examination) { e.judgeTransactions(old) }, "oldest transaction", semel.Fine},
		{func(e *examination) { e.judgeBloat(1000_000, 600_000, "1 GB") }, "bloat", semel.Notice},
		{func(e *examination) { e.judgeBloat(1000_000, 400_000, "1 GB") }, "bloat", semel.Fine},
		{func(e *examination) { e.judgeBloat(10, 50_000, "1 MB") }, "bloat", semel.Fine},
		{func(e *examination) { e.judgeClock(2 * apart) }, "clock", semel.Notice},
		{func(e *examination) { e.judgeClock(apart) }, "clock", semel.Fine},
	} {
		e := new(examination)
		c.look(e)
		if f := e.findings[0]; f.Subject != c.subject || f.Severity != c.severity {
			t.Errorf("%s is found %+v, want %s", c.subject, f, c.severity)
		}
	}
}
