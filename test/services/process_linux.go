package services

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// process is a running child. done is closed after the child has ended and was
// reaped. err is the reason, and may be read after that.
type process struct {
	pid  int
	done chan struct{}
	err  error
}

// launch starts a program that gets the signal death when this process ends for
// any reason.
func launch(program string, args []string, dir string, log *os.File, death syscall.Signal) (*process, error) {
	owner, err := unprivileged()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: death, Credential: owner}
	p := &process{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the child
		// ends. This thread is locked to the goroutine and ends with it, after
		// the child.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	p.pid = cmd.Process.Pid
	return p, nil
}

// unprivileged returns the user of servers. If this process is root, that is the user
// "nobody". Otherwise it is nil, which stands for the current user.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(nobody.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(nobody.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// giveAway makes the user of servers the owner of a file or directory.
func giveAway(name string) error {
	owner, err := unprivileged()
	if err != nil || owner == nil {
		return err
	}
	return os.Chown(name, int(owner.Uid), int(owner.Gid))
}

// asServer runs a program as the user of servers and waits for its end.
func asServer(cmd *exec.Cmd) error {
	owner, err := unprivileged()
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: owner}
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, output)
	}
	return nil
}

// signal sends a signal only to the process, not to its children.
func (p *process) signal(s syscall.Signal) error {
	return ignoreGone(syscall.Kill(p.pid, s))
}

// pauseAll stops the process and its descendants with SIGSTOP. It repeats this
// until it finds no new descendants, because a process that is not yet stopped
// may start another.
func (p *process) pauseAll() error {
	for known := 0; ; {
		members := family(p.pid)
		if err := signalEach(members, syscall.SIGSTOP); err != nil || len(members) <= known {
			return err
		}
		known = len(members)
	}
}

// waitPaused returns when all threads have stopped. A thread that runs when the
// signal is sent may still answer.
func (p *process) waitPaused(limit time.Duration) error {
	return wait(limit, fmt.Sprintf("process %d to stop", p.pid), func() bool {
		return !slices.ContainsFunc(family(p.pid), runsThreads)
	})
}

func (p *process) continueAll() error { return signalEach(family(p.pid), syscall.SIGCONT) }

func signalEach(pids []int, s syscall.Signal) error {
	for _, pid := range pids {
		if err := ignoreGone(syscall.Kill(pid, s)); err != nil {
			return err
		}
	}
	return nil
}

// killAll kills the process and its descendants and returns when all of them
// are gone. PostgreSQL gives each backend its own process group, and a
// remaining backend would keep the shared memory and prevent a restart.
func (p *process) killAll(limit time.Duration) error {
	if err := p.pauseAll(); err != nil { // so that no process is added during the kill
		return err
	}
	members := family(p.pid)
	if err := signalEach(members, syscall.SIGKILL); err != nil {
		return err
	}
	err := wait(limit, fmt.Sprintf("killed processes of %d to go", p.pid), func() bool {
		return !slices.ContainsFunc(members, alive)
	})
	if err == nil {
		<-p.done
	}
	return err
}

// wait polls until happened returns true.
func wait(limit time.Duration, what string, happened func() bool) error {
	deadline := time.After(limit)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !happened() {
		select {
		case <-ticker.C:
		case <-deadline:
			return fmt.Errorf("waited %s for %s", limit, what)
		}
	}
	return nil
}

// family returns a process and all its descendants, parents first.
func family(pid int) []int {
	members := []int{pid}
	for i := 0; i < len(members); i++ {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", members[i]))
		for _, list := range lists {
			content, err := os.ReadFile(list)
			if err != nil {
				continue // ended in the meantime
			}
			for field := range strings.FieldsSeq(string(content)) {
				if child, err := strconv.Atoi(field); err == nil {
					members = append(members, child)
				}
			}
		}
	}
	return members
}

// alive reports whether a process runs. A zombie does not run. It waits for its
// parent and holds nothing.
func alive(pid int) bool {
	stat, err := processStat(strconv.Itoa(pid))
	return err == nil && stat[0] != "Z" && stat[0] != "X"
}

// runsThreads reports whether a process has threads that are not stopped.
func runsThreads(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	return slices.ContainsFunc(threads, func(thread string) bool {
		stat, err := processStat(strings.TrimPrefix(thread, "/proc/"))
		return err == nil && stat[0] != "T" && stat[0] != "Z" && stat[0] != "X"
	})
}

// ProcessStart returns the start time of a process, in ticks since the boot.
// The id and the start time identify a process uniquely, because ids are
// reused.
func ProcessStart(pid int) (string, error) {
	stat, err := processStat(strconv.Itoa(pid))
	if err != nil {
		return "", fmt.Errorf("services: process %d: %w", pid, err)
	}
	return stat[19], nil
}

// processStat returns the fields of /proc/NAME/stat from the state on. name is
// that of a process or of one of its threads.
func processStat(name string) ([]string, error) {
	content, err := os.ReadFile(filepath.Join("/proc", name, "stat"))
	if err != nil {
		return nil, err
	}
	// The name before it is in parentheses, and may itself contain parentheses
	// and spaces.
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("its state is %q", content)
	}
	return fields, nil
}

// exists reports whether a segment of shared memory is there.
func (m sharedMemory) exists() bool {
	var segment unix.SysvShmDesc
	_, err := unix.SysvShmCtl(m.id, unix.IPC_STAT, &segment)
	return err == nil && segment.Perm.Key == int32(m.key)
}

// removeMemory removes a segment. One that is gone, or that another user owns,
// is left.
func removeMemory(m sharedMemory) {
	if m.exists() {
		_, _ = unix.SysvShmCtl(m.id, unix.IPC_RMID, nil) // what is left does no harm to this run
	}
}

// executes reports whether the file system of a directory permits the execution of programs.
func executes(dir string) bool {
	var mounted unix.Statfs_t
	return unix.Statfs(dir, &mounted) == nil && mounted.Flags&unix.MS_NOEXEC == 0
}

func ignoreGone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}
