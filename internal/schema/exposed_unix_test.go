//go:build unix

package schema_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/semel-dev/semel/internal/schema"
)

func TestSecretFilesThatOthersReadAreExposed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "pw")
	if err := os.WriteFile(file, []byte("canary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, want := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o644: true, 0o604: true, 0o640: os.Getuid() != 0} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		doc, err := schema.Parse(filepath.Join(dir, "c.yaml"), []byte("name: n\ntoken: '${file:pw}'"), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		doc.Root().Mapping((&shop{}).mapping())
		if err := doc.Err(); err != nil {
			t.Fatal(err)
		}
		if got := len(doc.Exposed) == 1; got != want || got && (doc.Exposed[0].File != file || doc.Exposed[0].Mode != mode || doc.Exposed[0].Path != "token") {
			t.Errorf("mode %o: %+v, want %v", mode, doc.Exposed, want)
		}
	}
}
