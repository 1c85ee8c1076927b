package operator

import (
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/watermarks"
	"github.com/semel-dev/semel/key"
)

// Kind is a kind of operator.
type Kind struct {
	// On reports whether a chain with these options has the operator.
	On func(o *Options) bool
	// State makes an empty state for a partition. It is nil for an operator without a state.
	// The states of all kinds are in one topic, so a chain has at most one of them.
	State func(o *Options) Store
	// Text says how the operator makes its state. A changelog of another text is refused. It is
	// there if State is.
	Text func(o *Options) string
	// Holds says for people what the state is, and Loss what follows if it is lost. They default
	// to entries, without which results lack messages.
	Holds, Loss string
	// Gauge is the name of the gauge of its values, or "" for none.
	Gauge string
	// Releases says that it writes its values as records, by the operators behind it.
	Releases bool
	// Slow says what helps if it takes too long. It calls functions of the user then, which may take
	// any time.
	Slow string
	// Times changes by which times records count. Defaults to none: those of Options stay.
	Times func(o *Options, t *Times)
	// By returns the rule of the group key whose records must be in one partition. Defaults to
	// none: those of a key must be.
	By func(o *Options) *key.Rule
	// New makes the operator for a partition. next is the one behind it, or nil for the last.
	New func(p *Partition, next Operator) Operator
}

// Store is the state of an operator.
type Store interface {
	state.State
	watermarks.Marked
	// Bind says what the state is of, and what belongs to it. It is empty.
	Bind(of state.Of, copy *state.Disk, sources state.Sources, slack int64)
	// Open returns the number of values, and Bytes their size in the changelog, without those
	// of the open transaction.
	Open() int
	Bytes() int64
}

// Partition is a partition whose records a session decides.
type Partition struct {
	*Env
	ID   cluster.Partition
	Keys *keys.State
	// Store is the state of an operator, or nil. Clock moves its watermark.
	Store Store
	Clock watermarks.Clock
	// Waits are the records that wait for rows. RowsRead says that the tables were read to
	// their end since the records that are being decided were read.
	Waits    pending.Queue
	RowsRead bool

	first  Operator    // of the chain
	leaps  bool        // a record may release those of its key, see Foresee
	effect remembering // what passes records on that take effect
}
