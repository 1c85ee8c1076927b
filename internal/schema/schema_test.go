package schema_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
)

// shop is the target of a mapping with a field of every form.
type shop struct {
	Name, Dir, Level, Table string
	Token, URL, Hook        schema.Secret
	Wait, Pause, Keep       time.Duration
	Bytes, Most             int64
	Workers                 int
	Rate, Share             float64
	Open                    bool
	Tags, Servers           []string
	Behind                  schema.Reference
	Layers                  []schema.Reference
	TLS                     *limits
	Limits                  limits
	Pay                     any // a *card or an *invoice
}

type limits struct{ Max int64 }

func (l *limits) mapping() schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{schema.CountField("max", &l.Max, "The maximum.").Or("10")}}
}

// card has a short form: the list of its brands.
type card struct{ Brands []string }

func newCard() (any, schema.Mapping) {
	c := &card{}
	brands := schema.TextsField("brands", &c.Brands, "The brands.")
	return c, schema.Mapping{Doc: "A card.", Fields: []schema.Field{brands.Need()}, Short: &schema.Shorthand{Form: brands.Form, Read: brands.Read}}
}

type invoice struct{ Within time.Duration }

func newInvoice() (any, schema.Mapping) {
	i := &invoice{}
	return i, schema.Mapping{Doc: "An invoice.", Fields: []schema.Field{schema.DurationField("within", &i.Within, "The time to pay.").Or("30d")}}
}

func (s *shop) mapping() schema.Mapping {
	pay := schema.KindsOf(schema.KindField("card", &s.Pay, newCard, "By card."), schema.KindField("invoice", &s.Pay, newInvoice, "By invoice."))
	payment := schema.PartField("pay", func() schema.Mapping { return pay }, "How customers pay.")
	payment.Read = func(v schema.Value) { v.Kind(pay, "payment", "{ invoice: {} }") }
	return schema.Mapping{
		Fields: []schema.Field{
			schema.TextField("name", &s.Name, "Its name.").Need(),
			schema.PathField("dir", &s.Dir, "Its directory.").Or("data"),
			schema.ChoiceField("level", &s.Level, "What it logs.", "debug", "info").Or("info"),
			schema.IdentifierField("table", &s.Table, 8, "Its table."),
			schema.SecretField("token", &s.Token, "Its token."),
			{Name: "url", Doc: "Its database.", Form: schema.Form{Scalar: schema.ScalarAddress}, Read: func(v schema.Value) { v.Address(&s.URL) }},
			{Name: "hook", Doc: "Its target.", Form: schema.Form{Scalar: schema.ScalarAddress}, Read: func(v schema.Value) { v.Target(&s.Hook) }},
			schema.DurationField("wait", &s.Wait, "How long it waits.").Or("5s"),
			schema.PauseField("pause", &s.Pause, "A pause.").Means("none"),
			schema.WindowField("keep", &s.Keep, "How long it keeps orders."),
			schema.SizeField("bytes", &s.Bytes, "The size of an order."),
			schema.CountField("most", &s.Most, "The number of orders."),
			schema.NumberField("workers", &s.Workers, 1, 8, "The number of workers."),
			schema.RateField("rate", &s.Rate, "A rate."),
			schema.ShareField("share", &s.Share, "A share."),
			schema.TruthField("open", &s.Open, "Whether it is open."),
			schema.TextsField("tags", &s.Tags, "Its tags."),
			schema.AddressesField("servers", &s.Servers, "9092", "Its servers."),
			schema.StoreField("behind", &s.Behind, "The store behind it."),
			schema.ListField("layers", schema.Form{Scalar: schema.ScalarStoreName}, func(v schema.Value) { v.References(&s.Layers) }, "Its layers."),
			{Name: "tls", Doc: "TLS.", Form: schema.Form{Members: func() schema.Mapping { return (&limits{}).mapping() }}, Read: func(v schema.Value) {
				s.TLS = &limits{}
				v.Mapping(s.TLS.mapping())
			}},
			schema.PartField("limits", s.Limits.mapping, "Its limits.").Titled("Limits").Always(),
			payment,
		},
		Refused: map[string]string{"discount": "prices are fixed"},
	}
}

// read reads a text as a shop. The environment has the variables of env.
func read(t *testing.T, text string, env map[string]string) (*shop, *schema.Document) {
	t.Helper()
	doc, err := schema.Parse("dir/shop.yaml", []byte(text), func(name string) string { return env[name] })
	if err != nil {
		t.Fatalf("%v\nin:\n%s", err, text)
	}
	s := &shop{}
	root := doc.Root()
	root.Path = "shop"
	root.Mapping(s.mapping())
	return s, doc
}

// valid is read for a text without problems.
func valid(t *testing.T, text string) *shop {
	t.Helper()
	s, doc := read(t, text, nil)
	if err := doc.Err(); err != nil {
		t.Fatalf("%v\nin:\n%s", err, text)
	}
	return s
}

func TestEveryValueTypeOfTheConfigurationIsRead(t *testing.T) {
	t.Parallel()
	s := valid(t, `
name: corner
dir: stock
level: debug
table: orders_1
token: abcd
url: postgres://app:pa%2Fss@h/db
hook: https://h/in?key=abcd
wait: 1d12h
pause: 0
keep: forever
bytes: 64KiB
most: 1e6
workers: 8
rate: 0.01
share: 1
open: true
tags: [a, "7"]
servers: [a:9092, "[::1]:9092"]
behind: keys
layers: [near, far]
tls: {}
limits: { max: 3 }
pay: { invoice: { within: 2w } }
`)
	if s.Token.Reveal() != "abcd" || s.URL.Reveal() != "postgres://app:pa%2Fss@h/db" || s.Hook.Reveal() != "https://h/in?key=abcd" {
		t.Errorf("secrets: %q %q %q", s.Token.Reveal(), s.URL.Reveal(), s.Hook.Reveal())
	}
	if s.URL.String() != "postgres://app:[hidden]@h/db" || s.Hook.String() != "https://h/in?[hidden]" {
		t.Errorf("shown: %s %s", s.URL, s.Hook)
	}
	s.Token, s.URL, s.Hook = schema.Secret{}, schema.Secret{}, schema.Secret{}
	at := func(line, column int) schema.Place {
		return schema.Place{File: "dir/shop.yaml", Line: line, Column: column}
	}
	want := &shop{
		Name: "corner", Dir: "dir/stock", Level: "debug", Table: "orders_1",
		Wait: 36 * time.Hour, Keep: semel.Forever, Bytes: 64 << 10, Most: 1e6, Workers: 8, Rate: 0.01, Share: 1, Open: true,
		Tags: []string{"a", "7"}, Servers: []string{"a:9092", "[::1]:9092"},
		Behind: schema.Reference{Name: "keys", At: at(20, 9)},
		Layers: []schema.Reference{{Name: "near", At: at(21, 10)}, {Name: "far", At: at(21, 16)}},
		TLS:    &limits{Max: 10}, Limits: limits{Max: 3}, Pay: &invoice{Within: 14 * 24 * time.Hour},
	}
	if !reflect.DeepEqual(s, want) {
		t.Errorf("got\n%+v\nwant\n%+v", s, want)
	}
}

func TestAbsentFieldsGetTheirDefaults(t *testing.T) {
	t.Parallel()
	want := &shop{Name: "corner", Dir: "dir/data", Level: "info", Wait: 5 * time.Second, Limits: limits{Max: 10}}
	if s := valid(t, "name: corner"); !reflect.DeepEqual(s, want) {
		t.Errorf("got\n%+v\nwant\n%+v", s, want)
	}
	for _, f := range want.mapping().Fields {
		if shown := map[string]string{"wait": "5s", "pause": "none", "keep": ""}; f.Name == "wait" || f.Name == "pause" || f.Name == "keep" {
			if got := f.Fallback(); got != shown[f.Name] {
				t.Errorf("the documented default of %s is %q, want %q", f.Name, got, shown[f.Name])
			}
		}
	}
}

func TestKindAcceptsAListInPlaceOfItsFields(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"name: n\npay: { card: [visa, amex] }", "name: n\npay: { card: { brands: [visa, amex] } }"} {
		if got, want := valid(t, text).Pay, (&card{Brands: []string{"visa", "amex"}}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", text, got, want)
		}
	}
}

func TestAnchorsAndMergesAreResolved(t *testing.T) {
	t.Parallel()
	one := func(text string) *shop {
		t.Helper()
		doc, err := schema.Parse("dir/shop.yaml", []byte(text), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		s := &shop{}
		if there, ok := doc.Root().Sections([]schema.Field{schema.PartField("shop", s.mapping, "The shop.")}, "x-"); !ok || len(there) != 1 {
			t.Fatalf("sections %q, %v", there, ok)
		}
		if err := doc.Err(); err != nil {
			t.Fatal(err)
		}
		return s
	}
	const anchors = "x-a: &a { name: a, workers: 1 }\nx-b: &b { workers: 2, table: b }\n"
	if s := one(anchors + "shop: { <<: *a, workers: 3 }"); s.Name != "a" || s.Workers != 3 {
		t.Errorf("a merge must not replace a field of the mapping: %+v", s)
	}
	if s := one(anchors + "shop: { <<: [*a, *b] }"); s.Workers != 1 || s.Table != "b" {
		t.Errorf("the first of several merges wins: %+v", s)
	}
	if s := one(anchors + "shop: *a"); s.Name != "a" || s.Workers != 1 {
		t.Errorf("an alias means its anchor: %+v", s)
	}
}

// TestProblemsSayWhereTheyAreAndHowToFixThem has every line that is reported for a text.
func TestProblemsSayWhereTheyAreAndHowToFixThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"level: debug", "1:1: shop: name is missing"},
		{"- a", "1:1: shop: expected fields, got a list"},
		{"corner", "1:1: shop: expected fields, got a text: write shop: { name: … }"},
		{"name: n\nname: m", "2:1: shop.name is defined twice"},
		{"name: n\n1: m", "2:1: shop: this is not a field name: put it in quotes if it is one"},
		{"name: n\nwiat: 1s", "2:1: unknown field shop.wiat: did you mean wait?"},
		{"name: n\ndiscount: 1", "2:1: shop.discount is not possible: prices are fixed"},
		{"name: n\nlimits: { zzzzzz: 1 }", "2:11: unknown field shop.limits.zzzzzz: write one of max"},
		{"name: n\nlimits: { zzzzzz }", "2:11: unknown field shop.limits.…: write one of max"}, // it may be the second word of a secret
		{"name: n\nlimits: 7", "2:9: shop.limits: expected fields, got a number"},
		{"name: n\nlimits: max:7", "2:9: shop.limits: expected fields, got a text: write a space after the colon of max:"},
		{"name: 7", "1:7: shop.name: expected a text, got a number: put it in quotes"},
		{"name: n\ntable: 1st", "2:8: shop.table: \"1st\": write lower-case letters, digits and _, a letter first"},
		{"name: [n]", "1:7: shop.name: expected a text, got a list"},
		{"name: { n: 1 }", "1:7: shop.name: expected a text, got fields"},
		{"name:", "1:7: shop.name: expected a text, got nothing"},
		{"name: ''", "1:7: shop.name: it is empty: write a value, or leave the field out"},
		{"name: n\ntoken: ''", "2:8: shop.token: it is empty: write a value, or leave the field out"},
		{"name: n\nlevel: loud", "2:8: shop.level: \"loud\": write one of debug, info"},
		{"name: n\nlevel: inof", "2:8: shop.level: \"inof\": did you mean info?"},
		{"name: n\ntable: Orders", "2:8: shop.table: \"Orders\": write lower-case letters, digits and _, a letter first"},
		{"name: n\ntable: orders_2026", "2:8: shop.table: \"orders_2026\": write 1 to 8 letters"},
		{"name: n\nwait: soon", "2:7: shop.wait: \"soon\": not a duration: write it like 90s, 36h, 7d or 2w"},
		{"name: n\nwait: 0", "2:7: shop.wait: \"0\": must be above 0"},
		{"name: n\nwait: 20000w", "2:7: shop.wait: \"20000w\": too long: write at most 15250w"},
		{"name: n\npause: -1s", "2:8: shop.pause: \"-1s\": must not be below 0"},
		{"name: n\nkeep: ever", "2:7: shop.keep: \"ever\": not a duration: write it like 90s, 36h, 7d or 2w, or forever"},
		{"name: n\nkeep: 0", "2:7: shop.keep: \"0\": must be above 0, or forever"},
		{"name: n\nbytes: 0", "2:8: shop.bytes: \"0\": must be at least 1"},
		{"name: n\nbytes: 1 KB", "2:8: shop.bytes: \"1 KB\": not a size: write it like 4096, 64KiB or 10MB"},
		{"name: n\nbytes: 9999999TiB", "2:8: shop.bytes: \"9999999TiB\": too large"},
		{"name: n\nmost: many", "2:7: shop.most: \"many\": not a count: write it like 1000000 or 1e6"},
		{"name: n\nmost: 0", "2:7: shop.most: \"0\": must be at least 1"},
		{"name: n\nworkers: 9", "2:10: shop.workers: \"9\": must be between 1 and 8"},
		{"name: n\nrate: 1", "2:7: shop.rate: \"1\": not a rate: write a number above 0 and below 1, like 0.001"},
		{"name: n\nshare: 1.5", "2:8: shop.share: \"1.5\": not a share: write a number from 0 to 1, like 0.01"},
		{"name: n\nopen: 'yes'", "2:7: shop.open: \"yes\": write true or false"},
		{"name: n\ntags: a", "2:7: shop.tags: expected a list, got a text: write [a, b]"},
		{"name: n\ntags: []", "2:7: shop.tags: the list is empty"},
		{"name: n\ntags: [a, 7]", "2:11: shop.tags[1]: expected a text, got a number: put it in quotes"},
		{"name: n\nservers: [h]", "2:11: shop.servers[0]: write it like h:9092"},
		{"name: n\nservers: ['http://h/']", "2:11: shop.servers[0]: write it like host:9092"},
		{"name: n\nservers: ['h:0']", "2:11: shop.servers[0]: write it like host:9092"},
		{"name: n\ntls: *none", "2:6: shop.tls: this alias has no anchor before it: put a text that begins with * in quotes"},
		{"name: !!str n", "1:7: shop.name: a tag such as !!str has no meaning here: leave it out"},
		{"name: n\npay: {}", "2:6: shop.pay: one of card, invoice is missing"},
		{"name: n\npay: card", "2:6: shop.pay: expected fields, got a text: write { card: {} } with its settings between the inner braces"},
		{"name: n\npay: cash", "2:6: shop.pay: expected fields, got a text: write the kind of the payment and its settings, as in { invoice: {} }"},
		{"name: n\npay: { card: [a], invoice: {} }", "2:28: shop.pay.invoice: card and invoice exclude each other: keep one"},
		{"name: n\npay: { card: visa }", "2:14: shop.pay.card: expected fields, got a text: write card: { brands: […] }"},
		{"name: n\npay: { crad: {} }", "2:8: unknown field shop.pay.crad: did you mean card?"},
		{"most: 0\nlevel: loud", "1:1: shop: name is missing\n1:7: shop.most: \"0\": must be at least 1\n2:8: shop.level: \"loud\": write one of debug, info"},
	} {
		_, doc := read(t, c.text, nil)
		got := ""
		if err := doc.Err(); err != nil {
			got = strings.ReplaceAll(err.Error(), "dir/shop.yaml:", "")
		}
		if got != c.want {
			t.Errorf("in:\n%s\ngot:\n%s\nwant:\n%s\n", c.text, got, c.want)
		}
	}
}

// TestTextInPlaceOfAMappingSuggestsItsRequiredField has mappings with one required field.
func TestTextInPlaceOfAMappingSuggestsItsRequiredField(t *testing.T) {
	t.Parallel()
	var target string
	var list []string
	for _, c := range []struct {
		field      schema.Field
		text, want string
	}{
		{schema.PathField("path", &target, "A path.").Need(), "in.jsonl", "write part: { path: in.jsonl }"},
		{schema.PathField("path", &target, "A path.").Need(), "in*.jsonl", `write part: { path: "in*.jsonl" }`},
		{schema.ListField("paths", schema.Form{Scalar: schema.ScalarPath}, func(v schema.Value) { v.References(new([]schema.Reference)) }, "Paths.").Need(), "in.jsonl", "write part: { paths: [in.jsonl] }"},
		{schema.TextsField("words", &list, "Words.").Need(), "hunter2", "write part: { words: […] }"}, // it may be a secret
		{schema.TextField("word", &target, "A word."), "hunter2", "expected fields, got a text"},
	} {
		doc, err := schema.Parse("c.yaml", []byte("part: "+c.text), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		doc.Root().Sections([]schema.Field{schema.PartField("part", func() schema.Mapping { return schema.Mapping{Fields: []schema.Field{c.field}} }, "A part.")}, "x-")
		if err := doc.Err(); err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.text, err, c.want)
		}
	}
}

func TestSectionsAreReadAndUnknownOnesAreNamed(t *testing.T) {
	t.Parallel()
	var l limits
	sections := []schema.Field{
		schema.PartField("limits", l.mapping, "Limits.").Always(),
		schema.PartField("stores", (&limits{}).mapping, "Stores."),
	}
	for _, c := range []struct {
		text, there, want string
		max               int64
	}{
		{"limits: { max: 7 }\nx-mine: anything", "limits", "", 7},
		{"stores: {}", "stores", "", 10},
		{"storse: {}", "", "1:1: unknown section storse: did you mean stores?", 10},
		{"zzzzzz: 1", "", "1:1: unknown section zzzzzz: write one of limits, stores", 10},
		{"hunter2:", "", "1:1: unknown section …: write one of limits, stores", 10},
		{"- a", "", "1:1: expected sections such as stores:, got a list", 10},
	} {
		l = limits{}
		doc, err := schema.Parse("c.yaml", []byte(c.text), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		there, _ := doc.Root().Sections(sections, "x-")
		got := ""
		if err := doc.Err(); err != nil {
			got = strings.TrimPrefix(err.Error(), "c.yaml:")
		}
		if strings.Join(there, " ") != c.there || got != c.want || l.Max != c.max {
			t.Errorf("%s: sections %q, %s, max %d; want %q, %s, %d", c.text, there, got, l.Max, c.there, c.want, c.max)
		}
	}
}
