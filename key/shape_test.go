package key

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/semel-dev/semel"
)

func TestAFunctionAroundAPathShapesItsValue(t *testing.T) {
	t.Parallel()
	const half = `\ud800`
	tests := []struct{ rule, value, want string }{
		{"lower(.v)", `"Ann@Example.COM"`, "ann@example.com"},
		{"lower(.v)", `"\u0041nn"`, "ann"},
		{"lower(.v)", `"ÅΣÇ ǅ"`, "åσç ǆ"},
		{"lower(.v)", "\"A\xff\xc3Ä\xed\xa0\x80\"", "a\xff\xc3ä\xed\xa0\x80"},
		{"lower(.v)", `"A` + half + `É\\UD\uDC00"`, "\x00u" + `"a` + half + `é\\ud\udc00"`},
		{"lower(.v)", `"\u0000A"`, "\x00s\x00a"},
		{"lower(.v)", `7E0`, "\x00n7E0"},
		{"lower(.v)", `true`, "\x00t"},
		{"trim(.v)", `" \t\u00a0 x y\u2003\n"`, "x y"},
		{"trim(.v)", `" ` + "\xff" + ` "`, "\xff"},
		{"trim(.v)", `" \u0000n1"`, "\x00s\x00n1"},
		{"trim(.v)", `"\u0000n1 "`, "\x00s\x00n1"},
		{"trim(.v)", `"\t x ` + half + ` y\t` + half + `z\n"`, "\x00u" + `"x ` + half + ` y\t` + half + `z"`},
		{"trim(.v)", `" ` + half + ` "`, "\x00u" + `"` + half + `"`},
		{"trim(.v)", `7`, "\x00n7"},
		{"nfc(.v)", `"cafe\u0301"`, "café"},
		{"nfc(.v)", `"caf\u00e9"`, "café"},
		{"nfc(.v)", `"\u212b \u1100\u1161\u11a8 \u0958"`, "Å 각 क़"},
		{"nfc(.v)", `"a\u0323\u0302"`, "ậ"},
		{"nfc(.v)", `"a\u0302\u0323"`, "ậ"},
		{"nfc(.v)", "\"e\xff\u0301\xcc\"", "e\xff\u0301\xcc"},
		{"nfc(.v)", `"e` + half + `\u0301e\u0301"`, "\x00u" + `"e` + half + "\u0301é\""},
		{"number(.v)", `7.0`, "\x00n7"},
		{"number(.v)", `70e-1`, "\x00n7"},
		{"number(.v)", `"7"`, "\x00n7"},
		{"number(.v)", `"+007.50"`, "\x00n7.5"},
		{"number(.v)", `-0.0`, "\x00n0"},
		{"number(.v)", `12345678901234567890123.0`, "\x00n12345678901234567890123"},
		{"number(.v)", `1E999999999`, "\x00n1e999999999"},
		{"number(.v)", `1e1234567890123456789`, "\x00n1e1234567890123456789"},
		{"number(.v)", `"A-7"`, "A-7"},
		{"number(.v)", `" 7"`, " 7"},
		{"number(.v)", `"\u00007"`, "\x00s\x007"},
		{"number(.v)", `"7` + half + `"`, "\x00u" + `"7` + half + `"`},
		{"number(.v)", `false`, "\x00f"},
		{"number(trim(.v))", `" 7 "`, "\x00n7"},
		{"lower( trim( nfc(.v) ) )", `" Cafe\u0301 "`, "café"},
	}
	for _, tt := range tests {
		r := mustRule(t, tt.rule)
		m := message(`{"v":` + tt.value + `}`)
		k, err := r.Key("", m)
		if err != nil || k.ID != tt.want {
			t.Errorf("%s of %s is %q, %v; want %q", tt.rule, tt.value, k.ID, err, tt.want)
			continue
		}
		if again, err := r.AppendShaped([]byte("a"), []byte(k.ID)); err != nil || string(again) != "a"+tt.want {
			t.Errorf("%s of its own id %q is %q, %v", tt.rule, k.ID, again, err)
		}
		all, err := All(r, mustRule(t, ".v"))
		if err != nil {
			t.Fatal(err)
		}
		plain, _ := mustRule(t, ".v").Key("", m)
		if both, err := all.Key("", m); err != nil || both.ID != Composite(tt.want, plain.ID) {
			t.Errorf("%s of %s is %q, %v", all, tt.value, both.ID, err)
		}
	}
	m := message(`{"v":"X"}`)
	m.Headers = append(m.Headers, semel.Header{Name: "Mail", Value: []byte(" ANN ")})
	for rule, want := range map[string]string{"lower(trim(header:Mail))": "ann", "lower(record-key)": "r-1", "number(property:message-id)": "m-1"} {
		if k, err := mustRule(t, rule).Key("", m); err != nil || k.ID != want {
			t.Errorf("%s is %q, %v, want %q", rule, k.ID, err, want)
		}
	}
	if k, err := mustTemplate(t, "u-{lower(.v)}/{trim(header:Mail)}").Key("", m); err != nil || k.ID != "u-x/ANN" {
		t.Errorf("a template gives %q, %v", k.ID, err)
	}
}

func TestAFunctionAroundAPathHasTheErrorsOfThePath(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]error{
		`{}`: ErrMissing, `{"v":null}`: ErrMissing, `{"v":""}`: ErrMissing, `{"v":" \u00a0"}`: ErrMissing, `{"v":[1]}`: ErrNotScalar, `{"v":{}}`: ErrNotScalar, `{"v":1`: ErrSyntax,
		`{"v":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`: ErrSyntax,
	} {
		if k, err := mustRule(t, "lower(trim(.v))").Key("", message(body)); !errors.Is(err, want) {
			t.Errorf("%.40s gives %q, %v; want %v", body, k.ID, err, want)
		}
	}
	_, err := mustRule(t, "number(trim(.v))").Key("", message(`{"v":" "}`))
	if err == nil || err.Error() != "key: number(trim(.v)) is empty" {
		t.Error(err)
	}
	if k, err := mustRule(t, "trim(.v)").Key("", message(`{"v":" a ","v":" b "}`)); err != nil || k.ID != "b" {
		t.Errorf("of two members of one name: %q, %v", k.ID, err)
	}
	for text, want := range map[string]string{
		"lower(email)": `column 7: a path begins with '.': write lower(.email)`, "lower(hash(.))": "column 7", "trim()": "column 6", "trim(.a": "expected ')'", "trim(.a,.b)": "found ','",
		"nfc(.a)x": "nothing may follow", "number(line)": "around one value", "lower(offset)": "around one value", "upper(.a)": "lower(), trim(), nfc() or number()", "lower (.a)": "there is no such rule", "number(trim(.a)": "expected ')'",
	} {
		if r, err := ParseRule(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v, want %s", text, r, err, want)
		}
	}
	if _, err := Template("x-{lower(line)}"); err == nil || !strings.Contains(err.Error(), "around one value") {
		t.Error(err)
	}
}

func TestARuleSaysWhatItIgnores(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		".a": "[]", "hash(.)": "[]", "lower(.a)": "[upper and lower case]", "number(trim(.a))": `[the spelling of a number, as 7, 7.0 and "7" white space at the ends]`,
	} {
		if got := fmt.Sprint(mustRule(t, text).Ignores()); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]int{"{lower(.a)}": 1, "{number(.a)}": 0, "{lower(header:a)}": 0} {
		if got := mustTemplate(t, text).Ambiguous(); len(got) != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	all, _ := All(mustRule(t, "lower(.a)"), mustTemplate(t, "x{lower(.b)}{nfc(.c)}"))
	if got := fmt.Sprint(all.Ignores()); got != "[the Unicode composition of characters upper and lower case]" {
		t.Error(got)
	}
}

// TestFunctionsAreExactForAnyText compares random texts, valid and not, with models.
func TestFunctionsAreExactForAnyText(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	pieces := []string{"e", "A", "\u0301", "\u0323", "\u0302", "\u0345", "\u00e9", "\u1ea5", "\uac00", "\u1100", "\u1161", "\u11a8", "\u0958", "\u212b", "\u0344", "\ufb1f", "\u0dd9", "\u0dcf", "\u034f", "\U0001d15e", "\U000110a5", "\U000110ba", " ", "\u2028", "\xff", "\xc3", "\xed\xa0\x80", "\x00", "\ufffd", "İ", "ſ"}
	for range 20_000 {
		var b strings.Builder
		for range random.IntN(12) {
			if random.IntN(8) == 0 {
				b.WriteRune(rune(random.IntN(0x30000)))
			} else {
				b.WriteString(pieces[random.IntN(len(pieces))])
			}
		}
		text := b.String()
		if got, want := string(compose([]byte(text))), norm.NFC.String(text); got != want {
			t.Fatalf("nfc of %+q is %+q, want %+q", text, got, want)
		}
		if got, want := string(trim([]byte(text), true, true)), strings.TrimSpace(text); got != want {
			t.Fatalf("trim of %+q is %+q, want %+q", text, got, want)
		}
		got, want := string(lower([]byte(text))), ""
		for rest := text; rest != ""; {
			r, size := utf8.DecodeRuneInString(rest)
			if one := rest[:size]; r == utf8.RuneError {
				want += one
			} else {
				want += strings.ToLower(one)
			}
			rest = rest[size:]
		}
		if got != want {
			t.Fatalf("lower of %+q is %+q, want %+q", text, got, want)
		}
	}
}

// The limit of marks in a row, which package norm keeps by adding a character, must make no two
// texts equal, and must not keep equal ones apart.
func TestManyMarksAreComposedExactly(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	high, low := strings.Repeat("\u0301", 40), strings.Repeat("\u0323", 40)
	if got, want := string(compose([]byte("a"+high+low))), "\u1ea1"+low[2:]+high; got != want {
		t.Errorf("80 marks become %+q, want %+q", got, want)
	}
	if a, b := compose([]byte("x"+high)), compose([]byte("x"+high[:60]+"\u034f"+high[60:])); bytes.Equal(a, b) {
		t.Error("a text with and one without a grapheme joiner are one")
	}
	for range 200 {
		marks := []string{}
		for range 20 + random.IntN(60) {
			marks = append(marks, "\u0301")
		}
		first := "e" + strings.Join(marks, "") + strings.Repeat("\u0323", 3)
		for range 3 {
			marks = append(marks[:0:0], marks...)
			at := random.IntN(len(marks) + 1)
			marks = append(marks[:at:at], append([]string{"\u0323"}, marks[at:]...)...)
		}
		if a, b := compose([]byte(first)), compose([]byte("e"+strings.Join(marks, ""))); !bytes.Equal(a, b) {
			t.Fatalf("%+q and %+q are equivalent, but become %+q and %+q", first, marks, a, b)
		}
	}
}

func FuzzShape(f *testing.F) {
	for _, text := range []string{`"Ann "`, `"\ud800 \u0041\\"`, "\" \xff\u0301e\u0301\"", `-0.70e+1`, `"+7.0"`, `1e99999999999999999999`, `[[{}]]`, `"\u0000s"`, `"` + strings.Repeat("\u0301", 50) + `"`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		m := message("")
		m.Body = append(append([]byte(`{"v":`), value...), '}')
		plain, err := mustRule(t, ".v").Reader(nil).AppendID(nil, m)
		for _, text := range []string{"lower(.v)", "trim(.v)", "nfc(.v)", "number(.v)", "number(trim(.v))", "lower(nfc(trim(.v)))"} {
			r := mustRule(t, text)
			id, shaped := r.Reader(nil).AppendID([]byte("x"), m)
			if (err == nil) != (shaped == nil) && !errors.Is(shaped, ErrMissing) {
				t.Fatalf("%s: %v, but without the function %v", text, shaped, err)
			}
			if shaped != nil {
				if string(id) != "x" {
					t.Fatalf("%s: %q remains after %v", text, id, shaped)
				}
				continue
			}
			if id = id[1:]; len(id) == 0 {
				t.Fatalf("%s: the id is empty", text)
			}
			own, err := r.AppendShaped(nil, plain)
			again, err2 := r.AppendShaped(nil, id)
			if err != nil || err2 != nil || !bytes.Equal(own, id) || text != "lower(nfc(trim(.v)))" && !bytes.Equal(again, id) {
				t.Fatalf("%s of %q is %q, then %q, and of the id %q it is %q (%v, %v)", text, value, id, again, plain, own, err, err2)
			}
		}
	})
}
