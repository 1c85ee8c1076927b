package cli

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestChecksNameAScopeOfAnotherKeyRule fills a scope of each kind of store, and checks
// pipelines that find the ids of that scope by another rule.
func TestChecksNameAScopeOfAnotherKeyRule(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"in.jsonl", "in2.jsonl"} {
		writeFile(t, filepath.Join(dir, name), "{\"id\":\"1\",\"user\":\"1\"}\n")
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
`, servers.Redis(t), servicestest.Prefix(), servers.Database(t))
		for _, store := range []string{"files", "cache", "db", "stack"} {
			text += fmt.Sprintf("  on-%[1]s: { source: { file: { paths: [in.jsonl], state: %[1]s.state } }, key: { id: RULE, scope: of-%[1]s }, store: %[1]s, sink: { file: { path: %[1]s.out } }, parked: { path: p } }\n", store)
		}
		writeFile(t, filepath.Join(dir, "other.yaml"), strings.NewReplacer("RULE", ".user", "in.jsonl", "in2.jsonl").Replace(text))
		writeFile(t, filepath.Join(dir, "same.yaml"), strings.ReplaceAll(text, "RULE", ".user, same_scope: true"))
		return writeFile(t, filepath.Join(dir, name), strings.ReplaceAll(text, "RULE", rule))
	}
	file := config("c.yaml", ".id")
	other, same := filepath.Join(dir, "other.yaml"), filepath.Join(dir, "same.yaml")
	run(t, "", "migrate", "up", "--config", file, "--store-name", "db").check(t, term.ExitDone, "applied 1")
	before := run(t, "", "doctor", other)
	before.check(t, term.ExitFound, " 0 broken\n")
	run(t, "", "run", file, "--admin", "off", "-q").check(t, term.ExitDone)
	run(t, "", "doctor", file).check(t, term.ExitFound, " 0 broken\n")
	run(t, "", "doctor", same).check(t, term.ExitFound, " 0 broken\n")

	const ways = "use another scope with key.scope; or, if equal ids mean the same message, write key.same_scope: true\n"
	text := func(store string) string {
		return fmt.Sprintf(`scope "of-%s" has ids found by the rule .id, and ids found by .user could be equal to them by chance`, store)
	}
	got := run(t, "", "doctor", other)
	got.check(t, term.ExitFound, " 4 broken\n")
	checked := run(t, "", "run", other, "--check")
	checked.check(t, term.ExitFound, " 4 broken, 4 skipped, 0 not checked\n")
	for _, store := range []string{"files", "cache", "db", "stack"} {
		if want := "  broken   key.scope                    " + text(store) + "\n           cost: run refuses the first message with a key\n           do:   " + ways; !strings.Contains(got.stdout, want) {
			t.Errorf("doctor on a store %s lacks %q:\n%s", store, want, got.stdout)
		}
		if !strings.Contains(checked.stdout, text(store)) || !strings.Contains(checked.stdout, "on-"+store+": run refuses its scope\n") {
			t.Errorf("run --check on a store %s:\n%s", store, checked.stdout)
		}
		refused := run(t, "", "run", other, "on-"+store, "--admin", "off", "-q")
		refused.check(t, term.ExitUsage, text(store)+": "+ways)
	}
	// Lint connects to nothing. It sees the embedded store, and not in use.
	linted := run(t, "", "lint", other)
	linted.check(t, term.ExitFound, " 1 broken\n")
	if want := "broken: pipelines.on-files.key.scope: " + text("files") + ": run refuses the first message with a key: " + ways; !strings.Contains(linted.stdout, "other.yaml:9:") || !strings.Contains(linted.stdout, want) {
		t.Errorf("lint lacks %q:\n%s", want, linted.stdout)
	}
	run(t, "", "lint", file).check(t, term.ExitFound, " 0 broken\n")

	// A process that runs the pipelines answers for its store, and no other process does.
	follows := writeFile(t, filepath.Join(dir, "follows.yaml"), strings.Replace(readFile(t, file), "state: files.state", "follow: true", 1))
	stop := backgroundUntil(t, "running", noEnv, "run", follows, "on-files", "--admin", "off")
	if got := run(t, "", "doctor", other, "on-files"); got.status != term.ExitFound || !strings.Contains(got.stdout, text("files")) {
		t.Errorf("doctor beside the running process: %+v", got)
	}
	stop()
}

// TestASharedStoreWhoseScopesAreNotBoundGetsAWarning: another rule may have found the keys.
func TestASharedStoreWhoseScopesAreNotBoundGetsAWarning(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n{\"id\":\"2\"}\n")
	text := fmt.Sprintf(`
stores:
  cache: { redis: { url: %q, prefix: %q } }
  db:    { postgres: { dsn: %q } }
pipelines:
`, servers.Redis(t), servicestest.Prefix(), servers.Database(t))
	for _, store := range []string{"cache", "db"} {
		text += fmt.Sprintf("  on-%[1]s: { source: { file: { paths: [in.jsonl], state: %[1]s.state } }, key: { id: .id }, store: %[1]s, sink: { file: { path: %[1]s.out } }, parked: { path: p } }\n", store)
	}
	file := writeFile(t, filepath.Join(dir, "semel.yaml"), text)
	run(t, "", "migrate", "up", "--config", file, "--store-name", "db").check(t, term.ExitDone, "applied 1")
	for _, store := range []string{"cache", "db"} { // import binds no scope, as earlier versions
		run(t, `{"id":"1"}`, "keys", "import", "--config", file, "--store-name", store, "--scope", "on-"+store).check(t, term.ExitDone, "imported 1")
	}
	const warning = "the store has keys and no key rule"
	got := run(t, "", "run", file, "--admin", "off")
	got.check(t, term.ExitDone, "key.scope")
	for _, store := range []string{"cache", "db"} {
		if want := fmt.Sprintf(`"store":%q,"scope":"on-%[1]s","binds":".id"`, store); strings.Count(got.stderr, warning) != 2 || !strings.Contains(got.stderr, want) {
			t.Errorf("the log lacks %s: %s", want, got.stderr)
		}
	}
	if got := run(t, "", "run", file, "--admin", "off"); got.status != term.ExitDone || strings.Contains(got.stderr, warning) {
		t.Errorf("the scopes are bound now: %+v", got)
	}
}

// TestACopiedPipelineDoesNotDropWhatTheFirstDelivered copies a configuration, with
// another name and another sink.
func TestACopiedPipelineDoesNotDropWhatTheFirstDelivered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"1\"}\n")
	stores := fmt.Sprintf(`
stores:
  files: { embedded: { path: files } }
  cache: { redis: { url: %q, prefix: %q } }
  db:    { postgres: { dsn: %q } }
pipelines:
`, servers.Redis(t), servicestest.Prefix(), servers.Database(t))
	names := []string{"files", "cache", "db"}
	config := func(name, more string) string {
		text := stores
		for _, store := range names {
			text += fmt.Sprintf("  %s-%[2]s: { source: { file: { paths: [in.jsonl], state: %[1]s-%[2]s.state } }, key: { id: .id, scope: of-%[2]s%[3]s }, store: %[2]s, sink: { file: { path: %[1]s-%[2]s.out } }, parked: { path: p } }\n", name, store, more)
		}
		return writeFile(t, filepath.Join(dir, fmt.Sprintf("%s-%d.yaml", name, len(more))), text)
	}
	first, copied, shared := config("first", ""), config("copied", ""), config("copied", ", same_scope: true")
	run(t, "", "migrate", "up", "--config", first, "--store-name", "db").check(t, term.ExitDone, "applied 1")
	run(t, "", "run", first, "--admin", "off", "-q").check(t, term.ExitDone)
	examined := run(t, "", "doctor", copied)
	examined.check(t, term.ExitFound, " 3 broken\n")
	for _, store := range names {
		want := fmt.Sprintf(`scope "of-%s" belongs to the pipeline first-%[1]s, so the pipeline copied-%[1]s would drop the messages of that pipeline as duplicates`, store)
		if !strings.Contains(examined.stdout, want) {
			t.Errorf("doctor on a store %s lacks %q:\n%s", store, want, examined.stdout)
		}
		run(t, "", "run", copied, "copied-"+store, "--admin", "off", "-q").check(t, term.ExitUsage, want, "key.scope", "key.same_scope: true")
		run(t, "", "run", first, "first-"+store, "--admin", "off", "-q").check(t, term.ExitDone)
	}
	run(t, "", "run", shared, "--admin", "off", "-q").check(t, term.ExitDone)
}
