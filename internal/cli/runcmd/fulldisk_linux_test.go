package runcmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// smallDisk mounts a disk of 80 MiB, of which 79 MiB are used by the returned file. Only
// root may mount it.
func smallDisk(t *testing.T) (disk, ballast string) {
	t.Helper()
	disk = t.TempDir()
	switch err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=80m"); err {
	case nil:
	case syscall.EPERM:
		if os.Getenv("SEMEL_SERVICES") == "required" {
			t.Fatal("only root may mount a full disk: run the tests as root")
		}
		t.Skip("only root may mount a full disk: sudo go test ./internal/cli/runcmd -run " + t.Name())
	default:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", disk, err)
		}
	})
	return disk, programtest.WriteFile(t, filepath.Join(disk, "ballast"), strings.Repeat("x", 79<<20))
}

// TestRunNamesAFullDiskUntilItHasSpace fills the disk of the output, then of the store.
func TestRunNamesAFullDiskUntilItHasSpace(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	for i := range 30_000 {
		fmt.Fprintf(&lines, "{\"id\":%d,\"text\":\"%050d\"}\n", i, i)
	}
	for _, full := range []string{"output", "store"} {
		t.Run(full, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			disk, ballast := smallDisk(t)
			keys, out := filepath.Join(dir, "keys"), filepath.Join(dir, "out.jsonl")
			at, part := disk, "sink"
			if full == "store" {
				keys = filepath.Join(disk, "keys")
				at, part = keys, "store"
			} else {
				out = filepath.Join(disk, "out.jsonl")
			}
			programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), lines.String())
			file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { keys: { embedded: { path: %q, keep_ids: true } } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: keys, sink: { file: { path: %q } }, parked: { path: p } }
`, keys, out))
			r := programtest.StartRun(t, file)
			named := "no space left for " + at + ": free space on that disk"
			r.Line("msg=paused", "reason="+part, named)
			r.Probe(503, named)
			got := programtest.Run(t, "", "doctor", file)
			if want := disk + " has 0 of 80 MiB left"; full == "output" && (got.Status != term.ExitFound || !strings.Contains(got.Stdout, want)) {
				t.Errorf("doctor does not say %q: %+v", want, got)
			}
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(2 * time.Minute); ; {
				if text, err := os.ReadFile(out); err == nil && strings.Count(string(text), "\n") == 30_000 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("it did not continue when the disk had space")
				}
				<-time.After(50 * time.Millisecond)
			}
		})
	}
}
