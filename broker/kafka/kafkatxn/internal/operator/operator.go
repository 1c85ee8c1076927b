// Package operator has what happens to a record in a session: a chain of operators. Each of
// them decides a record, or passes it to the next one and sees what became of it there. An
// operator may keep a state for each partition, and write results of it later.
package operator

import (
	"cmp"
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// Operator is a step of what happens to the records of one partition. One goroutine uses it.
type Operator interface {
	// Process decides a record, or passes it on and returns what became of it. The context ends
	// when calls of the user's functions should end. After an error, which is not one of the
	// record, the session restarts or ends.
	Process(ctx context.Context, r *Record) (Outcome, error)
}

// Emitter is an operator that writes results of its state.
type Emitter interface {
	Operator
	// Due reports whether results must be written now. With early, results that may
	// change later count too.
	Due(early bool) bool
	// Emit writes at most a number of results that are due, and returns how many.
	Emit(ctx context.Context, most int) (n int, err error)
	// Preview writes at most a number of results that may change later.
	Preview(ctx context.Context, most int) (n int, err error)
}

// Preparer is an operator that reads ahead for the records of a batch, before the first of them
// is decided.
type Preparer interface {
	Operator
	Prepare(batch []Record)
}

// Outcome is what became of a record.
type Outcome uint8

const (
	// Done: the record has taken effect, or is filtered out.
	Done Outcome = iota
	// Aside: it has no effect of its own. It is a duplicate, superseded, held, parked or
	// dropped.
	Aside
	// Late: it is parked or dropped, because it came too late.
	Late
	// NoRow: a table has no row for it, and says that the record waits. Record.Err has the
	// error. Nothing has happened yet.
	NoRow
	// Waits: it waits for its row, and is decided later.
	Waits
	// Full: the transaction should end before it. Nothing has happened yet.
	Full
)

// Record is a record on its way through a chain.
type Record struct {
	// Record is the record as it was read, or the original if a copy was read. With an Unwrap it
	// has the message inside. Operators may change its value and its headers, and the last one
	// may make it an output.
	*kgo.Record
	// Body is the value before operators change it.
	Body []byte
	// outer is the record as it was read, if Record has the message inside it.
	outer *kgo.Record
	// At is the offset that was read, which is another one than that of an original.
	At int64
	// Key says whether the record has a key. ID is the id of that key, in memory of the batch, and
	// Digest its digest.
	Key    KeyState
	ID     []byte
	Digest semel.Digest
	// Given says that the client has the record, as an output.
	Given bool
	// Now is the time of the clock, and When the time by which the record counts, if records
	// count by a time. Both are in milliseconds.
	Now, When int64
	// Resumed says that the record has waited for its row.
	Resumed bool
	// Group is the group key, if it is known.
	Group []byte
	// Err is why the record has no key or no message inside it, or why a table has no row for it
	// after a number of attempts.
	Err      error
	Attempts int
}

// KeyState is whether a record has a key.
type KeyState uint8

const (
	KeyKnown KeyState = iota
	KeyMissing
	KeyPass       // without a key, and delivered without being remembered
	KeyUnreadable // Unwrap finds no message in the record
)

// Size returns the bytes of key and value as they were read. No operator has had the record yet.
func (r *Record) Size() int64 {
	of := cmp.Or(r.outer, r.Record)
	return int64(len(of.Key) + len(of.Value))
}

// read returns the record as it was read.
func (r *Record) read() *kgo.Record {
	if r.outer != nil {
		return r.outer
	}
	r.Value = r.Body
	return r.Record
}
