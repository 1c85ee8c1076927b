package pgstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestDoctorHasNoFindingsForAServerWithDefaults(t *testing.T) {
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
		case f.Severity > doctor.Notice:
			t.Errorf("a server with defaults is found %+v", f)
		case f.Severity == doctor.Fine && f.Cost != "":
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
	for subject, want := range map[string]doctor.Severity{
		"fsync": doctor.Broken, "full_page_writes": doctor.Broken, "synchronous_commit": doctor.Broken, "autovacuum": doctor.Warning,
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
		if f := finding(t, s, subject); f.Severity != doctor.Broken {
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
	if f := finding(t, b.Store, "synchronous_standby_names"); f.Severity != doctor.Fine || !strings.Contains(f.Found, "1 standbys") {
		t.Errorf("with a synchronous standby the examination says %+v", f)
	}
	s := openSame(t, b)
	s.pool = pool(t, primary.URL()+"&synchronous_commit=local")
	if f := finding(t, s, "synchronous standbys"); f.Severity != doctor.Warning {
		t.Errorf("with commits that do not wait the examination says %+v", f)
	}
}

func TestPoolerIsFound(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	b := openedAt(t, server.URL(), nil)
	if f := finding(t, b.Store, "pooler"); f.Severity != doctor.Fine {
		t.Errorf("without a pooler the examination says %+v", f)
	}
	behind := servicestest.StartPgBouncer(t, server, nil).URL()
	if f := finding(t, connectedDesk(t, behind, nil).store, "pooler"); f.Severity != doctor.Notice {
		t.Errorf("behind a pooler the examination says %+v", f)
	}
	// A pooler in transaction mode loses named statements.
	one := servicestest.StartPgBouncer(t, server, map[string]string{"pool_mode": "session"})
	preparing := openAt(t, one.URL(), &Options{Prepare: true})
	if f := finding(t, preparing.Store, "pooler"); f.Severity != doctor.Warning {
		t.Errorf("behind a pooler with Prepare the examination says %+v", f)
	}
	naming := openAt(t, one.URL(), nil) // on a pool in the default pgx mode
	if f := finding(t, naming.Store, "pooler"); f.Severity != doctor.Warning || !strings.Contains(f.Remedy, "cache_describe") {
		t.Errorf("behind a pooler with a pool that prepares by name the examination says %+v", f)
	}
}

func TestOldTransactionAndDeadRowsAreFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		look     func(e *examination)
		subject  string
		severity doctor.Severity
	}{
		{func(e *examination) { e.judgeTransactions(old + 1) }, "oldest transaction", doctor.Warning},
		{func(e *examination) { e.judgeTransactions(old) }, "oldest transaction", doctor.Fine},
		{func(e *examination) { e.judgeBloat(1000_000, 600_000, "1 GB") }, "bloat", doctor.Notice},
		{func(e *examination) { e.judgeBloat(1000_000, 400_000, "1 GB") }, "bloat", doctor.Fine},
		{func(e *examination) { e.judgeBloat(10, 50_000, "1 MB") }, "bloat", doctor.Fine},
		{func(e *examination) { e.judgeClock(2 * apart) }, "clock", doctor.Notice},
		{func(e *examination) { e.judgeClock(apart) }, "clock", doctor.Fine},
	} {
		e := new(examination)
		c.look(e)
		if f := e.findings[0]; f.Subject != c.subject || f.Severity != c.severity {
			t.Errorf("%s is found %+v, want %s", c.subject, f, c.severity)
		}
	}
}

func TestAPrivilegeThatOneTableLacksIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		made MigrateOptions
		// revoked are privileges by table. Without any one of them, calls fail.
		// truncates is a table that clean-up truncates.
		revoked   map[string]string
		truncates string
	}{
		"partitions":   {MigrateOptions{Partitions: 2}, map[string]string{"keys": "INSERT", "keys_0": "UPDATE", "keys_1": "DELETE"}, ""},
		"message time": {MigrateOptions{Cleanup: CleanupMessageTime}, map[string]string{"times": "UPDATE", "keys_0": "SELECT", "keys_31": "DELETE"}, "keys_7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := shared.Database(t)
			migrated(t, address, &c.made)
			b := openAt(t, address, nil)
			user := newRole(t, b)
			b.exec("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON ALL TABLES IN SCHEMA public TO " + user)
			b.exec("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO " + user)
			s := openAt(t, as(address, user), nil).Store
			if f := finding(t, s, "privileges"); f.Severity != doctor.Fine {
				t.Errorf("with all privileges: %+v", f)
			}
			for table, privilege := range c.revoked {
				b.exec("REVOKE " + privilege + " ON semel_" + table + " FROM " + user)
				f := finding(t, s, "privileges")
				if f.Severity != doctor.Broken || !strings.Contains(f.Found, " lacks "+privilege+" on ") || !strings.Contains(f.Found, "semel_"+table) || strings.Contains(f.Found, ", ") {
					t.Errorf("without %s on %s: %+v", privilege, table, f)
				}
				b.exec(f.Remedy)
			}
			if c.truncates == "" {
				return
			}
			b.exec("REVOKE TRUNCATE ON semel_" + c.truncates + " FROM " + user)
			if f := finding(t, s, "truncate"); f.Severity != doctor.Notice || !strings.Contains(f.Found, "semel_"+c.truncates) {
				t.Errorf("without TRUNCATE on %s: %+v", c.truncates, f)
			}
		})
	}
}

func TestLongListsAreShortened(t *testing.T) {
	t.Parallel()
	many := strings.Split("a b c d e f g h i j", " ")
	if got := listed(many); got != "a, b, c, d, e, f, g, h and 2 more" {
		t.Error(got)
	}
	if got := listed(many[:8]); got != "a, b, c, d, e, f, g, h" {
		t.Error(got)
	}
}

func TestStandbysAreJudgedByTheirReplication(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		replication
		want doctor.Severity
	}{
		"none":                         {replication{}, doctor.Fine},
		"asynchronous":                 {replication{asynchronous: 1}, doctor.Warning},
		"unseen":                       {replication{unseen: 1}, doctor.Warning},
		"synchronous":                  {replication{names: "a", synchronous: 1}, doctor.Fine},
		"one of two":                   {replication{names: "a", synchronous: 1, asynchronous: 1}, doctor.Warning},
		"named and absent":             {replication{names: "a"}, doctor.Broken},
		"another than the named":       {replication{names: "a", asynchronous: 2}, doctor.Broken},
		"fewer than awaited":           {replication{names: "FIRST 2 (a, b)", synchronous: 1}, doctor.Broken},
		"as many as awaited":           {replication{names: "any 2(a, b, c)", synchronous: 2}, doctor.Fine},
		"named, which may not be seen": {replication{names: "a", unseen: 1}, doctor.Fine},
	} {
		c.commit = "on"
		e := new(examination)
		e.judgeStandbys(c.replication)
		if f := e.findings[0]; f.Severity != c.want {
			t.Errorf("%s: %+v, want %s", what, f, c.want)
		}
	}
	for names, want := range map[string]int{"a": 1, "*": 1, "a, b": 1, "2 (a, b)": 2, "FIRST 3(a,b,c)": 3, " Any 2 (*)": 2, "first": 1} {
		if n := awaited(names); n != want {
			t.Errorf("%q awaits %d, want %d", names, n, want)
		}
	}
}

func TestStandbysBesideAndInsteadOfTheNamedOnesAreFound(t *testing.T) {
	t.Parallel()
	primary := servicestest.StartPostgres(t, nil)
	b := openedAt(t, primary.URL(), nil)
	user := newRole(t, b)
	b.exec("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO " + user)
	blind := openAt(t, as(primary.URL(), user), nil).Store
	for _, name := range []string{"one", "two"} {
		servicestest.StartStandby(t, primary, map[string]string{"cluster_name": name})
	}
	reload := func(ctx context.Context, sql string) {
		t.Helper()
		for _, sql := range []string{sql, "SELECT pg_reload_conf()"} {
			if _, err := b.pool.Exec(ctx, sql); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(func() { reload(context.Background(), "ALTER SYSTEM RESET synchronous_standby_names") }) // otherwise nothing is committed any longer
	for _, c := range []struct {
		names string
		want  doctor.Severity
		found string
	}{
		{"one", doctor.Warning, "2 standbys, 1 of them synchronous"},
		{"ANY 2 (one, two)", doctor.Fine, "2 standbys, 2 of them synchronous"},
		{"nobody", doctor.Broken, "2 standbys, 0 of them synchronous"},
		{"FIRST 3 (one, two, three)", doctor.Broken, "2 standbys, 2 of them synchronous"},
	} {
		reload(t.Context(), "ALTER SYSTEM SET synchronous_standby_names = '"+c.names+"'")
		eventually(t, "the finding under "+c.names, func() bool {
			f := finding(t, b.Store, "synchronous_standby_names")
			return f.Severity == c.want && strings.Contains(f.Found, c.found) && strings.Contains(f.Found, "'"+c.names+"'")
		})
		eventually(t, "what a role sees that may see less, under "+c.names, func() bool {
			f := finding(t, blind, "synchronous_standby_names")
			return f.Severity == doctor.Fine && strings.Contains(f.Found, "2 standbys") && strings.Contains(f.Found, "'"+c.names+"'")
		})
	}
}

func TestDoctorReportsCleanUpThatIsBehind(t *testing.T) {
	t.Parallel()
	times := &examination{Store: &Store{hasher: hasher{times: &messageTime{age: 28 * time.Hour, slots: 32}}}}
	for behind, want := range map[time.Duration]doctor.Severity{-time.Minute: doctor.Fine, time.Hour: doctor.Fine, 3 * time.Hour: doctor.Notice} {
		times.findings = nil
		times.judgeFloor(behind)
		if got := times.findings[0]; got.Severity != want {
			t.Errorf("%v behind: %+v, want %s", behind, got, want)
		}
	}
}

func TestDoctorExaminesCleanUpByMessageTime(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	migrated(t, address, &MigrateOptions{Cleanup: CleanupMessageTime})
	s, err := New(t.Context(), pool(t, address), nil)
	if err != nil {
		t.Fatal(err)
	}
	if f := finding(t, s, "oldest message"); f.Severity != doctor.Fine || f.Found != "of any age: no clean-up has run yet" {
		t.Errorf("before the first clean-up: %+v", f)
	}
	purged(t, s) // raises the floor, which starts at zero
	for _, subject := range []string{"oldest message", "truncate"} {
		if f := finding(t, s, subject); f.Severity != doctor.Fine {
			t.Errorf("%+v", f)
		}
	}
}
