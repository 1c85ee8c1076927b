package postgres_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/broker/postgres"
)

func TestTableNamesAreExact(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		"payments":              {"payments"},
		"app.payments":          {"app", "payments"},
		"Order":                 {"Order"},
		"My Shop.Größe":         {"My Shop", "Größe"},
		`"a.b"."say ""hi"""`:    {"a.b", `say "hi"`},
		`app."a;b"`:             {"app", "a;b"},
		"a;b":                   {"a;b"},
		strings.Repeat("x", 63): {strings.Repeat("x", 63)},
		"":                      nil,
		".":                     nil,
		"a.":                    nil,
		"a.b.c":                 nil,
		`"a`:                    nil,
		`"a"b`:                  nil,
		`""`:                    nil,
		"a\x00b":                nil,
		"a\xff":                 nil,
		strings.Repeat("x", 64): nil,
	} {
		got, err := postgres.ParseTable(text)
		if (err == nil) != (want != nil) || err == nil && !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v", text, []string(got), err)
		}
	}
}

func TestTablesAndColumnsMayNeedQuotes(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, `CREATE SCHEMA "My Shop"`)
	exec(t, pool, `CREATE TABLE "My Shop"."Order" ("customerId" text PRIMARY KEY, "Größe" int, "say ""hi""" text)`)
	opts := &postgres.Options{
		Table: "My Shop.Order", Key: []string{"customerId"}, Version: "Größe",
		Columns: []postgres.Column{{"customerId", ".id"}, {"Größe", ".n"}, {`say "hi"`, "key"}},
	}
	for _, w := range ways(t, address, pool, opts) {
		exec(t, pool, `TRUNCATE "My Shop"."Order"`)
		list := items(`{"id":"a","n":1}`, `{"id":"b","n":"x"}`)
		w.process(t.Context(), list)
		wantClasses(t, list, "delivered", "permanent")
		if !strings.Contains(list[1].Err.Error(), "column Größe, from .n: ") {
			t.Errorf("%s: %v", w.name, list[1].Err)
		}
		if got := one[string](t, pool, `SELECT string_agg("customerId" || "Größe" || "say ""hi""", ' ') FROM "My Shop"."Order"`); got != "a1k0" {
			t.Errorf("%s: %s", w.name, got)
		}
	}
}
