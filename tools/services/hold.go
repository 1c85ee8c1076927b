//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/semel-dev/semel/test/services"
)

// In the directory of the state the process that holds servers has locked
// lockFile for as long as it lives. holderFile has the holder's id and start time, because a
// killed holder leaves the file. addressFile is there when all servers answer.
const (
	lockFile    = "lock"
	holderFile  = "holder"
	addressFile = "addresses"
	logFile     = "log"
)

// hold starts servers and keeps them until the context ends.
func hold(ctx context.Context, dir string, names []string, stdout io.Writer) (err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	held, err := services.Lock(filepath.Join(dir, lockFile), false)
	if errors.Is(err, services.ErrLocked) {
		return fmt.Errorf("services: already started, stop ends them: %w", err)
	}
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, forget(dir), held.Close())
	}()
	self, err := identity(os.Getpid())
	if err != nil {
		return err
	}
	if err := errors.Join(forget(dir), put(dir, holderFile, self)); err != nil {
		return err
	}
	running, err := startUnits(ctx, names)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, services.CloseUnits(running)) }()
	if _, err := io.WriteString(stdout, addresses(running)); err != nil {
		return err
	}
	if err := put(dir, addressFile, addresses(running)); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// identity returns a name for a process that no later process has.
func identity(pid int) (string, error) {
	start, err := services.ProcessStart(pid)
	return fmt.Sprintf("%d started at %s", pid, start), err
}

// put writes a file as a whole: who finds it finds all of it.
func put(dir, name, content string) error {
	part := filepath.Join(dir, name+".part")
	if err := os.WriteFile(part, []byte(content), 0o644); err != nil {
		return err
	}
	return os.Rename(part, filepath.Join(dir, name))
}

// forget removes what an earlier holder wrote.
func forget(dir string) error {
	for _, name := range []string{holderFile, addressFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// leave starts a process that holds the servers, in a session of its own, and
// prints the addresses when they answer.
func leave(ctx context.Context, dir string, names []string, stdout io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, logFile))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	holder := exec.Command(program, append([]string{"start", "-state", dir}, names...)...)
	holder.Stdout, holder.Stderr = log, log
	holder.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := holder.Start(); err != nil {
		return err
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		text, err := os.ReadFile(filepath.Join(dir, addressFile))
		if err == nil && ours(dir, holder.Process.Pid) {
			_, err = stdout.Write(text)
			return errors.Join(err, holder.Process.Release())
		}
		var status syscall.WaitStatus
		if pid, err := syscall.Wait4(holder.Process.Pid, &status, syscall.WNOHANG, nil); pid != 0 {
			text, _ := os.ReadFile(log.Name())
			return errors.Join(fmt.Errorf("services: the servers did not start:\n%s", text), err)
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), holder.Process.Signal(syscall.SIGTERM), holder.Wait())
		case <-ticker.C:
		}
	}
}

// ours reports whether a process is the holder: the addresses may be those of an earlier holder,
// which it finds locked.
func ours(dir string, pid int) bool {
	holder, err := holderOf(dir)
	return err == nil && holder == pid
}

// holderOf returns the process that holds the servers. It returns an error if that process
// has ended, even if another process has its id now.
func holderOf(dir string) (int, error) {
	content, err := os.ReadFile(filepath.Join(dir, holderFile))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(content), " ")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return 0, fmt.Errorf("services: %s: %w", holderFile, err)
	}
	if now, err := identity(pid); err != nil || now != string(content) {
		return 0, fmt.Errorf("services: the process %s has ended", content)
	}
	return pid, nil
}

// end stops the holder, and returns when it and its servers are gone.
func end(ctx context.Context, dir string) error {
	held, err := services.Lock(filepath.Join(dir, lockFile), false)
	switch {
	case err == nil:
		return errors.Join(errors.New("services: nothing was started in "+dir), held.Close())
	case !errors.Is(err, services.ErrLocked):
		return err
	}
	pid, err := holderOf(dir)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return fmt.Errorf("services: stop process %d: %w", pid, err)
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		held, err := services.Lock(filepath.Join(dir, lockFile), false)
		if !errors.Is(err, services.ErrLocked) {
			if err != nil {
				return err
			}
			return held.Close()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
