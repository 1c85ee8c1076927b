package key_test

import (
	"fmt"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

func TestIDsAsJSONAndText(t *testing.T) {
	t.Parallel()
	for rule, bodies := range map[string]map[string][2]string{
		".a": {
			`{"a":"x"}`:        {`"x"`, "x"},
			`{"a":"<\u0000"}`:  {`"<\u0000"`, "<\x00"},
			`{"a":"\u0000n7"}`: {`"\u0000n7"`, "\x00n7"},
			`{"a":7}`:          {"7", "7"},
			`{"a":-1.50e3}`:    {"-1.50e3", "-1.50e3"},
			`{"a":true}`:       {"true", "true"},
			`{"a":false}`:      {"false", "false"},
			`{"a":"\ud800"}`:   {`"\ud800"`, `"\ud800"`},
		},
	} {
		r, err := key.ParseRule(rule)
		if err != nil {
			t.Fatal(err)
		}
		for body, want := range bodies {
			id, err := r.Reader(nil).AppendID(nil, &semel.Message{Body: []byte(body)})
			if err != nil {
				t.Fatal(err)
			}
			if got := string(key.AppendJSON([]byte("-"), id)); got != "-"+want[0] {
				t.Errorf("%s: JSON %s, want %s", body, got, want[0])
			}
			if got := string(key.AppendText([]byte("-"), id)); got != "-"+want[1] {
				t.Errorf("%s: text %q, want %q", body, got, want[1])
			}
		}
	}
	parts := key.AppendComposite(nil, key.AppendString(nil, "x"), key.AppendNumber(nil, "7"), key.AppendComposite(nil, "y", "z"))
	hash := key.AppendBytes(nil, []byte("x"))
	for id, want := range map[string][2]string{
		string(parts): {`["x",7,["y","z"]]`, `["x",7,["y","z"]]`},
		string(hash):  {fmt.Sprintf(`"%x"`, hash[2:]), fmt.Sprintf("%x", hash[2:])},
		"\x00":        {`"\u0000"`, "\x00"}, // no id
		"\x00?":       {`"\u0000?"`, `"\u0000?"`},
		"\x00c\x05a":  {`"\u0000c\u0005a"`, `"\u0000c\u0005a"`},
	} {
		if got := [2]string{string(key.AppendJSON(nil, []byte(id))), string(key.AppendText(nil, []byte(id)))}; got != want {
			t.Errorf("%q: %q, want %q", id, got, want)
		}
	}
}
