package watermarks

import "maps"

// Stored knows how far the origins of a partition's records have come. These times are stored
// with the partition's windows. A partition whose records are not mixed has a nil Stored. One
// goroutine uses a Stored at a time.
type Stored struct {
	// MaxAhead is how far a record may be ahead of the clock, in milliseconds.
	MaxAhead int64
	sizes    map[string]int32
	stored   Store
	times    *Times // nil until they are read from stored
	text     []byte
}

// Store keeps a text, which SetOrigins changes in the open transaction.
type Store interface {
	SetOrigins(text string)
	Origins() string
}

// NewStored returns the Stored of inputs. sizes has their numbers of partitions.
func NewStored(sizes map[string]int32, stored Store, maxAhead int64) *Stored {
	return &Stored{MaxAhead: maxAhead, sizes: sizes, stored: stored}
}

// Grow waits for partitions that inputs have gained.
func (m *Stored) Grow(sizes map[string]int32) {
	for input, n := range m.sizes {
		if sizes[input] > n {
			m.sizes = maps.Clone(m.sizes) // that of others
			m.sizes[input] = sizes[input]
			m.Times().grow(input, int(sizes[input]))
		}
	}
}

// Forget drops the times of the open transaction, so that the stored ones count.
func (m *Stored) Forget() {
	if m != nil {
		m.times = nil
	}
}

// Times returns the times of the open transaction.
func (m *Stored) Times() *Times {
	if m.times == nil {
		m.times = New(m.sizes)
		if text := m.stored.Origins(); text != "" {
			m.times.Add([]byte(text)) // no error: Store wrote the text
		}
	}
	return m.times
}

// Set replaces the times of the open transaction.
func (m *Stored) Set(t *Times) { m.times = t }

// Store stores the times with the open transaction.
func (m *Stored) Store() {
	if m == nil || m.times == nil {
		return
	}
	if m.text = m.times.Append(m.text[:0]); string(m.text) != m.stored.Origins() {
		m.stored.SetOrigins(string(m.text))
	}
}

// MaxSize returns how many bytes of a record the times take at most.
func (m *Stored) MaxSize() int {
	if m == nil {
		return 0
	}
	return m.Times().MaxSize()
}
