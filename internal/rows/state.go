package rows

import (
	"slices"
	"sync"
	"time"
)

// Change sets the row of a key, or deletes it.
type Change struct {
	Key []byte
	// Row is nil if the key has no row any longer. The state keeps the bytes.
	Row []byte
	// At is the time of the change in milliseconds. It counts only with a history.
	At int64
}

// State has the rows of the partitions of a table. Its methods may be called
// concurrently.
type State struct {
	history int64 // milliseconds for which former rows are kept; 0 keeps none

	mu    sync.RWMutex // guards the fields below
	parts map[int32]*part
	rows  int
	bytes int64
}

// part has the rows of a partition.
type part struct {
	keys map[string]*entry
	seen int64 // the greatest time of a change
	// due are the keys with former rows or without a row, in the order of the changes.
	due []dueKey
}

type dueKey struct {
	key string
	at  int64
}

// entry is a key with its newest row, and former ones in the order of their times.
type entry struct {
	version
	former []version
}

// version is a row from a time on. The row is nil from the time on at which it was
// deleted.
type version struct {
	at  int64
	row []byte
}

// New returns a state without rows, which keeps former rows for a time.
func New(history time.Duration) *State {
	return &State{history: history.Milliseconds(), parts: map[int32]*part{}}
}

// Apply adds changes of a partition, in their order.
func (s *State) Apply(partition int32, changes []Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.parts[partition]
	if p == nil {
		p = &part{keys: map[string]*entry{}}
		s.parts[partition] = p
	}
	for i := range changes {
		s.change(p, &changes[i])
	}
	s.forget(p)
}

func (s *State) change(p *part, c *Change) {
	p.seen = max(p.seen, c.At)
	e := p.keys[string(c.Key)]
	if e == nil {
		if c.Row == nil && s.history == 0 {
			return
		}
		e = &entry{}
		p.keys[string(c.Key)] = e
		e.version = version{c.At, c.Row}
		s.count(e, len(c.Key), 1)
		if c.Row == nil {
			p.due = append(p.due, dueKey{string(c.Key), c.At})
		}
		return
	}
	s.count(e, len(c.Key), -1)
	switch {
	case s.history == 0:
		if e.version = (version{c.At, c.Row}); c.Row == nil {
			delete(p.keys, string(c.Key))
			return
		}
	case c.At >= e.at:
		e.former = append(e.former, e.version)
		e.version = version{c.At, c.Row}
		p.due = append(p.due, dueKey{string(c.Key), c.At})
	default: // it comes after a change with a later time
		i := len(e.former)
		for i > 0 && e.former[i-1].at > c.At {
			i--
		}
		e.former = slices.Insert(e.former, i, version{c.At, c.Row})
		p.due = append(p.due, dueKey{string(c.Key), e.at})
	}
	s.count(e, len(c.Key), 1)
}

// count adds a key to the counts, or removes it.
func (s *State) count(e *entry, key int, sign int64) {
	size := key + len(e.row)
	for i := range e.former {
		size += len(e.former[i].row)
	}
	s.bytes += sign * int64(size)
	if e.row != nil {
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
		e := p.keys[due.key]
		if e == nil {
			continue
		}
		s.count(e, len(due.key), -1)
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
		if e.former = slices.Delete(e.former, 0, old); len(e.former) == 0 && e.row == nil && e.at <= p.seen-s.history {
			delete(p.keys, due.key)
			continue
		}
		s.count(e, len(due.key), 1)
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
		e = p.keys[string(key)]
		now = max(now, p.seen)
	}
	switch {
	case s.history == 0:
		if e == nil {
			return nil, Missing
		}
		return e.row, Row
	case e != nil && e.at <= at:
		return e.version.found()
	case at < now-s.history:
		return nil, Unknown
	case e == nil:
		return nil, Missing
	}
	for _, v := range slices.Backward(e.former) {
		if v.at <= at {
			return v.found()
		}
	}
	return nil, Missing
}

func (v *version) found() ([]byte, Found) {
	if v.row == nil {
		return nil, Missing
	}
	return v.row, Row
}

// Where returns another partition that has a row of a key.
func (s *State) Where(key []byte, not int32) (partition int32, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for number, p := range s.parts {
		if e := p.keys[string(key)]; number != not && e != nil && e.row != nil {
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
