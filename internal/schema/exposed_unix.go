//go:build unix

package schema

import (
	"io/fs"
	"syscall"
)

// othersRead reports whether others than the owner of a file can read it. As for the keys
// of PostgreSQL, a file of root may be for a group: this is how orchestrators mount secrets.
func othersRead(info fs.FileInfo) bool {
	mode := info.Mode().Perm()
	of, ok := info.Sys().(*syscall.Stat_t)
	return info.Mode().IsRegular() && (mode&0o004 != 0 || mode&0o040 != 0 && !(ok && of.Uid == 0))
}
