//go:build !unix

package file

import "os"

// identityOf distinguishes files by their names.
func identityOf(path string, _ os.FileInfo) identity { return identity{path: path} }
