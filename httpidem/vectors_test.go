package httpidem

import (
	"encoding/json"
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

func TestStructuredFieldVectors(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/structured-field-tests/*.json")
	if err != nil || len(files) != 3 {
		t.Fatalf("vectors: %v, %v", files, err)
	}
	strict := Profile{Strict: true, MinKey: 1, MaxKey: 255}
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
			if len(v.Raw) != 1 {
				continue // a key is one line
			}
			// Other types than strings are no keys.
			want, valid := "", false
			if !v.MustFail {
				want, valid = v.Expected[0].(string)
				valid = valid && strings.TrimSpace(want) != "" && len(want) <= strict.MaxKey
			}
			got, err := strict.parse(v.Raw[0])
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
