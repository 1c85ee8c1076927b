//go:build unix

package app

import (
	"path/filepath"
	"syscall"
	"testing"
)

// TestExaminePipelineDoesNotWaitForAWriter: opening a pipe blocks until a process
// opens it for writing.
func TestExaminePipelineDoesNotWaitForAWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "in"), 0o600); err != nil {
		t.Fatal(err)
	}
	lines, _ := examined(t, dir, `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  p: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { file: { path: out } } }
`)
	wants(t, lines, "broken source.file.paths: "+dir+"/in is not a regular file\n")
}
