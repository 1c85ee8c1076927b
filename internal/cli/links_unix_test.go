//go:build unix

package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// Another user who may write a directory plants a link to a file of the operator. Nothing
// of Semel may change that file. An output that is a link is the operator's own choice.
func TestSymbolicLinksInPlaceOfOwnFilesAreNotFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	victim := programtest.WriteFile(t, filepath.Join(dir, "victim"), "precious")
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), `{"id":1}`+"\n")
	store := programtest.MixedStore(t)
	config := programtest.CopyConfig(t, "", "")
	programtest.WriteFile(t, config, strings.Replace(programtest.ReadFile(t, config), "copy:", "lines:", 1))
	programtest.AddParked(t, filepath.Dir(config))
	parked := filepath.Join(filepath.Dir(config), "semel-parked")
	for link, args := range map[string][]string{
		filepath.Join(store, "audit.jsonl"):                         {"keys", "rm", "order-1", "--store", store, "--reason", "x"},
		filepath.Join(dir, "new", "LOCK"):                           {"dedup", "--key", ".id", in, "--store", filepath.Join(dir, "new")},
		filepath.Join(filepath.Dir(config), "keys", "LOCK"):         {"run", config, "--admin", "off"},
		filepath.Join(parked, "audit.jsonl"):                        {"parked", "skip", "9f2c41d07be35a1186c0de42", "--reason", "x", "--config", config},
		filepath.Join(parked, "lines", "ffffffffffffffffffff.json"): {"parked", "ls", "--config", config},
	} {
		if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(victim, link); err != nil {
			t.Fatal(err)
		}
		programtest.Run(t, "", args...).Check(t, term.ExitFailed, link+` is a symbolic link to "`+victim+`"`, "Remove the link (rm "+link+")")
		if got := programtest.ReadFile(t, victim); got != "precious" {
			t.Fatalf("%s changed the file behind the link: %q", args[0], got)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
		if got := programtest.Run(t, "", args...); got.Status != term.ExitDone {
			t.Errorf("%s without the link: exit status %d: %s", args[0], got.Status, got.Stderr)
		}
	}
	own := filepath.Join(filepath.Dir(config), "out.jsonl")
	text := programtest.ReadFile(t, own)
	other := programtest.CopyConfig(t, "", "")
	if err := os.Symlink(victim, filepath.Join(filepath.Dir(other), "out.jsonl")); err != nil {
		t.Fatal(err)
	}
	programtest.WriteFile(t, victim, "")
	programtest.Run(t, "", "run", other, "--admin", "off", "-q").Check(t, term.ExitDone)
	if got := programtest.ReadFile(t, victim); got != text || text == "" {
		t.Errorf("the output behind a link has %q, want %q", got, text)
	}
}
