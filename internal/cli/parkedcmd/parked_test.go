package parkedcmd_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/parkedcmd"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/programtest"
)

// parkedConfig writes a configuration with a store and a file-to-webhook
// pipeline. Messages are parked in a directory unless another place is named.
func parkedConfig(t *testing.T, w *target, stores, store, more string) string {
	t.Helper()
	dir := t.TempDir()
	var lines strings.Builder
	for i := range 5 {
		fmt.Fprintf(&lines, "{\"id\":\"m%d\"}\n", i)
	}
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), lines.String()+"{\"oid\":\"m9\"}\n")
	return programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
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
	got := programtest.Run(t, "", "parked", "ls", "--config", file, "--json", "--quiet")
	got.Check(t, term.ExitDone)
	list := map[string]parkedcmd.Line{}
	for line := range strings.Lines(got.Stdout) {
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
	parked := func(words ...string) programtest.Outcome {
		t.Helper()
		return programtest.Run(t, "", append([]string{"parked", words[0], "--config", file}, words[1:]...)...)
	}
	if got := parked("ls"); got.Status != term.ExitDone || !strings.HasPrefix(got.Stdout, "ID ") || !strings.Contains(got.Stderr, "0 messages parked") {
		t.Errorf("before the first run: %+v", got)
	}
	if got := programtest.Run(t, "", "run", file); got.Status != term.ExitDone || strings.Contains(got.Stderr, "canary") {
		t.Fatalf("%+v", got)
	}
	stored, err := os.ReadDir(filepath.Join(filepath.Dir(file), "aside", "hooks"))
	for _, entry := range stored {
		if text := programtest.ReadFile(t, filepath.Join(filepath.Dir(file), "aside", "hooks", entry.Name())); strings.Contains(text, "cana") {
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
	if lines := strings.Split(strings.TrimSpace(got.Stdout), "\n"); len(lines) != 2 || !strings.HasPrefix(lines[1], list["m2"].ID+"  20") || !strings.Contains(lines[1], "m2: ") {
		t.Errorf("%+v", got)
	}
	if got = parked("ls", "--older", "1h"); strings.Count(got.Stdout, "\n") != 1 {
		t.Errorf("nothing is that old: %+v", got)
	}
	got = parked("show", list["m2"].ID)
	for _, want := range []string{"key          m2\nscope        hooks\nreason       permanent\nerror        ", "attempts     1\n", "in.jsonl, partition 0, offset 24\n", "body         11 B\n{\"id\":\"m2\"}\n"} {
		if got.Status != term.ExitDone || !strings.Contains(got.Stdout, want) {
			t.Errorf("%q is missing in %+v", want, got)
		}
	}
	got = parked("show", list["m2"].ID, "--json")
	var whole parkedcmd.Line
	if err := json.Unmarshal([]byte(got.Stdout), &whole); err != nil || whole.Message == nil || whole.Message.Body == nil || *whole.Message.Body != `{"id":"m2"}` {
		t.Errorf("%v %s", err, got.Stdout)
	}
	parked("show", "none", list["m2"].ID).Check(t, term.ExitFailed, "none is not a parked message of hooks: semel parked ls lists them")

	if got = parked("retry", "--all", "--dry-run"); got.Status != term.ExitDone || strings.Count(got.Stdout, "it is processed: the store has no record of the key") != 3 || !strings.Contains(got.Stdout, "(no key): its key is found again") {
		t.Errorf("%+v", got)
	}
	if got = parked("retry", list["m2"].ID); got.Status != term.ExitFailed || !strings.Contains(got.Stdout, "m2: parked again: permanent: ") || !strings.Contains(got.Stderr, "hooks: not settled: 1 of 1 message") {
		t.Errorf("%+v", got)
	}
	w.accept()
	if got = parked("retry", "--reason", "permanent"); got.Status != term.ExitDone || strings.Count(got.Stdout, ": redriven\n") != 3 || !strings.Contains(w.seen(), "m22") || !strings.Contains(w.seen(), "m31") {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}

	none := list[""].ID
	parked("done", none, "--reason", "x").Check(t, term.ExitFailed, none+" has no key that could be done: semel parked skip takes it out")
	parked("skip", none).Check(t, term.ExitUsage, "--reason TEXT is missing: say why, for the audit log")
	if got = parked("skip", none, "--reason", "no order", "--json"); got.Status != term.ExitDone || got.Stdout != `{"pipeline":"hooks","id":"`+none+`","outcome":"skipped"}`+"\n" {
		t.Errorf("%+v", got)
	}
	if list = asides(t, file); len(list) != 0 {
		t.Errorf("left: %+v", list)
	}
	log := programtest.ReadFile(t, filepath.Join(filepath.Dir(file), "aside", "audit.jsonl"))
	if strings.Count(log, `"how":"redriven"`) != 3 || !strings.Contains(log, `"reason":"no order"`) {
		t.Errorf("audit log: %s", log)
	}

	// A message whose key is done has no second effect.
	park(t, file, pipeline.Parked{ID: "twin", Pipeline: "hooks", Key: semel.Key{Scope: "hooks", ID: "m2"}, Reason: "attempts", Error: "late", Message: semel.Message{Body: []byte(`{"id":"m2"}`)}})
	seen := w.seen()
	if got = parked("retry", "--all", "--json"); got.Status != term.ExitDone || got.Stdout != `{"pipeline":"hooks","id":"twin","outcome":"done before"}`+"\n" || w.seen() != seen {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}
	// An operator knows that a message had its effect.
	park(t, file, pipeline.Parked{ID: "other", Pipeline: "hooks", Key: semel.Key{Scope: "hooks", ID: "m7"}, Reason: "unknown", Error: "no answer"})
	if got = parked("done", "--parked-for", "unknown", "--reason", "the bank has it"); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "other  hooks  m7: done\n") {
		t.Errorf("%+v", got)
	}
	keys := filepath.Join(filepath.Dir(file), "keys")
	programtest.Run(t, "", "keys", "show", "m7", "--scope", "hooks", "--store", keys).Check(t, term.ExitDone)
	if lines := programtest.AuditLog(t, keys); len(lines) != 2 || lines[0]["verb"] != "parked done" || lines[0]["reason"] != "the bank has it" {
		t.Errorf("%v", lines)
	}
}

func TestUnreadableParkedFileDoesNotHideOtherMessages(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1", "m2", "m3")
	file := parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	if got := programtest.Run(t, "", "run", file); got.Status != term.ExitDone {
		t.Fatalf("%+v", got)
	}
	list := asides(t, file)
	bad := programtest.WriteFile(t, filepath.Join(filepath.Dir(file), "aside", "hooks", "bad.json"), "junk")
	named := bad + " is damaged, or not a parked message: invalid character 'j' looking for beginning of value: move it out of the directory"

	parked := func(words ...string) programtest.Outcome {
		t.Helper()
		return programtest.Run(t, "", append([]string{"parked", words[0], "--config", file}, words[1:]...)...)
	}
	got := parked("ls")
	got.Check(t, term.ExitFailed, named)
	if strings.Count(got.Stdout, "\n") != 1+len(list) {
		t.Errorf("%+v", got)
	}
	if got = parked("skip", list["m1"].ID, "--reason", "x"); got.Status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	w.accept()
	got = parked("retry", "--key", "m2")
	got.Check(t, term.ExitFailed, named)
	if !strings.Contains(got.Stdout, "m2: redriven\n") {
		t.Errorf("%+v", got)
	}
	got = parked("done", "--key", "m3", "--reason", "x")
	got.Check(t, term.ExitFailed, named)
	if !strings.Contains(got.Stdout, "m3: done\n") {
		t.Errorf("%+v", got)
	}
	if programtest.ReadFile(t, bad) != "junk" {
		t.Error("the file was changed")
	}
}

// park parks a message in the place of the first pipeline of a configuration.
func park(t *testing.T, file string, list ...pipeline.Parked) {
	t.Helper()
	conf, err := kind.All().Read(file, programtest.NoEnv)
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

func TestParkedVerbsRefuseWrongFlags(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), programtest.PipelinesExample)
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
		programtest.Run(t, "", append([]string{"parked"}, strings.Fields(c.args)...)...).Check(t, term.ExitUsage, c.want)
	}
	programtest.Run(t, "", "parked", "retry", "--all", "--config", file).Check(t, term.ExitDone, "no message was chosen")
	if _, err := os.Stat(filepath.Join(filepath.Dir(file), "semel-parked")); err == nil {
		t.Error("to look made a directory")
	}
}

func TestRetryQueuesMessagesForTheProcessThatRunsThePipeline(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1")
	file := parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	programtest.Run(t, "", "run", file, "--quiet").Check(t, term.ExitDone)
	following := programtest.WriteFile(t, filepath.Join(filepath.Dir(file), "follow.yaml"), strings.Replace(programtest.ReadFile(t, file), "in.jsonl]", "in.jsonl], follow: true", 1))
	stop := programtest.Background(t, "run", following)
	w.accept()
	got := programtest.Run(t, "", "parked", "retry", "--key", "m1", "--wait", "5m", "--config", file)
	got.Check(t, term.ExitDone, "hooks: the store is in use by ", ": waiting for it to redrive them\n")
	if !strings.HasSuffix(got.Stdout, "m1: redriven\n") || !strings.HasSuffix(w.seen(), "m11") {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}
	got = programtest.Run(t, "", "parked", "done", "--parked-for", "key-missing", "--reason", "x", "--config", file)
	got.Check(t, term.ExitFailed, "has no key that could be done") // the running process was asked
	if got = stop(); got.Status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	if got = programtest.Run(t, "", "parked", "retry", "--all", "--config", file); got.Status != term.ExitFailed || !strings.Contains(got.Stdout, "(no key): parked again: key-missing: ") {
		t.Errorf("%+v", got)
	}
}

func TestRetryWithAMemoryStoreQueuesForTheRunningProcess(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1")
	file := parkedConfig(t, w, "keys: { memory: {} }", "keys", "parked: { path: aside }")
	programtest.Run(t, "", "run", file, "--quiet").Check(t, term.ExitDone)
	got := programtest.Run(t, "", "parked", "retry", "--key", "m1", "--wait", "300ms", "--config", file)
	got.Check(t, term.ExitFailed, "hooks: not settled: 1 of 1 message")
	if !strings.Contains(got.Stdout, "m1: queued: the process that runs the pipeline redrives it\n") {
		t.Errorf("%+v", got)
	}
	if list := asides(t, file); !list["m1"].Queued {
		t.Errorf("%+v", list)
	}
	w.accept()
	following := programtest.WriteFile(t, filepath.Join(filepath.Dir(file), "follow.yaml"), strings.Replace(programtest.ReadFile(t, file), "in.jsonl]", "in.jsonl], follow: true", 1))
	stop := programtest.Background(t, "run", following)
	if got = programtest.Run(t, "", "parked", "retry", "--key", "m1", "--wait", "5m", "--config", file); got.Status != term.ExitDone {
		t.Errorf("%+v", got)
	}
	stop().Check(t, term.ExitDone, "running")
}

// TestRetryWithAFilterInMemoryQueuesForTheRunningProcess: another process has an empty
// filter, so it would process a message whose key is done.
func TestRetryWithAFilterInMemoryQueuesForTheRunningProcess(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1")
	file := parkedConfig(t, w, "keys: { filter: { rate: 0.001, expect: 1000, window: 7d } }", "keys", "parked: { path: aside }\n    lossy: true")
	programtest.Run(t, "", "run", file, "--quiet").Check(t, term.ExitDone)
	w.accept()
	before := w.seen()
	programtest.Run(t, "", "parked", "retry", "--key", "m1", "--wait", "4s", "--config", file).Check(t, term.ExitFailed, "hooks: not settled: 1 of 1 message")
	if w.seen() != before {
		t.Errorf("the target saw %s", w.seen())
	}
}

func TestParkedMessagesInADatabase(t *testing.T) {
	t.Parallel()
	w := newTarget(t, "m1", "m3")
	file := parkedConfig(t, w, fmt.Sprintf("db: { postgres: { dsn: %q } }", programtest.NewDatabase(t, true)), "db", "parked: { store: db }")
	programtest.Run(t, "", "run", file, "--quiet").Check(t, term.ExitDone)
	if list := asides(t, file); len(list) != 3 {
		t.Fatalf("%+v", list)
	}
	w.accept()
	got := programtest.Run(t, "", "parked", "retry", "--key", "m1", "--wait", "5m", "--config", file)
	if got.Check(t, term.ExitDone); !strings.HasSuffix(got.Stdout, "m1: redriven\n") || !strings.HasSuffix(w.seen(), "m11") {
		t.Errorf("no process runs it: %+v, the target saw %s", got, w.seen())
	}
	following := programtest.WriteFile(t, filepath.Join(filepath.Dir(file), "follow.yaml"), strings.Replace(programtest.ReadFile(t, file), "in.jsonl]", "in.jsonl], follow: true", 1))
	stop := programtest.Background(t, "run", following)
	got = programtest.Run(t, "", "parked", "retry", "--key", "m3", "--wait", "5m", "--config", file)
	if got.Check(t, term.ExitDone); !strings.HasSuffix(got.Stdout, "m3: redriven\n") || !strings.HasSuffix(w.seen(), "m31") {
		t.Errorf("a process runs it: %+v, the target saw %s", got, w.seen())
	}
	stop().Check(t, term.ExitDone, "running")
	programtest.Run(t, "", "parked", "skip", "--all", "--reason", "no order", "--config", file).Check(t, term.ExitDone)
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
	got := programtest.Run(t, "", "parked", "ls", "--config", file, "-q")
	got.Check(t, term.ExitDone)
	if want := strings.Repeat("é", 100) + "… (150,000 characters): refused é"; !strings.Contains(got.Stdout, want) || len(got.Stdout) > 2000 {
		t.Errorf("%d bytes: %.600s", len(got.Stdout), got.Stdout)
	}
	for _, args := range [][]string{{"ls", "--json"}, {"show", id}} {
		if whole := programtest.Run(t, "", append(append([]string{"parked"}, args...), "--config", file, "-q")...); !strings.Contains(whole.Stdout, long) {
			t.Errorf("parked %s: the whole key is missing", args)
		}
	}
}

// A person types a key as the message has it, which the rule shapes.
func TestParkedMessagesAreFoundByTheSpellingOfTheMessage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), `{"mail":"Ann@X"}`+"\n"+`{"mail":"bob"}`+"\n")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores: { keys: { embedded: { path: ./keys } } }
admin: { listen: "off" }
pipelines:
  mails:
    source: { file: { paths: [in.jsonl], state: state } }
    key: { id: 'lower(.mail)' }
    store: keys
    map: value.missing
    sink: { file: { path: out.jsonl } }
`)
	programtest.Run(t, "", "run", file).Check(t, term.ExitDone, `"parked":2`)
	for id, want := range map[string]int{"Ann@X": 1, "ann@x": 1, "BOB": 1, "eve": 0} {
		got := programtest.Run(t, "", "parked", "ls", "--config", file, "--json", "--quiet", "--key", id)
		if n := strings.Count(got.Stdout, "\n"); got.Status != term.ExitDone || n != want {
			t.Errorf("%s: %+v", id, got)
		}
	}
}
