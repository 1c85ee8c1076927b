//go:build !unix

package oncecmd

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/semel-dev/semel/internal/cli/term"
)

// process is the running command. Only the command itself can be ended, and not what it started.
type process struct {
	cmd   *exec.Cmd
	out   *output
	ended chan int // the status
}

// keeper leads nothing: these systems have no process groups.
type keeper struct{}

func startKeeper() *keeper { return nil }

func (*keeper) end() {}

// readNow is not needed: no pipe of this program is read.
func readNow(*os.File, []byte) (int, error) { return 0, os.ErrDeadlineExceeded }

func startProcess(a *term.App, _ *keeper, path string, argv, env []string, out *output, _ *listener) (*process, error) {
	p := &process{out: out, ended: make(chan int, 1)}
	p.cmd = &exec.Cmd{Path: path, Args: argv, Env: env, Stdin: a.Stdin, Stdout: os.Stdout, Stderr: a.Stderr, WaitDelay: drainTime}
	if out.most > 0 {
		p.cmd.Stdout = out
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // the state has it
		p.ended <- p.cmd.ProcessState.ExitCode()
	}()
	return p, nil
}

func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

func (p *process) wait(ctx context.Context) (status int, ended bool) {
	select {
	case status = <-p.ended:
		return status, false
	case <-ctx.Done():
	}
	_ = p.cmd.Process.Kill() // it may have ended
	return <-p.ended, true
}

// ends reports whether a signal ends most programs.
func ends(sig syscall.Signal) bool { return sig == syscall.SIGINT || sig == syscall.SIGTERM }

// listener takes signals of this program.
type listener struct{ stop func() }

// listen calls a function for each signal of this program that the command gets, until stop.
func listen(take func(syscall.Signal)) *listener {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case sig := <-signals:
				take(sig.(syscall.Signal))
			case <-over:
				return
			}
		}
	}()
	return &listener{func() {
		signal.Stop(signals)
		close(over)
		<-done
	}}
}
