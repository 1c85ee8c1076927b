// Package pending has pending joins: records that wait for rows of tables, behind the committed offset of
// their group.
package pending

import (
	"bytes"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// Most is how many records of a partition wait while others continue. A note of their offsets
// fits into the 4,096 bytes that brokers take with a committed offset, with a note of package
// marks.
const Most = 180

// Record is a record that waits for its row, or behind such a record.
type Record struct {
	*kgo.Record // as it was read
	// ID is the digest of its id if HasID.
	HasID bool
	ID    semel.Digest
	// Since is how many readings of the tables had begun when the record came. A later one
	// shows whether its row is there.
	Since int
}

// Queue holds the records of a partition that wait, in the order of their offsets. The
// zero value is empty. It is not safe for concurrent use.
type Queue struct {
	list      []Record
	committed []Record // as of the last committed transaction
}

// Len returns how many records wait.
func (q *Queue) Len() int { return len(q.list) }

// Full reports whether no more records may wait.
func (q *Queue) Full() bool { return len(q.list) >= Most }

// Holds reports whether a record must stay behind one that waits: it has the same id or
// the same record key.
func (q *Queue) Holds(x Record) bool {
	return slices.ContainsFunc(q.list, func(before Record) bool {
		return x.HasID && before.HasID && x.ID == before.ID || x.Key != nil && bytes.Equal(x.Key, before.Key)
	})
}

// Add lets a record wait.
func (q *Queue) Add(x Record) { q.list = append(q.list, x) }

// Take removes the first record and returns it.
func (q *Queue) Take() Record {
	x := q.list[0]
	q.list = q.list[1:]
	return x
}

// Due returns how many of the first records came before a reading began that has ended.
func (q *Queue) Due(ended int) int {
	n := 0
	for n < len(q.list) && q.list[n].Since < ended {
		n++
	}
	return n
}

// Lacks reports whether a record came after the last of a number of readings began.
func (q *Queue) Lacks(begun int) bool {
	return len(q.list) > 0 && q.list[len(q.list)-1].Since >= begun
}

// Drop returns to the records of the last committed transaction.
func (q *Queue) Drop() { q.list = q.committed }

// Commit notes that the open transaction is committed, and returns how many records more
// or fewer wait than before.
func (q *Queue) Commit() (more int) {
	more = len(q.list) - len(q.committed)
	q.committed = q.list
	return more
}

// Note returns the note of the open transaction, "" if no record waits, and reports whether
// the transaction must commit the offset to write or remove a note.
func (q *Queue) Note() (note string, commits bool) {
	var offsets []int64
	for _, x := range q.list {
		offsets = append(offsets, x.Offset)
	}
	if offsets != nil {
		note = Note(offsets)
	}
	return note, len(q.list)+len(q.committed) > 0
}

// Each calls fn for each record.
func (q *Queue) Each(fn func(*Record) error) error {
	for i := range q.list {
		if err := fn(&q.list[i]); err != nil {
			return err
		}
	}
	return nil
}
