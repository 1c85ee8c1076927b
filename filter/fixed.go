package filter

// fixed is the common part of the filters that never forget an id: their
// parameters and their counts.
type fixed struct {
	hasher   hasher
	probes   int
	capacity int
	full     WhenFull
	bits     int // size of the filter
	length   int // ids that were added and not seen before
	ones     int // bits that are set
}

func newFixed(o Options, probes, bits int) fixed {
	return fixed{hasher: newHasher(o.Seed), probes: probes, capacity: o.Capacity, full: o.WhenFull, bits: bits}
}

// Len returns the number of added ids that were not seen before. It does not
// count false positives.
func (f *fixed) Len() int { return f.length }

// Capacity returns the number of distinct ids that the filter was made for.
func (f *fixed) Capacity() int { return f.capacity }

// Over reports whether the filter holds more ids than it was made for.
func (f *fixed) Over() bool { return f.length > f.capacity }

// Bytes returns the size of the filter's bits in memory.
func (f *fixed) Bytes() int { return f.bits / 8 }

// Fill returns the share of bits that are set.
func (f *fixed) Fill() float64 { return float64(f.ones) / float64(f.bits) }

// refuses reports whether Add must not set any bit.
func (f *fixed) refuses() bool { return f.full == Refuse && f.length >= f.capacity }

// refused is the result of an Add that must not set any bit.
func refused(seen bool) (bool, error) {
	if seen {
		return true, nil
	}
	return false, ErrFull
}

// count counts an id whose probes set fresh bits, and reports whether the id
// may have been added before.
func (f *fixed) count(fresh int) (maybeSeen bool) {
	if fresh == 0 {
		return true
	}
	f.ones += fresh
	f.length++
	return false
}
