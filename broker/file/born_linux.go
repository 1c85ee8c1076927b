package file

import (
	"os"

	"golang.org/x/sys/unix"
)

// born returns when a file was created, in nanoseconds, or 0 if the file system does not
// keep that.
func born(file *os.File) int64 {
	conn, err := file.SyscallConn()
	if err != nil {
		return 0
	}
	var stat unix.Statx_t
	if err2 := conn.Control(func(fd uintptr) {
		err = unix.Statx(int(fd), "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &stat)
	}); err2 != nil || err != nil || stat.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return stat.Btime.Sec*1e9 + int64(stat.Btime.Nsec)
}
