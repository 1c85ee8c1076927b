package postgres_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/pipeline"
)

// TestManyRowsAreWrittenInOrderByFewStatements writes a batch in which some messages fail.
// A trigger counts the statements that wrote rows.
func TestManyRowsAreWrittenInOrderByFewStatements(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	const messages = 64 + 16 + 4 + 1
	exec(t, pool, `CREATE TABLE r (n bigint GENERATED ALWAYS AS IDENTITY, id int8 CHECK (id <> 33), name text NOT NULL);
		CREATE SEQUENCE statements;
		CREATE FUNCTION counts() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM nextval('statements'); RETURN NULL; END $$;
		CREATE TRIGGER counts AFTER INSERT ON r FOR EACH STATEMENT EXECUTE FUNCTION counts()`)
	for _, w := range ways(t, address, pool, &postgres.Options{Table: "r", Columns: []postgres.Column{{"name", ".name"}, {"id", ".id"}}}) {
		for _, c := range []struct {
			name       string
			bad        map[int]string // the classes of some messages
			statements int            // -1 is not counted
		}{
			{"all", nil, 4},
			{"a constraint", map[int]string{33: "permanent"}, -1},
			{"values and a constraint", map[int]string{5: "permanent", 33: "permanent", 84: "permanent"}, -1},
		} {
			exec(t, pool, "TRUNCATE r RESTART IDENTITY")
			before := one[int](t, pool, "SELECT nextval('statements')")
			var list []*pipeline.Item
			want, written := make([]string, messages), []string(nil)
			for i := range messages {
				id := i + 100
				body := fmt.Sprintf(`{"id":%d,"name":"%d"}`, id, id)
				want[i] = "delivered"
				switch {
				case c.bad[i] == "":
					written = append(written, fmt.Sprint(id))
				case i == 33:
					want[i], body = c.bad[i], `{"id":33,"name":"refused"}`
				default:
					want[i], body = c.bad[i], `{"id":"seven","name":"no number"}`
				}
				list = append(list, item(fmt.Sprint(w.name, c.name, i), body))
			}
			w.process(t.Context(), list)
			wantClasses(t, list, want...)
			if got := one[string](t, pool, "SELECT string_agg(name, ' ' ORDER BY n) FROM r"); got != strings.Join(written, " ") {
				t.Errorf("%s, %s: wrote %s, want %s", w.name, c.name, got, strings.Join(written, " "))
			}
			if got := one[int](t, pool, "SELECT nextval('statements')") - before - 1; c.statements >= 0 && got != c.statements {
				t.Errorf("%s, %s: %d statements, want %d", w.name, c.name, got, c.statements)
			}
		}
	}
}

// TestAnUpsertOfManyRowsKeepsTheLastOfEach has messages for the same row in one batch, with
// the same text and with another text of the same value. One statement cannot replace a row
// twice.
func TestAnUpsertOfManyRowsKeepsTheLastOfEach(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, "CREATE TABLE latest (tenant text, id int8, name text, PRIMARY KEY (tenant, id))")
	opts := &postgres.Options{Table: "latest", Key: []string{"tenant", "id"}, Columns: []postgres.Column{{"name", ".name"}, {"tenant", ".t"}, {"id", ".id"}}}
	for _, w := range ways(t, address, pool, opts) {
		for _, c := range []struct {
			name string
			id   func(i int) string
		}{
			{"the same text", func(i int) string { return fmt.Sprint(i % 30) }},
			{"another text", func(i int) string { return fmt.Sprintf(`"%0*d"`, 1+i/30, i%30) }},
			{"one row", func(int) string { return "1" }},
		} {
			exec(t, pool, "TRUNCATE latest")
			var list []*pipeline.Item
			last := map[string]int{}
			for i := range 90 {
				id, tenant := c.id(i), i%2
				list = append(list, item(fmt.Sprint(w.name, c.name, i), fmt.Sprintf(`{"t":"%d","id":%s,"name":"%d"}`, tenant, id, i)))
				last[fmt.Sprint(tenant, strings.TrimLeft(strings.Trim(id, `"`), "0"))] = i
			}
			w.process(t.Context(), list)
			for i, it := range list {
				if it.Err != nil {
					t.Errorf("%s, %s: message %d: %v", w.name, c.name, i, it.Err)
				}
			}
			sum := 0
			for _, i := range last {
				sum += i
			}
			if rows, got := one[int](t, pool, "SELECT count(*) FROM latest"), one[int](t, pool, "SELECT sum(name::int) FROM latest"); rows != len(last) || got != sum {
				t.Errorf("%s, %s: %d rows with the sum %d, want %d and %d", w.name, c.name, rows, got, len(last), sum)
			}
		}
	}
}
