package postgres_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/pipeline"
)

// stored is what each JSON value becomes in a column of a type: the text that PostgreSQL
// prints for it, "NULL", or "parked" if the server refuses the value.
var stored = []struct {
	column string // its type
	values [][2]string
}{
	{"jsonb", [][2]string{
		{`"123"`, `"123"`}, {`"true"`, `"true"`}, {`"null"`, `"null"`}, {`"{\"a\":1}"`, `"{\"a\":1}"`}, {`"007"`, `"007"`}, {`"plain"`, `"plain"`}, {`""`, `""`}, {`"ü\n"`, `"ü\n"`},
		{`123`, `123`}, {`12345678901234567890.10`, `12345678901234567890.10`}, {`true`, `true`}, {`null`, `NULL`},
		{`{"a": [1, "1"]}`, `{"a": [1, "1"]}`}, {`[1, "1", null]`, `[1, "1", null]`}, {`"a\u0000"`, `parked`},
	}},
	{"json", [][2]string{
		{`"123"`, `"123"`}, {`1e2`, `1e2`}, {`1.0`, `1.0`}, {`{"b":1,"a":2}`, `{"b":1,"a":2}`}, {`[]`, `[]`}, {`"plain"`, `"plain"`}, {`false`, `false`}, {`null`, `NULL`},
	}},
	{"document", [][2]string{
		{`"123"`, `"123"`}, {`123`, `123`}, {`"plain"`, `"plain"`}, {`{"a": 1}`, `{"a": 1}`},
	}},
	{"jsonb[]", [][2]string{
		{`["1", 1, null, [2], {"a": "\""}]`, `{"\"1\"",1,NULL,[2],"{\"a\": \"\\\"\"}"}`}, {`[]`, `{}`}, {`"{}"`, `{}`}, {`{"a": 1}`, `parked`},
	}},
	{"text", [][2]string{
		{`"123"`, `123`}, {`123`, `123`}, {`1e2`, `1e2`}, {`1.0`, `1.0`}, {`true`, `true`}, {`null`, `NULL`}, {`"null"`, `null`}, {`{"a":"b"}`, `{"a":"b"}`}, {`[1]`, `[1]`}, {`""`, ``},
	}},
	{"text[]", [][2]string{
		{`["a", "b c", "q\"\\", "", "NULL", null, 1, true]`, `{a,"b c","q\"\\","","NULL",NULL,1,true}`}, {`[["a"], ["b"]]`, `{{a},{b}}`}, {`[["a"], []]`, `parked`}, {`"{x,y}"`, `{x,y}`}, {`"x"`, `parked`}, {`[]`, `{}`}, {`null`, `NULL`},
	}},
	{"words", [][2]string{{`["a"]`, `{a}`}}},
	{"int", [][2]string{{`7`, `7`}, {`"7"`, `7`}, {`"007"`, `7`}, {`12.0`, `parked`}, {`"x"`, `parked`}, {`true`, `parked`}, {`2147483648`, `parked`}, {`null`, `NULL`}}},
	{"int[]", [][2]string{{`[1, "2", null]`, `{1,2,NULL}`}, {`["x"]`, `parked`}, {`[1.5]`, `parked`}, {`1`, `parked`}}},
	{"numeric", [][2]string{{`12345678901234567890.10`, `12345678901234567890.10`}, {`"19.90"`, `19.90`}, {`"19,90"`, `parked`}, {`1e2`, `100`}}},
	{"double precision", [][2]string{{`0.1`, `0.1`}, {`"1e2"`, `100`}}},
	{"boolean", [][2]string{{`true`, `true`}, {`"false"`, `false`}, {`"x"`, `parked`}}},
	{"uuid", [][2]string{{`"F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6"`, `f81d4fae-7dec-11d0-a765-00a0c91e6bf6`}, {`"f81"`, `parked`}}},
	{"timestamptz", [][2]string{{`"2026-01-02T03:04:05.123456+01:00"`, `2026-01-02 02:04:05.123456+00`}, {`1795834801`, `parked`}, {`"yesterday evening"`, `parked`}}},
	{"timestamptz[]", [][2]string{{`["2026-01-02T03:04:05Z", null]`, `{"2026-01-02 03:04:05+00",NULL}`}}},
	{"date", [][2]string{{`"2026-01-02"`, `2026-01-02`}, {`1795834801`, `parked`}}},
	{"varchar(3)", [][2]string{{`"abc"`, `abc`}, {`"abcd"`, `parked`}}},
	{"numeric(4,2)", [][2]string{{`99.99`, `99.99`}, {`100`, `parked`}}},
	{"mood", [][2]string{{`"sad"`, `sad`}, {`"angry"`, `parked`}}},
}

// TestAJSONValueKeepsItsTypeInEveryColumn compares each pair of JSON value and column type,
// for sink and session, in each way in which pgx sends a statement, as a column and as
// an argument.
func TestAJSONValueKeepsItsTypeInEveryColumn(t *testing.T) {
	t.Parallel()
	address := withParam(servers.Database(t), "timezone=UTC")
	pool := open(t, address)
	exec(t, pool, `CREATE DOMAIN inner_document AS jsonb`)
	exec(t, pool, `CREATE DOMAIN document AS inner_document`)
	exec(t, pool, `CREATE DOMAIN words AS text[]`)
	exec(t, pool, `CREATE TYPE mood AS ENUM ('sad')`)
	for i, to := range stored {
		exec(t, pool, fmt.Sprintf("CREATE TABLE t%d (k text, v %s)", i, to.column))
	}
	modes := []string{"", "cache_statement", "describe_exec", "exec", "simple_protocol"}
	if testing.Short() { // the default and another one
		modes = []string{"", modes[1+rand.IntN(len(modes)-1)]}
	}
	for _, mode := range modes {
		to, pool := address, pool
		if mode != "" {
			to = withParam(address, "default_query_exec_mode="+mode)
			var err error
			if pool, err = pgxpool.New(t.Context(), to); err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
		}
		for i, column := range stored {
			t.Run(mode+" "+column.column, func(t *testing.T) { // ends with its connections
				table := fmt.Sprint("t", i)
				for _, opts := range []*postgres.Options{
					{Table: table, Columns: []postgres.Column{{"k", "key"}, {"v", ".v"}}},
					{Statement: "INSERT INTO " + table + " (v, k) VALUES ($2, $1)", Args: []string{"key", ".v"}},
				} {
					for _, w := range ways(t, to, pool, opts) {
						exec(t, pool, "TRUNCATE "+table)
						var list []*pipeline.Item
						for _, v := range column.values {
							list = append(list, item(fmt.Sprint(table, " ", len(list), mode, w.name, opts.Table), `{"v":`+v[0]+`}`))
						}
						w.process(t.Context(), list)
						for n, it := range list {
							got := "parked"
							if class(it.Err) != "permanent" {
								got = one[string](t, pool, fmt.Sprintf("SELECT coalesce(max(coalesce(v::text, 'NULL')), 'nothing') FROM %s WHERE k = '%s'", table, it.Call.Key.ID))
							} else if named := strings.Contains(it.Err.Error(), "from .v"); !named && !unnamed(it.Err, mode, opts) {
								t.Errorf("%s: the error of %s does not name the column: %v", w.name, column.values[n][0], it.Err)
							}
							if want := column.values[n][1]; got != want {
								t.Errorf("%s: %s became %s (%v), want %s", w.name, column.values[n][0], got, it.Err, want)
							}
						}
					}
				}
			})
		}
	}
}

// unnamed reports whether nothing tells which value of a message the server refused.
func unnamed(err error, mode string, opts *postgres.Options) bool {
	var of *pgconn.PgError
	if !errors.As(err, &of) {
		return false
	}
	executed := of.Where == "" || of.Code == "22P05" // refused by the executor, not as a parameter
	return mode == "simple_protocol" || executed && opts.Statement != ""
}

// TestAColumnThatGetsAnotherTypeGetsItsValues: the server refuses a statement with the
// former type, and the sink asks for the types again.
func TestAColumnThatGetsAnotherTypeGetsItsValues(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, "CREATE TABLE c (k text, v text)")
	sink, err := postgres.Open(t.Context(), address, &postgres.Options{Table: "c", Columns: []postgres.Column{{"k", "key"}, {"v", ".v"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close(context.Background()) })
	write := func(id string) {
		list := []*pipeline.Item{item(id, `{"v":"123"}`)}
		for range 5 {
			if sink.Deliver(t.Context(), list); list[0].Err == nil {
				return
			}
			wantClasses(t, list, "unavailable")
		}
		t.Fatal(list[0].Err)
	}
	write("before")
	exec(t, pool, "ALTER TABLE c ALTER COLUMN v TYPE jsonb USING to_jsonb(v)")
	write("after")
	if got := one[string](t, pool, "SELECT string_agg(jsonb_typeof(v), ' ') FROM c"); got != "string string" {
		t.Errorf("the values are of the types %s", got)
	}
}

var updateDocs = flag.Bool("update-docs", false, "write TYPES.md instead of comparing it")

// TestThePageDescribesTheColumnTypes compares the table of the page with the cases above.
func TestThePageDescribesTheColumnTypes(t *testing.T) {
	const path, begin, end = "TYPES.md", "<!-- values of columns: go test ./broker/postgres -run ThePageDescribes -update-docs -->\n", "<!-- end -->\n"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, ends := strings.Cut(rest, end)
	if !ok || !ends {
		t.Fatalf("%s has no table of values", path)
	}
	alias := map[string]string{"document": "a domain of `jsonb`", "words": "a domain of `text[]`", "mood": "an enum"}
	table := "| column | JSON value → stored value |\n|---|---|\n"
	for _, to := range stored {
		name := alias[to.column]
		if name == "" {
			name = "`" + to.column + "`"
		}
		var pairs []string
		for _, v := range to.values {
			result := "`" + v[1] + "`"
			if v[1] == "parked" || v[1] == "" {
				result = map[string]string{"parked": "parked", "": "the empty text"}[v[1]]
			}
			pairs = append(pairs, "`"+v[0]+"` → "+result)
		}
		table += "| " + name + " | " + strings.Join(pairs, "; ") + " |\n"
	}
	want := before + begin + table + end + after
	if want == string(text) {
		return
	}
	if !*updateDocs {
		t.Fatalf("%s is not current: go test ./broker/postgres -run ThePageDescribes -update-docs", path)
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func withParam(address, param string) string {
	if strings.Contains(address, "?") {
		return address + "&" + param
	}
	return address + "?" + param
}
