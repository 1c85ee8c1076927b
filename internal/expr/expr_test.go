package expr_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/expr"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

const order = `{"id": "o-1", "status": "paid", "cents": 1250, "rate": 1.10, "big": 9007199254740993, "huge": 18446744073709551615,
  "customer": {"id": 7, "name": "A\u00e9\n\"B\"", "tags": ["x", "y"]}, "items": [{"sku": "a", "qty": 1}, {"sku": "b", "qty": 3}], "none": null, "on": true}`

func delivery(body string) pipeline.Delivery {
	return pipeline.Delivery{
		Message: semel.Message{
			Body: []byte(body), Time: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC),
			Headers: []semel.Header{{Name: "type", Value: []byte("old")}, {Name: "type", Value: []byte("order")}},
			Origin:  semel.Origin{Source: "orders", Partition: 2, Offset: 41},
		},
		Key: semel.Key{Scope: "s", ID: "o-1"},
	}
}

func mapped(t *testing.T, text, body string) (string, error) {
	t.Helper()
	f, err := expr.Compile("", text, nil)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	out, pass, err := f.Call(context.Background(), delivery(body))
	if pass != (err == nil) {
		t.Errorf("%s: pass is %t with the error %v", text, pass, err)
	}
	return string(out), err
}

func TestMapResults(t *testing.T) {
	for text, want := range map[string]string{
		`value`:                   `{"id":"o-1","status":"paid","cents":1250,"rate":1.10,"big":9007199254740993,"huge":18446744073709551615,"customer":{"id":7,"name":"A\u00e9\n\"B\"","tags":["x","y"]},"items":[{"sku":"a","qty":1},{"sku":"b","qty":3}],"none":null,"on":true}`,
		`{"b": value.id, "a": 1}`: `{"b":"o-1","a":1}`,
		`{"z": {"y": 1, "x": [value.cents, 2u, 0.5]}, "a": null}`: `{"z":{"y":1,"x":[1250,2,0.5]},"a":null}`,
		`{"a": 1, "b": 2, "a": 3}`:                                `{"a":3,"b":2}`,
		`{"b": 1, "a": 2}.map(k, k)`:                              `["b","a"]`,
		`value.customer`:                                          `{"id": 7, "name": "A\u00e9\n\"B\"", "tags": ["x", "y"]}`,
		`value.customer.map(k, k)`:                                `["id","name","tags"]`,
		`value.customer.name`:                                     `"Aé\n\"B\""`,
		`value.customer.tags + ["z"]`:                             `["x","y","z"]`,
		`value.big`:                                               `9007199254740993`,
		`value.big + 1`:                                           `9007199254740994`,
		`value.huge`:                                              `18446744073709551615`,
		`value.rate`:                                              `1.1`,
		`{"n": value.none, "on": !value.on}`:                      `{"n":null,"on":false}`,
		`[key, topic, headers.type, headers["type"]]`:             `["o-1","orders","order","order"]`,
		`headers`:             `{"type":"order"}`,
		`[partition, offset]`: `[2,41]`,
		`{"t": time, "y": time.getFullYear(), "d": time - timestamp("2026-03-04T05:06:05.5Z")}`: `{"t":"2026-03-04T05:06:07Z","y":2026,"d":"1.5s"}`,
		`value.items.filter(i, i.qty > 1).map(i, i.sku)`:                                        `["b"]`,
		`value.items[1]["sku"]`:                                                             `"b"`,
		`size(value.items) + size(value.customer) + size(value)`:                            `15`,
		`{?"a": value.?none, ?"b": value.?missing, "c": value.?missing.?deep.orValue("d")}`: `{"a":null,"c":"d"}`,
		`{"has": has(value.none), "not": has(value.missing)}`:                               `{"has":true,"not":false}`,
		`"id" in value.customer`:                                                            `true`,
		`"x" in value.customer.tags`:                                                        `true`,
		`value.customer == {"tags": ["x", "y"], "id": 7, "name": "A\u00e9\n\"B\""}`:         `true`,
		`{"id": 7, "tags": ["x", "y"], "name": "other"} == value.customer`:                  `false`,
		`value.items == [{"sku": "a", "qty": 1.0}, {"sku": "b", "qty": 3u}]`:                `true`,
		`value.cents > 1249.5 && value.rate < 2`:                                            `true`,
		`value.id.upperAscii() + string(value.cents)`:                                       `"O-11250"`,
		`{1: "a", true: "b", 2u: "c"}`:                                                      `{"1":"a","true":"b","2":"c"}`,
		`b"ab"`:                                                                             `"YWI="`,
		`"\u0001\u001f<é>"`:                                                                 `"\u0001\u001f<é>"`,
		`[1e21, 1e-7, -0.0, 100.0]`:                                                         `[1e+21,1e-07,-0,100]`,
	} {
		if got, err := mapped(t, text, order); err != nil || got != want {
			t.Errorf("%s\n got %s (%v)\nwant %s", text, got, err, want)
		} else if !json.Valid([]byte(got)) {
			t.Errorf("%s: %s is not JSON", text, got)
		}
	}
}

// A decimal number that a double cannot hold is copied with all its digits. Calculations and
// comparisons take the double.
func TestMapCopiesDecimalNumbersByTheirText(t *testing.T) {
	const long, other, tiny = "12345678901234567890.12345678901234567890", "0.1234567890123456789", "1e-400"
	const body = `{"n": ` + long + `, "o": {"n": ` + other + `, "list": [` + tiny + `, 1.50, ` + long + `]}, "short": 0.10, "on": true, "items": [{"n": ` + long + `}, {"n": ` + other + `}]}`
	for text, want := range map[string]string{
		`value.n`:            long,
		`value["o"].list[2]`: long,
		`{"a": value.n, "b": [value.o.n, value.short]}`:                             `{"a":` + long + `,"b":[` + other + `,0.1]}`,
		`{"a": {"b": {"c": value.o["n"]}}, ?"d": value.?o.?n, ?"e": value.?x}`:      `{"a":{"b":{"c":` + other + `}},"d":` + other + `}`,
		`value.on ? value.n : value.o.n`:                                            long,
		`{"a": value.on ? (value.on ? value.o.n : 1.0) : value.n}`:                  `{"a":` + other + `}`,
		`value.?o.?n.orValue(0.0)`:                                                  other,
		`[value.?x.or(value.?n).orValue(0.0)]`:                                      `[` + long + `]`,
		`value.items.map(i, i.n)`:                                                   `[` + long + `,` + other + `]`,
		`value.items.filter(i, i.n < 1.0).map(i, {"n": i.n})`:                       `[{"n":` + other + `}]`,
		`value.o.list.map(n, n)`:                                                    `[` + tiny + `,1.5,` + long + `]`,
		`value.o.list`:                                                              `[` + tiny + `, 1.50, ` + long + `]`,
		`value.o.list + [value.n]`:                                                  `[` + tiny + `,1.5,` + long + `,` + long + `]`,
		`value.n + 0.0`:                                                             `12345678901234567000`,
		`value.n * 2.0 > 1.0 && 1 < value.n && value.n > 1u && value.o.n < value.n`: `true`,
		`value.n == value.o.list[2] && value.n in value.o.list && value.o.list == [value.o.list[0], 1.5, value.n]`: `true`,
		`value.items == [{"n": value.n}, {"n": value.o.n}]`:                                                        `true`,
		`value.items[0] == value.items[1]`:                                                                         `false`,
		`value.n == 12345678901234567890.0 && type(value.n) == double`:                                             `true`,
		`string(value.n)`:                                   `"1.2345678901234567e+19"`,
		`{"min": value.o.list.filter(n, n > 1.0)}`:          `{"min":[1.5,` + long + `]}`,
		`value.n > 0.0 ? {"n": value.n} : {"n": value.o.n}`: `{"n":` + long + `}`,
		`[value.n, value.n].map(n, n)`:                      `[` + long + `,` + long + `]`,
	} {
		if got, err := mapped(t, text, body); err != nil || got != want {
			t.Errorf("%s\n got %s (%v)\nwant %s", text, got, err, want)
		}
	}
	if got, err := mapped(t, `{"v": value.v}`, `{"v":0.`+strings.Repeat("7", 1<<20)+`}`); err != nil || len(got) != len(`{"v":0.}`)+1<<20 {
		t.Errorf("a long number becomes %d bytes, %v", len(got), err)
	}
}

// Headers of HTTP have no case, and those of other protocols do.
func TestHTTPHeaderNamesAreCaseInsensitive(t *testing.T) {
	for _, text := range []string{
		`"X-GitHub-Event" in headers`, `headers["x-github-event"] == "push"`, `headers["X-" + "GITHUB-EVENT"] == "push"`,
		`headers[?"X-Github-Event"].orValue("") == "push"`, `headers.exists(name, name == "x-github-event")`,
	} {
		f, err := expr.Compile(text, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, caseless := range []bool{true, false} {
			d := delivery("{}")
			d.Headers, d.CaselessHeaders = []semel.Header{{Name: "x-github-event", Value: []byte("push")}}, caseless
			want := caseless || strings.Contains(text, `"x-github-event"`)
			if _, pass, err := f.Call(t.Context(), d); pass != want || err != nil && want {
				t.Errorf("%s, caseless %v: %v, %v, want %v", text, caseless, pass, err, want)
			}
		}
	}
}

// An id that is no text is as people write it, as in columns and templates.
func TestExpressionsSeeKeysAsText(t *testing.T) {
	f, err := expr.Compile("", "key", nil)
	if err != nil {
		t.Fatal(err)
	}
	content, err := key.Content([]byte(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{
		"o-1": `"o-1"`, string(key.AppendNumber(nil, "7")): `"7"`, "\x00t": `"true"`,
		key.Action("charge", "t-1"): `"[\"charge\",\"t-1\"]"`,
		content:                     `"` + hex.EncodeToString([]byte(content[2:])) + `"`,
	} {
		d := delivery("{}")
		d.Key.ID = id
		if got, _, err := f.Call(t.Context(), d); err != nil || string(got) != want {
			t.Errorf("%q is %s, %v; want %s", id, got, err, want)
		}
	}
}

func TestEvaluationErrorsNameTheCause(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000)
	for _, c := range []struct{ text, body, want string }{
		{`value.missing`, order, "map value.missing: no such key: missing"},
		{`{"a": value.customer.missing}`, order, "no such key: missing"},
		{`value.id + 1`, order, "no such overload"},
		{`value.id.name`, order, "no such"},
		{`value.none.name`, order, "no such"},
		{`value.items[2]`, order, "index out of bounds: 2"},
		{`value.cents / 0`, order, "division by zero"},
		{`value.big * value.big`, order, "overflow"},
		{`value.?id`, order, "the result has an optional value: end it with .orValue"},
		{`type(value)`, order, "which JSON lacks"},
		{`{1.5: 2}`, order, "JSON has texts there"},
		{`1.0 / 0.0`, order, "which JSON lacks"},
		{`value.a`, "", "no such"},
		{`value`, "plain text", "the body is not JSON: key: invalid JSON"},
		{`value.a`, `{"a": 1} {"a": 2}`, "the body is not JSON"},
		{`value.a`, `{"a": 1`, "the body is not JSON"},
		{`value.a`, `7`, "no such"},
		{`value.a`, `[7]`, "unsupported index type"},
		{`value.a`, `{"a": 18446744073709551616}`, "the integer 18446744073709551616 of the body has more than 64 bits"},
		{`value.a`, `{"a": -9223372036854775809}`, "more than 64 bits"},
		{`value.a`, `{"a": 1e400}`, "too large for a double"},
		{`value.a`, "{\"a\": \"\xff\"}", "not valid Unicode"},
		{`value.a`, `{"a": "\ud800"}`, "not valid Unicode"},
		{`value.a`, `{"a": "\ud800\u0041"}`, "not valid Unicode"},
		{`has(value.a)`, `{"a": "\udc00"}`, "not valid Unicode"},
		{`value.a`, "{\"a\": " + deep + "}", "nests deeper"},
		{`headers.none`, order, "no such key: none"},
	} {
		_, err := mapped(t, c.text, c.body)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.text, err, c.want)
		} else if semel.Classify(err) != semel.ClassPermanent || !strings.HasPrefix(err.Error(), "map "+c.text+": ") {
			t.Errorf("%s: the error %v is not permanent, or lacks the expression", c.text, err)
		}
	}
}

func TestManyStepsFailTheMessage(t *testing.T) {
	list := func(n int) string { return `{"a": [` + strings.Repeat("1,", n) + `2]}` }
	for _, text := range []string{`value.a.exists(x, value.a.exists(y, y == 2))`, `value.a.filter(x, value.a.all(y, y > 0))[0]`} {
		if _, err := mapped(t, text, list(20)); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	long := `{"a": "` + strings.Repeat("a", 400_000) + `"}`
	costly := map[string]string{`value.a.contains(value.a + "b")`: long}
	if !testing.Short() { // loops over 50 million elements take half a minute with the race detector
		costly[`value.a.all(x, value.a.all(y, y < 4))`] = strings.Replace(list(20_000), "2]", "1]", 1)
	}
	for text, body := range costly {
		_, err := mapped(t, text, body)
		if err == nil || !strings.Contains(err.Error(), "it takes more than 50000000 steps for this message") || semel.Classify(err) != semel.ClassPermanent {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestALongExpressionStops evaluates one that would take more steps than a message may, in a
// context that has ended.
func TestALongExpressionStops(t *testing.T) {
	f, err := expr.Compile(`value.a.all(x, value.a.all(y, y < 4))`, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("it is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	_, _, err = f.Call(ctx, delivery(`{"a": [`+strings.Repeat("1,", 8000)+`1]}`))
	if !errors.Is(err, why) || !strings.Contains(err.Error(), "filter value.a.all(x") || semel.Classify(err) == semel.ClassPermanent {
		t.Errorf("%v, want a passing error that wraps %v", err, why)
	}
}

func TestHostileBodiesAreBounded(t *testing.T) {
	deep := strings.Repeat(`[`, 5_000) + strings.Repeat("]", 5_000)
	for _, c := range []struct{ text, body, want string }{
		{`value.a`, `{"a": 1, "b": 2, "a": 3}`, `3`},
		{`size(value)`, `{"a": 1, "b": 2, "a": 3}`, `2`},
		{`value.map(k, k)`, `{"a": 1, "b": 2, "a": 3}`, `["b","a"]`},
		{`value.a`, `{"\u0061": 1, "\ud800": 2}`, `1`},
		{`value.a`, " \t\r\n{\"a\" : \n[ 1 ,\r 2 ] } ", `[1,2]`},
		{`value["a\"]}"]`, `{"x": "\"}]", "a\"]}": "\\"}`, `"\\"`},
		{`value.a`, `{"a": "\ud83d\ude00\u00E9\/\b\f"}`, `"😀é/\u0008\u000c"`},
		{`value.a`, `{"a": ` + deep + `}`, deep},
		{`{"d": value.a == value.a}`, `{"a": ` + deep + `}`, `{"d":true}`},
		{`value`, `0`, `0`},
		{`value`, `-0`, `-0`},
		{`value == -9223372036854775808`, `-9223372036854775808`, `true`},
		{`value`, `""`, `""`},
		{`[]`, `[]`, `[]`},
		{`size(value)`, `{}`, `0`},
		{`value == null`, ``, `true`},
		{`key`, "no JSON", `"o-1"`},
		{`value.k29 + size(value)`, many(30), `59`},
	} {
		if got, err := mapped(t, c.text, c.body); err != nil || got != c.want {
			t.Errorf("%s: got %.100s (%v), want %.100s", c.text, got, err, c.want)
		}
	}
}

// many returns an object with n members.
func many(n int) string {
	var out bytes.Buffer
	members := map[string]int{}
	for i := range n {
		members["k"+string(rune('0'+i/10))+string(rune('0'+i%10))] = i
	}
	_ = json.NewEncoder(&out).Encode(members)
	return out.String()
}

func TestFilterResults(t *testing.T) {
	for text, want := range map[string]bool{
		`value.status == "paid"`: true,
		`value.status != "paid"`: false,
		`value.on`:               true,
		`value.cents >= 1000 && value.items.size() < 3`: true,
		`has(value.refund) && value.refund.cents > 0`:   false,
		`value.?refund.?cents.orValue(0) > 0`:           false,
		`headers.type == "order" && topic == "orders"`:  true,
		`value.id.matches("^o-[0-9]+$")`:                true,
		`time < timestamp("2026-01-01T00:00:00Z")`:      false,
		`value.missing == 1 || true`:                    true, // the outcome does not depend on the field
	} {
		f, err := expr.Compile(text, `{"id": value.id}`, nil)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		body, pass, err := f.Call(context.Background(), delivery(order))
		if err != nil || pass != want || pass && string(body) != `{"id":"o-1"}` {
			t.Errorf("%s: got %s, %t, %v", text, body, pass, err)
		}
	}
	f, err := expr.Compile(`value.cents`, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Call(context.Background(), delivery(order)); err == nil || !strings.Contains(err.Error(), "filter value.cents: it is of the type int, not a condition") {
		t.Errorf("got %v", err)
	}
	f, err = expr.Compile(`value.status == "paid"`, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, pass, err := f.Call(context.Background(), delivery(order)); err != nil || !pass || string(body) != order {
		t.Errorf("without a map the body is %s, %t, %v", body, pass, err)
	}
}

func TestInvalidExpressionsAreRefused(t *testing.T) {
	for _, c := range []struct{ filter, mapping, want string }{
		{`value.status = "paid"`, "", "column 14: Syntax error"},
		{`vlaue.status == "paid"`, "", "column 1: undeclared reference to 'vlaue' (did you mean 'value'?): the names are value, key"},
		{"value.a == 1 &&\n  valu.b", "", "line 2, column 3: undeclared reference to 'valu'"},
		{`"paid"`, "", "it is of the type string: a filter is a condition"},
		{`{"a": 1}`, "", "a filter is a condition"},
		{`value.a == now()`, "", "undeclared reference to 'now'"},
		{`1 == "a"`, "", "no matching overload"},
		{"", `{"a": value.b`, "Syntax error"},
		{"", `value.items.map(a, value.items.map(b, a + b))`, "it may take too long"},
		{strings.Repeat("(", 500) + "true" + strings.Repeat(")", 500), "", "recursion limit"},
	} {
		if _, err := expr.Compile(c.filter, c.mapping, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s%.60s: got %v, want %s", c.filter, c.mapping, err, c.want)
		}
	}
	if _, err := expr.Compile("a", "b", nil); err == nil || !strings.Contains(err.Error(), "'a'") || !strings.Contains(err.Error(), "'b'") {
		t.Errorf("not both texts are refused: %v", err)
	}
}

// TestMapOutputIsDeterministic runs one map again and again: the order of its members must not change.
func TestMapOutputIsDeterministic(t *testing.T) {
	const text = `{"e": 1, "d": value.customer, "c": {"b": 2, "a": 3}, "l": {"z": 1, "y": 2, "x": 3}.map(k, k)}`
	first, err := mapped(t, text, order)
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		if again, err := mapped(t, text, order); err != nil || again != first {
			t.Fatalf("got %s (%v), and before %s", again, err, first)
		}
	}
}

// TestThePageHasValidExpressions compiles the expressions of the table in pipelines.md.
func TestThePageHasValidExpressions(t *testing.T) {
	page, err := os.ReadFile("../../docs/pipelines.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| task | expression |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	expressions := 0
	for i, part := range strings.Split(table, "`") {
		if i%2 == 0 {
			continue
		}
		expressions++
		if _, err := expr.Compile("", part, nil); err != nil {
			t.Errorf("%s: %v", part, err)
		}
	}
	if expressions < 10 {
		t.Errorf("the page has %d expressions", expressions)
	}
}

func FuzzView(f *testing.F) {
	for _, body := range []string{order, `{"a":1,"a":{"b":[1,2.5,"\u00e9\ud83d\ude00",null,true]}}`, `[[],{},"",0]`, `"\\\""`, " [1 , 2 ]", `{"":{"":1}}`, many(40), "\xff", `{"a":"\ud800"}`, `1e999`, ""} {
		f.Add([]byte(body))
	}
	rebuild, err := expr.Compile("", `value == value ? [value] : dyn("unequal")`, nil)
	if err != nil {
		f.Fatal(err)
	}
	walk := map[string]pipeline.FilterMap{}
	for _, text := range []string{`value.map(k, [k, value[k]])`, `value.map(e, e)`, `value`} {
		if walk[text], err = expr.Compile("", text, nil); err != nil {
			f.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		d := pipeline.Delivery{Message: semel.Message{Body: body}}
		out, _, err := rebuild.Call(context.Background(), d)
		if len(body) == 0 && err == nil && string(out) == "[null]" {
			return // there is no body
		}
		if json.Valid(body) != (err == nil) && (err == nil || !refused(err)) {
			t.Fatalf("%q: %v", body, err)
		}
		if err != nil {
			return
		}
		if !equalJSON(body, bytes.TrimSuffix(bytes.TrimPrefix(out, []byte("[")), []byte("]"))) {
			t.Errorf("%q became %q", body, out)
		}
		// The walked values are parsed and encoded again.
		var want any
		read := json.NewDecoder(bytes.NewReader(body))
		read.UseNumber()
		if read.Decode(&want) != nil {
			return
		}
		text := `value`
		switch want.(type) {
		case map[string]any:
			text = `value.map(k, [k, value[k]])`
		case []any:
			text = `value.map(e, e)`
		}
		out, _, err = walk[text].Call(context.Background(), d)
		if err != nil {
			if !refused(err) {
				t.Errorf("%q: %v", body, err)
			}
			return
		}
		var got any
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("%q became %q: %v", body, out, err)
		}
		if o, ok := want.(map[string]any); ok {
			pairs, _ := got.([]any)
			if len(pairs) != len(o) {
				t.Fatalf("%q became %q, with another number of members", body, out)
			}
			members := map[string]any{}
			for _, p := range pairs {
				members[p.([]any)[0].(string)] = p.([]any)[1]
			}
			got = members
		}
		a, _ := json.Marshal(got)
		if !equalJSON(body, a) {
			t.Errorf("%q became %q", body, out)
		}
	})
}

// refused reports whether an error is about a value that CEL cannot hold.
func refused(err error) bool {
	for _, text := range []string{"not valid Unicode", "more than 64 bits", "too large for a double"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// equalJSON compares two JSON texts. Numbers are doubles.
func equalJSON(a, b []byte) bool {
	var x, y any
	if errors.Join(json.Unmarshal(a, &x), json.Unmarshal(b, &y)) != nil {
		return false
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return bytes.Equal(p, q)
}

// record is a record of 200 bytes.
const record = `{"event_id":"7d1c1a0e-4f0b-4b52-9d3e-0a8d6f1f2b3c","status":"paid","customer_id":4711,"cents":129900,"currency":"EUR","country":"DE","channel":"web","created":"2026-03-04T05:06:07Z","note":"a"}`

func BenchmarkFilter(b *testing.B) {
	bench(b, `value.status == "paid" && value.cents > 1000 && value.country != "US"`, "")
}

func BenchmarkMap(b *testing.B) {
	bench(b, "", `{"c": value.customer_id, "country": value.country, "cents": value.cents}`)
}

func BenchmarkFilterAndMap(b *testing.B) {
	bench(b, `value.status == "paid" && value.cents > 1000 && value.country != "US"`, `{"c": value.customer_id, "country": value.country, "cents": value.cents}`)
}

func bench(b *testing.B, filter, mapping string) {
	f, err := expr.Compile(filter, mapping, nil)
	if err != nil {
		b.Fatal(err)
	}
	d := delivery(record)
	b.SetBytes(int64(len(record)))
	b.ReportAllocs()
	for b.Loop() {
		if _, pass, err := f.Call(context.Background(), d); err != nil || !pass {
			b.Fatal(pass, err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		var v map[string]any
		if err := json.Unmarshal([]byte(record), &v); err != nil || v["cents"] == math.Pi {
			b.Fatal(err)
		}
	}
}
