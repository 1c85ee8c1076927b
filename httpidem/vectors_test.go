package httpidem

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// vector is a test case of the HTTP working group.
type vector struct {
	Name     string
	Raw      []string
	Expected []any
	MustFail bool `json:"must_fail"`
}

func TestStructuredFieldTestVectorsPass(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/structured-field-tests/*.json")
	if err != nil || len(files) != 3 {
		t.Fatalf("vectors: %v, %v", files, err)
	}
	lenient := Profile{Headers: []string{"K"}, MinKey: 1, MaxKey: 255}
	strict := lenient
	strict.Strict = true
	keys := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var vectors []vector
		if err := json.Unmarshal(content, &vectors); err != nil {
			t.Fatal(err)
		}
		for _, v := range vectors {
			// Other types than strings are no keys, and neither is a string on two lines.
			want, valid := "", false
			if !v.MustFail {
				want, valid = v.Expected[0].(string)
				valid = valid && strings.TrimSpace(want) != "" && len(want) <= strict.MaxKey && len(v.Raw) == 1
			}
			got, err := strict.keyOf(http.Header{"K": v.Raw}, nil)
			if again, err := lenient.keyOf(http.Header{"K": v.Raw}, nil); valid && (err != nil || again != want) {
				t.Errorf("%s, %s: if lenient, %q is %q, %v, want %q", file, v.Name, v.Raw, again, err, want)
			}
			switch {
			case valid && (err != nil || got != want):
				t.Errorf("%s, %s: %q is %q, %v, want %q", file, v.Name, v.Raw, got, err, want)
			case !valid && err == nil:
				t.Errorf("%s, %s: %q is %q, want an error", file, v.Name, v.Raw, got)
			case valid:
				keys++
			}
		}
	}
	if keys < 90 {
		t.Errorf("only %d vectors have a key", keys)
	}
}

func TestParametersOfAKeyHeaderAreIgnored(t *testing.T) {
	t.Parallel()
	p := Profile{MinKey: 1, MaxKey: 255}
	for _, value := range []string{
		"", ";a", ";a;b", ";a=1;  b=-2", ";a=1.5", `;a="x;\"y, z"`, ";a=:aGk=:", ";a=?1", ";a=@1659578233", ";a=tok/en:*", `;a=%"f%c3%bc"`, ";*a_-.*=1  ",
	} {
		if key, err := p.parse(`"k"` + value); key != "k" || err != nil {
			t.Errorf("%q gives %q, %v", value, key, err)
		}
	}
	for _, value := range []string{
		";", " ;a", "; ;a", ";a=", ";A", ";1", ";a =1", ";a= 1", `;a="x`, `;a="\x"`, ";a=?2", ";a=1.", ";a=1.2345", ";a=1234567890123456", ";a=:!:", ";a=@1.5", `;a=%"%C3"`, ",", `;a, "b"`, "x", ";a=1x",
	} {
		if key, err := p.parse(`"k"` + value); err == nil {
			t.Errorf("%q gives %q, want an error", value, key)
		}
	}
}
