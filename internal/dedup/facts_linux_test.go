package dedup

import (
	"io/fs"
	"syscall"
	"testing"
	"time"
)

// coarse is a file with chosen times.
type coarse struct {
	fs.FileInfo
	stat syscall.Stat_t
}

func (c *coarse) Sys() any           { return &c.stat }
func (c *coarse) Size() int64        { return 7 }
func (c *coarse) ModTime() time.Time { return time.Unix(c.stat.Mtim.Unix()) }

func TestTimesOfWholeSecondsProveNothing(t *testing.T) {
	t.Parallel()
	now := time.Unix(100, 0)
	file := &coarse{stat: syscall.Stat_t{Ino: 3, Dev: 4, Ctim: syscall.Timespec{Sec: 50, Nsec: 1}, Mtim: syscall.Timespec{Sec: 50, Nsec: 1}}}
	here := factsOf(file, now)
	if here == (facts{}) || changedTime(file, now) == 0 {
		t.Error("a settled file proves nothing")
	}
	file.stat.Dev = 5
	if factsOf(file, now) == here {
		t.Error("the same inode of another device is the same file")
	}
	file.stat.Ctim.Nsec, file.stat.Mtim.Nsec = 0, 0
	if factsOf(file, now) != (facts{}) || changedTime(file, now) != 0 {
		t.Error("times of whole seconds prove something")
	}
}
