package app

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
)

// files is a directory with a file-to-file pipeline.
type files struct{ dir string }

// add adds a source file with the keys k1 to k<upTo>.
func (d files) add(t *testing.T, name string, upTo int) {
	t.Helper()
	var text strings.Builder
	for i := range upTo {
		fmt.Fprintf(&text, "{\"id\":\"k%d\"}\n", i+1)
	}
	if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// run runs the pipeline until the source ends, and returns the number of lines in
// the output.
func (d files) run(t *testing.T, store string, observe bool) int {
	t.Helper()
	out := filepath.Join(d.dir, "out.jsonl")
	f := parse(t, `stores:
  a: { embedded: { path: %q } }
  b: { embedded: { path: %q } }
  seen: { memory: {} }
  stack: { tiered: [seen, a] }
pipelines:
  p:
    source: { file: { paths: [%q], state: %q } }
    key: { id: .id }
    store: %s
    window: 1h
    observe: %v
    sink: { file: { path: %q, append: %v } }
    parked: { path: %q }
`, filepath.Join(d.dir, "a"), filepath.Join(d.dir, "b"), filepath.Join(d.dir, "in*.jsonl"), filepath.Join(d.dir, "state"), store, observe, out, store == "b", filepath.Join(d.dir, "parked"))
	stores := NewStores(f, nil)
	p, err := OpenPipeline(t.Context(), f, f.Pipelines[0], stores, nil)
	if err == nil {
		err = p.Run(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := stores.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(data, []byte("\n"))
}

// TestLinesWrittenWithAnotherStoreStayInTheOutput has a file pipeline observe for a while,
// or use another store or a stack. When it returns to its first setup, no
// delivered line may be cut off.
func TestLinesWrittenWithAnotherStoreStayInTheOutput(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]struct {
		store   string
		observe bool
		lines   int // the number of lines that the second run adds
	}{
		"observe":       {"a", true, 100 + 150}, // it has its own positions
		"another store": {"b", false, 150},
		"a stack":       {"stack", false, 50},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := files{t.TempDir()}
			d.add(t, "in1.jsonl", 100)
			if got := d.run(t, "a", false); got != 100 {
				t.Fatalf("at first it has %d lines", got)
			}
			d.add(t, "in2.jsonl", 150)
			if got := d.run(t, between.store, between.observe); got != 100+between.lines {
				t.Fatalf("then it has %d lines", got)
			}
			d.add(t, "in3.jsonl", 160)
			got := d.run(t, "a", false)
			want := 100 + between.lines + 10
			if name == "another store" {
				want += 50 // keys that this store does not know
			}
			if got != want {
				t.Errorf("at last it has %d lines, want %d", got, want)
			}
		})
	}
}

// TestFileBesideAnEmbeddedStoreKeepsIDs lists the ids of a pipeline whose store
// has keep_ids.
func TestFileBesideAnEmbeddedStoreKeepsIDs(t *testing.T) {
	t.Parallel()
	d := files{t.TempDir()}
	d.add(t, "in.jsonl", 3)
	keys := filepath.Join(d.dir, "keys")
	f := parse(t, `stores:
  a: { embedded: { path: %q, keep_ids: true } }
pipelines:
  p:
    source: { file: { paths: [%q] } }
    key: { id: .id }
    store: a
    window: 1h
    sink: { file: { path: %q } }
`, keys, filepath.Join(d.dir, "in.jsonl"), filepath.Join(d.dir, "out.jsonl"))
	stores := NewStores(f, nil)
	p, err := OpenPipeline(t.Context(), f, f.Pipelines[0], stores, nil)
	if err == nil {
		err = errors.Join(p.Run(t.Context()), stores.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	store, err := logstore.Open(keys, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var ids []string
	for r, err := range store.List(t.Context(), semel.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, r.Key.ID)
	}
	if slices.Sort(ids); !slices.Equal(ids, []string{"k1", "k2", "k3"}) {
		t.Errorf("ids %q are listed", ids)
	}
}
