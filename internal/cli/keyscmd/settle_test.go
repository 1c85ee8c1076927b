package keyscmd_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// TestTheListOfUnknownKeysSettlesThem pastes the commands below the list, in their order. Two
// unknown keys have three parked messages.
func TestTheListOfUnknownKeysSettlesThem(t *testing.T) {
	t.Parallel()
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(target.Close)
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"a\"}\n{\"id\":\"b\"}\n{\"id\":\"c\"}\n{\"id\":\"b\"}\n")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { keys: { embedded: { path: keys } } }
pipelines:
  hooks:
    source: { file: { paths: [in.jsonl] } }
    key: { id: .id }
    on_lease_expired: hold
    store: keys
    sink: { webhook: { url: %q, allow_private: true } }
    parked: { path: aside }
`, target.URL))
	unknownIn(t, file, "keys", semel.Key{Scope: "hooks", ID: "a"}, semel.Key{Scope: "hooks", ID: "b"})
	programtest.Run(t, "", "run", file, "--admin", "off", "--quiet").Check(t, term.ExitDone)

	got := programtest.Run(t, "", "keys", "ls", "--state", "unknown", "--config", file)
	flags := " --config " + file
	want := "2 unknown keys: the effect may have happened. Look at the target, and settle the keys first:\n" +
		"if the effects of all these keys happened:\n" +
		"  semel keys resolve --all --as done --reason 'the effects happened'" + flags + " --store-name keys\n" +
		"if none of the effects happened:\n" +
		"  semel keys resolve --all --as absent --reason 'the effects did not happen'" + flags + " --store-name keys\n" +
		"if they differ, for each key, such as the first, which prints its two commands:\n" +
		"  semel keys show KEY" + flags + " --store-name keys --scope hooks\n" +
		"then, for the 3 messages of hooks that are parked because of such keys:\n" +
		"  semel parked retry --reason unknown" + flags + " --pipeline hooks\n"
	if stderr := regexp.MustCompile("keys show [ab] ").ReplaceAllString(got.Stderr, "keys show KEY "); got.Status != term.ExitDone || stderr != want {
		t.Errorf("%+v, want\n%s", got, want)
	}
	if !strings.Contains(got.Stdout, " hooks/a\n") || !strings.Contains(got.Stdout, " hooks/b\n") {
		t.Errorf("the ids are not kept: %s", got.Stdout)
	}
	if programtest.Run(t, "", "keys", "ls", "--state", "unknown", "--config", file, "--json").Stderr != "" {
		t.Error("the commands are for people")
	}
	got = programtest.Run(t, "", "parked", "ls", "--config", file)
	got.Check(t, term.ExitDone, "3 messages of 2 unknown keys: ", "  semel keys ls --state unknown"+flags+" --store-name keys\n", "  semel parked retry --reason unknown"+flags+"\n")
	if strings.Contains(got.Stdout+got.Stderr, "Guard") {
		t.Errorf("the list has a Go name: %s", got.Stdout)
	}

	programtest.Run(t, "", "keys", "resolve", "--all", "--as", "absent", "--reason", "the effects did not happen", "--yes", "--config", file, "--store-name", "keys").Check(t, term.ExitDone, "resolved 2 of 2")
	programtest.Run(t, "", "parked", "retry", "--reason", "unknown", "--config", file, "--pipeline", "hooks").Check(t, term.ExitDone)
	programtest.Run(t, "", "parked", "ls", "--config", file).Check(t, term.ExitDone, "0 messages parked\n")
	got = programtest.Run(t, "", "keys", "ls", "--config", file)
	if lines := strings.Split(strings.TrimSpace(got.Stdout), "\n"); len(lines) != 4 || !strings.Contains(lines[0], "  ORIGIN ") || strings.Count(got.Stdout, "in.jsonl") != 3 || strings.Contains(got.Stdout, "unknown") {
		t.Errorf("%+v", got)
	}
	programtest.Run(t, "", "keys", "ls", "--config", programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), "stores: { keys: { embedded: { path: "+dir+"/keys, keep_ids: false } } }")).Check(t, term.ExitDone)
}

// TestAnIdempotencyKeyIsFoundWithoutItsCaller looks up the key of a proxy as its client has it.
func TestAnIdempotencyKeyIsFoundWithoutItsCaller(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := programtest.WriteFile(t, filepath.Join(dir, "api.yaml"), `
stores: { keys: { embedded: { path: keys } } }
proxy: { store: keys, scope: "header:X-Api-Key", upstream: "http://127.0.0.1:9000" }
`)
	unknownIn(t, file, "keys", httpidem.Key("http", "alice", "k2"), httpidem.Key("http", "b:ob", "k2"), httpidem.Key("http", "bob", "other:k2"))
	for _, where := range [][]string{{"--config", file}, {"--store", filepath.Join(dir, "keys")}} {
		got := programtest.Run(t, "", append([]string{"keys", "show", "k2"}, where...)...)
		got.Check(t, term.ExitDone)
		if strings.Count(got.Stdout, "state        unknown\n") != 2 || strings.Contains(got.Stdout, "other") || !strings.Contains(got.Stdout, "semel keys resolve 5:alice:k2 --as done") {
			t.Errorf("%+v", got)
		}
		programtest.Run(t, "", append([]string{"keys", "show", "k3"}, where...)...).Check(t, term.ExitFailed, "k3 is absent: ", "an Idempotency-Key needs its caller: --caller NAME\n")
		programtest.Run(t, "", append([]string{"keys", "rm", "k2", "--reason", "x"}, where...)...).Check(t, term.ExitFailed, "an Idempotency-Key needs its caller: --caller NAME\n")
		programtest.Run(t, "", append([]string{"keys", "show", "k3", "--caller", "alice"}, where...)...).Check(t, term.ExitFailed, "is absent")
	}
}
