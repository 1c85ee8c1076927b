package schema_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/schema"
)

// TestSecretsInPlainTextAreExposed reads each text, and expects the path of the field or
// none.
func TestSecretsInPlainTextAreExposed(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PW": "canary", "DSN": "postgres://app:canary@db/x", "QUERY": "password=canary"}
	for _, c := range []struct{ text, path string }{
		{"token: canary", "shop.token"},
		{"token: '${env:PW}'", ""},
		{"token: 'Bearer ${env:PW}'", ""},
		{"url: 'postgres://app:canary@db/x'", "shop.url"},
		{"url: 'host=db user=app password=canary'", "shop.url"},
		{"url: 'postgres://db/x?user=app&password=canary'", "shop.url"},
		{"url: 'postgres://${env:PW}:canary@db/x'", "shop.url"},
		{"url: 'postgres://app:${env:PW}@db/x'", ""},
		{"url: 'postgres://app:x${env:PW}@db/x'", ""},
		{"url: 'postgres://db/x?${env:QUERY}'", ""},
		{"url: '${env:DSN}'", ""},
		{"url: 'postgres://app@db/x?passfile=/p'", ""},
		{"hook: 'https://u:canary@h/'", "shop.hook"},
		{"hook: 'https://h/canary'", ""},
	} {
		_, doc := read(t, "name: n\n"+c.text, env)
		if err := doc.Err(); err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
		var paths []string
		for _, x := range doc.Exposed {
			paths = append(paths, x.Path)
			if x.At.Line != 2 || x.File != "" || x.Mode != 0 {
				t.Errorf("%s: %+v", c.text, x)
			}
		}
		if got := strings.Join(paths, " "); got != c.path {
			t.Errorf("%s: exposed %q, want %q", c.text, got, c.path)
		}
	}
}

func TestSecretFilesThatOthersReadAreExposed(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the mode of a file does not say who can read it")
	}
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
