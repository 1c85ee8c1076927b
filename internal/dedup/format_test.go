package dedup

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// TestTheFormatPageHasEveryStoredMember: a person who repairs a store reads that page.
func TestTheFormatPageHasEveryStoredMember(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../store/logstore/FORMAT.md")
	if err != nil {
		t.Fatal(err)
	}
	for prefix, value := range map[string]any{outputValue: outputState{}, runValue: runState{}, positionValue: positionState{}, inputValue: finishedState{}, "": inputState{}, "sample": readState{}, "blocks": fingerprint{}} {
		if !strings.Contains(string(page), prefix) {
			t.Errorf("the page lacks the value %s", prefix)
		}
		for _, field := range reflect.VisibleFields(reflect.TypeOf(value)) {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("the page lacks the member %s of %s", name, prefix)
			}
		}
	}
}

func TestFormatIsFoundByNameThenByFirstByte(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, text string
		key        string
		want       Format
	}{
		{"a.jsonl", "x", "line", JSONL},
		{"a.ndjson.gz", "x", "line", JSONL},
		{"a.CSV", "a\n{", ".a", CSV},
		{"a.csv.zst", "a\n", ".a", CSV},
		{"a.tsv", "a\n", ".a", TSV},
		{"a.txt", "{", "line", Text},
		{"a.log", "{}", "line", JSONL},
		{"a.log", bom + "[1]", "line", JSONL},
		{"a.log", "text", "line", Text},
		{"a", "", "line", Text},
		{"a", "not JSON", ".id", JSONL},
	} {
		b := setup(t)
		in := b.file(test.name, test.text)
		r, err := Prepare(t.Context(), &Options{Inputs: []string{in}, Keys: []string{test.key}})
		if err != nil {
			t.Errorf("%s %q: %v", test.name, test.text, err)
			continue
		}
		if got := r.extract.format; got != test.want {
			t.Errorf("%s %q: %s, not %s", test.name, test.text, got, test.want)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
