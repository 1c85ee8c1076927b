package httpidem

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"time"
)

// FuzzParseKey checks that a key in quotes is read back, and that each value gives the same key
// in all its forms.
func FuzzParseKey(f *testing.F) {
	for _, value := range []string{`"a"`, "a", `"a\"b\\c"`, `"a";v="x,\"y"`, `"a", "b"`, `""`, " a ", `"`, `"\`, "'a'", ":YQ==:", "\x00", "ä"} {
		f.Add(value)
	}
	easy, hard := &Profile{MinKey: 1, MaxKey: 255}, &Profile{MinKey: 1, MaxKey: 255, Strict: true}
	f.Fuzz(func(t *testing.T, value string) {
		lenient, err := easy.parse(value)
		strict, strictErr := hard.parse(value)
		if strictErr == nil && (err != nil || lenient != strict) {
			t.Fatalf("%q is %q if strict, and otherwise %q, %v", value, strict, lenient, err)
		}
		if err != nil {
			return
		}
		if lenient == "" || len(lenient) > 255 || strings.ContainsFunc(lenient, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			t.Fatalf("%q gives the key %q", value, lenient)
		}
		again, err := easy.parse(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(lenient) + `"`)
		if err != nil || again != lenient {
			t.Fatalf("%q in quotes is %q, %v", lenient, again, err)
		}
	})
}

// FuzzDecode checks that a stored answer is read back, and that damage is noticed.
func FuzzDecode(f *testing.F) {
	f.Add((&answer{status: 201, at: time.Unix(1e9, 0), origin: "https://a", header: []line{{"Link", "a"}, {"Link", "b"}, {"Location", "/x"}}, body: []byte("body")}).encode())
	f.Add((&answer{status: 200, at: time.Unix(1e9, 0), until: time.Unix(2e9, 0), lost: true}).encode())
	f.Add([]byte{formWhole, 200, 1, 0, 0, 1}) // a length that is too large
	f.Add([]byte{formWhole, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := decode(data)
		if err != nil {
			return
		}
		b, err := decode(a.encode())
		if err != nil || b.status != a.status || b.lost != a.lost || !b.at.Equal(a.at) || !b.until.Equal(a.until) || b.origin != a.origin || !bytes.Equal(a.body, b.body) || !slices.Equal(a.header, b.header) {
			t.Fatalf("%x is %+v, and then %+v, %v", data, a, b, err)
		}
	})
}

// FuzzFingerprint checks that no body breaks a fingerprint, that white space has no effect on the
// canonical form and nothing gets lost there, and that a pointer and encoding/json find the same.
func FuzzFingerprint(f *testing.F) {
	for _, body := range []string{`{"a":1,"b":[1,2,{"c":"\"]"}]}`, `{"a":1,"a":2}`, `{"\u0061":{"b":1e2}}`, `[]`, ` 7 `, `"x"`, "--b\r\n\r\nx\r\n--b--\r\n", "\xff", `{"a":{"b":"}"}}`} {
		f.Add([]byte(body), []byte(body))
	}
	r := &http.Request{Method: "POST", URL: &url.URL{Path: "/"}, Header: http.Header{"Content-Type": {"multipart/form-data; boundary=b"}}}
	var raw, some printer
	all := printer{canonical: true}
	some = printer{canonical: true, include: &tree{}, exclude: &tree{}}
	some.include.add([]string{"a"})
	some.exclude.add([]string{"a", "b"})
	of := func(p *printer, body []byte) semel.Fingerprint {
		made, err := p.of(r, body, "", &memoryBudget{})
		if err != nil {
			f.Error(err)
		}
		return made
	}
	f.Fuzz(func(t *testing.T, body, other []byte) {
		of(&raw, other)
		of(&some, other)
		if !json.Valid(body) {
			return
		}
		var indented, compact bytes.Buffer
		if json.Indent(&indented, body, " ", "\t") != nil || json.Compact(&compact, body) != nil {
			t.Fatalf("%q is valid", body)
		}
		if of(&all, body) != of(&all, indented.Bytes()) && depth(body) < maxDepth {
			t.Fatalf("%q and %q differ", body, indented.Bytes())
		}
		var compactOther bytes.Buffer
		if json.Compact(&compactOther, other) == nil && of(&all, body) == of(&all, other) && compact.Len() != compactOther.Len() {
			t.Fatalf("%q and %q are the same", body, other)
		}
		var members map[string]json.RawMessage
		value, err := valueAt(body, []string{"a"})
		if json.Unmarshal(body, &members) == nil && err == nil && !bytes.Equal(value, members["a"]) {
			t.Fatalf("%q has %q, want %q", body, value, members["a"])
		}
	})
}

// depth is how deep a JSON text can be at most.
func depth(body []byte) int { return bytes.Count(body, []byte("[")) + bytes.Count(body, []byte("{")) }
