package dedup

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// factsOf returns the facts of a file that was looked at now. They are zero if the file
// changed so recently that a later change could leave them as they are. A time of whole
// seconds proves nothing: the file system may not count parts of them, or not at all.
func factsOf(info os.FileInfo, now time.Time) facts {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return facts{}
	}
	status := time.Unix(stat.Ctim.Unix())
	if status.Nanosecond() == 0 || now.Sub(status) < settledFor {
		return facts{}
	}
	return facts{
		Size: info.Size(), Changed: info.ModTime().UnixNano(), Status: status.UnixNano(),
		Inode: stat.Ino, Device: fmt.Sprint(stat.Dev),
	}
}
