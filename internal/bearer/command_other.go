//go:build !unix

package bearer

import "os/exec"

// together does nothing: only Unix has process groups.
func together(*exec.Cmd) {}
