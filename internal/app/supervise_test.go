package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/vfs"
)

// TestOneRuleDecidesWhichErrorsAPipelineWaitsFor has an error of each group.
func TestOneRuleDecidesWhichErrorsAPipelineWaitsFor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := logstore.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	_, locked := logstore.Open(dir, nil)
	if !errors.As(locked, new(*vfs.LockedError)) {
		t.Fatalf("the store opens twice: %v", locked)
	}
	known := func(err error) error { return &diagnose.Error{Cause: "c", Remedy: "r", OfKind: true, Err: err} }
	network := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	path := func(number syscall.Errno) error { return &fs.PathError{Op: "open", Path: "/p", Err: number} }
	for _, c := range []struct {
		name string
		err  error
		want bool
	}{
		{"a server refuses the connection", network, true},
		{"a socket of this machine does not exist", &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.ENOENT)}, true},
		{"a server does not answer", context.DeadlineExceeded, true},
		{"an unknown error of a server", errors.New("x509: certificate signed by unknown authority"), true},
		{"a server is stopped while it answers", fmt.Errorf("57P01: %w", semel.ErrOutcomeUnknown), true},
		{"a store does not answer", semel.ErrStoreUnavailable, true},
		{"a store is full", semel.ErrStoreFull, true},
		{"the kind knows what the server refuses", known(errors.New("no right")), true},
		{"the kind knows what the server lacks", known(fmt.Errorf("no table: %w", semel.ErrInvalidRequest)), true},
		{"a disk is full", path(syscall.ENOSPC), true},
		{"too many files are open", path(syscall.EMFILE), true},
		{"the configuration is wrong", semel.ErrInvalidRequest, false},
		{"a scope belongs to another pipeline", &semel.ScopeError{}, false},
		{"a store is damaged", semel.ErrCorrupt, false},
		{"a store must be opened by another process", semel.ErrStoreFailed, false},
		{"a message says stop", known(&pipeline.StoppedError{Err: network}), false},
		{"another process has the store", locked, false},
		{"another process has the place of this one", known(pipeline.ErrReplaced), false},
		{"a path cannot be used", path(syscall.ENOTDIR), false},
		{"a file cannot be read", syscall.EIO, false},
		{"a link stands where a file is expected", &vfs.LinkError{Name: "/p", Target: "/q"}, false},
	} {
		if got := waits(fmt.Errorf("pipeline p: %w", c.err)); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestPipelineThatEndsWithAnErrorRestarts opens a pipeline in vain, lets it work, and
// ends it with errors. The pauses grow until it has worked for a minute.
func TestPipelineThatEndsWithAnErrorRestarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{notifier: newNotifier(nil, 1)}
		s, log := &state{}, &shown{}
		said := func(err error, _ bool) (error, error) { return err, fmt.Errorf("shown: %w", err) }
		began, attempts := time.Now(), 0
		var at []time.Duration
		err := d.persist(t.Context(), s, slog.New(slog.NewTextHandler(log, nil)), "", said, func(opened func()) error {
			at = append(at, time.Since(began).Round(time.Second))
			switch attempts++; attempts {
			case 1:
				if s.tried.Load() {
					t.Error("its start is over before its first attempt")
				}
				return semel.ErrStoreUnavailable
			case 2, 3, 4, 5, 6, 7, 8, 9:
				if !s.tried.Load() || s.ready(t.Context()).Error() != "shown: "+semel.ErrStoreUnavailable.Error() {
					t.Errorf("it has begun: %t, %v", s.tried.Load(), s.ready(t.Context()))
				}
				opened()
				return semel.ErrStoreUnavailable
			case 10:
				opened()
				time.Sleep(2 * worked)
				return semel.ErrStoreUnavailable
			case 11:
				return nil
			}
			panic("it starts again after its end")
		})
		if last := at[len(at)-1] - at[len(at)-2]; err != nil || attempts != 11 || at[9]-at[8] < 7*time.Second || last > 2*worked+time.Second {
			t.Errorf("%v after attempts at %v", err, at)
		}
	})
}
