package expr_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/expr"
	"github.com/semel-dev/semel/pipeline"
)

var errNoRow = errors.New("there is no row")

func TestExpressionsReadTableRows(t *testing.T) {
	t.Parallel()
	asked := 0
	tables := map[string]expr.Rows{
		"customers": func(m *semel.Message) ([]byte, error) {
			asked++
			if len(m.Headers) > 0 {
				return nil, errNoRow
			}
			return []byte(` {"tier": "gold", "n": 9007199254740993, "tags": ["a"]}`), nil
		},
		"none":  func(*semel.Message) ([]byte, error) { return nil, nil },
		"text":  func(*semel.Message) ([]byte, error) { return []byte("gold"), nil },
		"plain": func(*semel.Message) ([]byte, error) { return []byte(`"gold"`), nil },
	}
	for _, c := range []struct {
		filter, mapping, want string
		asked                 int
	}{
		{"", `{"id": value.id, "tier": tables.customers.tier, "n": tables.customers.n}`, `{"id":7,"tier":"gold","n":9007199254740993}`, 1},
		{`tables.customers.tier == "gold"`, `tables.customers`, `{"tier": "gold", "n": 9007199254740993, "tags": ["a"]}`, 1},
		{`tables.customers.tier == "silver"`, `tables.customers`, "filtered", 1},
		{`value.id == 8 && tables.customers.tier == "gold"`, "", "filtered", 0},
		{"", `has(tables.none) || has(tables.customers.other) || !has(tables.customers)`, "false", 1},
		{"", `tables.?none.?tier.orValue("none")`, `"none"`, 0},
		{"", `tables.none.tier`, "no such key: none", 0},
		{"", `tables.plain + "!"`, `"gold!"`, 0},
		{"", `tables.text.tier`, "the row of table text is not JSON", 0},
		{"", `"a" in tables.customers.tags`, "true", 1},
	} {
		asked = 0
		f, err := expr.Compile(c.filter, c.mapping, tables)
		if err != nil {
			t.Errorf("%s %s: %v", c.filter, c.mapping, err)
			continue
		}
		body, pass, err := f.Call(context.Background(), pipeline.Delivery{Message: semel.Message{Body: []byte(`{"id":7}`)}})
		got := string(body)
		switch {
		case err != nil:
			got = err.Error()
		case !pass:
			got = "filtered"
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) || asked != c.asked {
			t.Errorf("%s %s: %s and %d rows, want %s and %d", c.filter, c.mapping, got, asked, c.want, c.asked)
		}
	}
	noRow := pipeline.Delivery{Message: semel.Message{Body: []byte(`{"id":7}`), Headers: []semel.Header{{Name: "no"}}}}
	for _, text := range []string{`tables.customers.tier == "gold"`, `tables.customers.tier == "gold" || value.id == 7`, `value.id == 7 || tables.customers.tier == "gold"`, `!has(tables.customers)`} {
		f, err := expr.Compile(text, "", tables)
		if err != nil {
			t.Fatal(err)
		}
		_, pass, err := f.Call(context.Background(), noRow)
		if lazy := strings.HasPrefix(text, "value"); lazy != (err == nil) || lazy && !pass || !lazy && !errors.Is(err, errNoRow) {
			t.Errorf("%s without a row: %v", text, err)
		}
	}
}

func TestTablesAreNamed(t *testing.T) {
	t.Parallel()
	tables := map[string]expr.Rows{"a": nil, "b": nil}
	for text, want := range map[string]string{
		"value.x == 1 && tables.c.x == 1":    "column 17: there is no table c: the tables are a, b",
		"tables.?c.x.hasValue()":             "there is no table c",
		`tables["a"].x == 1`:                 "column 1: name a table, as in tables.a",
		"size(tables) == 1":                  "name a table",
		"tables.exists(n, n == 'a')":         "name a table",
		"value.x == 1 && \n tables.d.x == 1": "line 2, column 2: there is no table d",
		"vlaue.x == 1":                       "and tables.NAME",
	} {
		if _, err := expr.Compile(text, "", tables); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := expr.Compile("tables.a.x == 1", "", nil); err == nil || !strings.Contains(err.Error(), "The pipeline has no tables: write them in the field tables") {
		t.Error(err)
	}
}
