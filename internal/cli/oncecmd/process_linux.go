package oncecmd

import "syscall"

// endWithParent makes the command end with this program, however that ends.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
