//go:build !race

package semel_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

type order struct{ ID string }

func charge(_ context.Context, o order) error {
	fmt.Println("charging", o.ID)
	return nil
}

// README.md shows the body of this function.
func chargeOnce(ctx context.Context, guard *semel.Guard, o order) error {
	key := semel.Key{Scope: "payments", ID: o.ID}
	return guard.Run(ctx, key, func(ctx context.Context) error {
		return charge(ctx, o) // a second delivery gets nil, and charges nothing
	})
}

func ExampleGuard_Run() {
	store, err := memstore.New(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	guard, err := semel.NewGuard(store, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 { // the order is delivered twice
		fmt.Println(chargeOnce(context.Background(), guard, order{ID: "order-42"}))
	}
	// Output:
	// charging order-42
	// <nil>
	// <nil>
}

// documents returns the documentation pages that match patterns of filepath.Glob.
func documents(t *testing.T, patterns ...string) []string {
	t.Helper()
	var names []string
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		if len(found) == 0 {
			t.Errorf("there is no %s", pattern)
		}
		names = append(names, found...)
	}
	return names
}

func readDocument(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A module outside the clone follows the commands of the page.
func TestModuleOutsideTheCloneBuilds(t *testing.T) {
	t.Parallel()
	_, page, _ := strings.Cut(readDocument(t, "docs/getting-started.md"), "### Your own module")
	found := regexp.MustCompile("(?s)```sh\n(.*?)```").FindStringSubmatch(page)
	if found == nil {
		t.Fatal("docs/getting-started.md has no commands for a module outside the clone")
	}
	clone, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(clone, filepath.Join(dir, "semel")); err != nil {
		t.Fatal(err)
	}
	shell := exec.CommandContext(t.Context(), "sh", "-e", "-c", found[1])
	shell.Dir = dir
	// All modules are in the cache, because this module needs them too.
	shell.Env = append(os.Environ(), "GOPROXY=off", "GONOSUMDB=*", "GOWORK=off")
	output, err := shell.CombinedOutput()
	if err != nil || !strings.HasSuffix(string(output), "charging alice\nreceipt for order-42 (duplicate: false)\nreceipt for order-42 (duplicate: true)\nreceipt for order-42 (duplicate: true)\n") {
		t.Errorf("%v\n%s", err, output)
	}
}

// TestReadmeShowsCodeThatRuns compares the code in README.md with this file. The
// pgstore package has the same test for its README.md.
func TestReadmeShowsCodeThatRuns(t *testing.T) {
	t.Parallel()
	showsCodeOf(t, "README.md", readDocument(t, "readme_test.go"))
}

func TestPagesShowCodeOfExamples(t *testing.T) {
	t.Parallel()
	var examples strings.Builder
	for _, name := range documents(t, "examples/*/*.go", "examples/testing_test.go") {
		examples.WriteString(readDocument(t, name))
	}
	for _, name := range []string{"docs/getting-started.md", "docs/testing.md", "docs/guides/kafka-to-postgres.md"} {
		showsCodeOf(t, name, examples.String())
	}
}

func TestObservabilityPageShowsTestedCode(t *testing.T) {
	t.Parallel()
	showsCodeOf(t, "observe/README.md", readDocument(t, "observe/otelobserve/example_test.go"))
}

// TestExtensionPagesShowTestedCode compares the pages of stores and of sources with external
// modules that run each suite, and the pages of kinds with such a module and with the toy kind.
func TestExtensionPagesShowTestedCode(t *testing.T) {
	t.Parallel()
	showsCodeOf(t, "store/storetest/README.md", readDocument(t, "testdata/outside/outside_test.go"))
	own := ""
	for _, name := range documents(t, "examples/own-kinds/*.go") {
		own += readDocument(t, name)
	}
	showsCodeOf(t, "docs/extending.md", own)
	showsCodeOf(t, "broker/brokertest/README.md", own)
	showsCodeOf(t, "internal/kind/DESIGN.md", readDocument(t, "internal/kind/kindtest/kindtest_test.go"))
}

func showsCodeOf(t *testing.T, name, source string) {
	t.Helper()
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readDocument(t, name), -1)
	if len(blocks) == 0 {
		t.Errorf("%s shows no code", name)
	}
	for _, block := range blocks {
		if !strings.Contains(source, "\n"+block[1]) {
			t.Errorf("%s shows code that is tried nowhere:\n%s", name, block[1])
		}
	}
}

// TestReadmeHasTheMeasuredFigures compares the figures in README.md with the tables that
// the benchmarks write. A cell has one figure: that of Semel, or that of the peer.
func TestReadmeHasTheMeasuredFigures(t *testing.T) {
	t.Parallel()
	measured := readDocument(t, "bench/results/README.md")
	comparisons := regexp.MustCompile(`\| \[([^\]]+)\]\(bench/results/README\.md#([a-z0-9-]+)\) \| ([^|]+) \|`).FindAllStringSubmatch(readDocument(t, "README.md"), -1)
	if len(comparisons) < 5 {
		t.Errorf("README.md has %d comparisons", len(comparisons))
	}
	for _, c := range comparisons {
		row := regexp.MustCompile(`(?m)^\| \[` + c[2] + `\]\S* \| [^|]+ \| ([^|]+) \| ([^|]+) \|`).FindStringSubmatch(measured)
		switch {
		case row == nil:
			t.Errorf("bench/results/README.md has no figure %s", c[2])
		case !strings.HasPrefix(c[1], row[1]+" ") || !strings.HasPrefix(c[3], row[2]+" "):
			t.Errorf("README.md says %q and %q of %s, measured are %s and %s", c[1], c[3], c[2], row[1], row[2])
		}
	}
}

func TestLinksInDocumentsResolve(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`)
	headings := map[string][]string{}
	for _, name := range documents(t, append(designPages, "docs/*.md", "docs/guides/*.md", "docs/problems/*.md", "docs/problems/*/*.md", "examples/*.md", "contrib/*/*.md", "clients/*/*.md", "store/*/*.md", "broker/*.md", "broker/*/*.md", "observe/*.md", "key/*.md", "bench/*.md", "bench/results/*.md", "*.md")...) {
		for _, found := range link.FindAllStringSubmatch(readDocument(t, name), -1) {
			target := filepath.Join(filepath.Dir(name), found[1])
			switch {
			case strings.Contains(found[1], "://"):
				continue
			case found[1] == "":
				target = name
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", name, found[1])
				continue
			}
			if found[2] == "" || !strings.HasSuffix(target, ".md") {
				continue
			}
			if headings[target] == nil {
				headings[target] = anchors(readDocument(t, target))
			}
			if !slices.Contains(headings[target], found[2]) {
				t.Errorf("%s links to %s, and %s has no such place", name, found[0], target)
			}
		}
	}
}

// TestLinksThatSemelPrintsExist looks for pages of docs in code, scenarios and deployed
// files: as paths, and as addresses of the repository. The pages of problems have a test in
// httpidem too.
func TestLinksThatSemelPrintsExist(t *testing.T) {
	t.Parallel()
	page := regexp.MustCompile(`(?:/semel/(?:blob|tree)/main/([\w/.-]*[\w/])|\b(docs/[\w/.-]+\.md))(#[\w-]+)?`)
	links := 0
	err := filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (slices.Contains([]string{".git", ".work", "bench", "docs", "testdata"}, path) || entry.Name() == "node_modules"):
			return filepath.SkipDir
		case entry.IsDir(), strings.HasSuffix(path, "_test.go"), !slices.Contains([]string{".go", ".yaml", ".json", ".service", ".sql"}, filepath.Ext(path)):
			return nil
		}
		for _, found := range page.FindAllStringSubmatch(readDocument(t, path), -1) {
			links++
			name, place := found[1]+found[2], found[3]
			if _, err := os.Stat(name); err != nil {
				t.Errorf("%s names %s: %v", path, found[0], err)
			} else if place != "" && !slices.Contains(anchors(readDocument(t, name)), place) {
				t.Errorf("%s names %s, and %s has no such place", path, found[0], name)
			}
		}
		return nil
	})
	if err != nil || links < 10 {
		t.Errorf("%d links, %v", links, err)
	}
}

// anchors returns the places in a document that a link can point to.
func anchors(text string) (list []string) {
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(heading[1]), "")
		list = append(list, "#"+strings.ReplaceAll(name, " ", "-"))
	}
	for _, id := range regexp.MustCompile(`<a id="([^"]+)">`).FindAllStringSubmatch(text, -1) {
		list = append(list, "#"+id[1])
	}
	return list
}

// TestDocumentsNeverPromiseTooMuch rejects the phrase that no system can keep in
// full. Each promise is stated for its case, with its exceptions. The README uses
// the phrase once, because people search for it, and says so.
func TestDocumentsNeverPromiseTooMuch(t *testing.T) {
	t.Parallel()
	const searched = `You may know the goal as "exactly-once processing". No system can promise that in every case`
	for _, name := range documents(t, append(designPages, "docs/*.md", "docs/guides/*.md", "README.md")...) {
		text := readDocument(t, name)
		if name == "README.md" {
			text = strings.Replace(text, searched, "", 1)
		}
		for i, line := range strings.Split(text, "\n") {
			if strings.Contains(strings.ToLower(strings.ReplaceAll(line, " ", "-")), "exactly-once") {
				t.Errorf("%s:%d promises exactly-once: say what is promised and its exceptions", name, i+1)
			}
		}
	}
}
