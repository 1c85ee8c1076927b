package file

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
)

// outputState is what the store knows of the output. It is JSON so that people
// can read it. Unknown fields are kept.
type outputState struct {
	Length int64 `json:"length"`
	// Print is computed from the last bytes.
	Print string `json:"print"`
	// Ended means that no unit was being written. Data after the length then
	// came from elsewhere. Otherwise it is the rest of a unit that a crash left.
	// Values of versions without this field count as not ended.
	Ended bool `json:"ended,omitempty"`
	// Sink means that only a Sink has written: no session has positions yet.
	Sink bool `json:"sink,omitempty"`
}

// Prefixes of value names in the store. The path follows, and for a position the
// file.
const (
	outputValue   = "fileio/output:"
	positionValue = "fileio/position:"
)

// reserved is how many bytes of a unit's record are reserved for its values from
// the start. A unit that is sealed must not run out of space.
const reserved = 64 << 10

// room is a value of that length.
var room [reserved]byte

func (o *output) name() string { return outputValue + o.path }

func (s *Session) positionsPrefix() string { return positionValue + s.out.path + "\n" }

// note sets what a record knows of the output.
func (o *output) note(tx *logstore.Tx, ended bool) error {
	end, err := o.end()
	if err != nil {
		return err
	}
	data, err := json.Marshal(outputState{o.length, end, ended, o.bySink})
	if err != nil {
		return err
	}
	tx.Set(o.name(), data)
	return nil
}

// mark records in the store where the output ends, and whether more data is
// coming that a crash may cut short. Both are durable when it returns, whatever
// the store's Fsync.
func (o *output) mark(ctx context.Context, store *logstore.Store, ended bool) error {
	if err := o.truncate(); err != nil {
		return err
	}
	if err := o.sync(); err != nil {
		return err
	}
	tx, err := store.Begin(ctx)
	if err == nil {
		if err = o.note(tx, ended); err == nil {
			err = tx.Commit(ctx)
		}
		tx.Abort()
	}
	if err == nil {
		err = store.Sync()
	}
	if err != nil {
		return fmt.Errorf("file: record the length of %s: %w", o.path, err)
	}
	return nil
}

// note sets the values of a record.
func (s *Session) note(tx *logstore.Tx, changed []entry) error {
	err := s.out.note(tx, false)
	if err != nil {
		return err
	}
	var data []byte
	for i := range changed {
		e := &changed[i]
		name := s.positionsPrefix() + e.name()
		if !e.kept() {
			tx.Set(name, nil)
			continue
		}
		if data, err = json.Marshal(e); err != nil {
			return err
		}
		tx.Set(name, data)
	}
	return nil
}

// name distinguishes an entry's file from others.
func (e *entry) name() string {
	if e.Inode == 0 {
		return e.Path
	}
	return strconv.FormatUint(e.Device, 16) + "-" + strconv.FormatUint(e.Inode, 16)
}

// end returns a print of the bytes before the length, which reveals a changed
// file.
func (o *output) end() (string, error) {
	last := make([]byte, min(o.length, printBytes))
	if _, err := o.file.ReadAt(last, o.length-int64(len(last))); err != nil && err != io.EOF {
		return "", fmt.Errorf("file: read %s: %w", o.path, err)
	}
	sum := sha256.Sum256(last)
	return hex.EncodeToString(sum[:16]), nil
}

// resume restores output and source to the state that the store knows.
func (s *Session) resume(ctx context.Context, foreign bool) error {
	size := s.out.length
	known, err := s.out.resume(s.store)
	switch {
	case err != nil:
		return err
	case !known && size > 0 && !foreign:
		return &UnknownOutputError{s.out.path, size}
	case !known:
		err = s.out.endLine()
	}
	if err != nil {
		return err
	}
	known, s.out.bySink = known && !s.out.bySink, false
	if s.source != nil {
		list, err := s.positions()
		if err != nil {
			return err
		}
		if err := s.source.attach(list, known); err != nil {
			return err
		}
	}
	// From here on the store knows where the output ends, which distinguishes
	// later writes from the data that was there.
	if err := s.out.mark(ctx, s.store, false); err != nil {
		return err
	}
	if s.source == nil {
		return nil
	}
	return s.last(ctx)
}

// resume restores the output to the state that the store knows, if it knows one.
// The rest of a unit that a crash left is cut off. Data from elsewhere is kept.
func (o *output) resume(store *logstore.Store) (known bool, err error) {
	data, known := store.Value(o.name())
	if !known {
		return false, nil
	}
	var was outputState
	if err := json.Unmarshal(data, &was); err != nil {
		return true, fmt.Errorf("file: the store's value %s: %w", o.name(), err)
	}
	o.bySink = was.Sink
	size := o.length
	if size == 0 {
		return true, nil // it was moved away, or never written
	}
	refused := func() error {
		return fmt.Errorf("file: %s was changed since it was written (it had %d bytes, now %d): move it away, and a new one is begun: %w", o.path, was.Length, size, semel.ErrInvalidRequest)
	}
	if size < was.Length {
		return true, refused()
	}
	o.length = was.Length
	end, err := o.end()
	switch {
	case err != nil:
		return true, err
	case end != was.Print:
		return true, refused()
	case was.Ended:
		o.length = size
		return true, o.endLine()
	}
	return true, o.truncate()
}

// positions returns the positions that the store has for the source.
func (s *Session) positions() ([]entry, error) {
	var list []entry
	for name, data := range s.store.Values(s.positionsPrefix()) {
		var e entry
		if err := json.Unmarshal(data, &e); err != nil {
			return nil, fmt.Errorf("file: the store's value %q: %w", name, err)
		}
		list = append(list, e)
	}
	return list, nil
}

// attach hands the positions over to a session, which has these already. It is
// called once, before Read.
func (s *Source) attach(known []entry, remembered bool) error {
	if s.begun {
		return fmt.Errorf("file: SessionOptions.Source: it was read from: %w", semel.ErrInvalidRequest)
	}
	s.known, s.remembered, s.attached = known, remembered, true
	return s.begin()
}

// take returns the positions that changed since the last call, in about most
// bytes. Files that ended are not kept. The rest follows at the next
// call.
func (s *Source) take(most int) []entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	var list []entry
	for _, e := range s.gone {
		e.Offset, e.Generation = 0, 0
		s.changes = append(s.changes, e)
	}
	s.gone = nil
	fits := func(e *entry) bool {
		most -= len(e.Path) + 512
		return most >= 0 || len(list) == 0
	}
	for len(s.changes) > 0 && fits(&s.changes[0]) {
		list = append(list, s.changes[0])
		s.changes = s.changes[1:]
	}
	for _, l := range s.lives {
		if len(s.changes) == 0 && l.fresh && !l.forgotten && fits(&l.saved) {
			l.fresh = false
			if l.saved.kept() {
				list = append(list, l.saved)
			}
		}
	}
	return list
}
