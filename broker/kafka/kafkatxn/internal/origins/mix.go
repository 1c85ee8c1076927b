package origins

import "maps"

// Mix knows how far the origins of a partition's records have come. These times are stored
// with the partition's windows. A partition whose records are not mixed has a nil Mix. One
// goroutine uses a Mix at a time.
type Mix struct {
	// MaxAhead is how far a record may be ahead of the clock, in milliseconds.
	MaxAhead int64
	sizes    map[string]int32
	stored   Stored
	times    *Times // nil until they are read from stored
	text     []byte
}

// Stored keeps a text, which SetOrigins changes in the open transaction.
type Stored interface {
	SetOrigins(text string)
	Origins() string
}

// NewMix returns the Mix of inputs. sizes has their numbers of partitions.
func NewMix(sizes map[string]int32, stored Stored, maxAhead int64) *Mix {
	return &Mix{MaxAhead: maxAhead, sizes: sizes, stored: stored}
}

// Grow waits for partitions that inputs have gained.
func (m *Mix) Grow(sizes map[string]int32) {
	for input, n := range m.sizes {
		if sizes[input] > n {
			m.sizes = maps.Clone(m.sizes) // that of others
			m.sizes[input] = sizes[input]
			m.Times().grow(input, int(sizes[input]))
		}
	}
}

// Forget drops the times of the open transaction, so that the stored ones count.
func (m *Mix) Forget() {
	if m != nil {
		m.times = nil
	}
}

// Times returns the times of the open transaction.
func (m *Mix) Times() *Times {
	if m.times == nil {
		m.times = New(m.sizes)
		if text := m.stored.Origins(); text != "" {
			m.times.Add([]byte(text)) // no error: Store wrote the text
		}
	}
	return m.times
}

// Set replaces the times of the open transaction.
func (m *Mix) Set(t *Times) { m.times = t }

// Store stores the times with the open transaction.
func (m *Mix) Store() {
	if m == nil || m.times == nil {
		return
	}
	if m.text = m.times.Append(m.text[:0]); string(m.text) != m.stored.Origins() {
		m.stored.SetOrigins(string(m.text))
	}
}

// MaxSize returns how many bytes of a record the times take at most.
func (m *Mix) MaxSize() int {
	if m == nil {
		return 0
	}
	return m.Times().MaxSize()
}
