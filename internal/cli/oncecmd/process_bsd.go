//go:build unix && !linux

package oncecmd

import "syscall"

// endWithParent does nothing: only the keeper of the process group ends the command.
func endWithParent(*syscall.SysProcAttr) {}
