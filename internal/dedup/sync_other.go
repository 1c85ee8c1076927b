//go:build !linux

package dedup

import "os"

// syncData makes a file's content and length durable.
func syncData(f *os.File) error { return f.Sync() }
