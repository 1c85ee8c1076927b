//go:build linux || darwin

package config

import "syscall"

// space returns the size of the disk with a file, and how much of it this user may
// still write. It reports whether the system tells.
func space(name string) (free, size uint64, ok bool) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(name, &s); err != nil {
		return 0, 0, false
	}
	return uint64(s.Bavail) * uint64(s.Bsize), uint64(s.Blocks) * uint64(s.Bsize), true
}
