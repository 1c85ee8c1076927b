package services_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestProcessIsIdentifiedByItsStartTime(t *testing.T) {
	t.Parallel()
	first, err := services.ProcessStart(os.Getpid())
	if again, err2 := services.ProcessStart(os.Getpid()); err != nil || err2 != nil || first == "" || again != first {
		t.Errorf("%q, %v, then %q, %v", first, err, again, err2)
	}
	if start, err := services.ProcessStart(1 << 30); err == nil {
		t.Errorf("a process that does not exist has started at %q", start)
	}
}

// A child has all files of its parent until it executes its program.
func TestALockIsFreeAtOnceThoughProcessesStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var starting sync.WaitGroup
	defer starting.Wait()
	defer cancel()
	for range 4 {
		starting.Go(func() {
			for ctx.Err() == nil {
				if err := exec.Command("/bin/true").Run(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	dir := t.TempDir()
	for range 500 {
		held, err := services.Lock(dir, false)
		if err != nil {
			t.Fatal(err)
		}
		if err := held.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A machine has few segments, and a test run that leaves some lets the starts of
// later runs fail.
func TestAKilledPostgresLeavesNoSharedMemory(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	exists, err := services.SharedMemory(server)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if !exists() {
		t.Fatal("the killed server has no shared memory: this test sees another segment")
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if exists() {
		t.Error("the shared memory of the closed server is still there")
	}
}

// In a container, the file system in memory permits no programs.
func TestTemporaryFilesAreWhereProgramsCanRun(t *testing.T) {
	memory := ownTempDir(t)
	switch err := syscall.Mount("tmpfs", memory, "tmpfs", syscall.MS_NOEXEC, "size=1m"); {
	case err == nil:
	case os.Getenv("SEMEL_SERVICES") == "required":
		t.Fatal("only root may mount a file system: run the tests as root: ", err)
	default:
		t.Skip("only root may mount a file system: sudo go test ./test/services -run " + t.Name())
	}
	t.Cleanup(func() { _ = syscall.Unmount(memory, 0) })
	dir, remove, err := services.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command(program).Run(); err != nil {
		t.Error(err)
	}
	if err := remove(); err != nil {
		t.Error(err)
	}
}
