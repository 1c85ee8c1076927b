package logstore

import "golang.org/x/sys/unix"

// totalMemory returns the machine's memory in bytes, or 0 if it is unknown.
func totalMemory() int64 {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}
