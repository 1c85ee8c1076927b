//go:build !linux

package dedup

import "os"

// syncData makes the content and length of a file durable.
func syncData(f *os.File) error { return f.Sync() }
