package configcmd_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestLintNamesThePlaceOfAWrongExpression(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := func(lines string) string {
		return programtest.WriteFile(t, filepath.Join(dir, "semel.yaml"), fmt.Sprintf(`
stores: { keys: { memory: {} } }
pipelines:
  p:
    key: { id: .id }
    store: keys
    source: { file: { paths: [in.jsonl] } }
    sink: { stdout: {} }
%s`, lines))
	}
	for _, c := range []struct{ lines, want string }{
		{`    filter: 'vlaue.a == 1'`, ":9:13: pipelines.p.filter: \"vlaue.a == 1\": column 1: undeclared reference to 'vlaue' (did you mean 'value'?): the names are value, key, headers, time, topic, partition and offset"},
		{`    filter: 'value.a = 1'`, ":9:13: pipelines.p.filter: \"value.a = 1\": column 9: Syntax error"},
		{`    filter: '"paid"'`, "a filter is a condition"},
		{`    filter: { a: 1 }`, ":9:13: pipelines.p.filter: expected an expression in quotes"},
		{`    filter: ""`, "it is empty: leave it out"},
		{`    map: {"a": value.b}`, ":9:10: pipelines.p.map: expected an expression in quotes"},
		{`    map: 'value.a.map(x, value.b.map(y, x + y))'`, "it may take too long"},
	} {
		programtest.Run(t, "", "lint", config(c.lines)).Check(t, term.ExitUsage, c.want)
	}
	got := programtest.Run(t, "", "explain", config("    filter: 'value.a == 1'\n    map: value.b"))
	got.Check(t, term.ExitDone)
	for _, want := range []string{"  filter            value.a == 1\n  map               value.b\n", "while filter and map are evaluated:", "after the filter left the message out, before its key is remembered:",
		"an expression fails, such as for a missing field:", "after a change of the filter"} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("explain lacks %q: %s", want, got.Stdout)
		}
	}
}
