package pgstore

import (
	"context"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/services/servicestest"
)

func TestStandbysAreJudgedByWhatAFailoverForgets(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		replication
		want semel.Severity
	}{
		"none":                         {replication{}, semel.Fine},
		"asynchronous":                 {replication{asynchronous: 1}, semel.Warning},
		"unseen":                       {replication{unseen: 1}, semel.Warning},
		"synchronous":                  {replication{names: "a", synchronous: 1}, semel.Fine},
		"one of two":                   {replication{names: "a", synchronous: 1, asynchronous: 1}, semel.Warning},
		"named and absent":             {replication{names: "a"}, semel.Broken},
		"another than the named":       {replication{names: "a", asynchronous: 2}, semel.Broken},
		"fewer than awaited":           {replication{names: "FIRST 2 (a, b)", synchronous: 1}, semel.Broken},
		"as many as awaited":           {replication{names: "any 2(a, b, c)", synchronous: 2}, semel.Fine},
		"named, which may not be seen": {replication{names: "a", unseen: 1}, semel.Fine},
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
	t.Cleanup(func() { reload(context.Background(), "ALTER SYSTEM RESET synchronous_standby_names") }) // or nothing is committed any more
	for _, c := range []struct {
		names string
		want  semel.Severity
		found string
	}{
		{"one", semel.Warning, "2 standbys, 1 of them synchronous"},
		{"ANY 2 (one, two)", semel.Fine, "2 standbys, 2 of them synchronous"},
		{"nobody", semel.Broken, "2 standbys, 0 of them synchronous"},
		{"FIRST 3 (one, two, three)", semel.Broken, "2 standbys, 2 of them synchronous"},
	} {
		reload(t.Context(), "ALTER SYSTEM SET synchronous_standby_names = '"+c.names+"'")
		eventually(t, "the finding under "+c.names, func() bool {
			f := finding(t, b.Store, "synchronous_standby_names")
			return f.Severity == c.want && strings.Contains(f.Found, c.found) && strings.Contains(f.Found, "'"+c.names+"'")
		})
		eventually(t, "what a role sees that may see less, under "+c.names, func() bool {
			f := finding(t, blind, "synchronous_standby_names")
			return f.Severity == semel.Fine && strings.Contains(f.Found, "2 standbys") && strings.Contains(f.Found, "'"+c.names+"'")
		})
	}
}
