package open_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestTheRunningProcessAnswersAboutItsStore(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := programtest.AdminConfig(t, dir)
	stop := programtest.Background(t, "run", file)
	programtest.WaitUntilSettled(t, file, 3)
	store := filepath.Join(dir, "keys")
	for _, c := range []struct {
		args string
		want []string // on stdout
	}{
		{"keys show order-1 --config " + file, []string{"state        done"}},
		{"keys ls --state done --store " + store, []string{"\ndone "}},
		{"keys stats --store " + store, []string{"done     1\n"}},
		{"why order-1 --config " + file, []string{
			"state        done", " UTC  process of copy: dropped as a duplicate, " + filepath.Join(dir, "in.jsonl") + " 0/17\n",
			"  journal of store keys, scope orders: the journal begins at the start of the process, ",
		}},
		{"why order-2 --config " + file, []string{"state        absent", "  journal of store keys, scope orders: no entry; the journal begins at the start of the process, "}},
		{"parked ls --config " + file, []string{"key-missing"}},
	} {
		got := programtest.Run(t, "", strings.Fields(c.args)...)
		if got.Status != term.ExitDone {
			t.Errorf("semel %s: %+v", c.args, got)
		}
		for _, want := range c.want {
			if !strings.Contains(got.Stdout, want) {
				t.Errorf("semel %s: stdout lacks %q: %s", c.args, want, got.Stdout)
			}
		}
	}
	// Its admin server is off limits for another file, but the socket answers.
	off := programtest.WriteFile(t, filepath.Join(dir, "off.yaml"), strings.Replace(programtest.ReadFile(t, file), "admin: { listen: ", "admin: { listen: off } # ", 1))
	programtest.WaitForStatus(t, term.ExitFound, []string{"\ncopy      ready"}, off) // through the socket
	changesThroughTheSocket(t, file, store)
	got := stop()
	dropped := regexp.MustCompile(`"msg":"duplicate","pipeline":"copy","scope":"orders","key":"order-1","origin":{"source":"[^"]*/in.jsonl","partition":0,"offset":17},"first":"[^"]*/in.jsonl, byte 0 by [^"]+:\d+"`)
	if got.Status != term.ExitDone || !dropped.MatchString(got.Stderr) {
		t.Errorf("the log does not say what was dropped and against what: %+v", got)
	}
	if _, err := os.Lstat(filepath.Join(store, "SOCKET")); err == nil {
		t.Error("the socket is still there after the end")
	}
}

// changesThroughTheSocket removes and imports keys while a process has the store open.
func changesThroughTheSocket(t *testing.T, file, store string) {
	t.Helper()
	programtest.Run(t, "", "keys", "rm", "order-1", "--reason", "process it again", "--config", file).Check(t, term.ExitDone, "forgot order-1, which was done\n")
	if got := programtest.Run(t, "", "keys", "stats", "--store", store); !strings.Contains(got.Stdout, "done     0\n") {
		t.Errorf("after rm: %+v", got)
	}
	if lines := programtest.AuditLog(t, store); len(lines) != 2 || lines[0]["verb"] != "rm" || lines[1]["outcome"] != "done" {
		t.Errorf("audit log: %v", lines)
	}
	programtest.Run(t, "", "audit", "verify", filepath.Join(store, "audit.jsonl")).Check(t, term.ExitDone)
	if got := programtest.Run(t, "", "why", "order-1", "--config", file); !programtest.ContainsAll(got.Stdout, []string{"audit log of store keys: rm, from done to absent: done, by ", ": process it again\n", "  audit log of store keys: its newest 2 lines\n"}) {
		t.Errorf("what a person did while the process runs: %+v", got)
	}
	programtest.Run(t, `{"id":"order-7","scope":"orders"}`, "keys", "import", "-", "--store", store).Check(t, term.ExitDone, "imported 1 ")
	if got := programtest.Run(t, "", "keys", "show", "order-7", "--config", file); !strings.Contains(got.Stdout, "state        done") {
		t.Errorf("after import: %+v", got)
	}
	programtest.Run(t, "", "keys", "show", "order-7", "--store", store).Check(t, term.ExitFailed, "it is in scope orders: --scope orders\n")
	programtest.Run(t, "", "keys", "resolve", "order-7", "--as", "done", "--reason", "x", "--config", file).Check(t, term.ExitFailed, "order-7 is done, not unknown")
	programtest.Run(t, "", "parked", "done", "--all", "--reason", "x", "--config", file).Check(t, term.ExitFailed, "has no key that could be done")
}

func TestTheAdminServerAnswersAboutStoresAndParkedMessages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := programtest.AdminConfig(t, dir)
	programtest.Background(t, "run", file)
	programtest.WaitUntilSettled(t, file, 3)
	_, rest, _ := strings.Cut(programtest.ReadFile(t, file), `listen: "`)
	address, _, _ := strings.Cut(rest, `"`)
	// The operator's machine has the file, and not the directories.
	remote := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), strings.Replace(programtest.ReadFile(t, file), "token: \"secret-4d2f\"", "token: \"${env:TOKEN}\"", 1))
	with := func(token string, args string) programtest.Outcome {
		env := func(name string) string { return map[string]string{"TOKEN": token}[name] }
		return programtest.RunEnv(t, env, "", strings.Fields(args+" --config "+remote+" --admin "+address)...)
	}
	for args, want := range map[string]string{
		"keys show order-1": "state        done",
		"keys ls":           "\ndone ",
		"keys stats":        "done     1\n",
		"why order-1":       "  process of copy: dropped as a duplicate, ",
		"parked ls":         "key-missing",
	} {
		if got := with("secret-4d2f", args); got.Status != term.ExitDone || !strings.Contains(got.Stdout, want) {
			t.Errorf("semel %s: want %q: %+v", args, want, got)
		}
		got := with("another", args)
		got.Check(t, term.ExitFailed, "http://"+address+"/status refuses the credentials: name the FILE with its admin.auth")
		if got.Stdout != "" && !strings.HasPrefix(got.Stdout, "STATE ") && !strings.HasPrefix(got.Stdout, "ID ") {
			t.Errorf("semel %s with a wrong token: %s", args, got.Stdout)
		}
	}
	other := programtest.WriteFile(t, filepath.Join(t.TempDir(), "other.yaml"), strings.Replace(programtest.ReadFile(t, file), "  copy:", "  hooks:", 1))
	for _, args := range []string{"keys show order-9", "keys ls", "why order-9", "parked ls"} {
		got := programtest.Run(t, "", strings.Fields(args+" --config "+other+" --admin "+address)...)
		got.Check(t, term.ExitFailed, "the process at "+address+" runs pipeline copy, not hooks of "+other+": write --admin ADDRESS\n")
		if got.Stdout != "" {
			t.Errorf("semel %s of another configuration: %s", args, got.Stdout)
		}
	}
	programtest.Run(t, "", "keys", "rm", "order-1", "--reason", "process it again", "--config", file).Check(t, term.ExitDone, "forgot order-1, which was done\n")
	if got := with("secret-4d2f", "why order-1"); !strings.Contains(got.Stdout, "audit log of store keys: rm, from done to absent: done, by ") {
		t.Errorf("what a person did, from another machine: %+v", got)
	}
	id := parkedIDs(t, file)[0]
	if got := with("secret-4d2f", "parked show "+id); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "secret body") {
		t.Errorf("%+v", got)
	}
	with("secret-4d2f", "parked show 0123456789abcdef01234567").Check(t, term.ExitFailed, "is not a parked message of copy")
	programtest.Run(t, "", "keys", "ls", "--store", filepath.Join(dir, "keys"), "--admin", address).Check(t, term.ExitUsage, "--config FILE is missing: --admin needs the names in it")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/journal?scope=orders&id=order-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer secret-4d2f")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || !strings.Contains(string(text), `"event":"duplicate"`) || !strings.Contains(string(text), `"start":true`) {
		t.Errorf("journal: %s %v", text, err)
	}
}

// parkedIDs returns the ids of the parked messages of a configuration.
func parkedIDs(t *testing.T, file string) (ids []string) {
	t.Helper()
	for line := range strings.Lines(programtest.Run(t, "", "parked", "ls", "--config", file, "--json").Stdout) {
		var m struct{ ID string }
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, m.ID)
	}
	return ids
}

// The cache of the running process must not keep a key that was removed below it.
func TestAKeyIsRemovedFromEveryLayerOfTheRunningProcess(t *testing.T) {
	t.Parallel()
	dir, address := t.TempDir(), servicestest.FreeAddr(t)
	const twice = "{\"id\":\"order-1\"}\n{\"id\":\"order-1\"}\n"
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), twice)
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores: { keys: { embedded: { path: keys } }, cache: { memory: {} }, both: { tiered: [cache, keys] } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: both, sink: { file: { path: out.jsonl } } }
`)
	programtest.Background(t, "run", file, "--admin", address)
	duplicates := func(n string) {
		t.Helper()
		programtest.WaitForPage(t, address, "/metrics", time.Minute, http.StatusOK, `decision="duplicate",pipeline="copy",reason="completed before",store="both"} `+n+"\n")
	}
	duplicates("1") // the cache knows the key
	programtest.Run(t, "", "keys", "rm", "order-1", "--reason", "process it again", "--config", file, "--store-name", "keys", "--scope", "copy").Check(t, term.ExitDone, "forgot order-1")
	programtest.AppendFile(t, in, twice) // a file that was empty for a moment would be another one
	duplicates("2")
	if out := programtest.ReadFile(t, filepath.Join(dir, "out.jsonl")); strings.Count(out, "order-1") != 2 {
		t.Errorf("%s", out)
	}
}
