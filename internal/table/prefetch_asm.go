//go:build amd64 || arm64

package table

// prefetch asks for four cache lines from address on, which is about as far as
// an insertion reads in a well filled shard. It is a hint: it reads
// nothing in the sense of the memory model and cannot fault, so that it needs
// no lock and may be given the address of an array that is in use no more.
//
//go:noescape
func prefetch(address uintptr)
