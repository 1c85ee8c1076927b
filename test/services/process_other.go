//go:build !linux

package services

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Only Linux ends a child with its parent in all cases and lists the children
// of a process.
var errPlatform = fmt.Errorf("%w: servers are started on Linux only", ErrNotInstalled)

type process struct {
	pid  int
	done chan struct{}
	err  error
}

func launch(string, []string, string, *os.File, syscall.Signal) (*process, error) {
	return nil, errPlatform
}

func (p *process) signal(syscall.Signal) error    { return errPlatform }
func (p *process) pauseAll() error                { return errPlatform }
func (p *process) continueAll() error             { return errPlatform }
func (p *process) killAll(time.Duration) error    { return errPlatform }
func (p *process) waitPaused(time.Duration) error { return errPlatform }

func (sharedMemory) exists() bool { return false }
func removeMemory(sharedMemory)   {}

func executes(string) bool { return true }

func giveAway(string) error    { return nil }
func asServer(*exec.Cmd) error { return errPlatform }

// ProcessStart returns an error: servers are started on Linux only.
func ProcessStart(int) (string, error) { return "", errPlatform }

// Lock returns an error: servers are started on Linux only.
func Lock(string, bool) (io.Closer, error) { return nil, errPlatform }

// lockPort claims nothing, because no server can take the port.
func lockPort(int) (io.Closer, error) { return io.NopCloser(nil), nil }

// Install returns an error: servers are started on Linux only.
func Install(context.Context, io.Writer, ...string) error { return errPlatform }
