package jsontext

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
)

func TestNextReturnsTheTextOfEachChild(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{
		`{}`: nil, ` [ ] `: nil, `"[1]"`: nil, `17`: nil, `true`: nil,
		`[1,"a]",[2,{"b":3}] , null]`:                                          {`=1`, `="a]"`, `=[2,{"b":3}]`, `=null`},
		"\t{ \"a\" : 1.50 ,\n\"a\":\"\\\"}\",\"\\u0062\":{ \"c\" : [] } }\r\n": {`"a"=1.50`, `"a"="\"}"`, `"\u0062"={ "c" : [] }`},
		"{\"\xff\":\"\\ud800\"}":                                               {"\"\xff\"=\"\\ud800\""},
	} {
		var got []string
		value := Trim([]byte(text))
		for name, child, at := Next(value, 0); child != nil; name, child, at = Next(value, at) {
			got = append(got, fmt.Sprintf("%s=%s", name, child))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", text, got, want)
		}
	}
}

// FuzzNext compares each text with encoding/json: its children, put together, are the
// same document.
func FuzzNext(f *testing.F) {
	for _, text := range []string{`{"a":[1,{}],"b":"\"}"}`, ` [ 1 , "]" ] `, `0`, `{"":{"":{}}}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			return
		}
		value := Trim(text)
		joined := value
		if value[0] == '{' || value[0] == '[' {
			joined = value[:1:1]
			for name, child, at := Next(value, 0); child != nil; name, child, at = Next(value, at) {
				if len(joined) > 1 {
					joined = append(joined, ',')
				}
				if name != nil {
					joined = append(append(joined, name...), ':')
				}
				joined = append(joined, child...)
			}
			joined = append(joined, value[0]+2)
		}
		var got, want bytes.Buffer
		if err := json.Compact(&got, joined); err != nil {
			t.Fatal(err)
		}
		if err := json.Compact(&want, text); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("%s became %s", want.Bytes(), got.Bytes())
		}
	})
}
