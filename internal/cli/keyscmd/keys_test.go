package keyscmd_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/programtest"
)

func TestShowPrintsTheRecordOfAKey(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)

	got := programtest.Run(t, "", "keys", "show", "order-1", "--store", dir, "--json")
	got.Check(t, term.ExitDone)
	list := programtest.JSONLines(t, got.Stdout)
	if len(list) != 1 || list[0]["id"] != "order-1" || list[0]["scope"] != "default" || list[0]["state"] != "done" ||
		list[0]["expires"] != "forever" || list[0]["result"] != "value" || list[0]["result_size"] != 7.0 || list[0]["first_seen"] == nil {
		t.Errorf("show --json: %s", got.Stdout)
	}

	got = programtest.Run(t, "", "keys", "show", "order-2", "--store", dir)
	got.Check(t, term.ExitDone)
	for _, fact := range []string{"key          order-2\n", "scope        default\n", "state        unknown\n", "attempts     1\n", "holder       worker-7"} {
		if !strings.Contains(got.Stdout, fact) {
			t.Errorf("show lacks %q:\n%s", fact, got.Stdout)
		}
	}

	got = programtest.Run(t, "", "keys", "show", "order-3", "--store", dir, "--json")
	got.Check(t, term.ExitFailed, "semel keys show: order-3 is absent: the store "+dir+" has no such key in scope default: a pipeline's scope is its name, or its key.scope: choose it with --scope\n")
	if list = programtest.JSONLines(t, got.Stdout); len(list) != 1 || list[0]["state"] != "absent" {
		t.Errorf("show of an absent key: %s", got.Stdout)
	}
	programtest.Run(t, "", "keys", "show", "order-1", "--scope", "other", "--store", dir).Check(t, term.ExitFailed, "is absent")
}

func TestOrphanedKeysAreNamed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	store, err := logstore.Open(dir, &logstore.Options{Fsync: logstore.Never, KeepIDs: true, DurableClaims: true})
	if err != nil {
		t.Fatal(err)
	}
	programtest.Claim(t, store, semel.ClaimRequest{Key: semel.Key{ID: "order-1"}})
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}

	got := programtest.Run(t, "", "keys", "show", "order-1", "--store", dir)
	got.Check(t, term.ExitDone)
	if !strings.Contains(got.Stdout, "state        claimed\n") || !strings.Contains(got.Stdout, "orphaned     the holder's process has ended or closed the store; its effect may still run\n") {
		t.Errorf("show:\n%s", got.Stdout)
	}
	got = programtest.Run(t, "", "keys", "ls", "--store", dir, "--state", "claimed")
	got.Check(t, term.ExitDone)
	if !strings.Contains(got.Stdout, "\norphan   ") {
		t.Errorf("ls:\n%s", got.Stdout)
	}
	got = programtest.Run(t, "", "keys", "ls", "--store", dir, "--json")
	got.Check(t, term.ExitDone)
	if list := programtest.JSONLines(t, got.Stdout); len(list) != 1 || list[0]["state"] != "claimed" || list[0]["orphaned"] != true || list[0]["lease_end"] == nil {
		t.Errorf("ls --json: %s", got.Stdout)
	}

	conf := filepath.Join(t.TempDir(), "conf.yaml")
	if err := os.WriteFile(conf, []byte("stores: { keys: { embedded: { path: '"+dir+"' } } }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got = programtest.Run(t, "", "why", "order-1", "--config", conf)
	got.Check(t, term.ExitDone)
	if !strings.Contains(got.Stdout, "it waits: worker-7 holds the key until ") || !strings.Contains(got.Stdout, "; its process has ended or closed the store, but its effect may still run") {
		t.Errorf("why:\n%s", got.Stdout)
	}
}

func TestShowFindsAKeyAsStringAndAsNumber(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	for _, c := range []struct {
		args string
		want []any
	}{
		{"42", []any{"42", 42.0}},
		{`--json-id 42`, []any{42.0}},
		{`--json-id "42"`, []any{"42"}},
	} {
		args := append([]string{"keys", "show", "--store", dir, "--json"}, strings.Fields(c.args)...)
		got := programtest.Run(t, "", args...)
		got.Check(t, term.ExitDone)
		var ids []any
		for _, record := range programtest.JSONLines(t, got.Stdout) {
			ids = append(ids, record["id"])
		}
		if fmt.Sprint(ids) != fmt.Sprint(c.want) || len(ids) > 0 && fmt.Sprintf("%T", ids[0]) != fmt.Sprintf("%T", c.want[0]) {
			t.Errorf("show %s: %v, want %v", c.args, ids, c.want)
		}
	}
}

func TestListFiltersByStateAndScope(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	got := programtest.Run(t, "", "keys", "ls", "--store", dir, "--json")
	got.Check(t, term.ExitDone)
	if n := len(programtest.JSONLines(t, got.Stdout)); n != 4 {
		t.Errorf("%d records, want 4:\n%s", n, got.Stdout)
	}
	got = programtest.Run(t, "", "keys", "ls", "--store", dir, "--state", "unknown", "--scope", "default")
	got.Check(t, term.ExitDone, "1 unknown key: the effect may have happened.", "  semel keys resolve order-2 --as absent ")
	lines := strings.Split(strings.TrimSpace(got.Stdout), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "STATE") || !strings.HasPrefix(lines[1], "unknown") || !strings.HasSuffix(lines[1], "default/order-2") {
		t.Errorf("ls --state unknown:\n%s", got.Stdout)
	}
	programtest.Run(t, "", "keys", "ls", "--store", dir, "--state", "dnoe").Check(t, term.ExitUsage, `--state "dnoe": did you mean done?`)
}

func TestStatsCountByState(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	got := programtest.Run(t, "", "keys", "stats", "--store", dir, "--json")
	got.Check(t, term.ExitDone)
	stats := programtest.JSONLines(t, got.Stdout)[0]
	if stats["done"] != 3.0 || stats["unknown"] != 1.0 || stats["claimed"] != 0.0 || stats["disk_bytes"] == 0.0 {
		t.Errorf("stats --json: %s", got.Stdout)
	}
	got = programtest.Run(t, "", "keys", "stats", "--store", dir)
	got.Check(t, term.ExitDone)
	if !strings.HasPrefix(got.Stdout, "claimed  0\ndone     3\nunknown  1\n") {
		t.Errorf("stats: %s", got.Stdout)
	}
}

func TestRemovedKeyIsForgottenAndAudited(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	programtest.Run(t, "", "keys", "rm", "order-1", "--store", dir).Check(t, term.ExitUsage, "--reason TEXT is missing")
	programtest.Run(t, "", "keys", "rm", "order-1", "--store", dir, "--reason", " ").Check(t, term.ExitUsage, "--reason TEXT is missing")
	programtest.Run(t, "", "keys", "rm", "order-9", "--store", dir, "--reason", "x").Check(t, term.ExitFailed, "order-9 is absent")
	if _, err := os.Stat(filepath.Join(dir, logstore.AuditName)); err == nil {
		t.Error("refused removals are in the audit log")
	}
	programtest.Run(t, "", "keys", "rm", "order-1", "--store", dir, "--reason", "sent twice").Check(t, term.ExitDone, "forgot order-1, which was done\n")
	programtest.Run(t, "", "keys", "show", "order-1", "--store", dir).Check(t, term.ExitFailed, "is absent")

	lines := programtest.AuditLog(t, dir)
	if len(lines) != 2 || lines[0]["operation"] != lines[1]["operation"] || lines[1]["outcome"] != "done" {
		t.Fatalf("audit log: %v", lines)
	}
	before := lines[0]["before"].(map[string]any)
	if lines[0]["verb"] != "rm" || lines[0]["reason"] != "sent twice" || lines[0]["after"] != "absent" || lines[0]["actor"] == "" ||
		before["id"] != "order-1" || before["state"] != "done" || before["scope"] != "default" || before["digest"] == nil {
		t.Errorf("audit log: %v", lines)
	}
}

func TestRemovalOfTwoKeysAtOnceIsRefused(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	programtest.Run(t, "", "keys", "rm", "42", "--store", dir, "--reason", "x").Check(t, term.ExitFailed, `the ID means 2 keys, "42" and 42: choose one with --json-id`)
	programtest.Run(t, "", "keys", "rm", "42", "--json-id", "--store", dir, "--reason", "x").Check(t, term.ExitDone, "forgot 42, ")
	programtest.Run(t, "", "keys", "rm", "42", "--store", dir, "--reason", "x").Check(t, term.ExitDone, `forgot "42", `)
}

func TestResolveSettlesUnknownKeysAlone(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	programtest.Run(t, "", "keys", "resolve", "order-2", "--store", dir).Check(t, term.ExitUsage, "--as is missing", "--reason TEXT is missing")
	programtest.Run(t, "", "keys", "resolve", "order-2", "--as", "dnoe", "--reason", "x", "--store", dir).Check(t, term.ExitUsage, `--as "dnoe": did you mean done?`)
	programtest.Run(t, "", "keys", "resolve", "order-1", "--as", "absent", "--reason", "x", "--store", dir).Check(t, term.ExitFailed, "order-1 is done, not unknown")
	programtest.Run(t, "", "keys", "resolve", "order-2", "--as", "done", "--reason", "it is in the bank's list", "--store", dir).Check(t, term.ExitDone, "resolved order-2 as done, remembered forever\n")
	if got := programtest.Run(t, "", "keys", "show", "order-2", "--store", dir, "--json"); !strings.Contains(got.Stdout, `"state":"done"`) || !strings.Contains(got.Stdout, `"expires":"forever"`) {
		t.Errorf("after resolve: %s", got.Stdout)
	}
	lines := programtest.AuditLog(t, dir)
	if len(lines) != 2 || lines[0]["after"] != "done" || lines[0]["before"].(map[string]any)["state"] != "unknown" {
		t.Errorf("audit log: %v", lines)
	}
}

func TestReadingVerbsDoNotCreateAStore(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "none")
	for _, args := range []string{"ls", "show x", "stats", "rm x --reason y", "resolve x --as done --reason y", "purge", "export"} {
		got := programtest.Run(t, "", append([]string{"keys", "--store", dir}, strings.Fields(args)...)...)
		got.Check(t, term.ExitUsage, "--store "+dir+": there is no store in this directory\n")
		programtest.Run(t, "", append([]string{"keys"}, strings.Fields(args)...)...).Check(t, term.ExitUsage, "--store DIR is missing")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory was made")
	}
}

func TestStoreInUseNamesItsHolder(t *testing.T) {
	t.Parallel()
	programtest.NewStore(t, func(_ context.Context, store *logstore.Store) {
		programtest.Run(t, "", "keys", "stats", "--store", store.Dir()).
			Check(t, term.ExitFailed, "is in use by process "+fmt.Sprint(os.Getpid())+" on ", "run this command again when that process has ended\n")
	})
}

func TestImportMarksKeysDone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	binary := base64.StdEncoding.EncodeToString([]byte("\xff\xfe"))
	input := strings.Join([]string{
		`{"id":"order-1"}`,
		``,
		`{"scope":"payments","id":["order-1",7,true],"window":"30d"}`,
		`{"scope":"payments","id":42,"expires":"2999-01-01T00:00:00Z"}`,
		`{"id":"old","expires":"2001-01-01T00:00:00Z"}`,
		`{"id_base64":"` + binary + `"}`,
		`{"id":"order-1"}`,
	}, "\n")
	got := programtest.Run(t, input, "keys", "import", "--store", dir, "--json")
	got.Check(t, term.ExitDone)
	if got.Stdout != `{"read":6,"imported":4,"duplicate":1,"expired":1}`+"\n" {
		t.Errorf("report: %s", got.Stdout)
	}
	programtest.Run(t, input, "keys", "import", "--store", dir).Check(t, term.ExitDone, "read 6  imported 0  already there 5  expired 1\n")

	for _, args := range []string{"order-1", "order-1 7 true --scope payments", `--json-id 42 --scope payments`, `--json-id ["order-1",7,true] --scope payments`, `--json-id "order-1" 7 true --scope payments`} {
		got := programtest.Run(t, "", append([]string{"keys", "show", "--store", dir, "--json"}, strings.Fields(args)...)...)
		got.Check(t, term.ExitDone)
		if !strings.Contains(got.Stdout, `"state":"done"`) {
			t.Errorf("show %s: %s", args, got.Stdout)
		}
	}
	programtest.Run(t, "", "keys", "show", "old", "--store", dir).Check(t, term.ExitFailed, "absent")
	programtest.Run(t, "", "keys", "show", "42", "--store", dir).Check(t, term.ExitFailed, "absent")
}

func TestImportStopsAtTheFirstBadLineAndSaysWhatItImported(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, want string }{
		{`{"id":"x"`, "not JSON"},
		{`{"id":"x"} {}`, "more than one JSON value"},
		{`["x"]`, "expected a JSON object, got a JSON array"},
		{`{"scope":"x"}`, `"id" is missing`},
		{`{"id":null}`, `2: id is null: give it a value, or leave it out;`},
		{`{"id":""}`, `2: id is empty: `},
		{`{"id":{"a":1}}`, `2: id: it is an object: expected a string, a number, true or false`},
		{`{"id":[]}`, `2: id: it is an empty array`},
		{`{"id":["a",[1]]}`, `2: id: part 2: it is an array: `},
		{`{"id":["a",null]}`, `2: id: part 2: it is null`},
		{`{"ID":1}`, `unknown member "ID": did you mean id?`},
		{`{"id":1,"window":""}`, `window is empty`},
		{`{"id":1,"fingerprint":"zz"}`, `fingerprint "zz": expected 32 hexadecimal digits`},
		{`{"id":1,"digest":"zz"}`, `digest "zz": expected 32 hexadecimal digits`},
		{`{"id":1,"attempts":-1}`, `attempts -1: expected a whole number`},
		{`{"id":1,"result_size":"3"}`, `result_size "3": expected a whole number`},
		{`{"id":1,"first_seen":"foo"}`, `first_seen "foo": expected a time like`},
		{`{"id":1,"lease_end":7}`, `lease_end 7: expected a time like`},
		{`{"id":1,"result":"some"}`, `result "some": expected value, failed or not_kept`},
		{`{"id":1,"holder":[]}`, `holder []: expected a string`},
		{`{"id":"x","scop":"y"}`, `unknown member "scop": did you mean scope?`},
		{`{"id":"x","scope":7}`, `scope: expected a string`},
		{`{"id":"x","window":7}`, `window 7: expected a string`},
		{`{"id":"x","window":"7x"}`, `window "7x": not a duration`},
		{`{"id":"x","window":"1d","expires":"forever"}`, "exclude each other"},
		{`{"id":"x","expires":"tomorrow"}`, `expires "tomorrow"`},
		{`{"id":"x","id_base64":"eA=="}`, "exclude each other"},
		{`{"id_base64":"?"}`, "not base64"},
		{`{"id":"x","state":"claimed"}`, "only keys that are done can be imported"},
		{`{"digest":"00112233445566778899aabbccddeeff","state":"done"}`, "keyed with the secret of its store"},
		{"{\"id\":\"\xff\"}", "not valid UTF-8"},
		{`{"id":"x","scope":"\ud800"}`, "half of a surrogate pair"},
	} {
		dir := filepath.Join(t.TempDir(), "new")
		got := programtest.Run(t, "{\"id\":\"good\"}\n"+c.line+"\n{\"id\":\"after\"}\n", "keys", "import", "--store", dir)
		got.Check(t, term.ExitFailed, "standard input:2: ", c.want, "; 1 keys are imported: importing the same lines again is safe\n")
		programtest.Run(t, "", "keys", "show", "good", "--store", dir).Check(t, term.ExitDone)
		programtest.Run(t, "", "keys", "show", "after", "--store", dir).Check(t, term.ExitFailed, "absent")
	}
}

func TestImportRefusesMissingFilesBeforeItBegins(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	missing := filepath.Join(t.TempDir(), "no.jsonl")
	programtest.Run(t, "", "keys", "import", missing, "--store", dir).Check(t, term.ExitUsage, missing)
	if _, err := os.Stat(dir); err == nil {
		t.Error("the store was made")
	}
}

func TestImportIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("terminated"))
	var stdout, stderr strings.Builder
	dir := filepath.Join(t.TempDir(), "new")
	status := cli.Main(ctx, kind.All(), []string{"keys", "import", "--store", dir}, strings.NewReader(`{"id":"x"}`), &stdout, &stderr, programtest.NoEnv)
	if status != term.ExitInterrupted || !strings.Contains(stderr.String(), "interrupted: run the same command again to resume") {
		t.Errorf("status %d, stderr %s", status, stderr.String())
	}
}

func TestImportFromASilentPipeIsInterrupted(t *testing.T) {
	t.Parallel()
	stdin, other, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	defer other.Close() // only now, because the import waits for more input until then
	if _, err := other.WriteString(`{"id":"x"}` + "\n" + `{"id":`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(fmt.Errorf("terminated"))
	var stdout, stderr strings.Builder
	dir := filepath.Join(t.TempDir(), "new")
	if status := cli.Main(ctx, kind.All(), []string{"keys", "import", "--store", dir}, stdin, &stdout, &stderr, programtest.NoEnv); status != term.ExitInterrupted {
		t.Errorf("status %d, stderr %s", status, stderr.String())
	}
	programtest.Run(t, "", "keys", "show", "x", "--store", dir).Check(t, term.ExitDone)
}

func TestExportIsImportedAsTheSameKeys(t *testing.T) {
	t.Parallel()
	ids := []string{"plain", "\x00n42", "42", "\x00s\x00nul", "\xff\xfe", "\x00t", "\x00c\x01a\x04\x00n-1", "\x00h" + strings.Repeat("x", 32), "quote\"\\ \n\u202e", "\x00u\"\\ud800\""}
	from := filepath.Join(t.TempDir(), "from")
	store, err := logstore.Open(from, &logstore.Options{Fsync: logstore.Never, KeepIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		programtest.Claim(t, store, semel.ClaimRequest{Key: semel.Key{ID: id}, Done: true})
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	exported := programtest.Run(t, "", "keys", "export", "--store", from)
	exported.Check(t, term.ExitDone)

	to := filepath.Join(t.TempDir(), "to")
	programtest.Run(t, exported.Stdout, "keys", "import", "--store", to).Check(t, term.ExitDone, fmt.Sprintf("imported %d ", len(ids)))
	copied, err := logstore.Open(to, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	keys, found := make([]semel.Key, len(ids)), make([]semel.Record, len(ids))
	for i, id := range ids {
		keys[i] = semel.Key{Scope: keyrecord.DefaultScope, ID: id}
	}
	if err := copied.Look(t.Context(), keys, found); err != nil {
		t.Fatal(err)
	}
	for i, record := range found {
		if record.State != semel.Done {
			t.Errorf("%q is %s after export and import", ids[i], record.State)
		}
	}
}

func TestExportSaysWhichKeysHaveNoID(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	programtest.Run(t, `{"id":"a"}`+"\n"+`{"id":"b"}`, "keys", "import", "--store", dir).Check(t, term.ExitDone, "imported 2 ")
	programtest.Run(t, `{"id":"c"}`, "keys", "import", "--store", dir, "--keep-ids").Check(t, term.ExitDone, "imported 1 ")
	got := programtest.Run(t, "", "keys", "export", "--store", dir, "--state", "done")
	got.Check(t, term.ExitDone, "2 keys have a digest but no id")
	if n := len(programtest.JSONLines(t, got.Stdout)); n != 6 {
		t.Errorf("%d lines, want 6", n)
	}
}

func TestPurgeReportsTheNumberOfPurgedKeys(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	got := programtest.Run(t, "", "keys", "purge", "--store", dir, "--json")
	got.Check(t, term.ExitDone)
	if got.Stdout != "{\"purged\":0}\n" {
		t.Errorf("purge: %s", got.Stdout)
	}
}

func TestUnwritableAuditLogPreventsTheChange(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	if err := os.Mkdir(filepath.Join(dir, logstore.AuditName), 0o700); err != nil {
		t.Fatal(err)
	}
	programtest.Run(t, "", "keys", "rm", "order-1", "--store", dir, "--reason", "x").Check(t, term.ExitFailed, "audit log: nothing was changed")
	programtest.Run(t, "", "keys", "show", "order-1", "--store", dir).Check(t, term.ExitDone)
}
