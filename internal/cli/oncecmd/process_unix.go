//go:build unix

package oncecmd

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/semel-dev/semel/internal/cli/term"
)

// grace is how long a command may take to end after a lost lease.
const grace = 10 * time.Second

// process is the running command with its process group. A keeper leads the group: a shell that
// ends the group when this program has ended, even by SIGKILL. The group exists for as long as
// its leader was not waited for, so its number stays its own.
type process struct {
	group    int
	keeper   *keeper
	terminal *terminal // nil unless the command has the terminal
	out      *output
	ended    chan int // the status
	resumed  chan struct{}
	// suspended is set from a SIGTSTP until the command continues.
	suspended atomic.Bool

	mu   sync.Mutex // guards over
	over bool       // the number of the group may be another group's
}

// startProcess starts a command in a process group of its own, which the keeper leads.
func startProcess(a *term.App, k *keeper, path string, argv, env []string, out *output, taken *listener) (*process, error) {
	taken.take(syscall.SIGTSTP) // before the command runs: it would continue while this program is stopped
	p := &process{out: out, ended: make(chan int, 1), resumed: make(chan struct{}, 1)}
	cmd := &exec.Cmd{Path: path, Args: argv, Env: env, Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}
	if file, ok := a.Stdin.(*os.File); ok {
		cmd.Stdin = file
	}
	if file, ok := a.Stderr.(*os.File); ok {
		cmd.Stderr = file
	}
	cmd.Stdout = os.Stdout
	if out.most > 0 {
		writer, err := out.pipe()
		if err != nil {
			return nil, err
		}
		defer writer.Close()
		cmd.Stdout = writer
	}
	if k.isReady() {
		p.keeper = k
		cmd.SysProcAttr.Pgid = k.cmd.Process.Pid
	}
	if p.terminal = openTerminal(); p.terminal != nil {
		cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, int(p.terminal.file.Fd())
	}
	endWithParent(cmd.SysProcAttr)
	started := make(chan error)
	go p.live(cmd, started)
	if err := <-started; err != nil {
		out.discard()
		p.finish()
		return nil, err
	}
	if out.reader != nil {
		go out.copy()
	}
	return p, nil
}

// live starts the command and waits for its end. The command ends with the thread that started
// it, so this goroutine keeps its thread.
func (p *process) live(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	err := cmd.Start()
	if err == nil {
		if p.group = cmd.Process.Pid; p.keeper != nil {
			p.group = p.keeper.cmd.Process.Pid
		}
	}
	if p.terminal != nil { // also that of a command that could not be executed
		signal.Ignore(syscall.SIGTTOU) // this program takes the terminal back from the background
	}
	started <- err
	if err != nil {
		return
	}
	options := 0
	if p.terminal != nil {
		options = syscall.WUNTRACED
	}
	for {
		var status syscall.WaitStatus
		switch _, err := syscall.Wait4(cmd.Process.Pid, &status, options, nil); {
		case err == syscall.EINTR:
		case err != nil, status.Exited():
			p.ended <- status.ExitStatus()
			return
		case status.Signaled():
			p.ended <- statusSignal + int(status.Signal())
			return
		case status.Stopped():
			p.stopped()
		}
	}
}

// stopped stops this program too, with its group, so that the shell gets the terminal. The
// command continues with it.
func (p *process) stopped() {
	p.terminal.give(unix.Getpgrp())
	if !p.suspended.Load() {
		_ = syscall.Kill(0, syscall.SIGTSTP) // this program has that group, and takes the signal
	}
}

// suspend stops this program, unless no shell is there to continue it. The command continues
// with it.
func (p *process) suspend() {
	defer p.suspended.Store(false)
	select {
	case <-p.resumed:
	default:
	}
	own, err := unix.Getsid(0)
	if shell, err2 := unix.Getsid(os.Getppid()); err == nil && err2 == nil && own == shell {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) // it is there
	}
	select {
	case <-p.resumed: // the signal is passed on
	case <-time.After(time.Second):
		p.proceed()
	}
}

// proceed continues the command, in the foreground if this program is.
func (p *process) proceed() {
	if p.terminal != nil && p.terminal.owner() == unix.Getpgrp() {
		p.terminal.give(p.group)
	}
	_ = syscall.Kill(-p.group, syscall.SIGCONT) // it may have ended
}

// signal passes a signal on to the process group, as long as there is one.
func (p *process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	switch sig {
	case syscall.SIGCONT:
		p.proceed()
		select {
		case p.resumed <- struct{}{}:
		default:
		}
	case syscall.SIGTSTP: // while this program is stopped, no process extends the lease
		if !p.suspended.Swap(true) {
			_ = syscall.Kill(-p.group, syscall.SIGSTOP) // it may have ended
			go p.suspend()
		}
	default:
		_ = syscall.Kill(-p.group, sig) // it may have ended
	}
}

// wait returns the status of the command when its process group has ended. If ctx ends first,
// the command is ended, and ended is true.
func (p *process) wait(ctx context.Context) (status int, ended bool) {
	defer p.finish()
	select {
	case status = <-p.ended:
		return status, false
	case <-ctx.Done():
	}
	p.signal(syscall.SIGTERM)
	_ = syscall.Kill(-p.group, syscall.SIGCONT) // a stopped command could not take it
	patience := time.NewTimer(grace)
	defer patience.Stop()
	select {
	case status = <-p.ended:
	case <-patience.C:
		_ = syscall.Kill(-p.group, syscall.SIGKILL)
		status = <-p.ended
	}
	return status, true
}

// finish ends what is left of the process group, and takes the terminal back.
func (p *process) finish() {
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	if p.group != 0 {
		_ = syscall.Kill(-p.group, syscall.SIGKILL) // it may have ended
	}
	if p.keeper != nil {
		p.keeper.end()
	}
	if p.terminal != nil {
		p.terminal.give(unix.Getpgrp())
		_ = p.terminal.file.Close() // it was not written
	}
	p.out.end()
}

// readNow reads what a pipe has at this moment. It returns an error if that is nothing. The pipe
// has deadlines, so that its descriptor does not block.
func readNow(pipe *os.File, buffer []byte) (n int, err error) {
	conn, err := pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := conn.Control(func(fd uintptr) {
		for n, err = unix.Read(int(fd), buffer); err == unix.EINTR; n, err = unix.Read(int(fd), buffer) {
		}
	})
	if err = errors.Join(failed, err); err == nil && n == 0 {
		err = io.EOF
	}
	return max(n, 0), err
}

// keeper leads the process group of the command. It ends the group when its input ends, which is
// when this program ends. A nil keeper leads nothing: the command then leads the group.
type keeper struct {
	cmd   *exec.Cmd // nil when it has ended
	alive io.Closer // its input
	ready io.Reader // its output
}

// keeperScript ignores what the command may get, says so, and waits.
const keeperScript = `trap '' HUP INT QUIT TERM TSTP TTIN TTOU USR1 USR2 ALRM; echo; read -r _; kill -KILL 0`

// startKeeper returns nil if the host has no shell. A keeper takes as long to start as a store to
// open, so the caller opens the store before it asks whether the keeper is ready. The caller must
// end it.
func startKeeper() *keeper {
	cmd := exec.Command("/bin/sh", "-c", keeperScript)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Env = []string{}
	alive, err := cmd.StdinPipe()
	if err != nil {
		return nil
	}
	ready, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		_ = alive.Close()
		return nil
	}
	return &keeper{cmd, alive, ready}
}

// isReady waits until the keeper ignores signals. It returns false if there is no keeper.
func (k *keeper) isReady() bool {
	if k == nil || k.cmd == nil {
		return false
	}
	n, _ := k.ready.Read(make([]byte, 1))
	return n > 0
}

func (k *keeper) end() {
	if k == nil || k.cmd == nil {
		return
	}
	_ = k.cmd.Process.Kill() // it may have ended
	_ = k.alive.Close()
	_ = k.cmd.Wait() // a signal ended it
	k.cmd = nil
}

// terminal is the controlling terminal of this program.
type terminal struct{ file *os.File }

// openTerminal returns nil if there is no terminal, or if this program is not in its foreground.
// It also returns nil if standard input or output is a pipe. The other programs of a pipeline,
// such as less, are in the group of this one, and would lose the terminal.
func openTerminal() *terminal {
	for _, file := range []*os.File{os.Stdin, os.Stdout} {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
			return nil
		}
	}
	file, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	t := &terminal{file}
	if t.owner() != unix.Getpgrp() {
		_ = file.Close() // it was not written
		return nil
	}
	return t
}

// owner returns the process group in the foreground, or 0.
func (t *terminal) owner() int {
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// give puts a process group into the foreground.
func (t *terminal) give(group int) {
	_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group) // the terminal may be gone
}

// passed are the signals that the command gets. SIGPIPE is among those that this program takes,
// so that it has its default for the command.
var passed = []syscall.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCONT,
}

// ends reports whether a signal ends most programs.
func ends(sig syscall.Signal) bool {
	return slices.Contains(passed[:4], sig)
}

// listener takes signals of this program.
type listener struct {
	signals    chan os.Signal
	over, done chan struct{}
}

// listen calls a function for each signal of this program that the command gets, until stop. A
// signal that this program was started to ignore stays ignored.
func listen(take func(syscall.Signal)) *listener {
	l := &listener{make(chan os.Signal, 16), make(chan struct{}), make(chan struct{})}
	signal.Notify(l.signals, syscall.SIGPIPE)
	for _, sig := range passed {
		l.take(sig)
	}
	go func() {
		defer close(l.done)
		for {
			select {
			case sig := <-l.signals:
				if sig := sig.(syscall.Signal); sig != syscall.SIGPIPE {
					take(sig)
				}
			case <-l.over:
				return
			}
		}
	}()
	return l
}

func (l *listener) take(sig syscall.Signal) {
	if !signal.Ignored(sig) {
		signal.Notify(l.signals, sig)
	}
}

func (l *listener) stop() {
	signal.Stop(l.signals)
	close(l.over)
	<-l.done
}
