package key

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func mustRule(t testing.TB, text string) *Rule {
	t.Helper()
	r, err := ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// message is a message in which every rule finds something.
func message(body string) *semel.Message {
	return &semel.Message{
		ID:        "m-1",
		RecordKey: []byte("r-1"),
		Headers:   []semel.Header{{Name: "Id", Value: []byte("old")}, {Name: "Id", Value: []byte("h-1")}, {Name: "empty"}},
		Body:      []byte(body),
		Time:      time.Date(2026, 2, 1, 10, 0, 0, 5, time.FixedZone("", 3600)),
		Origin:    semel.Origin{Source: "orders", Identity: "orders-1", Partition: 3, Offset: 17, Delivery: 2},
	}
}

func hashed(kind byte, text string) string {
	sum := sha256.Sum256([]byte(text))
	return "\x00" + string(kind) + string(sum[:])
}

func TestARuleFindsTheIDOfAMessage(t *testing.T) {
	t.Parallel()
	m := message(`{"id":"x","n":1, "o":{"b":2,"a":[]},"nil":null,"empty":""}`)
	for text, want := range map[string]string{
		".id":                 "x",
		".n":                  "\x00n1",
		"line":                string(m.Body),
		"hash(.)":             hashed('h', `{"empty":"","id":"x","n":1,"nil":null,"o":{"a":[],"b":2}}`),
		"hash(.o)":            hashed('h', `{"a":[],"b":2}`),
		"hash( .o , .n )":     hashed('h', "\x00c\x0e"+`{"a":[],"b":2}`+"\x011"),
		"hash(.empty)":        hashed('h', `""`),
		"hash(. - .o -.nil)":  hashed('h', `{"empty":"","id":"x","n":1}`),
		"hash(. - .o.a)":      hashed('h', `{"empty":"","id":"x","n":1,"nil":null,"o":{"b":2}}`),
		"hash(.n,.o - .o.b)":  hashed('h', "\x00c\x011\x08"+`{"a":[]}`),
		"hash(. - .none)":     hashed('h', `{"empty":"","id":"x","n":1,"nil":null,"o":{"a":[],"b":2}}`),
		"header:Id":           "h-1",
		"record-key":          "r-1",
		"property:message-id": "m-1",
	} {
		k, err := mustRule(t, text).Key("s", m)
		if err != nil || k != (semel.Key{Scope: "s", ID: want}) {
			t.Errorf("%s gives %q, %v; want %q", text, k, err, want)
		}
	}
}

func TestRuleRefusesMissingNullAndEmptyValues(t *testing.T) {
	t.Parallel()
	full := message(`{"nil":null,"empty":"","o":{}}`)
	none := &semel.Message{}
	hollow := &semel.Message{RecordKey: []byte{}, Body: []byte{}}
	tests := []struct {
		text   string
		m      *semel.Message
		reason Reason
	}{
		{".id", full, Absent}, {".nil", full, IsNull}, {".empty", full, IsEmpty}, {".id", none, Absent},
		{"hash(.id)", full, Absent}, {"hash(.o,.nil)", full, IsNull}, {"hash(.)", none, Absent},
		{"header:id", full, Absent}, {"header:empty", full, IsEmpty},
		{"record-key", none, Absent}, {"record-key", hollow, IsEmpty},
		{"property:message-id", none, Absent},
		{"line", none, Absent}, {"line", hollow, IsEmpty},
	}
	for _, tt := range tests {
		k, err := mustRule(t, tt.text).Key("s", tt.m)
		var missing *MissingError
		if !errors.As(err, &missing) || !errors.Is(err, ErrMissing) || missing.Reason != tt.reason || k != (semel.Key{}) {
			t.Errorf("%s gives %q, %v; want %v", tt.text, k, err, tt.reason)
		}
	}
	for text, want := range map[string]error{".o": ErrNotScalar, ".": ErrNotScalar} {
		if _, err := mustRule(t, text).Key("s", full); !errors.Is(err, want) {
			t.Errorf("%s gives %v, want %v", text, err, want)
		}
	}
	for _, text := range []string{".id", "hash(.)", "hash(.id)"} {
		if _, err := mustRule(t, text).Key("s", hollow); !errors.Is(err, ErrSyntax) {
			t.Errorf("%s of an empty body gives %v", text, err)
		}
	}
	if _, err := mustRule(t, "hash(.)").Key("s", message(`{"a":1,"a":2}`)); !is[*DuplicateNameError](err) {
		t.Errorf("the hash of an object with a duplicate name gives %v", err)
	}
}

func TestAnIDThatStoresRefuseIsAnError(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", semel.MaxKeyBytes+1)
	if _, err := mustRule(t, ".").Key("s", message(`"`+long+`"`)); !errors.Is(err, semel.ErrInvalidKey) {
		t.Errorf("an id that is too long gives %v", err)
	}
	k, err := mustRule(t, "line").Key("s", message(long))
	if err != nil || k.ID != hashed('b', long) {
		t.Errorf("a long line gives %q, %v; want the hash of its bytes", k, err)
	}
}

func TestFirstUsesTheFirstRuleThatFindsAnID(t *testing.T) {
	t.Parallel()
	first, err := First(mustRule(t, "header:Nope"), mustRule(t, ".nil"), mustRule(t, ".id"), mustRule(t, "record-key"))
	if err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]string{`{"nil":null,"id":"x"}`: "x", `{"nil":"y","id":"x"}`: "y", `{"id":""}`: "r-1"} {
		if k, err := first.Key("", message(body)); err != nil || k.ID != want {
			t.Errorf("%s gives %q, %v; want %q", body, k, err, want)
		}
	}
	for _, body := range []string{`{`, "not JSON", `{"id":{}}`, `{"nil":[],"id":{}}`} {
		if k, err := first.Key("", message(body)); err != nil || k.ID != "r-1" {
			t.Errorf("%s gives %q, %v; want the record key", body, k.ID, err)
		}
	}
	for body, want := range map[string]error{`{`: ErrSyntax, `{"id":{}}`: ErrNotScalar} {
		if k, err := first.Key("", &semel.Message{Body: []byte(body)}); !errors.Is(err, want) {
			t.Errorf("%s alone gives %q, %v", body, k.ID, err)
		}
	}
	content, err := First(mustRule(t, "hash(.)"), mustTemplate(t, "{.n}/{header:Id}"), mustRule(t, "line"))
	if err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]string{`{"n":7,"n":7}`: "7/h-1", `{"n":[],"n":[]}`: `{"n":[],"n":[]}`} {
		if k, err := content.Key("", message(body)); err != nil || k.ID != want {
			t.Errorf("%s gives %q, %v; want %q", body, k.ID, err, want)
		}
	}
	_, err = first.Key("", &semel.Message{Body: []byte(`{}`)})
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "header:Nope, .nil, .id, record-key") {
		t.Errorf("nothing gives %v", err)
	}
	header, err := First(mustRule(t, "header:Id"), mustRule(t, ".id"))
	if err != nil {
		t.Fatal(err)
	}
	if k, err := header.Key("", message("not JSON")); err != nil || k.ID != "h-1" {
		t.Errorf("a header before a broken body gives %q, %v", k, err)
	}
}

func TestTheHeaderOfAPipelineGivesTheIDThatThePipelineHad(t *testing.T) {
	t.Parallel()
	rule := mustRule(t, "header:semel-key")
	for _, id := range []string{"a", string(AppendNumber(nil, "7")), "\xff", string(AppendComposite(nil, "a", "b"))} {
		header := semel.Header{Name: "semel-key-base64", Value: base64.StdEncoding.AppendEncode(nil, []byte(id))}
		if k, err := rule.Key("s", &semel.Message{Headers: []semel.Header{header}}); err != nil || k.ID != id {
			t.Errorf("%q comes back as %q, %v", id, k.ID, err)
		}
	}
	for _, broken := range []string{"", "?", "YQ"} {
		m := &semel.Message{Headers: []semel.Header{{Name: "semel-key-base64", Value: []byte(broken)}}}
		if k, err := rule.Key("s", m); !errors.Is(err, ErrMissing) {
			t.Errorf("%q gives %q, %v", broken, k.ID, err)
		}
		if k, err := mustRule(t, "header:other").Key("s", m); !errors.Is(err, ErrMissing) {
			t.Errorf("another header gives %q, %v", k.ID, err)
		}
	}
}

func TestAllMakesACompositeThatCannotCollide(t *testing.T) {
	t.Parallel()
	inner, err := All(mustRule(t, ".a"), mustRule(t, ".b"))
	if err != nil {
		t.Fatal(err)
	}
	outer, err := All(inner, mustRule(t, ".c"))
	if err != nil {
		t.Fatal(err)
	}
	k, err := outer.Key("", message(`{"a":"x","b":"`+strings.Repeat("y", 200)+`","c":1}`))
	pair := "\x00c\x01x\xc8\x01" + strings.Repeat("y", 200)
	if want := "\x00c\xce\x01" + pair + "\x03\x00n1"; err != nil || k.ID != want {
		t.Errorf("%q, %v; want %q", k.ID, err, want)
	}
	if _, err := outer.Key("", message(`{"a":"x","b":"y"}`)); !errors.Is(err, ErrMissing) {
		t.Errorf("a missing part gives %v", err)
	}
	if rules := outer.Rules(); len(rules) != 2 || rules[0] != inner || outer.Form() != FormAll {
		t.Errorf("the composite is of form %d and made of %v", outer.Form(), rules)
	}
	if one, err := All(inner); err != nil || one != inner {
		t.Errorf("all of one rule is %v, %v", one, err)
	}
	for _, group := range []func(...*Rule) (*Rule, error){First, All} {
		if _, err := group(); !errors.Is(err, errNoRules) {
			t.Errorf("no rules give %v", err)
		}
	}
}

func TestRulesThatTellDeliveriesApartAreRefusedUnlessForced(t *testing.T) {
	t.Parallel()
	origin := Composite("orders-1", string(AppendNumber(nil, "3")), string(AppendNumber(nil, "17")), string(AppendBytes(nil, nil)))
	for text, want := range map[string]string{
		"offset": origin, "origin": origin, "delivery-id": origin + "\x03\x00n2",
		"timestamp": "2026-02-01T09:00:00.000000005Z", "time": "2026-02-01T09:00:00.000000005Z", "random": "", "uuid": "",
	} {
		_, err := ParseRule(text)
		var refused *UnstableError
		if !errors.As(err, &refused) || refused.Why == "" || refused.Rule != text {
			t.Errorf("%s gives %v", text, err)
		}
		r, err := parseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		all, err := All(mustRule(t, ".id"), r)
		if all.NeedsPosition() != strings.HasPrefix(want, origin) {
			t.Errorf("%s in a composite needs a position: %v", text, all.NeedsPosition())
		}
		if err != nil || all.Unstable() == "" || r.Unstable() != all.Unstable() {
			t.Errorf("%s in a composite is not known as unstable: %q, %v", text, all.Unstable(), err)
		}
		k, err := r.Key("", message(""))
		if err != nil || want != "" && k.ID != want || want == "" && len(k.ID) != 36 {
			t.Errorf("%s forced gives %q, %v; want %q", text, k.ID, err, want)
		}
	}
	if r := mustRule(t, ".id"); r.Unstable() != "" {
		t.Errorf(".id is called unstable: %s", r.Unstable())
	}
	forced, err := parseRule("timestamp")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := forced.Key("", &semel.Message{}); !errors.Is(err, ErrMissing) {
		t.Errorf("no time gives %v", err)
	}
}

// TestPositionIsAKeyOnlyIfItIdentifiesTheMessage has the places that a message could share with
// another one.
func TestPositionIsAKeyOnlyIfItIdentifiesTheMessage(t *testing.T) {
	t.Parallel()
	at := func(change func(m *semel.Message)) *semel.Message {
		m := message("{}")
		change(m)
		return m
	}
	nothing := at(func(*semel.Message) {})
	for _, text := range []string{"offset", "origin", "delivery-id"} {
		rule, err := parseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		find := rule.Reader(nil).AppendID
		id, err := find(nil, nothing)
		if err != nil {
			t.Fatal(err)
		}
		for name, other := range map[string]*semel.Message{
			"identity":  at(func(m *semel.Message) { m.Origin.Identity = "orders-2" }),
			"partition": at(func(m *semel.Message) { m.Origin.Partition++ }),
			"offset":    at(func(m *semel.Message) { m.Origin.Offset++ }),
			"content":   at(func(m *semel.Message) { m.Body = []byte("[]") }),
		} {
			if another, err := find(nil, other); err != nil || bytes.Equal(another, id) {
				t.Errorf("%s: a message of another %s has the same id, %v", text, name, err)
			}
		}
		if renamed, err := find(nil, at(func(m *semel.Message) { m.Origin.Source = "orders.1" })); err != nil || !bytes.Equal(renamed, id) {
			t.Errorf("%s: after a rename the id is %q, %v; want %q", text, renamed, err, id)
		}
		none := at(func(m *semel.Message) { m.Origin.Identity = "" })
		if id, err := find([]byte("before"), none); !errors.Is(err, ErrMissing) || string(id) != "before" {
			t.Errorf("%s: without an identity the id is %q, %v", text, id, err)
		}
		if id, err := AppendPosition(nil, none); !errors.Is(err, ErrMissing) || id != nil {
			t.Errorf("without an identity the position is %q, %v", id, err)
		}
	}
}

func TestInvalidRuleErrorNamesTheColumn(t *testing.T) {
	t.Parallel()
	for text, column := range map[string]int{
		"": 1, "id": 1, "Line": 1, "line ": 1, " .id": 1, "header:": 8, "header:a b": 9, "property:x": 10,
		"hash": 1, "hash()": 6, "hash(.": 7, "hash(.a": 8, "hash(.a,)": 9, "hash(a)": 6, "hash(.) ": 8, "hash(.a.)": 9,
		".a b": 3,
	} {
		_, err := ParseRule(text)
		var wrong *RuleError
		if !errors.As(err, &wrong) || wrong.Column != column || wrong.Text != text {
			t.Errorf("%q: %v, want column %d", text, err, column)
		}
	}
}

func TestARuleIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	r := mustRule(t, "hash(.a,.b)")
	want, err := r.Key("s", message(`{"a":1,"b":{"d":0,"c":0}}`))
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for range 200 {
				if k, err := r.Key("s", message(`{"b":{"c":0,"d":0},"a":1}`)); err != nil || k != want {
					t.Errorf("%v, %v; want %v", k, err, want)
					return
				}
			}
		})
	}
	running.Wait()
}

func TestAReaderAllocatesNothing(t *testing.T) {
	template, err := Template("{.user.id}-{header:Id}-{.id}")
	if err != nil {
		t.Fatal(err)
	}
	all, err := All(mustRule(t, ".id"), mustRule(t, "hash(.user,.id)"), mustRule(t, "hash(.)"), template)
	if err != nil {
		t.Fatal(err)
	}
	m := message(`{"user":{"name":"Ada","id":7,"tags":[{"y":1,"x":2}]},"\u0069d":"a-\"b"}`)
	x := all.Reader(&FinderOptions{Content: true})
	var id []byte
	if allocs := testing.AllocsPerRun(100, func() {
		if id, err = x.AppendID(id[:0], m); err != nil {
			t.Fatal(err)
		}
	}); allocs != 0 {
		t.Errorf("%v allocations a message", allocs)
	}
}

func TestAReaderPrintsBodiesThatAreNotJSONByTheirBytes(t *testing.T) {
	t.Parallel()
	x := mustRule(t, "header:Id").Reader(&FinderOptions{Content: true})
	print := func(body string) uint64 {
		if _, err := x.AppendID(nil, message(body)); err != nil {
			t.Fatal(err)
		}
		return x.Print()
	}
	if print("one text") == print("another text") {
		t.Error("two texts have one print")
	}
	if once := print("a text"); once != print("a text") {
		t.Error("one text has two prints")
	}
	if print(`{"a":1,"b":2}`) != print(`{"b":2, "a":1}`) {
		t.Error("one content has two prints")
	}
}

func FuzzParseRule(f *testing.F) {
	for _, text := range []string{
		".", ".a.b[0]", `.["\u00e9.x"][3]`, "line", "hash(.)", "hash(.a, .b[1])", "hash(. - .b.c -.a)", "hash(.a,.b - .b[0].c)", "header:X-Id", "record-key",
		"property:message-id", "offset", ".a[", `hash(.["`, "order-{.id}-x", "{{}}{.a}{header:b}", `{.["}"]}`, "header:{.a}",
		"lower( trim(.a ))", "number(header:n)", `nfc(.[")"])`, "lower(", "trim(.a))", `{lower(.["}"])}-{number(record-key)}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(string) (*Rule, error){parseRule, Template} {
			r, err := parse(text)
			var wrong *RuleError
			if errors.As(err, &wrong) && (wrong.Column < 1 || wrong.Column > len(text)+1 || wrong.Problem == "") {
				t.Fatalf("%q: column %d, problem %q", text, wrong.Column, wrong.Problem)
			}
			if err != nil {
				if wrong == nil || r != nil {
					t.Fatalf("%q: %v, %v", text, r, err)
				}
				continue
			}
			again, err := parse(strings.TrimPrefix(r.String(), "template "))
			if err != nil || again.String() != r.String() || !reflect.DeepEqual(again.Paths(), r.Paths()) ||
				!reflect.DeepEqual(again.texts, r.texts) || !reflect.DeepEqual(again.Without(), r.Without()) || again.Form() != r.Form() {
				t.Fatalf("%q parses, but its text %q gives %v, %v", text, r, again, err)
			}
			if id, err := r.Key("s", message(`{"a":{"b":[1]}}`)); err == nil && id.ID == "" {
				t.Fatalf("%q gives an empty id", text)
			}
		}
	})
}

func TestHashRuleExcludesMembersAtAnyPosition(t *testing.T) {
	t.Parallel()
	rule := mustRule(t, "hash(. - .received - .meta.at - .list[1].seen)")
	if want := "hash(. - .list[1].seen - .meta.at - .received)"; rule.String() != want || len(rule.Without()) != 3 {
		t.Errorf("the rule is %s, and leaves %v out; want %s", rule, rule.Without(), want)
	}
	idOf := func(body string) string {
		t.Helper()
		k, err := rule.Key("", message(body))
		if err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		return k.ID
	}
	want := idOf(`{"a":1,"meta":{"by":"x"},"list":[{"seen":1},{}]}`)
	for _, body := range []string{
		`{"received":"10:00","a":1,"meta":{"by":"x"},"list":[{"seen":1},{}]}`,
		`{"a":1,"meta":{"at":1,"by":"x","\u0061t":{"at":[]}},"list":[{"seen":1},{"seen":[{}]}],"received":{"received":1}}`,
		` { "rec\u0065ived" : null , "list":[{"seen":1},{ "seen" : 2 }], "meta":{"by":"x","at":2},"a":1,"received":2}`,
	} {
		if got := idOf(body); got != want {
			t.Errorf("%s has another id", body)
		}
	}
	for _, body := range []string{
		`{"a":1,"meta":{"by":"x"},"list":[{"seen":2},{}]}`, `{"a":2,"meta":{"by":"x"},"list":[{"seen":1},{}]}`,
		`{"a":1,"meta":{"by":"x","received":1},"list":[{"seen":1},{}]}`, `{"a":1,"meta":{"by":"x"},"list":[{"seen":1},{},{"seen":1}]}`,
		`{"a":1,"meta":[{"at":1}],"list":[{"seen":1},{}]}`,
	} {
		if idOf(body) == want {
			t.Errorf("%s has the id of another content", body)
		}
	}
	if idOf(`{"received":1}`) != idOf(`{}`) {
		t.Error("an object of nothing else is not the empty object")
	}
	if _, err := rule.Key("", message(`{"a":1,"a":2,"received":1}`)); !is[*DuplicateNameError](err) {
		t.Errorf("two members of one name give %v", err)
	}
	x := rule.Reader(&FinderOptions{Content: true})
	prints := map[uint64]bool{}
	for _, body := range []string{`{"a":1,"received":1}`, `{"received":2,"a":1}`, `{"a":1}`} {
		if _, err := x.AppendID(nil, message(body)); err != nil {
			t.Fatal(err)
		}
		prints[x.Print()] = true
	}
	if _, err := x.AppendID(nil, message(`{"a":2}`)); err != nil || len(prints) != 1 || prints[x.Print()] {
		t.Errorf("%d prints of one content, %v", len(prints), err)
	}
}

func TestHashRuleThatExcludesNothingIsRefused(t *testing.T) {
	t.Parallel()
	for text, column := range map[string]int{
		"hash(. - )": 10, "hash(. - .)": 10, "hash(.a - .b)": 11, "hash(.a - .a)": 11, "hash(. - .a[0])": 10, "hash(. - a)": 10,
		"hash(.a,.b - .a.x)": 14, "hash(. .a)": 8, "hash(. - .a": 12,
	} {
		_, err := ParseRule(text)
		var wrong *RuleError
		if !errors.As(err, &wrong) || wrong.Column != column {
			t.Errorf("%s: %v, want column %d", text, err, column)
		}
	}
}

func TestHeaderNamesFollowTheCaseRulesOfTheirProtocol(t *testing.T) {
	t.Parallel()
	m := &semel.Message{Headers: []semel.Header{{Name: "x-github-delivery", Value: []byte("d-1")}, {Name: "semel-key-base64", Value: []byte("AG43")}}}
	for _, name := range []string{"X-GitHub-Delivery", "x-github-delivery", "X-GITHUB-DELIVERY"} {
		for _, caseless := range []bool{false, true} {
			m.CaselessHeaders = caseless
			for rule, want := range map[*Rule]string{mustRule(t, "header:"+name): "d-1", mustTemplate(t, "<{header:"+name+"}>"): "<d-1>"} {
				k, err := rule.Key("", m)
				if found := caseless || name == "x-github-delivery"; found && (err != nil || k.ID != want) || !found && !errors.Is(err, ErrMissing) {
					t.Errorf("%s, caseless %v: %q, %v", rule, caseless, k.ID, err)
				}
			}
		}
	}
	if k, err := mustRule(t, "header:Semel-Key").Key("", m); err != nil || k.ID != "\x00n7" {
		t.Errorf("Semel-Key is %q, %v", k.ID, err)
	}
}
