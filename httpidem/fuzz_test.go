package httpidem

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"
)

// FuzzParseKey checks that a key that was put into quotes is read back, and that no value
// gives a key that another form of it does not give.
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
	f.Add((&answer{status: 201, at: time.Unix(1e9, 0), origin: "https://a", header: http.Header{"Link": {"a", "b"}, "Location": {"/x"}}, body: []byte("body")}).encode())
	f.Add((&answer{status: 200, at: time.Unix(1e9, 0), until: time.Unix(2e9, 0), lost: true}).encode())
	f.Add([]byte{formWhole, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := decode(data)
		if err != nil {
			return
		}
		b, err := decode(a.encode())
		if err != nil || b.status != a.status || b.lost != a.lost || !bytes.Equal(a.body, b.body) || len(a.header) != len(b.header) {
			t.Fatalf("%x is %+v, and then %+v, %v", data, a, b, err)
		}
	})
}
