// Package operator has what happens to a record in a session: a chain of operators. Each of
// them decides a record, or passes it to the next one and sees what became of it there. An
// operator may keep a state for each partition, and write results of it later.
package operator

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keystate"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/watermarks"
)

// kinds are all operators, in the order in which a record meets them.
var kinds = []Kind{timed, keyed, deduplicate, keepOne, joinRows, filterMap, aggregate, transform, pass}

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
	// Due reports whether results must be written now. With early, it also tells of results
	// that may change later.
	Due(early bool) bool
	// Emit writes at most a number of results that are due, and returns how many.
	Emit(ctx context.Context, most int) (n int, err error)
	// Preview writes at most a number of results that may change later.
	Preview(ctx context.Context, most int) (n int, err error)
}

// Preparer is an operator that reads ahead for some records, before the first of them is
// decided.
type Preparer interface {
	Operator
	Prepare(records []*kgo.Record, batch []Record)
}

// Kind is a kind of operator.
type Kind struct {
	// On reports whether a chain with these options has the operator.
	On func(o *Options) bool
	// State makes an empty state for a partition. It is nil for an operator without a state.
	// The states of all kinds are in one topic, so a chain has at most one of them.
	State func(o *Options) Store
	// New makes the operator for a partition. next is the one behind it, or nil for the last.
	New func(p *Partition, next Operator) Operator
}

// Store is the state of an operator.
type Store interface {
	state.State
	watermarks.Marked
	// Bind says what the state is of, and what belongs to it. It is empty.
	Bind(of state.Of, copy *state.Disk, sources state.Sources, slack int64)
	// Origins returns what is stored of the sources.
	Origins() string
	// Open returns the number of values, and Bytes their size in the changelog, without those
	// of the open transaction.
	Open() int
	Bytes() int64
}

// Partition is a partition whose records a session decides.
type Partition struct {
	*Env
	ID   cluster.Partition
	Keys *keystate.State
	// Store is the state of an operator, or nil. Clock has its watermark.
	Store Store
	Clock *watermarks.Clock
	// Waits are the records that wait for rows. RowsRead says that the tables were read to
	// their end since the records that are being decided were read.
	Waits    pending.Queue
	RowsRead bool

	first Operator // of the chain
}

// Chain has the operators of a partition.
type Chain struct {
	Partition
	emitter  Emitter  // nil without one
	preparer Preparer // nil without one
}

// Begin makes the operators of a partition whose state is up to date.
func (c *Chain) Begin(e *Env) {
	c.Env, c.first, c.emitter, c.preparer = e, nil, nil, nil
	for i := len(e.Kinds) - 1; i >= 0; i-- {
		c.first = e.Kinds[i].New(&c.Partition, c.first)
		if of, ok := c.first.(Emitter); ok {
			c.emitter = of
		}
		if of, ok := c.first.(Preparer); ok {
			c.preparer = of
		}
	}
}

// Prepare reads ahead for records, and for the same ones as the chain has them.
func (c *Chain) Prepare(records []*kgo.Record, batch []Record) {
	if c.preparer != nil {
		c.preparer.Prepare(records, batch)
	}
}

// Process decides a record, and returns what became of it.
func (c *Chain) Process(ctx context.Context, r *Record) (Outcome, error) {
	return c.first.Process(ctx, r)
}

// Due reports whether results must be written now; with early, also those that may change later.
func (c *Chain) Due(early bool) bool { return c.emitter != nil && c.emitter.Due(early) }

// Emit writes at most a number of results that are due, and returns how many.
func (c *Chain) Emit(ctx context.Context, most int) (n int, err error) {
	if c.emitter == nil {
		return 0, nil
	}
	return c.emitter.Emit(ctx, most)
}

// Preview writes at most a number of results that may change later, and returns how many.
func (c *Chain) Preview(ctx context.Context, most int) (n int, err error) {
	if c.emitter == nil {
		return 0, nil
	}
	return c.emitter.Preview(ctx, most)
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
	// Record is the record as it was read, or the original if a copy was read. Operators may
	// change its value and its headers, and the last one may make it an output.
	*kgo.Record
	// Body is the value that was read.
	Body []byte
	// At is the offset that was read, which is another one than that of an original.
	At int64
	// Key says whether the record has a key, and Digest is that of the key.
	Key    KeyState
	Digest semel.Digest
	// Now is the time of the clock, and When the time by which the record counts, if records
	// count by a time. Both are in milliseconds.
	Now, When int64
	// Resumed says that the record has waited for its row.
	Resumed bool
	// Group is the group key, if it is known.
	Group []byte
	// Err is why a table has no row for the record, after a number of attempts.
	Err      error
	Attempts int
}

// KeyState is whether a record has a key.
type KeyState uint8

const (
	KeyKnown KeyState = iota
	KeyMissing
	KeyPass // without a key, and delivered without being remembered
)
