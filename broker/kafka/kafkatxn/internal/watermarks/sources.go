package watermarks

import "maps"

// Sources knows how far the sources of a partition's records have come. These times are stored
// with the partition's windows. One goroutine uses a Sources at a time.
type Sources struct {
	// MaxAhead is how far a record may be ahead of the clock, in milliseconds.
	MaxAhead int64
	sizes    map[string]int32
	stored   func() string
	times    *Times // nil until they are read from stored
	text     []byte
}

// NewSources returns the Sources of inputs. sizes has their numbers of partitions, and stored
// returns the text that is stored.
func NewSources(sizes map[string]int32, stored func() string, maxAhead int64) *Sources {
	return &Sources{MaxAhead: maxAhead, sizes: sizes, stored: stored}
}

// Grow waits for partitions that inputs have gained.
func (m *Sources) Grow(sizes map[string]int32) {
	for input, n := range m.sizes {
		if sizes[input] > n {
			m.sizes = maps.Clone(m.sizes) // that of others
			m.sizes[input] = sizes[input]
			m.Times().grow(input, int(sizes[input]))
		}
	}
}

// Forget implements state.Sources.
func (m *Sources) Forget() { m.times = nil }

// Times returns the times of the open transaction.
func (m *Sources) Times() *Times {
	if m.times == nil {
		m.times = New(m.sizes)
		if text := m.stored(); text != "" {
			m.times.Add([]byte(text)) // no error: Text made it
		}
	}
	return m.times
}

// Set replaces the times of the open transaction.
func (m *Sources) Set(t *Times) { m.times = t }

// Text implements state.Sources.
func (m *Sources) Text(stored string) string {
	if m.times == nil {
		return stored
	}
	if m.text = m.times.Append(m.text[:0]); string(m.text) == stored {
		return stored
	}
	return string(m.text)
}

// MaxSize returns how many bytes of a record the times take at most.
func (m *Sources) MaxSize() int {
	return m.Times().MaxSize()
}
