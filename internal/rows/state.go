package rows

import (
	"bytes"
	"hash/maphash"
	"slices"
	"sync"
	"time"
)

// Change sets the row of a key, or deletes it.
type Change struct {
	Key []byte
	// Row is nil if the key has no row any longer. The state keeps a copy.
	Row []byte
	// At is the time of the change in milliseconds. It counts only with a history.
	At int64
}

// State has the rows of the partitions of a table. Its methods may be called
// concurrently.
type State struct {
	history int64 // milliseconds for which former rows are kept; 0 keeps none
	hash    func(key []byte) uint64

	mu    sync.RWMutex // guards the fields below
	parts map[int32]*part
	rows  int
	bytes int64
}

// part has the rows of a partition. The garbage collector follows one pointer for each
// row, and a larger part moves no row.
type part struct {
	// first is the place of the first entry with a hash.
	first  map[uint64]uint32
	chunks [][]entry
	size   uint32   // of the chunks that have been used
	free   []uint32 // places without a key
	seen   int64    // the greatest time of a change
	// due are the keys with former rows or without a row, in the order of the changes.
	due []dueKey
}

// dueKey is the key at a place. If another key has that place now, it may be due too.
type dueKey struct {
	place uint32
	at    int64
}

// chunkSize is how many entries have their memory together.
const chunkSize = 512

// entry is a key with its newest row, and former ones in the order of their times.
type entry struct {
	data   []byte // key and row; nil for a place without a key
	at     int64  // the time of the row, or of its deletion
	former []version
	key    uint32 // the length of the key
	next   uint32 // the place after that of the next entry with the same hash; or 0
	gone   bool   // there is no row
}

// row returns the newest row, or nil.
func (e *entry) row() []byte {
	if e.gone {
		return nil
	}
	return e.data[e.key:len(e.data):len(e.data)]
}

// set sets the newest row.
func (e *entry) set(c *Change) {
	data := make([]byte, 0, len(c.Key)+len(c.Row))
	e.data = append(append(data, c.Key...), c.Row...)
	e.key, e.at, e.gone = uint32(len(c.Key)), c.At, c.Row == nil
}

// version is a row from a time on. The row is nil from the time on at which it was
// deleted.
type version struct {
	at  int64
	row []byte
}

func (p *part) entry(place uint32) *entry { return &p.chunks[place/chunkSize][place%chunkSize] }

// find returns the entry of a key with a hash, or nil.
func (p *part) find(hash uint64, key []byte) (place uint32, e *entry) {
	place, ok := p.first[hash]
	for ok {
		e := p.entry(place)
		if string(e.data[:e.key]) == string(key) {
			return place, e
		}
		place, ok = e.next-1, e.next > 0
	}
	return 0, nil
}

// add returns an entry for a new key.
func (p *part) add(hash uint64) (place uint32, e *entry) {
	if n := len(p.free); n > 0 {
		place, p.free = p.free[n-1], p.free[:n-1]
	} else {
		if place = p.size; place%chunkSize == 0 {
			p.chunks = append(p.chunks, make([]entry, chunkSize))
		}
		p.size++
	}
	e = p.entry(place)
	if other, ok := p.first[hash]; ok {
		e.next = other + 1
	}
	p.first[hash] = place
	return place, e
}

// remove removes an entry.
func (p *part) remove(hash uint64, place uint32) {
	e := p.entry(place)
	switch before := p.first[hash]; {
	case before != place:
		other := p.entry(before)
		for other.next != place+1 {
			other = p.entry(other.next - 1)
		}
		other.next = e.next
	case e.next > 0:
		p.first[hash] = e.next - 1
	default:
		delete(p.first, hash)
	}
	*e = entry{}
	p.free = append(p.free, place)
}

// New returns a state without rows, which keeps former rows for a time.
func New(history time.Duration) *State {
	seed := maphash.MakeSeed()
	return &State{history: history.Milliseconds(), hash: func(key []byte) uint64 { return maphash.Bytes(seed, key) }, parts: map[int32]*part{}}
}

// Apply adds changes of a partition, in their order.
func (s *State) Apply(partition int32, changes []Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.parts[partition]
	if p == nil {
		p = &part{first: map[uint64]uint32{}}
		s.parts[partition] = p
	}
	for i := range changes {
		s.change(p, &changes[i])
	}
	s.forget(p)
}

func (s *State) change(p *part, c *Change) {
	p.seen = max(p.seen, c.At)
	hash := s.hash(c.Key)
	place, e := p.find(hash, c.Key)
	if e == nil {
		if c.Row == nil && s.history == 0 {
			return
		}
		place, e = p.add(hash)
		e.set(c)
		s.count(e, 1)
		if c.Row == nil {
			p.due = append(p.due, dueKey{place, c.At})
		}
		return
	}
	s.count(e, -1)
	switch {
	case s.history == 0 && c.Row == nil:
		p.remove(hash, place)
		return
	case s.history == 0:
		e.set(c)
	case c.At >= e.at:
		e.former = append(e.former, version{e.at, e.row()})
		e.set(c)
		p.due = append(p.due, dueKey{place, c.At})
	default: // it comes after a change with a later time
		i := len(e.former)
		for i > 0 && e.former[i-1].at > c.At {
			i--
		}
		e.former = slices.Insert(e.former, i, version{c.At, bytes.Clone(c.Row)})
		p.due = append(p.due, dueKey{place, e.at})
	}
	s.count(e, 1)
}

// count adds a key to the counts, or removes it.
func (s *State) count(e *entry, sign int64) {
	size := len(e.data)
	for i := range e.former {
		size += len(e.former[i].row)
	}
	s.bytes += sign * int64(size)
	if !e.gone {
		s.rows += int(sign)
	}
}

// forget removes rows that a later one replaced before the history.
func (s *State) forget(p *part) {
	done := 0
	for _, due := range p.due {
		if due.at > p.seen-s.history {
			break
		}
		done++
		e := p.entry(due.place)
		if e.data == nil {
			continue
		}
		s.count(e, -1)
		old := 0 // former rows that were replaced before the history
		for i := range e.former {
			until := e.at
			if i+1 < len(e.former) {
				until = e.former[i+1].at
			}
			if until <= p.seen-s.history {
				old = i + 1
			}
		}
		if e.former = slices.Delete(e.former, 0, old); len(e.former) == 0 && e.gone && e.at <= p.seen-s.history {
			p.remove(s.hash(e.data[:e.key]), due.place)
			continue
		}
		s.count(e, 1)
	}
	if done > 0 {
		p.due = slices.Delete(p.due, 0, done)
	}
}

// Found says what Find found.
type Found uint8

const (
	// Missing: the key has no row.
	Missing Found = iota
	// Row: the key has a row.
	Row
	// Unknown: the time is before the history, and the row of that time may be forgotten.
	Unknown
)

// Find returns the row of a key. With a history it is the row as of a time; now is the
// present. The caller must not change the row.
func (s *State) Find(partition int32, key []byte, at, now int64) ([]byte, Found) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var e *entry
	p := s.parts[partition]
	if p != nil {
		_, e = p.find(s.hash(key), key)
		now = max(now, p.seen)
	}
	switch {
	case e != nil && (s.history == 0 || e.at <= at):
		return found(e.row())
	case s.history == 0:
		return nil, Missing
	case at < now-s.history:
		return nil, Unknown
	case e == nil:
		return nil, Missing
	}
	for _, v := range slices.Backward(e.former) {
		if v.at <= at {
			return found(v.row)
		}
	}
	return nil, Missing
}

func found(row []byte) ([]byte, Found) {
	if row == nil {
		return nil, Missing
	}
	return row, Row
}

// Where returns another partition that has a row of a key.
func (s *State) Where(key []byte, not int32) (partition int32, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for number, p := range s.parts {
		if number == not {
			continue
		}
		if _, e := p.find(s.hash(key), key); e != nil && !e.gone {
			return number, true
		}
	}
	return 0, false
}

// Len returns the number of rows, and the bytes of all keys and rows, former ones
// included.
func (s *State) Len() (rows int, bytes int64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.rows, s.bytes
}
