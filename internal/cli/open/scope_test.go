package open_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestDoctorLintAndRunRefuseAScopeOfAnotherKeyRule fills a scope of each kind of store, and checks
// pipelines that find the ids of that scope by another rule.
func TestDoctorLintAndRunRefuseAScopeOfAnotherKeyRule(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"in.jsonl", "in2.jsonl"} {
		programtest.WriteFile(t, filepath.Join(dir, name), "{\"id\":\"1\",\"user\":\"1\"}\n")
	}
	config := func(name, rule string) string {
		text := fmt.Sprintf(`
stores:
  files: { embedded: { path: files } }
  cache: { redis: { url: %q, prefix: %q } }
  db:    { postgres: { dsn: %q } }
  mem:   { memory: {} }
  stack: { tiered: [mem, db] }
pipelines:
`, programtest.Servers.Redis(t), servicestest.Prefix(), programtest.Servers.Database(t))
		for _, store := range []string{"files", "cache", "db", "stack"} {
			text += fmt.Sprintf("  on-%[1]s: { source: { file: { paths: [in.jsonl], state: %[1]s.state } }, key: { id: RULE, scope: of-%[1]s }, store: %[1]s, sink: { file: { path: %[1]s.out } }, parked: { path: p } }\n", store)
		}
		programtest.WriteFile(t, filepath.Join(dir, "other.yaml"), strings.NewReplacer("RULE", ".user", "in.jsonl", "in2.jsonl").Replace(text))
		programtest.WriteFile(t, filepath.Join(dir, "same.yaml"), strings.ReplaceAll(text, "RULE", ".user, same_scope: true"))
		return programtest.WriteFile(t, filepath.Join(dir, name), strings.ReplaceAll(text, "RULE", rule))
	}
	file := config("c.yaml", ".id")
	other, same := filepath.Join(dir, "other.yaml"), filepath.Join(dir, "same.yaml")
	programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db").Check(t, term.ExitDone, "applied 1")
	before := programtest.Run(t, "", "doctor", other)
	before.Check(t, term.ExitFound, " 0 broken\n")
	programtest.Run(t, "", "run", file, "--admin", "off", "-q").Check(t, term.ExitDone)
	programtest.Run(t, "", "doctor", file).Check(t, term.ExitFound, " 0 broken\n")
	programtest.Run(t, "", "doctor", same).Check(t, term.ExitFound, " 0 broken\n")

	const ways = "use another scope with key.scope; or, if equal ids mean the same message, write key.same_scope: true\n"
	text := func(store string) string {
		return fmt.Sprintf(`scope "of-%s" has ids found by the rule .id, and ids found by .user could be equal to them by chance`, store)
	}
	got := programtest.Run(t, "", "doctor", other)
	got.Check(t, term.ExitFound, " 4 broken\n")
	checked := programtest.Run(t, "", "run", other, "--check")
	checked.Check(t, term.ExitFound, " 4 broken, 4 skipped, 0 not checked\n")
	for _, store := range []string{"files", "cache", "db", "stack"} {
		if want := "  broken   key.scope                    " + text(store) + "\n           cost: run does not start\n           do:   " + ways; !strings.Contains(got.Stdout, want) {
			t.Errorf("doctor on a store %s lacks %q:\n%s", store, want, got.Stdout)
		}
		if !strings.Contains(checked.Stdout, text(store)) || !strings.Contains(checked.Stdout, "on-"+store+": run refuses its scope\n") {
			t.Errorf("run --check on a store %s:\n%s", store, checked.Stdout)
		}
		refused := programtest.Run(t, "", "run", other, "on-"+store, "--admin", "off", "-q")
		refused.Check(t, term.ExitUsage, text(store)+": "+ways)
	}
	// Another unwrap finds other ids by the same rule.
	inside := programtest.WriteFile(t, filepath.Join(dir, "inside.yaml"), strings.NewReplacer(", store: ", ", unwrap: [.user, json], store: ", "in.jsonl", "in2.jsonl").Replace(programtest.ReadFile(t, file)))
	for _, store := range []string{"files", "cache", "db", "stack"} {
		refused := programtest.Run(t, "", "run", inside, "on-"+store, "--admin", "off", "-q")
		refused.Check(t, term.ExitUsage, fmt.Sprintf(`scope "of-%s" has ids found by the rule .id, and ids found by .id of the message inside (unwrap: .user, json) could be equal to them by chance: `, store)+ways)
	}
	for verb, status := range map[string]int{"lint": term.ExitFound, "explain": term.ExitDone} {
		if got := programtest.Run(t, "", verb, inside); got.Status != status || !strings.Contains(got.Stdout, ".id of the message inside (unwrap: .user, json)") {
			t.Errorf("%s: %+v", verb, got)
		}
	}

	// Lint connects to nothing. It sees the embedded store, and not in use.
	linted := programtest.Run(t, "", "lint", other)
	linted.Check(t, term.ExitFound, " 1 broken\n")
	if want := "broken: pipelines.on-files.key.scope: " + text("files") + ": run does not start: " + ways; !strings.Contains(linted.Stdout, "other.yaml:9:") || !strings.Contains(linted.Stdout, want) {
		t.Errorf("lint lacks %q:\n%s", want, linted.Stdout)
	}
	programtest.Run(t, "", "lint", file).Check(t, term.ExitFound, " 0 broken\n")

	// A process that runs the pipelines answers for its store, and no other process does.
	follows := programtest.WriteFile(t, filepath.Join(dir, "follows.yaml"), strings.Replace(programtest.ReadFile(t, file), "state: files.state", "follow: true", 1))
	stop := programtest.BackgroundUntil(t, "running", programtest.NoEnv, "run", follows, "on-files", "--admin", "off")
	if got := programtest.Run(t, "", "doctor", other, "on-files"); got.Status != term.ExitFound || !strings.Contains(got.Stdout, text("files")) {
		t.Errorf("doctor while the process runs: %+v", got)
	}
	stop()
}

// TestASharedStoreWhoseScopesAreNotBoundGetsAWarning: another rule may have found the keys.
func TestASharedStoreWhoseScopesAreNotBoundGetsAWarning(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n{\"id\":\"2\"}\n")
	text := fmt.Sprintf(`
stores:
  cache: { redis: { url: %q, prefix: %q } }
  db:    { postgres: { dsn: %q } }
pipelines:
`, programtest.Servers.Redis(t), servicestest.Prefix(), programtest.Servers.Database(t))
	for _, store := range []string{"cache", "db"} {
		text += fmt.Sprintf("  on-%[1]s: { source: { file: { paths: [in.jsonl], state: %[1]s.state } }, key: { id: .id }, store: %[1]s, sink: { file: { path: %[1]s.out } }, parked: { path: p } }\n", store)
	}
	file := programtest.WriteFile(t, filepath.Join(dir, "semel.yaml"), text)
	programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db").Check(t, term.ExitDone, "applied 1")
	for _, store := range []string{"cache", "db"} { // import binds no scope, as earlier versions
		programtest.Run(t, `{"id":"1"}`, "keys", "import", "--config", file, "--store-name", store, "--scope", "on-"+store).Check(t, term.ExitDone, "imported 1")
	}
	const warning = "the store has keys and no key rule"
	got := programtest.Run(t, "", "run", file, "--admin", "off")
	got.Check(t, term.ExitDone, "key.scope")
	for _, store := range []string{"cache", "db"} {
		if want := fmt.Sprintf(`"store":%q,"scope":"on-%[1]s","binds":".id"`, store); strings.Count(got.Stderr, warning) != 2 || !strings.Contains(got.Stderr, want) {
			t.Errorf("the log lacks %s: %s", want, got.Stderr)
		}
	}
	if got := programtest.Run(t, "", "run", file, "--admin", "off"); got.Status != term.ExitDone || strings.Contains(got.Stderr, warning) {
		t.Errorf("the scopes are bound now: %+v", got)
	}
}

// TestCopiedPipelineMayNotUseTheScopeOfTheOriginal copies a configuration, with
// another name and another sink.
func TestCopiedPipelineMayNotUseTheScopeOfTheOriginal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n")
	stores := fmt.Sprintf(`
stores:
  files: { embedded: { path: files } }
  cache: { redis: { url: %q, prefix: %q } }
  db:    { postgres: { dsn: %q } }
pipelines:
`, programtest.Servers.Redis(t), servicestest.Prefix(), programtest.Servers.Database(t))
	names := []string{"files", "cache", "db"}
	config := func(name, more string) string {
		text := stores
		for _, store := range names {
			text += fmt.Sprintf("  %s-%[2]s: { source: { file: { paths: [in.jsonl], state: %[1]s-%[2]s.state } }, key: { id: .id, scope: of-%[2]s%[3]s }, store: %[2]s, sink: { file: { path: %[1]s-%[2]s.out } }, parked: { path: p } }\n", name, store, more)
		}
		return programtest.WriteFile(t, filepath.Join(dir, fmt.Sprintf("%s-%d.yaml", name, len(more))), text)
	}
	first, copied, shared := config("first", ""), config("copied", ""), config("copied", ", same_scope: true")
	programtest.Run(t, "", "migrate", "up", "--config", first, "--store-name", "db").Check(t, term.ExitDone, "applied 1")
	programtest.Run(t, "", "run", first, "--admin", "off", "-q").Check(t, term.ExitDone)
	examined := programtest.Run(t, "", "doctor", copied)
	examined.Check(t, term.ExitFound, " 3 broken\n")
	for _, store := range names {
		want := fmt.Sprintf(`scope "of-%s" belongs to the pipeline first-%[1]s, so the pipeline copied-%[1]s would drop the messages of that pipeline as duplicates`, store)
		if !strings.Contains(examined.Stdout, want) {
			t.Errorf("doctor on a store %s lacks %q:\n%s", store, want, examined.Stdout)
		}
		programtest.Run(t, "", "run", copied, "copied-"+store, "--admin", "off", "-q").Check(t, term.ExitUsage, want, "key.scope", "key.same_scope: true")
		programtest.Run(t, "", "run", first, "first-"+store, "--admin", "off", "-q").Check(t, term.ExitDone)
	}
	programtest.Run(t, "", "run", shared, "--admin", "off", "-q").Check(t, term.ExitDone)
}
