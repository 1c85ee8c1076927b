package auditlog

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// written returns a log with these lines behind a given start.
func written(t *testing.T, start string, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(name, []byte(start), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := vfs.OS{}.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if err := Append(f, []byte(line)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestLinesAreAppendedAsTheyAre(t *testing.T) {
	t.Parallel()
	for start, want := range map[string]string{
		"":                "",
		"{\"old\":1}\n":   "{\"old\":1}\n",
		"{\"old\":1}\n{":  "{\"old\":1}\n{\n", // cut short by a crash
		"{\"whole\":true": "{\"whole\":true\n",
	} {
		if got := written(t, start, `{"n":1}`, `{"n":2}`); got != want+"{\"n\":1}\n{\"n\":2}\n" {
			t.Errorf("after %q: %q", start, got)
		}
	}
}

func TestDamagedLinesAndChangesWithoutAnOutcomeAreFound(t *testing.T) {
	t.Parallel()
	const (
		first   = `{"operation":"A","verb":"rm","reason":"a \"text\""}` + "\n"
		outcome = `{"operation":"A","outcome":"done"}` + "\n"
		second  = `{"operation":"B","verb":"resolve"}` + "\n"
		parked  = `{"id":"9f2c","how":"skipped"}` + "\n"
		hashed  = `{"operation":"C","outcome":"failed","error":"e","prev":"00","hash":"00"}` + "\n" // as former versions wrote it
	)
	for _, c := range []struct {
		log   string
		lines int
		found []int
	}{
		{"", 0, nil},
		{first + outcome + parked + hashed, 4, nil},
		{first + second + outcome, 3, []int{2}},
		{first, 1, []int{1}},
		{first + outcome + parked[:9], 3, []int{3}},
		{first + outcome + parked[:len(parked)-1], 3, []int{3}}, // the line end is missing
		{parked[:9] + "\n" + first + "\n" + outcome + "[1]\n", 5, []int{1, 3, 5}},
	} {
		lines, findings, err := Verify(strings.NewReader(c.log))
		var found []int
		for _, f := range findings {
			found = append(found, f.Line)
		}
		if lines != c.lines || !slices.Equal(found, c.found) || err != nil {
			t.Errorf("%q: %d lines, %+v, %v", c.log, lines, findings, err)
		}
	}
}

func TestOnlyObjectsInOneLineAreAppended(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "audit.jsonl")
	f, err := vfs.OS{}.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, line := range []string{"", "{}", "[1]", "text", `{"a":1`, "{\"a\":\n1}", ` {"a":1}`, `{"a":1} `} {
		if err := Append(f, []byte(line)); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%q: %v", line, err)
		}
	}
	if size, err := f.Size(); size != 0 || err != nil {
		t.Errorf("%d bytes, %v", size, err)
	}
}

func TestTailReadsTheLastLines(t *testing.T) {
	t.Parallel()
	long := `{"verb":"` + strings.Repeat("x", tailBlock) + `"}`
	for name, c := range map[string]struct {
		start string
		lines []string
		most  int
		want  []string
	}{
		"fewer than asked for":       {"", []string{`{"a":1}`, `{"a":2}`}, 5, []string{`{"a":1}`, `{"a":2}`}},
		"more than asked for":        {"", []string{`{"a":1}`, `{"a":2}`, `{"a":3}`}, 2, []string{`{"a":2}`, `{"a":3}`}},
		"none":                       {"", nil, 5, nil},
		"longer than the first read": {"", []string{`{"a":1}`, long, `{"a":2}`}, 3, []string{`{"a":1}`, long, `{"a":2}`}},
		"one long line":              {"", []string{`{"a":1}`, long}, 1, []string{long}},
		"a line that was cut short":  {`{"a":1}` + "\n" + `{"a":`, nil, 5, []string{`{"a":1}`, `{"a":`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := filepath.Join(t.TempDir(), "audit.jsonl")
			if err := os.WriteFile(name, []byte(written(t, c.start, c.lines...)), 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := vfs.OS{}.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := Tail(f, c.most)
			var got []string
			for _, line := range lines {
				got = append(got, string(line))
			}
			if err := errors.Join(err, f.Close()); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%v, got %d lines, want %d", err, len(got), len(c.want))
			}
		})
	}
}
