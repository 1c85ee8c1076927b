package auditlog

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// written returns a log with these lines behind a given start.
func written(t *testing.T, start string, lines ...string) []byte {
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
	return text
}

func verified(t *testing.T, log []byte, hash string) Report {
	t.Helper()
	report, err := Verify(bytes.NewReader(log), hash)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

var lines = []string{`{"n":1}`, `{"n":2,"reason":"a \",\"prev\":\" in a text"}`, `{"n":3}`, `{"n":4}`, `{"n":5}`, `{"n":6}`}

// The format is on people's disks.
func TestChainIsTheDocumentedOne(t *testing.T) {
	t.Parallel()
	const want = `{"n":1,"prev":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","hash":"d83575729ddedf8306661fbde6f4ff91d0f59110fb7733f9fde74aaaaf87f4a8"}` + "\n"
	if got := written(t, "", lines[0]); string(got) != want {
		t.Errorf("%s", got)
	}
}

func TestIntactLogsAreAccepted(t *testing.T) {
	t.Parallel()
	const old = `{"old":1}` + "\n" + `{"old":2}` + "\n"
	for _, c := range []struct {
		start            string
		count, old, torn int
	}{
		{"", 6, 0, 0},
		{old, 8, 2, 0},
		{`{"to`, 7, 1, 0},
		{old + `{"to`, 9, 3, 0},
		{string(written(t, old, `{"n":0}`)) + `{"to`, 10, 2, 1},
	} {
		log := written(t, c.start, lines...)
		if got := verified(t, log, ""); got.Fault != 0 || got.Lines != c.count || got.Older != c.old || got.Torn != c.torn || got.Last == "" || got.Contains || got.Cut {
			t.Errorf("%+v: %+v", c, got)
		}
		first := verified(t, written(t, c.start, lines[0]), "").Last
		if got := verified(t, log, first); !got.Contains {
			t.Errorf("%+v: the hash of an earlier line is not found", c)
		}
	}
	if got := verified(t, []byte(old+`{"to`), ""); got.Fault != 0 || got.Older != 3 {
		t.Errorf("without hashes: %+v", got)
	}
	if got := verified(t, append(written(t, "", lines...), `{"to`...), ""); got.Fault != 0 || got.Torn != 1 || !got.Cut {
		t.Errorf("cut short: %+v", got)
	}
}

// Every change but one at the end is found, in the line where it is.
func TestTamperingIsFoundInItsLine(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	whole := slices.Collect(bytes.Lines(written(t, "", lines...)))
	for range 5000 {
		log := slices.Clone(whole)
		i := random.IntN(len(log) - 1) // the end of a log is checked with the hash of its last line
		did, want := "", i+1
		switch random.IntN(5) {
		case 0:
			line := slices.Clone(log[i])
			at := random.IntN(len(line) - 1) // the line end stays
			line[at] ^= 1 << random.IntN(7)
			if line[at] == '\n' {
				continue // two lines
			}
			did, log[i] = fmt.Sprintf("changed byte %d of", at), line
		case 1:
			did, log = "removed", slices.Delete(log, i, i+1)
		case 2:
			did, log = "inserted a line before", slices.Insert(log, i, []byte(`{"forged":1}`+"\n"))
		case 3:
			did, log, want = "repeated", slices.Insert(log, i, log[i]), want+1
		case 4:
			did, log[i], log[i+1] = "swapped with the next", log[i+1], log[i]
		}
		got := verified(t, bytes.Join(log, nil), "")
		if got.Fault == 0 || got.Found == "" {
			t.Fatalf("%s line %d, and nothing was found", did, i+1)
		}
		if i > 0 && got.Fault != want { // a first line without a hash may be older than hashes
			t.Fatalf("%s line %d: found in line %d: %s", did, i+1, got.Fault, got.Found)
		}
	}
}

// The first line with a hash covers the lines before it, which have none.
func TestTamperingWithOlderLinesIsFound(t *testing.T) {
	t.Parallel()
	const old = `{"old":1}` + "\n" + `{"old":2}` + "\n"
	log := string(written(t, old, lines...))
	for _, changed := range []string{
		strings.Replace(log, `{"old":1}`, `{"old":3}`, 1),
		strings.Replace(log, `{"old":1}`+"\n", "", 1),
		strings.Replace(log, `{"old":2}`, `{"old":2}`+"\n"+`{"old":2}`, 1),
		log[len(old):],
	} {
		if got := verified(t, []byte(changed), ""); got.Fault != got.Older+1 {
			t.Errorf("%s: %+v", changed[:40], got)
		}
	}
}

func TestShortenedLogLacksTheKnownHash(t *testing.T) {
	t.Parallel()
	log := written(t, "", lines...)
	last := verified(t, log, "").Last
	short := bytes.Join(slices.Collect(bytes.Lines(log))[:5], nil)
	if got := verified(t, short, last); got.Fault != 0 || got.Contains {
		t.Errorf("%+v", got)
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
