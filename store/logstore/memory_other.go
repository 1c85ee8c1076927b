//go:build !linux

package logstore

// totalMemory returns the machine's memory in bytes, or 0 if it is unknown.
func totalMemory() int64 { return 0 }
