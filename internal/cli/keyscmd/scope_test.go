package keyscmd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/programtest"
)

// scopedConfig has two pipelines whose keys are in one store, which keeps no ids.
// Its name and directory need quotes in a shell.
func scopedConfig(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "the bank's")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores:
  ledger: { embedded: { path: ./ledger } }
  other: { embedded: { path: ./other } }
pipelines:
  charges: { source: { file: { paths: [in] } }, key: { id: .id }, window: 8d, store: ledger, sink: { stdout: {} }, parked: { path: ./parked } }
  refunds: { source: { file: { paths: [in] } }, key: { id: .id }, window: 3d, store: ledger, sink: { stdout: {} }, parked: { path: ./parked } }
  single: { source: { file: { paths: [in] } }, key: { id: .id }, window: 2d, store: other, sink: { stdout: {} }, parked: { path: ./parked } }
`)
}

// unknownIn leaves keys unknown in a store: their holders are lost immediately.
func unknownIn(t *testing.T, file, store string, keys ...semel.Key) {
	t.Helper()
	conf, err := kind.All().Read(file, programtest.NoEnv)
	if err != nil {
		t.Fatal(err)
	}
	s, opened, err := app.OpenStore(t.Context(), conf, store, nil)
	if err != nil {
		t.Fatal(err)
	}
	var claims []semel.ClaimRequest
	for i, key := range keys {
		claims = append(claims, semel.ClaimRequest{Key: key, Owner: semel.Owner{Name: "worker-7", Nonce: uint64(i + 1)}, Lease: 1, Window: semel.Forever, Hold: true})
	}
	answers := make([]semel.ClaimAnswer, len(claims))
	if err := s.Claim(t.Context(), claims, answers); err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		if a.Decision != semel.Fresh {
			t.Fatalf("%+v", a)
		}
	}
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestKeysAreFoundInTheScopesOfThePipelines(t *testing.T) {
	t.Parallel()
	file := scopedConfig(t)
	unknownIn(t, file, "ledger", semel.Key{Scope: "charges", ID: "c-1"}, semel.Key{Scope: "charges", ID: "both"}, semel.Key{Scope: "refunds", ID: "both"}, semel.Key{Scope: "default", ID: "d-1"})
	unknownIn(t, file, "other", semel.Key{Scope: "single", ID: "s-1"}, semel.Key{Scope: "default", ID: "s-2"})
	keys := func(verb string, words ...string) programtest.Outcome {
		t.Helper()
		return programtest.Run(t, "", append([]string{"keys", verb, "--config", file}, words...)...)
	}

	got := keys("show", "c-1", "--store-name", "ledger")
	got.Check(t, term.ExitDone)
	if !strings.Contains(got.Stdout, "scope        charges\nstate        unknown\n") {
		t.Errorf("show: %s", got.Stdout)
	}
	if got = keys("show", "both", "--store-name", "ledger", "--json"); got.Status != term.ExitDone || len(programtest.JSONLines(t, got.Stdout)) != 2 {
		t.Errorf("a key in two scopes: %+v", got)
	}
	if got = keys("show", "s-1", "--store-name", "other"); !strings.Contains(got.Stdout, "scope        single\n") {
		t.Errorf("one pipeline: %+v", got)
	}
	keys("show", "c-1", "--store-name", "ledger", "--scope", "default").Check(t, term.ExitFailed, "c-1 is absent in scope default; it is in scope charges: --scope charges\n")
	keys("show", "both", "--store-name", "ledger", "--scope", "x").Check(t, term.ExitFailed, "both is absent in scope x; it is in the scopes charges and refunds: --scope charges or --scope refunds\n")
	keys("show", "d-1", "--store-name", "ledger").Check(t, term.ExitFailed, "d-1 is absent in the scopes charges and refunds; it is in scope default: --scope default\n")
	keys("show", "none", "--store-name", "ledger").Check(t, term.ExitFailed, "none is absent: the store ledger has no such key in the scopes charges and refunds\n")

	// The scope of a run of dedup is in no configuration, and the store keeps no ids.
	programtest.Run(t, `{"id":"z-1"}`, "dedup", "--key", ".id", "--store", filepath.Join(filepath.Dir(file), "ledger"), "--scope", "of dedup", "-q").Check(t, term.ExitDone)
	keys("show", "z-1", "--store-name", "ledger").Check(t, term.ExitFailed, "z-1 is absent in the scopes charges and refunds; it is in scope of dedup: --scope 'of dedup'\n")
	for id, want := range map[string]string{"z-1": "scope of dedup: --scope 'of dedup'", "c-1": "scope charges: --scope charges"} {
		got := programtest.Run(t, "", "why", id, "--config", file, "--store-name", "ledger")
		if got.Status != term.ExitDone || !strings.Contains(got.Stdout, "\nelsewhere    it is in "+want+"\n") {
			t.Errorf("why %s: %+v", id, got)
		}
	}

	for _, verb := range [][]string{{"rm"}, {"resolve", "--as", "done"}} {
		change := append(verb[1:], "--reason", "x", "--store-name", "ledger")
		keys(verb[0], append(change, "both")...).Check(t, term.ExitUsage, "both is in the scopes charges and refunds: choose one with --scope charges or --scope refunds\n")
		keys(verb[0], append(change, "c-1", "--scope", "refunds")...).Check(t, term.ExitFailed, "c-1 is absent in scope refunds; it is in scope charges: --scope charges\n")
	}
	if got = keys("ls", "--store-name", "ledger", "--state", "unknown", "--json"); len(programtest.JSONLines(t, got.Stdout)) != 4 {
		t.Errorf("a refused verb changed a key: %s", got.Stdout)
	}
	keys("resolve", "c-1", "--as", "absent", "--reason", "x", "--store-name", "ledger").Check(t, term.ExitDone, "resolved c-1 as absent\n")
	keys("rm", "both", "--scope", "refunds", "--reason", "x", "--store-name", "ledger").Check(t, term.ExitDone, "forgot both, which was unknown\n")
	keys("show", "both", "--store-name", "ledger", "--scope", "charges").Check(t, term.ExitDone)
}

func TestResolvedKeyIsRememberedForThePipelinesWindow(t *testing.T) {
	t.Parallel()
	file := scopedConfig(t)
	unknownIn(t, file, "ledger", semel.Key{Scope: "charges", ID: "c-1"}, semel.Key{Scope: "refunds", ID: "r-1"}, semel.Key{Scope: "default", ID: "d-1"}, semel.Key{Scope: "charges", ID: "c-2"})
	for _, c := range []struct {
		words, text string
		window      time.Duration
	}{
		{"c-1", ", remembered for 8d, the window of pipeline charges", 8 * 24 * time.Hour},
		{"r-1", ", remembered for 3d, the window of pipeline refunds", 3 * 24 * time.Hour},
		{"c-2 --window 36h", ", remembered for 36h", 36 * time.Hour},
		{"d-1 --scope default", ", remembered forever", semel.Forever},
	} {
		words := strings.Fields(c.words)
		args := append([]string{"keys", "resolve", "--as", "done", "--reason", "x", "--config", file, "--store-name", "ledger"}, words...)
		start := time.Now()
		programtest.Run(t, "", args...).Check(t, term.ExitDone, "resolved "+words[0]+" as done"+c.text+"\n")
		record := programtest.JSONLines(t, programtest.Run(t, "", "keys", "show", words[0], "--config", file, "--store-name", "ledger", "--json", "--scope", map[byte]string{'c': "charges", 'r': "refunds", 'd': "default"}[words[0][0]]).Stdout)[0]
		if c.window == semel.Forever {
			if record["expires"] != "forever" {
				t.Errorf("%s: %v", c.words, record)
			}
			continue
		}
		expires, err := time.Parse(time.RFC3339, record["expires"].(string))
		if err != nil || expires.Before(start.Add(c.window-time.Second)) || expires.After(time.Now().Add(c.window+time.Minute)) {
			t.Errorf("%s expires at %v, want about %v from now: %v", c.words, expires, c.window, err)
		}
	}
	unset := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
stores: { ledger: { embedded: { path: `+"'"+strings.ReplaceAll(filepath.Join(filepath.Dir(file), "ledger"), "'", "''")+"'"+` } } }
pipelines:
  charges: { source: { file: { paths: [in] } }, key: { id: .id, scope: "${env:SCOPE}" }, window: "${env:WINDOW}", store: ledger, sink: { stdout: {} } }
`)
	programtest.Run(t, "", "keys", "show", "c-1", "--config", unset).Check(t, term.ExitUsage, "SCOPE is not set", "choose the scope with --scope\n")
	resolve := []string{"keys", "resolve", "c-1", "--scope", "charges", "--as", "done", "--reason", "x", "--config", unset}
	programtest.Run(t, "", resolve...).Check(t, term.ExitUsage, "WINDOW is not set", "choose the window with --window\n")
	programtest.Run(t, "", append(resolve, "--window", "1d")...).Check(t, term.ExitFailed, "c-1 is done, not unknown")
}

func TestKeysAreFoundByTheirDigest(t *testing.T) {
	t.Parallel()
	file := sharedConfig(t)
	for _, store := range []string{"files", "cache", "db", "second", "both", "deep"} {
		t.Run(store, func(t *testing.T) {
			unknownIn(t, file, store, semel.Key{Scope: "default", ID: store + "-a"}, semel.Key{Scope: "default", ID: store + "-b"})
			keys := func(verb string, words ...string) programtest.Outcome {
				t.Helper()
				return programtest.Run(t, "", append([]string{"keys", verb, "--config", file, "--store-name", store}, words...)...)
			}
			var digests []string
			for _, id := range []string{"-a", "-b"} {
				digest := programtest.JSONLines(t, keys("show", store+id, "--scope", "default", "--json").Stdout)[0]["digest"].(string)
				if listed := keys("ls", "--state", "unknown"); !strings.Contains(listed.Stdout, "  "+digest) {
					t.Errorf("ls lacks %s: %s", digest, listed.Stdout)
				}
				got := keys("show", "--digest", digest)
				got.Check(t, term.ExitDone)
				if !strings.Contains(got.Stdout, "state        unknown\n") || !strings.Contains(got.Stdout, "digest       "+digest+"\n") {
					t.Errorf("show --digest: %s", got.Stdout)
				}
				digests = append(digests, digest)
			}
			got := programtest.Run(t, "", "why", "--config", file, "--store-name", store, "--digest", digests[0])
			if got.Status != term.ExitDone || !strings.Contains(got.Stdout, "next time    it is not processed (a pipeline parks it, a request gets 409)") {
				t.Errorf("why --digest: %+v", got)
			}
			keys("resolve", "--digest", digests[0], "--as", "done", "--window", "1h", "--reason", "x").Check(t, term.ExitDone, " as done, remembered for 1h\n")
			keys("rm", "--digest", digests[1], "--reason", "x").Check(t, term.ExitDone, ", which was unknown\n")
			keys("show", "--digest", digests[1]).Check(t, term.ExitFailed, "the digest "+digests[1]+" is absent: the store "+store+" has no such key\n")
			if got := keys("show", store+"-a"); !strings.Contains(got.Stdout, "state        done\n") {
				t.Errorf("after resolve: %+v", got)
			}
			keys("show", store+"-b").Check(t, term.ExitFailed, "is absent")
		})
	}
	for args, want := range map[string]string{
		"show --digest xyz":  `--digest "xyz": expected the 32 hexadecimal digits that semel keys ls prints`,
		"show --digest 00 a": "--digest and an ID exclude each other",
		"show":               "the ID of the key is missing: name the key, or --digest DIGEST as semel keys ls prints it",
		"show --digest " + strings.Repeat("0", 34): "expected the 32 hexadecimal digits",
	} {
		programtest.Run(t, "", append([]string{"keys", "--config", file, "--store-name", "files"}, strings.Fields(args)...)...).Check(t, term.ExitUsage, want)
	}
}

// TestChangesInATieredStoreWithoutIDsNeedTheID: the layers of a stack have digests of their own, so
// a change by the digest of the lowest one would leave their copies.
func TestChangesInATieredStoreWithoutIDsNeedTheID(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), `
stores:
  mem: { memory: {} }
  files: { embedded: { path: ./files } }
  deep: { tiered: [mem, files] }
`)
	unknownIn(t, file, "files", semel.Key{Scope: "default", ID: "a"})
	digest := programtest.JSONLines(t, programtest.Run(t, "", "keys", "ls", "--config", file, "--store-name", "deep", "--json").Stdout)[0]["digest"].(string)
	for _, verb := range []string{"rm", "resolve --as done"} {
		args := append([]string{"keys"}, strings.Fields(verb+" --reason x --store-name deep --digest "+digest)...)
		programtest.Run(t, "", append(args, "--config", file)...).Check(t, term.ExitFailed, "the store deep needs the ID of the key: its layers have digests of their own, and files keeps no ids (keep_ids)\n")
	}
	programtest.Run(t, "", "keys", "resolve", "--as", "absent", "--reason", "x", "--config", file, "--store-name", "files", "--digest", digest).Check(t, term.ExitDone, "resolved the digest "+digest+" as absent\n")
}

func TestAllUnknownKeysAreResolvedAfterAConfirmation(t *testing.T) {
	t.Parallel()
	file := scopedConfig(t)
	unknownIn(t, file, "ledger", semel.Key{Scope: "charges", ID: "c-1"}, semel.Key{Scope: "charges", ID: "c-2"}, semel.Key{Scope: "refunds", ID: "r-1"})
	resolve := func(words ...string) programtest.Outcome {
		t.Helper()
		return programtest.Run(t, "y\n", append([]string{"keys", "resolve", "--all", "--reason", "the bank was down", "--config", file, "--store-name", "ledger"}, words...)...)
	}
	resolve("--as", "done", "c-1").Check(t, term.ExitUsage, "--all and a key exclude each other")
	resolve("--as", "done", "--state", "done").Check(t, term.ExitUsage, `--state "done": only keys in the state unknown can be resolved`)
	programtest.Run(t, "", "keys", "resolve", "c-1", "--older", "1h", "--as", "done", "--reason", "x", "--config", file, "--store-name", "ledger").
		Check(t, term.ExitUsage, "--older is only for --all")
	resolve("--as", "done", "--state", "unknown", "--older", "1h").Check(t, term.ExitDone, "no unknown key was chosen\n")
	// A pipe is no terminal, whatever it says.
	resolve("--as", "done").Check(t, term.ExitUsage, "3 unknown keys of ledger would become done: --yes is missing, and there is no terminal to ask for confirmation\n")
	resolve("--as", "done", "--state", "unknown", "--older", "1ms", "--yes").Check(t, term.ExitDone, "resolved 3 of 3 unknown keys of ledger as done, remembered for 8d, the window of pipeline charges\n")
	lines := programtest.AuditLog(t, filepath.Join(filepath.Dir(file), "ledger"))
	if len(lines) != 6 {
		t.Fatalf("%d lines in the audit log, want 6: %v", len(lines), lines)
	}
	for i := 0; i < len(lines); i += 2 {
		if lines[i]["verb"] != "resolve" || lines[i]["reason"] != "the bank was down" || lines[i]["after"] != "done" || lines[i+1]["outcome"] != "done" {
			t.Errorf("audit log: %v", lines[i:i+2])
		}
	}
	if got := programtest.Run(t, "", "keys", "stats", "--json", "--config", file, "--store-name", "ledger"); !strings.Contains(got.Stdout, `"done":3,"unknown":0`) {
		t.Errorf("stats: %s", got.Stdout)
	}
}

// TestPrintedCommandsWorkInAShell pastes the commands that show and why print.
func TestPrintedCommandsWorkInAShell(t *testing.T) {
	t.Parallel()
	shell, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	_, binaries := programtest.ExampleDir(t)
	file := scopedConfig(t)
	const odd = "-it's \"$HOME\"\n42"
	unknownIn(t, file, "ledger", semel.Key{Scope: "charges", ID: odd}, semel.Key{Scope: "refunds", ID: "r-1"}, semel.Key{Scope: "charges", ID: "-5"}, semel.Key{Scope: "charges", ID: "\x00n-5"})
	paste := func(line string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), shell, "-c", line)
		command.Env = append(os.Environ(), programtest.Variable+"=1", "PATH="+binaries+":"+os.Getenv("PATH"))
		out, err := command.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", line, err, out)
		}
		return string(out)
	}
	next := func(got programtest.Outcome, when string) string {
		t.Helper()
		_, after, ok := strings.Cut(got.Stdout, when+":\n  ")
		line, _, _ := strings.Cut(after, "\n")
		if !ok {
			t.Fatalf("no command %q in %+v", when, got)
		}
		return line
	}
	show := func(words ...string) programtest.Outcome {
		return programtest.Run(t, "", append([]string{"keys", "show", "--config", file, "--store-name", "ledger"}, words...)...)
	}

	for id, jsonID := range map[string]string{odd: `"-it's \"$HOME\"\n42"`, "-5": `"-5"`, "\x00n-5": "-5"} {
		got := show("--json-id", "--", jsonID)
		if out := paste(next(got, "if the effect happened")); !strings.Contains(out, " as done, remembered for 8d") {
			t.Errorf("%q: %s", id, out)
		}
		got = show("--json-id", "--", jsonID)
		if out := paste(next(got, "to process its message again")); !strings.Contains(out, ", which was done") {
			t.Errorf("%q: %s", id, out)
		}
		show("--json-id", "--", jsonID).Check(t, term.ExitFailed, "is absent")
	}
	explained := programtest.Run(t, "", "why", "r-1", "--config", file, "--store-name", "ledger", "--scope", "refunds")
	if want := "if the effect did not happen:\n  semel keys resolve r-1 --as absent --reason 'the effect did not happen' --config '" + strings.ReplaceAll(file, "'", `'\''`) + "' --store-name ledger --scope refunds\n"; !strings.Contains(explained.Stdout, want) {
		t.Errorf("why lacks %q: %s", want, explained.Stdout)
	}
	paste(next(explained, "if the effect did not happen"))
	show("r-1").Check(t, term.ExitFailed, "r-1 is absent")
}

// TestAKeyOfAnotherScopeIsFoundByItsID looks for keys in a store without a configuration.
func TestAKeyOfAnotherScopeIsFoundByItsID(t *testing.T) {
	t.Parallel()
	readable, digests := filepath.Join(t.TempDir(), "readable"), filepath.Join(t.TempDir(), "digests")
	lines := "{\"id\":\"c-1\",\"scope\":\"charges\"}\n"
	programtest.Run(t, lines, "keys", "import", "-", "--store", readable, "--keep-ids", "-q").Check(t, term.ExitDone)
	programtest.Run(t, lines, "keys", "import", "-", "--store", digests, "-q").Check(t, term.ExitDone)
	programtest.Run(t, "", "keys", "show", "c-1", "--store", readable).Check(t, term.ExitFailed, "c-1 is absent in scope default; it is in scope charges: --scope charges\n")
	programtest.Run(t, "", "keys", "rm", "c-1", "--reason", "x", "--store", readable).Check(t, term.ExitFailed, "it is in scope charges: --scope charges\n")
	programtest.Run(t, "", "keys", "show", "c-1", "--store", digests).Check(t, term.ExitFailed, "c-1 is absent: the store "+digests+" has no such key in scope default: a pipeline's scope is its name, or its key.scope: choose it with --scope\n")
}

// TestAListLeavesOutEmptyColumns lists keys without ids, then with ids, then more than
// the first rows.
func TestAListLeavesOutEmptyColumns(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	header := func() string {
		t.Helper()
		got := programtest.Run(t, "", "keys", "ls", "--store", dir)
		got.Check(t, term.ExitDone)
		var headers []string
		for line := range strings.Lines(got.Stdout) {
			if strings.HasPrefix(line, "STATE") {
				headers = append(headers, strings.Join(strings.Fields(line), " "))
			}
			if strings.HasSuffix(line, " \n") {
				t.Errorf("a line ends with spaces: %q", line)
			}
		}
		return strings.Join(headers, "; ")
	}
	var lines strings.Builder
	for i := range 3000 {
		lines.WriteString("{\"id\":" + strconv.Itoa(i) + "}\n")
	}
	programtest.Run(t, lines.String(), "keys", "import", "-", "--store", dir, "-q").Check(t, term.ExitDone)
	if got := header(); got != "STATE EXPIRES DIGEST" {
		t.Errorf("without ids: %s", got)
	}
	programtest.Run(t, "{\"id\":\"a\"}\n", "keys", "import", "-", "--store", dir, "--keep-ids", "-q").Check(t, term.ExitDone)
	got := programtest.Run(t, "", "keys", "ls", "--store", dir)
	if before, after, ok := strings.Cut(got.Stdout, "SCOPE/ID\n"); !ok || strings.Contains(before, "default/a") || !strings.Contains(after, "  default/a\n") || strings.Count(got.Stdout, "\n") < 3002 {
		t.Errorf("no header names the column of default/a: %s", header())
	}
}

// A person types an id as the message has it. The rule of the pipeline shapes both.
func TestAKeyIsFoundInTheSpellingOfTheMessage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), `{"mail":" Ann@X"}`+"\n")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `stores: { keys: { embedded: { path: ./keys, keep_ids: true } } }
pipelines:
  mails:
    source: { file: { paths: ["`+in+`"] } }
    key: { id: 'lower(trim(.mail))' }
    store: keys
    sink: { file: { path: out.jsonl } }
`)
	programtest.Run(t, "", "run", file, "--admin", "off").Check(t, term.ExitDone, `"fresh":1`)
	for _, id := range []string{"ann@x", "ANN@X", " Ann@x "} {
		for _, verb := range [][]string{{"keys", "show"}, {"why"}} {
			got := programtest.Run(t, "", append(verb, id, "--config", file)...)
			if got.Status != term.ExitDone || !strings.Contains(got.Stdout, "state        done") || !strings.Contains(got.Stdout, "ann@x") {
				t.Errorf("%s %q: %+v", verb, id, got)
			}
		}
	}
	programtest.Run(t, "", "keys", "show", "bob", "--config", file).Check(t, term.ExitFailed, "bob is absent")
	programtest.Run(t, "", "keys", "rm", "ANN@X", "--reason", "x", "--config", file).Check(t, term.ExitDone, "forgot ann@x, which was done")
}
