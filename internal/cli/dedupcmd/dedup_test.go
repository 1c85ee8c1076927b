package dedupcmd_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/programtest"
)

// summaryLine is the last line on stderr, as scripts read it.
var summaryLine = regexp.MustCompile(`^read [0-9,]+  fresh [0-9,]+  duplicates [0-9,]+  mismatched [0-9,]+  rejected [0-9,]+(  missing [0-9,]+)?  in [0-9]+\.[0-9] s( \([0-9.]+ ([kMG] )?lines/s\))?$`)

func TestDedupKeepsTheFirstOfEachKeyAndSumsUp(t *testing.T) {
	t.Parallel()
	o := programtest.Run(t, "{\"id\":1}\n{\"id\":2}\n{\"id\":1,\"x\":0}\n", "dedup", "-k", ".id")
	if o.Status != term.ExitDone || o.Stdout != "{\"id\":1}\n{\"id\":2}\n" {
		t.Fatalf("%+v", o)
	}
	last := lastLine(o.Stderr)
	if !summaryLine.MatchString(last) || !strings.HasPrefix(last, "read 3  fresh 2  duplicates 1  mismatched 1  rejected 0  in ") {
		t.Errorf("last line %q", last)
	}
	programtest.Run(t, "a\n", "dedup", "-q").Check(t, term.ExitDone)
}

func TestDedupRemembersAcrossRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, out, store := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n{\"id\":1}\n"), filepath.Join(dir, "out"), filepath.Join(dir, "store")
	for round, run := range []struct{ flag, want string }{
		{"--again", "read 2  fresh 1  duplicates 1  "}, {"--again", "read 2  fresh 0  duplicates 2  "},
		{"--again=false", "in.jsonl is unchanged since an earlier run read its 2 lines: skipped; --again reads it\nread 0  fresh 0  duplicates 0  "},
	} {
		o := programtest.Run(t, "", "dedup", "--key", ".id", "--store", store, "--output", out, run.flag, in)
		o.Check(t, term.ExitDone, run.want)
		if got := programtest.ReadFile(t, out); got != "{\"id\":1}\n" {
			t.Fatalf("round %d: output %q", round, got)
		}
	}
	o := programtest.Run(t, "{\"id\":1}\n", "dedup", "-k", ".id", "--store", store, "--scope", "other")
	o.Check(t, term.ExitDone, "fresh 1")
	programtest.Run(t, "", "keys", "show", "--store", store, "1").Check(t, term.ExitDone)
}

// TestAKeyRuleThatMatchesNoLineDoesNotBindTheScope: a typing error must not keep the
// right key out, and the run that it stopped has nothing to continue.
func TestAKeyRuleThatMatchesNoLineDoesNotBindTheScope(t *testing.T) {
	t.Parallel()
	const lines = "{\"order_id\":1}\n{\"order_id\":1}\n"
	for _, piped := range []bool{false, true} {
		dir := t.TempDir()
		words, stdin := []string{"dedup", "--store", filepath.Join(dir, "keys"), "-o", filepath.Join(dir, "out")}, lines
		if !piped {
			words, stdin = append(words, programtest.WriteFile(t, filepath.Join(dir, "o.jsonl"), lines)), ""
		}
		programtest.Run(t, stdin, append(words, "--key", ".orderid")...).Check(t, term.ExitFailed, "did you mean .order_id?")
		got := programtest.Run(t, stdin, append(words, "--key", ".order_id")...)
		got.Check(t, term.ExitDone, "fresh 1  duplicates 1")
		if strings.Contains(got.Stderr, "unfinished") {
			t.Errorf("piped %t: %s", piped, got.Stderr)
		}
		programtest.Run(t, stdin, append(words, "--key", ".orderid")...).Check(t, term.ExitUsage, "was filled with the key rule .order_id")
	}
}

func TestDedupExplainsAListOfKeys(t *testing.T) {
	t.Parallel()
	programtest.Run(t, "{}\n", "dedup", "--key", ".type,.order_id").Check(t, term.ExitUsage, "for a composite key repeat --key: --key .type --key .order_id\n")
	programtest.Run(t, "{}\n", "dedup", "--key", ".type,").Check(t, term.ExitUsage, "column 6")
}

// TestErrorOfADamagedStoreNamesTheRemedy changes a byte of a record.
func TestErrorOfADamagedStoreNamesTheRemedy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store := filepath.Join(dir, "keys")
	words := []string{"dedup", "--quiet", "--key", ".id", "--store", store, "-o", filepath.Join(dir, "out")}
	for _, line := range []string{"{\"id\":1}\n", "{\"id\":2}\n"} {
		programtest.Run(t, line, words...).Check(t, term.ExitDone)
	}
	segment := filepath.Join(store, "00000001.seg")
	data := []byte(programtest.ReadFile(t, segment))
	data[200] ^= 0xff
	programtest.WriteFile(t, segment, string(data))
	got := programtest.Run(t, "{\"id\":3}\n", words...)
	if got.Status != term.ExitFailed || !strings.Contains(got.Stderr, "backup") || !strings.Contains(got.Stderr, "docs/runbook.md#store-corrupt") {
		t.Errorf("%+v", got)
	}
}

// TestAStoreWhoseScopesAreNotBoundGetsAWarning: another rule may have filled it.
func TestAStoreWhoseScopesAreNotBoundGetsAWarning(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys := filepath.Join(dir, "keys")
	words := func(rule string) []string { return []string{"dedup", "--key", rule, "--store", keys} }
	unbind := func() { // as an earlier version left the store
		store, err := logstore.Open(keys, nil)
		if err != nil {
			t.Fatal(err)
		}
		tx, err := store.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tx.Set("scope/default", nil)
		if err := errors.Join(tx.Commit(t.Context()), store.Close()); err != nil {
			t.Fatal(err)
		}
	}
	const warning = "has keys from a version that did not keep key rules"
	for _, line := range []string{"{\"a\":1}\n", "{\"a\":2}\n"} { // an empty store, and a scope that is bound
		if got := programtest.Run(t, line, words(".a")...); got.Status != term.ExitDone || strings.Contains(got.Stderr, warning) {
			t.Fatalf("%+v", got)
		}
	}
	unbind()
	programtest.Run(t, "{\"b\":1}\n", words(".b")...).Check(t, term.ExitDone, warning, "binds scope default to .b", "--scope")
	if got := programtest.Run(t, "{\"b\":3}\n", words(".b")...); strings.Contains(got.Stderr, warning) {
		t.Errorf("the scope is bound now: %s", got.Stderr)
	}
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"b\":4}\n")
	pipeline := []string{"run", "--admin", "off", programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl] } }, key: { id: .b, scope: default }, store: keys, sink: { file: { path: out } } }
`)}
	unbind()
	const logged = "the store has keys and no key rule"
	programtest.Run(t, "", pipeline...).Check(t, term.ExitDone, logged, `"scope":"default","binds":".b"`, "key.scope")
	if got := programtest.Run(t, "", pipeline...); got.Status != term.ExitDone || strings.Contains(got.Stderr, logged) {
		t.Errorf("%+v", got)
	}
}

// TestAScopeOfAStoreBelongsToOneKeyRule: order 1 and customer 1 are two messages.
func TestAScopeOfAStoreBelongsToOneKeyRule(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	orders := programtest.WriteFile(t, filepath.Join(dir, "o.jsonl"), "{\"order_id\":1}\n{\"order_id\":2}\n")
	customers := programtest.WriteFile(t, filepath.Join(dir, "c.jsonl"), "{\"customer_id\":1}\n{\"customer_id\":3}\n")
	store, out := filepath.Join(dir, "keys"), filepath.Join(dir, "c.out")
	programtest.Run(t, "", "dedup", "--key", ".order_id", "--store", store, "-o", filepath.Join(dir, "o.out"), orders).Check(t, term.ExitDone, "fresh 2")
	refused := programtest.Run(t, "", "dedup", "--key", ".customer_id", "--store", store, "-o", out, customers)
	refused.Check(t, term.ExitUsage, "scope default of "+store+" was filled with the key rule .order_id", ".customer_id", "--scope and another name", "--same-scope")
	if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a refused run touched its output: %v", err)
	}
	programtest.Run(t, "", "dedup", "--key", ".customer_id", "--key", ".order_id", "--store", store, customers).Check(t, term.ExitUsage, "all of .customer_id, .order_id")
	programtest.Run(t, "", "dedup", "--key", ".customer_id", "--store", store, "--scope", "customers", "-o", out, customers).Check(t, term.ExitDone, "fresh 2")
	programtest.Run(t, "", "dedup", "--key", ".customer_id", "--store", store, "--scope", "customers", customers).Check(t, term.ExitDone, "fresh 0")
	programtest.Run(t, "", "dedup", "--key", ".customer_id", "--store", store, "--same-scope", customers).Check(t, term.ExitDone, "fresh 1")
	programtest.Run(t, "", "dedup", "--key", ".order_id", "--store", store, orders).Check(t, term.ExitDone, "fresh 0")

	// A pipeline on the same store is refused in the same way.
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  copy: { source: { file: { paths: [c.jsonl] } }, key: { id: .customer_id, scope: default }, store: keys, sink: { file: { path: piped } } }
`)
	programtest.Run(t, "", "run", file).Check(t, term.ExitUsage, "pipeline copy: ", `scope "default"`, ".order_id", "key.scope", "key.same_scope: true")
	programtest.WriteFile(t, file, strings.Replace(programtest.ReadFile(t, file), "scope: default", "scope: default, same_scope: true", 1))
	programtest.Run(t, "", "run", file).Check(t, term.ExitDone, "")
	if got := programtest.ReadFile(t, filepath.Join(dir, "piped")); got != "" {
		t.Errorf("the pipeline wrote %q, want nothing: both ids are in the scope", got)
	}
}

func TestDedupReportHasItsFields(t *testing.T) {
	t.Parallel()
	report := filepath.Join(t.TempDir(), "report.json")
	programtest.Run(t, "a\na\n", "dedup", "--report", report).Check(t, term.ExitDone, "read 2")
	var fields map[string]any
	if err := json.Unmarshal([]byte(programtest.ReadFile(t, report)), &fields); err != nil {
		t.Fatal(err)
	}
	want := []string{"blank", "bytes_in", "bytes_out", "duplicate", "elapsed_seconds", "fresh", "mismatch", "missing", "read", "rejected", "resumed"}
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("fields %q, not %q", got, want)
	}
}

func TestDedupFailsWithOneLineThatSaysWhereAndWhatToDo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "events.jsonl"), "{\"id\":1}\n{}\n")
	o := programtest.Run(t, "", "dedup", "-k", ".id", in)
	o.Check(t, term.ExitFailed, in+":2: .id is missing: fix the line, or choose --on-missing")
	if o.Stdout != "{\"id\":1}\n" || strings.Count(o.Stderr, "\n") != 1 {
		t.Errorf("%+v", o)
	}
}

func TestDedupRefusesBadUsageBeforeItTouchesAnything(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{}\n")
	theirs := programtest.WriteFile(t, filepath.Join(dir, "theirs"), "theirs\n")
	for _, test := range []struct {
		args []string
		want []string
	}{
		{[]string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}, []string{"a: there is no such file\n", "b: there is no such file\n"}},
		{[]string{"-o", theirs, in}, []string{"--append", "--force"}},
		{[]string{"-o", theirs, "--store", filepath.Join(dir, "store"), in}, []string{"--append", "--force"}},
		{[]string{"-o", in, in}, []string{"is also an input"}},
		{[]string{"--on-missing", "rejekt", "--format", "jsn", in}, []string{`--on-missing "rejekt"`, `--format "jsn"`}},
		{[]string{"--on-missing", "reject", in}, []string{"--rejected FILE"}},
		{[]string{"--lossy", "0.01", "--expect", "1e6", "--store", filepath.Join(dir, "store"), in}, []string{"--store"}},
		{[]string{"--lossy", "2", in}, []string{"--lossy", "0.001"}},
		{[]string{"--window", "0", in}, []string{"--window"}},
		{[]string{"--kee", ".id", in}, []string{"did you mean --key?"}},
		{[]string{"-k", "id", in}, []string{"--key"}},
	} {
		o := programtest.Run(t, "", append([]string{"dedup"}, test.args...)...)
		if o.Status != term.ExitUsage || o.Stdout != "" {
			t.Errorf("%q: %+v", test.args, o)
		}
		o.Check(t, term.ExitUsage, test.want...)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 2 || programtest.ReadFile(t, theirs) != "theirs\n" {
		t.Errorf("a refused run touched something: %v, %v", names, err)
	}
}

func TestDedupIsInterruptedWithItsOwnStatus(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("interrupt"))
	stdin, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer feed.Close()
	defer stdin.Close()
	var stdout, stderr bytes.Buffer
	status := cli.Main(ctx, kind.All(), []string{"dedup"}, stdin, &stdout, &stderr, programtest.NoEnv)
	if status != term.ExitInterrupted || !strings.Contains(stderr.String(), "run the same command again to resume") {
		t.Errorf("status %d: %s", status, stderr.String())
	}
}

// TestAnInterruptedRunPromisesToResumeOnlyWithAStore interrupts runs whose input has a
// line and does not end.
func TestAnInterruptedRunPromisesToResumeOnlyWithAStore(t *testing.T) {
	t.Parallel()
	for want, flags := range map[string][]string{
		"semel dedup: interrupted after 1 lines: without --store, the next run begins again\n": nil,
		"semel dedup: interrupted after 1 lines: the fresh ones were written to standard output, and the next run does not write them again. To resume, append to the same file with >> FILE (> FILE empties it first); with --output FILE, the same command resumes\n": {"--store", filepath.Join(t.TempDir(), "store")},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		stdin, feed, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := feed.WriteString("line\n"); err != nil {
			t.Fatal(err)
		}
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		go func() { // the line comes out, and then the run is interrupted
			_, err := bufio.NewReader(reader).ReadString('\n')
			cancel(errors.Join(errors.New("interrupt"), err))
		}()
		var stderr bytes.Buffer
		status := cli.Main(ctx, kind.All(), append([]string{"dedup"}, flags...), stdin, writer, &stderr, programtest.NoEnv)
		if status != term.ExitInterrupted || !strings.HasSuffix(stderr.String(), want) {
			t.Errorf("status %d: %s, want %s", status, stderr.String(), want)
		}
		for _, f := range []*os.File{feed, stdin, reader, writer} {
			f.Close()
		}
	}
}

// TestTheRemedyAfterAnInterruptionLosesAndRepeatsNothing follows the advice of runs that were
// interrupted after their first line.
func TestTheRemedyAfterAnInterruptionLosesAndRepeatsNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags, again []string
		before       string // in the output
		want         string
	}{
		"standard output":    {flags: []string{"--store", "store"}, want: "append to the same file with >> FILE"},
		"a file":             {flags: []string{"-o", "out"}, again: []string{"-o", "out", "--force"}, want: "add --force, so that it replaces out\n"},
		"a file with a past": {flags: []string{"-o", "out", "--append"}, again: []string{"-o", "out", "--append"}, before: "past\n", want: "cut the content of this run off first: out to 5 bytes\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			out := filepath.Join(dir, "out")
			in := func(flags []string) (list []string) {
				for _, f := range flags {
					if f == "out" || f == "store" {
						f = filepath.Join(dir, f)
					}
					list = append(list, f)
				}
				return list
			}
			if c.before != "" {
				programtest.WriteFile(t, out, c.before)
			}
			first := interruptedRun(t, out, in(c.flags), len(c.before))
			if got := strings.ReplaceAll(first, dir+string(filepath.Separator), ""); !strings.Contains(got, c.want) {
				t.Fatalf("%s, want %s", got, c.want)
			}
			if c.again == nil { // stdout goes to the end of out
				o := programtest.Run(t, "1\n2\n", append([]string{"dedup"}, in(c.flags)...)...)
				o.Check(t, term.ExitDone, "fresh 1")
				programtest.WriteFile(t, out, programtest.ReadFile(t, out)+o.Stdout)
			} else {
				if c.before != "" {
					if err := os.Truncate(out, int64(len(c.before))); err != nil {
						t.Fatal(err)
					}
				} else {
					programtest.Run(t, "1\n2\n", append([]string{"dedup"}, in(c.flags)...)...).Check(t, term.ExitUsage, "add --force to overwrite the file, also if they are from an interrupted run")
				}
				programtest.Run(t, "1\n2\n", append([]string{"dedup"}, in(c.again)...)...).Check(t, term.ExitDone, "fresh 2")
			}
			if got := programtest.ReadFile(t, out); got != c.before+"1\n2\n" {
				t.Errorf("%q", got)
			}
		})
	}
}

// interruptedRun runs dedup with a line "1" and no end, and interrupts it once the line is in
// out, which has some bytes before. It returns the messages of the run.
func interruptedRun(t *testing.T, out string, flags []string, before int) string {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	stdin, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	defer feed.Close()
	if _, err := feed.WriteString("1\n"); err != nil {
		t.Fatal(err)
	}
	to := out
	if slices.Contains(flags, "-o") {
		to = os.DevNull
	}
	stdout, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	go func() {
		for ctx.Err() == nil {
			if info, err := os.Stat(out); err == nil && info.Size() > int64(before) {
				cancel(errors.New("interrupt"))
			}
			runtime.Gosched()
		}
	}()
	var stderr bytes.Buffer
	if status := cli.Main(ctx, kind.All(), append([]string{"dedup"}, flags...), stdin, stdout, &stderr, programtest.NoEnv); status != term.ExitInterrupted {
		t.Fatalf("status %d: %s", status, stderr.String())
	}
	return stderr.String()
}

func TestDedupEndsQuietlyWhenItsReaderLeaves(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	for i := range 300000 {
		fmt.Fprintf(&lines, "{\"id\":%d}\n", i)
	}
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), lines.String())
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	head := make(chan string)
	go func() {
		line, _ := bufio.NewReader(reader).ReadString('\n')
		reader.Close()
		head <- line
	}()
	var stderr bytes.Buffer
	status := cli.Main(t.Context(), kind.All(), []string{"dedup", "-k", ".id", "--store", filepath.Join(dir, "store"), in}, nil, writer, &stderr, programtest.NoEnv)
	if line := <-head; status != term.ExitDone || line != "{\"id\":0}\n" || stderr.Len() > 0 {
		t.Fatalf("status %d, stdout %q, stderr %q", status, line, stderr.String())
	}
	o := programtest.Run(t, "", "dedup", "-k", ".id", "--store", filepath.Join(dir, "store"), in)
	if o.Check(t, term.ExitDone, "read 300,000"); !strings.HasSuffix(o.Stdout, "{\"id\":299999}\n") {
		t.Error("a line that was not written is remembered")
	}
}

func TestDedupSaysThatItIsLossy(t *testing.T) {
	t.Parallel()
	programtest.Run(t, "a\nb\n", "dedup", "--lossy", "0.1%", "--expect", "1e3").Check(t, term.ExitDone, "lossy", "0.001")
}

// lastLine returns the last line of a text, without its end.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	return lines[len(lines)-1]
}
