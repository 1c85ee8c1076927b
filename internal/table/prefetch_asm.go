//go:build amd64 || arm64

package table

// prefetch loads four cache lines from address on, which is about as far as an
// insertion reads in a well filled shard. It is a hint. It reads nothing in the
// sense of the memory model and cannot fault. So it needs no lock, and the
// address may be that of an array that is no longer in use.
//
//go:noescape
func prefetch(address uintptr)
