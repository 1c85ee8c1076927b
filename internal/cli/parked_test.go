package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/parkedcmd"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/pipeline"
)

// target is a webhook that refuses some ids and records every request.
type target struct {
	*httptest.Server
	mu       sync.Mutex
	refused  map[string]bool
	accepted []string // id and redrive count
}

func newTarget(t *testing.T, refused ...string) *target {
	t.Helper()
	w := &target{refused: map[string]bool{}}
	for _, id := range refused {
		w.refused[id] = true
	}
	w.Server = httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m struct{ ID string }
		_ = json.Unmarshal(body, &m)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refused[m.ID] {
			answer.WriteHeader(http.StatusUnprocessableEntity)
			// The token is quoted without its scheme, once across the end of what is kept.
			token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			fmt.Fprintf(answer, "token %s expired %s%s", token, strings.Repeat(".", 480), token)
			return
		}
		w.accepted = append(w.accepted, m.ID+r.Header.Get("Semel-Redrive"))
	}))
	t.Cleanup(w.Close)
	return w
}

func (w *target) accept() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.refused)
}

func (w *target) seen() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.accepted, " ")
}

// parkedConfig writes a configuration with a store and a file-to-webhook
// pipeline. Messages are parked in a directory unless another place is named.
func parkedConfig(t *testing.T, w *target, stores, store, more string) string {
	t.Helper()
	dir := t.TempDir()
	var lines strings.Builder
	for i := range 5 {
		fmt.Fprintf(&lines, "{\"id\":\"m%d\"}\n", i)
	}
	writeFile(t, filepath.Join(dir, "in.jsonl"), lines.String()+"{\"oid\":\"m9\"}\n")
	return writeFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { %s }
admin: { listen: "off" }
pipelines:
  hooks:
    source: { file: { paths: [in.jsonl], state: state } }
    key: { id: .id }
    store: %s
    sink: { webhook: { url: %q, allow_private: true, headers: { Authorization: "Bearer canary-7f3a" } } }
    on_failure: { attempts: 2, backoff: 1ms }
    %s
`, stores, store, w.URL, more))
}

// asides returns the output of parked ls --json, by message id.
func asides(t *testing.T, file string) map[string]parkedcmd.Line {
	t.Helper()
	got := run(t, "", "parked", "ls", "--config", file, "--json", "--quiet")
	got.check(t, term.ExitDone)
	list := map[string]parkedcmd.Line{}
	for line := range strings.Lines(got.stdout) {
		var m parkedcmd.Line
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err, line)
		}
		list[strings.Trim(string(m.Key), `"`)] = m
	}
	return list
}

func TestParkedMessagesAreListedShownAndSettled(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1", "m2", "m3")
	file := parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	parked := func(words ...string) outcome {
		t.Helper()
		return run(t, "", append([]string{"parked", words[0], "--config", file}, words[1:]...)...)
	}
	if got := parked("ls"); got.status != term.ExitDone || !strings.HasPrefix(got.stdout, "ID ") || !strings.Contains(got.stderr, "0 messages parked") {
		t.Errorf("before the first run: %+v", got)
	}
	if got := run(t, "", "run", file); got.status != term.ExitDone || strings.Contains(got.stderr, "canary") {
		t.Fatalf("%+v", got)
	}
	stored, err := os.ReadDir(filepath.Join(filepath.Dir(file), "aside", "hooks"))
	for _, entry := range stored {
		if text := readFile(t, filepath.Join(filepath.Dir(file), "aside", "hooks", entry.Name())); strings.Contains(text, "cana") {
			t.Errorf("a secret is stored with a parked message: %s", text)
		}
	}
	if err != nil || len(stored) < 4 {
		t.Errorf("%v, and %d messages are stored", err, len(stored))
	}
	list := asides(t, file)
	if len(list) != 4 || list["m2"].Reason != "permanent" || list["m2"].Attempts != 1 || list["m2"].Scope == nil || *list["m2"].Scope != "hooks" || list[""].Reason != "key-missing" {
		t.Fatalf("%+v", list)
	}

	got := parked("ls", "--reason", "permanent", "--key", "m2")
	if lines := strings.Split(strings.TrimSpace(got.stdout), "\n"); len(lines) != 2 || !strings.HasPrefix(lines[1], list["m2"].ID+"  20") || !strings.Contains(lines[1], "m2: ") {
		t.Errorf("%+v", got)
	}
	if got = parked("ls", "--older", "1h"); strings.Count(got.stdout, "\n") != 1 {
		t.Errorf("nothing is that old: %+v", got)
	}
	got = parked("show", list["m2"].ID)
	for _, want := range []string{"key          m2\nscope        hooks\nreason       permanent\nerror        ", "attempts     1\n", "in.jsonl, partition 0, offset 24\n", "body         11 B\n{\"id\":\"m2\"}\n"} {
		if got.status != term.ExitDone || !strings.Contains(got.stdout, want) {
			t.Errorf("%q is missing in %+v", want, got)
		}
	}
	got = parked("show", list["m2"].ID, "--json")
	var whole parkedcmd.Line
	if err := json.Unmarshal([]byte(got.stdout), &whole); err != nil || whole.Message == nil || whole.Message.Body == nil || *whole.Message.Body != `{"id":"m2"}` {
		t.Errorf("%v %s", err, got.stdout)
	}
	parked("show", "none", list["m2"].ID).check(t, term.ExitFailed, "none is not a parked message of hooks: semel parked ls lists them")

	if got = parked("retry", "--all", "--dry-run"); got.status != term.ExitDone || strings.Count(got.stdout, "it is processed: the store has no record of the key") != 3 || !strings.Contains(got.stdout, "(no key): its key is found again") {
		t.Errorf("%+v", got)
	}
	if got = parked("retry", list["m2"].ID); got.status != term.ExitFailed || !strings.Contains(got.stdout, "m2: parked again: permanent: ") || !strings.Contains(got.stderr, "hooks: not settled: 1 of 1 message") {
		t.Errorf("%+v", got)
	}
	w.accept()
	if got = parked("retry", "--reason", "permanent"); got.status != term.ExitDone || strings.Count(got.stdout, ": redriven\n") != 3 || !strings.Contains(w.seen(), "m22") || !strings.Contains(w.seen(), "m31") {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}

	none := list[""].ID
	parked("done", none, "--reason", "x").check(t, term.ExitFailed, none+" has no key that could be done: semel parked skip takes it out")
	parked("skip", none).check(t, term.ExitUsage, "--reason TEXT is missing: say why, for the audit log")
	if got = parked("skip", none, "--reason", "no order", "--json"); got.status != term.ExitDone || got.stdout != `{"pipeline":"hooks","id":"`+none+`","outcome":"skipped"}`+"\n" {
		t.Errorf("%+v", got)
	}
	if list = asides(t, file); len(list) != 0 {
		t.Errorf("left: %+v", list)
	}
	log := readFile(t, filepath.Join(filepath.Dir(file), "aside", pipeline.AuditName))
	if strings.Count(log, `"how":"redriven"`) != 3 || !strings.Contains(log, `"reason":"no order"`) {
		t.Errorf("audit log: %s", log)
	}

	// A message whose key is done has no second effect.
	park(t, file, pipeline.Parked{ID: "twin", Pipeline: "hooks", Key: semel.Key{Scope: "hooks", ID: "m2"}, Reason: "attempts", Error: "late", Message: semel.Message{Body: []byte(`{"id":"m2"}`)}})
	seen := w.seen()
	if got = parked("retry", "--all", "--json"); got.status != term.ExitDone || got.stdout != `{"pipeline":"hooks","id":"twin","outcome":"done before"}`+"\n" || w.seen() != seen {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}
	// An operator knows that a message had its effect.
	park(t, file, pipeline.Parked{ID: "other", Pipeline: "hooks", Key: semel.Key{Scope: "hooks", ID: "m7"}, Reason: "unknown", Error: "no answer"})
	if got = parked("done", "--parked-for", "unknown", "--reason", "the bank has it"); got.status != term.ExitDone || !strings.Contains(got.stdout, "other  hooks  m7: done\n") {
		t.Errorf("%+v", got)
	}
	keys := filepath.Join(filepath.Dir(file), "keys")
	run(t, "", "keys", "show", "m7", "--scope", "hooks", "--store", keys).check(t, term.ExitDone)
	if lines := audit(t, keys); len(lines) != 2 || lines[0]["verb"] != "parked done" || lines[0]["reason"] != "the bank has it" {
		t.Errorf("%v", lines)
	}
}

func TestAnUnreadableParkedFileHidesNoOther(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1", "m2", "m3")
	file := parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	if got := run(t, "", "run", file); got.status != term.ExitDone {
		t.Fatalf("%+v", got)
	}
	list := asides(t, file)
	bad := writeFile(t, filepath.Join(filepath.Dir(file), "aside", "hooks", "bad.json"), "junk")
	named := bad + " is damaged, or not a parked message: invalid character 'j' looking for beginning of value: move it out of the directory"

	parked := func(words ...string) outcome {
		t.Helper()
		return run(t, "", append([]string{"parked", words[0], "--config", file}, words[1:]...)...)
	}
	got := parked("ls")
	got.check(t, term.ExitFailed, named)
	if strings.Count(got.stdout, "\n") != 1+len(list) {
		t.Errorf("%+v", got)
	}
	if got = parked("skip", list["m1"].ID, "--reason", "x"); got.status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	w.accept()
	got = parked("retry", "--key", "m2")
	got.check(t, term.ExitFailed, named)
	if !strings.Contains(got.stdout, "m2: redriven\n") {
		t.Errorf("%+v", got)
	}
	got = parked("done", "--key", "m3", "--reason", "x")
	got.check(t, term.ExitFailed, named)
	if !strings.Contains(got.stdout, "m3: done\n") {
		t.Errorf("%+v", got)
	}
	if readFile(t, bad) != "junk" {
		t.Error("the file was changed")
	}
}

// park parks a message in the place of the first pipeline of a configuration.
func park(t *testing.T, file string, list ...pipeline.Parked) {
	t.Helper()
	conf, err := kind.All().Read(file, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	letters, err := app.OpenDeadLetters(t.Context(), conf, conf.Pipelines[0])
	if err != nil {
		t.Fatal(err)
	}
	defer letters.Close()
	if err := letters.Park(t.Context(), list); err != nil {
		t.Fatal(err)
	}
}

func TestParkedFlagsAreChecked(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), pipelinesExample)
	for _, c := range []struct{ args, want string }{
		{"ls", "--config FILE is missing: name the configuration"},
		{"ls --config " + file + " --reason permanet", `the reason "permanet": did you mean permanent?`},
		{"ls --config " + file + " --pipeline lnes", "has no such pipeline: did you mean lines?"},
		{"ls --config " + file + " --older 1x", `--older "1x": not a duration`},
		{"show --config " + file, "ID is missing: semel parked ls lists the parked messages"},
		{"retry --config " + file, "no message is selected: name IDs, use filters such as --key and --older, or write --all"},
		{"retry x --all --config " + file, "IDs and filters exclude each other"},
		{"retry --key a --all --config " + file, "--all and filters exclude each other"},
		{"done x --config " + file, "--reason TEXT is missing"},
		{"retyr x", `unknown verb "retyr": did you mean parked retry?`},
	} {
		run(t, "", append([]string{"parked"}, strings.Fields(c.args)...)...).check(t, term.ExitUsage, c.want)
	}
	run(t, "", "parked", "retry", "--all", "--config", file).check(t, term.ExitDone, "no message was chosen")
	if _, err := os.Stat(filepath.Join(filepath.Dir(file), "semel-parked")); err == nil {
		t.Error("to look made a directory")
	}
}

// background runs the program until stop, which returns its outcome.
func background(t *testing.T, args ...string) (stop func() outcome) {
	t.Helper()
	return backgroundIn(t, noEnv, args...)
}

// backgroundIn is background with an environment.
func backgroundIn(t *testing.T, env func(string) string, args ...string) (stop func() outcome) {
	t.Helper()
	return backgroundUntil(t, "running", env, args...)
}

// backgroundUntil is backgroundIn, but returns after a word was logged.
func backgroundUntil(t *testing.T, word string, env func(string) string, args ...string) (stop func() outcome) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var stdout bytes.Buffer
	stderr := &lineWatch{lines: make(chan string, 10_000)}
	ended := make(chan int, 1)
	go func() {
		ended <- Main(ctx, kind.All(), args, strings.NewReader(""), &stdout, stderr, env)
		close(stderr.lines)
	}()
	stop = sync.OnceValue(func() outcome {
		cancel()
		return outcome{<-ended, stdout.String(), stderr.text()}
	})
	t.Cleanup(func() { stop() })
	for line := range stderr.lines {
		if strings.Contains(line, word) {
			return stop
		}
	}
	return stop
}

// lineWatch passes on what is written.
type lineWatch struct {
	lines chan string
	mu    sync.Mutex
	all   strings.Builder
}

func (w *lineWatch) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(p)
	select {
	case w.lines <- string(p):
	default:
	}
	return len(p), nil
}

func (w *lineWatch) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.String()
}

func TestRetryQueuesMessagesForTheProcessThatRunsThePipeline(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1")
	file := parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	run(t, "", "run", file, "--quiet").check(t, term.ExitDone)
	following := writeFile(t, filepath.Join(filepath.Dir(file), "follow.yaml"), strings.Replace(readFile(t, file), "in.jsonl]", "in.jsonl], follow: true", 1))
	stop := background(t, "run", following)
	w.accept()
	got := run(t, "", "parked", "retry", "--key", "m1", "--wait", "5m", "--config", file)
	got.check(t, term.ExitDone, "hooks: the store is in use by ", ": waiting for it to redrive them\n")
	if !strings.HasSuffix(got.stdout, "m1: redriven\n") || !strings.HasSuffix(w.seen(), "m11") {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}
	got = run(t, "", "parked", "done", "--parked-for", "key-missing", "--reason", "x", "--config", file)
	got.check(t, term.ExitFailed, "has no key that could be done") // the running process was asked
	if got = stop(); got.status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	if got = run(t, "", "parked", "retry", "--all", "--config", file); got.status != term.ExitFailed || !strings.Contains(got.stdout, "(no key): parked again: key-missing: ") {
		t.Errorf("%+v", got)
	}
}

func TestRetryWithAMemoryStoreQueuesForTheRunningProcess(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1")
	file := parkedConfig(t, w, "keys: { memory: {} }", "keys", "parked: { path: aside }")
	run(t, "", "run", file, "--quiet").check(t, term.ExitDone)
	got := run(t, "", "parked", "retry", "--key", "m1", "--wait", "300ms", "--config", file)
	got.check(t, term.ExitFailed, "hooks: not settled: 1 of 1 message")
	if !strings.Contains(got.stdout, "m1: queued: the process that runs the pipeline redrives it\n") {
		t.Errorf("%+v", got)
	}
	if list := asides(t, file); !list["m1"].Queued {
		t.Errorf("%+v", list)
	}
	w.accept()
	following := writeFile(t, filepath.Join(filepath.Dir(file), "follow.yaml"), strings.Replace(readFile(t, file), "in.jsonl]", "in.jsonl], follow: true", 1))
	stop := background(t, "run", following)
	if got = run(t, "", "parked", "retry", "--key", "m1", "--wait", "5m", "--config", file); got.status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	stop().check(t, term.ExitDone, "running")
}

// TestRetryWithAFilterInMemoryQueuesForTheRunningProcess: another process has an empty
// filter, so it would process a message whose key is done.
func TestRetryWithAFilterInMemoryQueuesForTheRunningProcess(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1")
	file := parkedConfig(t, w, "keys: { filter: { rate: 0.001, expect: 1000, window: 7d } }", "keys", "parked: { path: aside }\n    lossy: true")
	run(t, "", "run", file, "--quiet").check(t, term.ExitDone)
	w.accept()
	before := w.seen()
	run(t, "", "parked", "retry", "--key", "m1", "--wait", "4s", "--config", file).check(t, term.ExitFailed, "hooks: not settled: 1 of 1 message")
	if w.seen() != before {
		t.Errorf("the target saw %s", w.seen())
	}
}

func TestParkedMessagesInADatabase(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1", "m3")
	file := parkedConfig(t, w, fmt.Sprintf("db: { postgres: { dsn: %q } }", databaseFor(t, true)), "db", "parked: { store: db }")
	run(t, "", "run", file, "--quiet").check(t, term.ExitDone)
	if list := asides(t, file); len(list) != 3 {
		t.Fatalf("%+v", list)
	}
	w.accept()
	got := run(t, "", "parked", "retry", "--key", "m1", "--wait", "5m", "--config", file)
	if got.check(t, term.ExitDone); !strings.HasSuffix(got.stdout, "m1: redriven\n") || !strings.HasSuffix(w.seen(), "m11") {
		t.Errorf("nobody runs it: %+v, the target saw %s", got, w.seen())
	}
	following := writeFile(t, filepath.Join(filepath.Dir(file), "follow.yaml"), strings.Replace(readFile(t, file), "in.jsonl]", "in.jsonl], follow: true", 1))
	stop := background(t, "run", following)
	got = run(t, "", "parked", "retry", "--key", "m3", "--wait", "5m", "--config", file)
	if got.check(t, term.ExitDone); !strings.HasSuffix(got.stdout, "m3: redriven\n") || !strings.HasSuffix(w.seen(), "m31") {
		t.Errorf("somebody runs it: %+v, the target saw %s", got, w.seen())
	}
	stop().check(t, term.ExitDone, "running")
	run(t, "", "parked", "skip", "--all", "--reason", "no order", "--config", file).check(t, term.ExitDone)
	if list := asides(t, file); len(list) != 0 {
		t.Errorf("left: %+v", list)
	}
}

func TestALongKeyDoesNotBreakTheTable(t *testing.T) {
	t.Parallel()
	file := parkedConfig(t, newTarget(t), "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	letters, err := pipeline.OpenDeadLetterDir(filepath.Join(filepath.Dir(file), "aside"))
	if err != nil {
		t.Fatal(err)
	}
	const id = "9f2c41d07be35a1186c0de42"
	long := strings.Repeat("é", 150_000)
	err = letters.Park(t.Context(), []pipeline.Parked{{ID: id, Pipeline: "hooks", Key: semel.Key{Scope: "hooks", ID: long}, Reason: "permanent", Error: "refused " + long}})
	if err != nil {
		t.Fatal(err)
	}
	got := run(t, "", "parked", "ls", "--config", file, "-q")
	got.check(t, term.ExitDone)
	if want := strings.Repeat("é", 100) + "… (150,000 characters): refused é"; !strings.Contains(got.stdout, want) || len(got.stdout) > 2000 {
		t.Errorf("%d bytes: %.600s", len(got.stdout), got.stdout)
	}
	for _, args := range [][]string{{"ls", "--json"}, {"show", id}} {
		if whole := run(t, "", append(append([]string{"parked"}, args...), "--config", file, "-q")...); !strings.Contains(whole.stdout, long) {
			t.Errorf("parked %s: the whole key is missing", args)
		}
	}
}
