package file_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/file"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/pipeline"
)

func TestSourcePassesTheKindSuite(t *testing.T) {
	kindtest.Source(t, file.NewSource, kindtest.Case{Least: `{ paths: [in.jsonl] }`})
}

func TestSinkPassesTheKindSuite(t *testing.T) {
	kindtest.Sink(t, file.NewSink, kindtest.Case{Least: `{ path: out.jsonl }`})
}

// TestDoctorReadsTheHeaderOfRows has files whose reading would end the pipeline.
func TestDoctorReadsTheHeaderOfRows(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"id,n\n1,a\n": "", "id,id\n1,a\n": `two columns "id"`, "id;n\n1;a\n": "set the delimiter"} {
		in := filepath.Join(t.TempDir(), "in")
		if err := os.WriteFile(in, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := kind.All().Parse("semel.yaml", fmt.Appendf(nil, `
stores: { keys: { memory: {} } }
pipelines:
  p: { source: { file: { paths: [%q], format: csv, state: %q } }, key: { id: .id }, store: keys, sink: { stdout: {} } }
`, in, t.TempDir()), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		x := &config.Examination{File: f, Pipeline: f.Pipelines[0]}
		f.Pipelines[0].Source.Examine(t.Context(), x)
		broken := ""
		for _, finding := range x.Findings {
			if finding.Severity == doctor.Broken {
				broken += finding.Found
			}
		}
		if (broken == "") != (want == "") || !strings.Contains(broken, want) {
			t.Errorf("%q: %q, want %q", text, broken, want)
		}
	}
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

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	source := kindtest.ReadSource[*file.Source](t, "{ file: { paths: [a, /b/*.jsonl], follow: true, from: end, state: s } }")
	if !slices.Equal(source.Paths, []string{filepath.Join("dir", "a"), "/b/*.jsonl"}) || !source.Follow || source.From != "end" || source.State != filepath.Join("dir", "s") {
		t.Errorf("source: %+v", source)
	}
	sink := kindtest.ReadSink[*file.Sink](t, "{ file: { path: out, append: true } }")
	if sink.Path != filepath.Join("dir", "out") || !sink.Append {
		t.Errorf("sink: %+v", sink)
	}
}

func TestConfigurationErrorsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	kindtest.Refused(t, [][2]string{
		{kindtest.WithSource("{ file: { paths: ['a['] } }"), "pipelines.p.source.file.paths[0]: not a pattern: a [ has no ]"},
		{kindtest.WithSource("{ file: in.jsonl }"), "pipelines.p.source.file: expected fields, got a text: write file: { paths: [in.jsonl] }"},
		{kindtest.WithSink("{ file: {} }"), "pipelines.p.sink.file: path is missing"},
	})
}

func TestLintNamesLinesThatAreNeverReadOrReadAgain(t *testing.T) {
	t.Parallel()
	kindtest.Warned(t, [][2]string{
		{kindtest.WithSource("{ file: { paths: ['in/*'], from: end } }"), "warning loss pipelines.p.source.file.from: end"},
		{"stores: { k: { embedded: { path: k } } }\npipelines: { p: { key: { id: .id }, store: k, source: { file: { paths: ['in/*'] } }, sink: { file: { path: in/out } } } }", "broken  pipelines.p.sink.file.path: dir/in/out is one of the source's files"},
		{"stores: { k: { embedded: { path: k } } }\npipelines: { p: { key: { id: .id }, store: k, source: { file: { paths: ['in/*'] } }, sink: { file: { path: out } } } }", ""},
	})
	if notices := strings.Join(kindtest.Findings(kindtest.Parse(t, kindtest.WithSource("{ file: { paths: [in] } }", ", window: 30m"))), "\n"); !strings.Contains(notices, "notice  pipelines.p.window: 30m") {
		t.Errorf("%s", notices)
	}
}

func TestLintNamesFilesThatAreNoJSONLines(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, id, more string
		want           bool
	}{
		{"*.csv", ".id", "", true}, {"in.CSV.gz", "hash(.)", "", true}, {"in.tsv", "{ template: 'x-{.id}' }", "", true}, {"in.csv.zst", "{ all: [.a, line] }", "", true},
		{"a/b.xlsx", ".id", "", true}, {"in.xml", ".id", "", true}, {"in.bz2", ".id", "", true}, {"*.csv", "line", ", filter: 'value.a == 1'", true},
		{"*.csv", "line", "", false}, {"*.csv", "[.id, line]", "", false}, {"in.jsonl", ".id", "", false}, {"in.json.gz", ".id", "", false}, {"csv/in", ".id", "", false},
	} {
		f := kindtest.Parse(t, "stores: { a: { embedded: { path: k } } }\npipelines: { p: { key: { id: "+c.id+" }, store: a, source: { file: { paths: ['"+c.path+"'] } }, sink: { file: { path: out.jsonl } }"+c.more+" } }")
		list := strings.Join(kindtest.Findings(f), "\n")
		if got := strings.Contains(list, "warning  pipelines.p.source.file.paths: dir/"+c.path+" looks like"); got != c.want {
			t.Errorf("%s, %s%s: %v\n%s", c.path, c.id, c.more, got, list)
		}
	}
}

// TestTheDoctorLooksForFiles has patterns that match files, directories and nothing.
func TestTheDoctorLooksForFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a.jsonl"), nil, 0o600), os.WriteFile(filepath.Join(dir, "b.jsonl"), nil, 0o600), os.Mkdir(filepath.Join(dir, "c.jsonl"), 0o700)); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, c := range []struct {
		source string
		want   []string
	}{
		{"paths: ['" + at("*.jsonl") + "']", []string{"fine source.file.paths: " + at("*.jsonl") + ": 2 to read"}},
		{"paths: ['" + at("none") + "']", []string{"broken source.file.paths: " + at("none") + " matches no file"}},
		{"paths: ['" + at("none") + "'], follow: true", []string{"notice source.file.paths: " + at("none") + " matches no file yet"}},
		{"paths: ['" + at("c.jsonl") + "']", []string{"broken source.file.paths: " + at("c.jsonl") + " is not a regular file"}},
	} {
		f := kindtest.Parse(t, kindtest.WithSource("{ file: { "+c.source+", state: '"+at("state")+"' } }"))
		lines, err := kindtest.Examine(t, f, f.Pipelines[0].Source)
		lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, " MiB left") })
		if want := append(c.want, "fine source.file.state: "+at("state")+" can be written"); err != nil || !slices.Equal(lines, want) {
			t.Errorf("%s: %q, %v; want %q", c.source, lines, err, want)
		}
	}
	for path, want := range map[string]string{
		at("out"):       "fine sink.file.path: " + dir + " can be written",
		at("c.jsonl"):   "broken sink.file.path: " + at("c.jsonl") + " is not a regular file",
		at("a.jsonl/x"): "broken sink.file.path: " + at("a.jsonl") + " is not a directory",
	} {
		f := kindtest.Parse(t, kindtest.WithSink("{ file: { path: '"+path+"' } }"))
		if lines, err := kindtest.Examine(t, f, f.Pipelines[0].Sink); err != nil || len(lines) == 0 || lines[0] != want {
			t.Errorf("%s: %q, %v; want %s", path, lines, err, want)
		}
	}
}

// TestKeysLinesAndPositionsAreOneRecord opens the session of a file sink with an embedded
// store, and a file that the store does not know.
func TestKeysLinesAndPositionsAreOneRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, []byte("{\"id\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(fields string, redrive bool) (session pipeline.Session, source pipeline.Source, err error) {
		f := kindtest.Parse(t, fmt.Sprintf("stores: { keys: { embedded: { path: '%s/keys%d' } } }\npipelines: { p: { key: { id: .id }, store: keys, source: { file: { paths: ['%s'] } }, sink: { file: { path: '%s'%s } } } }", dir, len(fields), in, out, fields))
		keys, err := kindtest.OpenStore(t, f, "keys")
		if err != nil {
			t.Fatal(err)
		}
		p := f.Pipelines[0]
		return p.Sink.(config.SessionSink).OpenSession(t.Context(), &config.Env{File: f, Pipeline: p, Keys: keys, Redrive: redrive})
	}
	t.Run("new", func(t *testing.T) {
		session, source, err := open("", false)
		if err != nil || session == nil || source == nil {
			t.Fatalf("session %v, source %v, %v", session, source, err)
		}
		if err := errors.Join(session.Close(t.Context()), source.Close(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(out, []byte("unknown\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := open(", append: false", true); err == nil || !strings.Contains(err.Error(), "move the file away, or write sink.file.append: true to append to it") {
		t.Errorf("a file with lines that the store does not know: %v", err)
	}
	session, source, err := open(", append: true", true)
	if err != nil || source != nil {
		t.Fatalf("source %v, %v", source, err)
	}
	if err := session.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestASinkWithoutASessionAppendsLines(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	f := kindtest.Parse(t, kindtest.WithSink("{ file: { path: '"+out+"' } }"))
	kindtest.Deliver(t, f, "a", "b")
	kindtest.Deliver(t, f, "c")
	if got, err := os.ReadFile(out); err != nil || string(got) != "a\nb\nc\n" {
		t.Errorf("%q, %v", got, err)
	}
}
