//go:build unix

package file

import (
	"os"
	"syscall"
)

// identityOf distinguishes files while one of them is open or exists, even after
// a rename.
func identityOf(path string, info os.FileInfo) identity {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return identity{device: uint64(stat.Dev), inode: uint64(stat.Ino)}
	}
	return identity{path: path}
}
