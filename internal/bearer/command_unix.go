//go:build unix

package bearer

import (
	"os/exec"
	"syscall"
)

// together makes the end of a program's time that of its children.
func together(run *exec.Cmd) {
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGKILL) }
}
