//go:build !amd64 && !arm64

package table

// prefetch does nothing if the processor's hint is not known.
func prefetch(uintptr) {}
