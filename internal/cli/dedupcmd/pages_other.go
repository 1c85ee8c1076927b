//go:build !linux

package dedupcmd

// releasePages does nothing where the segments of the program are not known.
func releasePages() {}
