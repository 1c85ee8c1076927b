package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/kind"
)

// programVariable makes the test binary the program semel.
const programVariable = "SEMEL_RELEASE_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		os.Exit(cli.Main(context.Background(), kind.All(), os.Args[1:], strings.NewReader(""), os.Stdout, os.Stderr, os.Getenv))
	}
	os.Exit(m.Run())
}

func TestEveryVerbHasAManualPageAndEveryShellItsCompletion(t *testing.T) {
	t.Setenv(programVariable, "1")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	list, err := documents(program)
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	var names []string
	for _, e := range list {
		pages[e.name] = string(e.data)
		names = append(names, e.name)
	}
	if !slices.IsSorted(names) {
		t.Errorf("the files are not sorted: %q", names)
	}
	for name, want := range map[string]string{
		"completions/semel.bash": "bash", "completions/_semel": "#compdef semel", "completions/semel.fish": "complete -c semel",
		"man/semel.1":           ".TH \"SEMEL\" 1\n.SH NAME\nsemel \\- make messages take effect once\n",
		"man/semel-dedup.1":     ".SH NAME\nsemel\\-dedup \\- Keep the first line of each key\n",
		"man/semel-run.1":       ".SH NAME\nsemel\\-run \\- Run pipelines\n",
		"man/semel-why.1":       ".SH EXAMPLES\n",
		"man/semel-keys-show.1": ".SH NAME\nsemel\\-keys\\-show \\- Show the record of a key\n",
		"man/semel-version.1":   ".SH SYNOPSIS\nsemel version",
	} {
		if !strings.Contains(pages[name], want) {
			t.Errorf("%s lacks %q:\n%.300s", name, want, pages[name])
		}
	}
}

func TestTextsOfManualPagesAreEscaped(t *testing.T) {
	t.Parallel()
	if got, want := roff(".a-b\n'c\\d"), "\\&.a\\-b\n\\&'c\\ed"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// checkout makes a Git repository with one commit, and makes it the current directory.
func checkout(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for _, client := range []string{"python", "typescript"} {
		if err := os.MkdirAll(filepath.Join("clients", client), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "clients/python/p", "clients/typescript/t"} {
		if err := os.WriteFile(file, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git(t, "init", "-q")
	git(t, "add", ".")
	git(t, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", "x", "--date", "2026-01-02T03:04:05Z")
}

func git(t *testing.T, args ...string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "git", args...)
	command.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2026-01-02T03:04:05Z", "GIT_CONFIG_GLOBAL=/dev/null")
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("git %q: %v\n%s", args, err, text)
	}
}

func TestTheVersionIsATagOrTheTimeOfTheCommit(t *testing.T) {
	checkout(t)
	c, err := head()
	if err != nil || !strings.HasPrefix(c.version, "0.0.0-20260102030405.") || !c.time.Equal(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)) {
		t.Errorf("%+v, %v", c, err)
	}
	git(t, "tag", "v1.2.3")
	if c, err := head(); err != nil || c.version != "1.2.3" {
		t.Errorf("%+v, %v", c, err)
	}
	if err := os.WriteFile("README.md", []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := head(); err == nil || !strings.Contains(err.Error(), "the checkout has changes, so its files cannot be built again: commit or remove them:\n M README.md") {
		t.Errorf("%v", err)
	}
	if err := release(t.TempDir(), ""); err == nil || !strings.Contains(err.Error(), "the checkout has changes") {
		t.Errorf("%v", err)
	}
	if err := release(t.TempDir(), "plan9/amd64"); err == nil || !strings.HasPrefix(err.Error(), "-only plan9/amd64: expected one of linux/amd64, linux/arm64") {
		t.Errorf("%v", err)
	}
	if _, err := run(nil, "git", "no-such-command"); err == nil || !strings.Contains(err.Error(), "git no-such-command: exit status 1\ngit: 'no-such-command' is not a git command") {
		t.Errorf("%v", err)
	}
}

// TestArchivesOfOneCommitAreEqual packs a program twice for each kind of archive.
func TestArchivesOfOneCommitAreEqual(t *testing.T) {
	checkout(t)
	binary := filepath.Join(t.TempDir(), "binary")
	if err := os.WriteFile(binary, []byte("program"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := commit{"1.2.3", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	extras := []entry{{"man/semel.1", 0o644, []byte("page")}}
	want := []string{"LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md", "man/semel.1"}
	for platform, name := range map[string]string{"linux/amd64": "semel_1.2.3_linux_amd64.tar.gz", "windows/arm64": "semel_1.2.3_windows_arm64.zip"} {
		var before []byte
		for range 2 {
			out := t.TempDir()
			if err := archive(out, binary, platform, c, extras); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(filepath.Join(out, name))
			if err != nil {
				t.Fatal(err)
			}
			if before != nil && !bytes.Equal(before, data) {
				t.Errorf("two archives for %s differ", platform)
			}
			before = data
		}
		files, program := unpack(t, name, before)
		if !slices.Equal(files[1:], want) || program != "program" || files[0] != map[bool]string{true: "semel.exe", false: "semel"}[strings.HasSuffix(name, ".zip")] {
			t.Errorf("%s has %q, and the program %q", name, files, program)
		}
	}
	if err := archive(t.TempDir(), binary+".none", "linux/amd64", c, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a program: %v", err)
	}
}

// unpack returns the names in an archive, and the content of its first file.
func unpack(t *testing.T, name string, data []byte) (names []string, first string) {
	t.Helper()
	if strings.HasSuffix(name, ".zip") {
		files, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files.File {
			names = append(names, file.Name)
		}
		opened, err := files.File[0].Open()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(opened)
		if err != nil {
			t.Fatal(err)
		}
		return names, string(text)
	}
	plain, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for files := tar.NewReader(plain); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return names, first
		}
		if err != nil {
			t.Fatal(err)
		}
		if names = append(names, header.Name); len(names) == 1 {
			text, err := io.ReadAll(files)
			if err != nil {
				t.Fatal(err)
			}
			first = string(text)
		}
	}
}

func TestChecksumsCoverAllFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"b", "a", "SHA256SUMS"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := checksums(dir); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("%x  a\n%x  b\n", sha256.Sum256([]byte("a")), sha256.Sum256([]byte("b")))
	if got, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS")); err != nil || string(got) != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
}

func TestTheBillOfMaterialsNamesTheReleaseAndItsParts(t *testing.T) {
	t.Parallel()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "bill.json")
	if err := bill(name, program, commit{"1.2.3", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		BOMFormat  string `json:"bomFormat"`
		Components []struct{ Name, Version, PURL string }
		Metadata   struct {
			Timestamp string
			Component struct{ Name, Version string }
		}
	}
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	has := func(module string) bool {
		for _, c := range read.Components {
			if c.Name == module {
				return c.Version != "" && c.PURL == "pkg:golang/"+module+"@"+c.Version
			}
		}
		return false
	}
	if read.BOMFormat != "CycloneDX" || !has("std") || read.Metadata.Component.Version != "v1.2.3" || read.Metadata.Timestamp != "2026-01-02T03:04:05Z" {
		t.Errorf("%s", text)
	}
	if err := bill(name, name, commit{}); err == nil {
		t.Error("a file that is no program has modules")
	}
}

// goCommand stands for the go command, which would compile the program and fetch nfpm. A
// build for this machine is a copy of the test binary, and another one is a short text. A
// package is its description.
const goCommand = `#!/bin/sh
case "$1" in
build)
	while [ "$1" != -o ]; do shift; done
	case "$2" in */host) cp "$SEMEL_RELEASE_TEST_BINARY" "$2" ;; *) echo program >"$2" ;; esac ;;
run)
	while [ $# -gt 0 ]; do
		case "$1" in --config) config=$2 ;; --target) target=$2 ;; esac
		shift
	done
	cp "$config" "$target" ;;
esac
`

// npmCommand and pythonCommand stand for the tools of the clients, which would fetch
// others. A package is what the client's folder has.
const (
	npmCommand = `#!/bin/sh
case "$1" in pack) cat "$5"/* >"$4/semel-1.2.3.tgz" ;; esac
`
	pythonCommand = `#!/bin/sh
cat "$8"/* >"$7/semel-1.2.3-py3-none-any.whl"
`
)

// TestAReleaseHasArchivesPackagesBillAndChecksums releases a commit for one platform.
func TestAReleaseHasArchivesPackagesBillAndChecksums(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	checkout(t)
	git(t, "tag", "v1.2.3")
	bin := t.TempDir()
	for name, script := range map[string]string{"go": goCommand, "npm": npmCommand, "python3": pythonCommand} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil { //nolint:gosec // a program must be executable
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+string(filepath.ListSeparator)+os.Getenv("PATH"))
	t.Setenv("SEMEL_RELEASE_TEST_BINARY", program)
	t.Setenv(programVariable, "1")
	out := filepath.Join(t.TempDir(), "dist")
	if err := release(out, "linux/arm64"); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		names = append(names, file.Name())
	}
	want := []string{"SHA256SUMS", "semel-1.2.3-py3-none-any.whl", "semel-1.2.3.tgz", "semel_1.2.3.cdx.json", "semel_1.2.3_linux_arm64.deb", "semel_1.2.3_linux_arm64.rpm", "semel_1.2.3_linux_arm64.tar.gz"}
	if !slices.Equal(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}
	described, err := os.ReadFile(filepath.Join(out, "semel_1.2.3_linux_arm64.deb"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"arch: arm64\n", `version: "1.2.3"`, `dst: "/usr/bin/semel", file_info: { mode: 0755 }`, `dst: "/usr/share/man/man1/semel-dedup.1.gz"`,
		`dst: "/usr/share/zsh/vendor-completions/_semel"`, `dst: "/usr/lib/systemd/system/semel.service"`,
	} {
		if !strings.Contains(string(described), line) {
			t.Errorf("the package lacks %s:\n%s", line, described)
		}
	}
	data, err := os.ReadFile(filepath.Join(out, "semel_1.2.3_linux_arm64.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	if archived, _ := unpack(t, "x.tar.gz", data); !slices.Contains(archived, "man/semel-keys-show.1") || !slices.Contains(archived, "completions/semel.bash") || archived[0] != "semel" {
		t.Errorf("the archive has %q", archived)
	}
}
