// Package state keeps what an operator remembers of one partition. The state is in memory. A
// changelog in a topic has what each transaction changed in it, so that another member can
// build it again. A copy of the changelog on disk saves reading most of it from the brokers.
package state

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"
)

// State is what an operator remembers of one partition. Changes belong to an open transaction
// until Commit or Drop ends it. One goroutine uses it at a time.
//
// The records of a changelog have values, not differences, so reading one twice is harmless.
// Log reads and writes them, and a State knows what is in them.
type State interface {
	// Changes returns the records of the open transaction, without a topic. They are valid
	// until it ends. Each has at most a number of bytes, unless one change needs more. After
	// an error, which is one of the copy on disk, the transaction must be dropped.
	Changes(most int) ([]*kgo.Record, error)
	// Commit ends the open transaction. Its records are stored, the first of them at an
	// offset of the changelog. If there is a copy on disk, it has them at places.
	Commit(at int64, places []Place)
	// Drop discards the open transaction.
	Drop()

	// Barrier returns a record that marks a position, and changes nothing when it is read.
	Barrier(nonce ID) []byte
	// Read reads a record of the changelog, and returns an error if this state cannot use it. It
	// changes nothing. The bytes stay as they are until Apply returns.
	Read(value []byte) (Header, error)
	// Apply adds the record that was read last, which is committed at an offset. The copy on
	// disk, if there is one, has it at a place. No transaction is open.
	Apply(at int64, place Place)

	// Stored notes that a record of a size was committed or applied at an offset, after
	// Commit or Apply. It reports whether a file of the copy on disk should end with it.
	Stored(at int64, size int) (ends bool)
	// Cut returns the offset before which no record counts any longer, and whether that has
	// changed. No transaction is open.
	Cut() (at int64, ok bool)
	// Expect allocates memory for a state whose records have about a number of bytes.
	Expect(bytes int64)
	// Detach reports whether the state needs no copy on disk, because it has left no value
	// there. If so, it leaves none from now on.
	Detach() bool
}

// Header is what a Log must know of a record.
type Header struct {
	// Nonce is that of a barrier, and zero for another record.
	Nonce   ID
	Barrier bool
	// Topic is the input of which the record was made. It is zero if brokers had no ids.
	Topic ID
	// Len is the number of its entries.
	Len int
}

// ErrAgain says that a member must restart with the state that the brokers have.
var ErrAgain = errors.New("kafka: restart with the state of the brokers")
