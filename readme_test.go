package semel_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

type order struct{ ID string }

func charge(_ context.Context, o order) ([]byte, error) {
	fmt.Println("charging", o.ID)
	return []byte("receipt of " + o.ID), nil
}

// README.md shows this function as it stands here.
func chargeOnce(ctx context.Context, guard *semel.Guard, o order) ([]byte, error) {
	key := semel.Key{Scope: "payments", ID: o.ID}
	out, err := guard.Do(ctx, key, func(ctx context.Context, claim semel.Claim) ([]byte, error) {
		return charge(ctx, o) // returns the receipt
	})
	return out.Result.Data, err // a second delivery gets the first one's receipt
}

func ExampleGuard_Do() {
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
		receipt, err := chargeOnce(context.Background(), guard, order{ID: "order-42"})
		fmt.Println(string(receipt), err)
	}
	// Output:
	// charging order-42
	// receipt of order-42 <nil>
	// receipt of order-42 <nil>
}

func TestReadmeShowsCodeThatRuns(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(readDocument(t, "README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("the README shows no code")
	}
	for _, block := range blocks {
		if !strings.Contains(string(source), "\n"+block[1]) {
			t.Errorf("this code of the README is no code of readme_test.go:\n%s", block[1])
		}
	}
}

func readDocument(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDocumentsLinkToWhatIsThere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#]+)(#[^)]*)?\)`)
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(documents, "README.md", "DESIGN.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md") {
		for _, found := range link.FindAllStringSubmatch(readDocument(t, name), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(name), found[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", name, found[1])
			}
		}
	}
}

// TestDocumentsNeverPromiseTooMuch keeps out the phrase that no system can
// keep in full: what is promised is said for each case, with its exceptions.
func TestDocumentsNeverPromiseTooMuch(t *testing.T) {
	t.Parallel()
	documents, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(documents, "README.md", "DESIGN.md") {
		for i, line := range strings.Split(readDocument(t, name), "\n") {
			if strings.Contains(strings.ToLower(strings.ReplaceAll(line, " ", "-")), "exactly-once") {
				t.Errorf("%s:%d promises exactly-once: say what is promised and its exceptions", name, i+1)
			}
		}
	}
}
