//go:build unix

package file

import (
	"os"
	"syscall"
)

// identityOf tells files apart for as long as one of them is open or exists,
// also when they are renamed.
func identityOf(path string, info os.FileInfo) identity {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return identity{device: uint64(stat.Dev), inode: uint64(stat.Ino)}
	}
	return identity{path: path}
}
