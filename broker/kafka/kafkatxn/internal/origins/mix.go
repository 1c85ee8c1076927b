package origins

// Mix has how far the origins of a partition's records have come. They are stored with its
// windows. A nil Mix is that of a partition whose records are not mixed. One goroutine uses
// it at a time.
type Mix struct {
	// MaxAhead is how far a record may be ahead of the clock, in milliseconds.
	MaxAhead int64
	sizes    map[string]int32
	stored   Stored
	times    *Times // nil if they are to be read from stored
	text     []byte
}

// Stored stores a text in a transaction.
type Stored interface {
	SetOrigins(text string)
	Origins() string
}

// NewMix returns the Mix of inputs, which have numbers of partitions.
func NewMix(sizes map[string]int32, stored Stored, maxAhead int64) *Mix {
	return &Mix{MaxAhead: maxAhead, sizes: sizes, stored: stored}
}

// Forget makes the stored times count.
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
			m.times.Add([]byte(text)) // which it wrote
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

// MaxSize returns how many bytes of a record the times need at most.
func (m *Mix) MaxSize() int {
	if m == nil {
		return 0
	}
	return m.Times().MaxSize()
}
