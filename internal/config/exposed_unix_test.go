//go:build unix

package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/kind"
)

func TestLintNamesSecretFilesThatOthersRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "pw")
	if err := os.WriteFile(file, []byte("canary\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, found := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o644: true, 0o604: true, 0o640: os.Getuid() != 0} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		f, err := kind.All().Parse(filepath.Join(dir, "c.yaml"), []byte("stores: { s: { embedded: { path: k } } }\nadmin: { auth: { username: a, password: '${file:pw}' } }"), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, x := range f.Lint() {
			got += x.Subject + ": " + x.Found + ": " + x.Remedy
		}
		if strings.Contains(got, "chmod 600 "+file) != found || found && !strings.Contains(got, "admin.auth.password: ${file:"+file+"}, which has mode 0") {
			t.Errorf("mode %o: %s", mode, got)
		}
	}
}
