//go:build !unix

package schema

import "io/fs"

// othersRead reports false: the mode of a file does not say who can read it.
func othersRead(fs.FileInfo) bool { return false }
