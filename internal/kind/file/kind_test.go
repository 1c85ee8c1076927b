package file_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/file"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/pipeline"
)

func TestSource(t *testing.T) {
	kindtest.Source(t, file.NewSource, kindtest.Case{Least: `{ paths: [in.jsonl] }`})
}

func TestSink(t *testing.T) {
	kindtest.Sink(t, file.NewSink, kindtest.Case{Least: `{ path: out.jsonl }`})
}

// TestBlankLinesAreMessagesOfTextOnly has a rule for whole lines, and rules that find
// nothing in a blank line.
func TestBlankLinesAreMessagesOfTextOnly(t *testing.T) {
	t.Parallel()
	in := filepath.Join(t.TempDir(), "in")
	if err := os.WriteFile(in, []byte("{\"id\":1}\n\n{\"id\":2}\n  \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for rule, want := range map[string][]string{
		"line":            {`{"id":1}`, "", `{"id":2}`, "  "},
		"[line, .id]":     {`{"id":1}`, "", `{"id":2}`, "  "},
		"{ all: [line] }": {`{"id":1}`, "", `{"id":2}`, "  "},
		".id":             {`{"id":1}`, `{"id":2}`},
		"hash(.)":         {`{"id":1}`, `{"id":2}`},
	} {
		f, err := kind.All().Parse("semel.yaml", fmt.Appendf(nil, `
stores: { keys: { memory: {} } }
pipelines:
  p: { source: { file: { paths: [%q], state: %q } }, key: { id: %s }, store: keys, sink: { stdout: {} } }
`, in, t.TempDir(), rule), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		p := f.Pipelines[0]
		var sampled []string
		if err := p.Source.Sample(t.Context(), p, func(m *semel.Message) bool {
			sampled = append(sampled, string(m.Body))
			return true
		}); err != nil || !slices.Equal(sampled, want) {
			t.Errorf("%s: the sample is %q (%v), want %q", rule, sampled, err, want)
		}
		source, err := p.Source.Open(t.Context(), &config.Env{File: f, Pipeline: p})
		if err != nil {
			t.Fatal(err)
		}
		var read []string
		for err == nil {
			var items []*pipeline.Item
			items, err = source.Read(t.Context())
			for _, it := range items {
				read = append(read, string(it.Message.Body))
			}
		}
		if !errors.Is(err, io.EOF) || !slices.Equal(read, want) {
			t.Errorf("%s: read %q (%v), want %q", rule, read, err, want)
		}
		if err := source.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
