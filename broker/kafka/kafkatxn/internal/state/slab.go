package state

import (
	"slices"
	"unsafe"
)

const (
	// slabValues is how many values share an allocation, and slabBytes how many bytes do.
	slabValues = 64
	slabBytes  = 4 << 10
)

// Slab makes many small values of a type with few allocations. Their memory is freed together,
// so they should come and go together.
type Slab[T any] struct{ free []T }

// New returns a zero value.
func (s *Slab[T]) New() *T {
	if len(s.free) == 0 {
		s.free = make([]T, slabValues)
	}
	v := &s.free[0]
	s.free = s.free[1:]
	return v
}

// ByteSlab makes copies of bytes, as Slab makes values.
type ByteSlab struct{ used []byte }

// Clone returns a copy. An append to it changes no other copy.
func (s *ByteSlab) Clone(b []byte) []byte {
	if len(b) == 0 || len(b) > slabBytes/16 {
		return slices.Clone(b)
	}
	if len(b) > cap(s.used)-len(s.used) {
		s.used = make([]byte, 0, slabBytes)
	}
	n := len(s.used)
	s.used = append(s.used, b...)
	return s.used[n:len(s.used):len(s.used)]
}

// Text returns a copy as a string.
func (s *ByteSlab) Text(b []byte) string {
	c := s.Clone(b)
	return unsafe.String(unsafe.SliceData(c), len(c)) // nothing else refers to c
}
