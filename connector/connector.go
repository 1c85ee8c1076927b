// Package connector has what a program of your own needs to add kinds of sources, sinks and stores
// that a configuration can name, in addition to the standard ones. Package
// [github.com/semel-dev/semel/program] runs them.
//
// A kind is a pointer to a struct. A new, empty value is made for each place of a configuration
// that names the kind, and is filled when the file is read. Everything that people see of it
// follows from its methods: errors of the file, the JSON Schema, lint, explain, doctor and dry-run.
//
// A kind may have more methods than it must: see [Checker], [Linter], [Examiner], [Advisor] and
// [Sampler].
package connector

import (
	"context"
	"io"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
)

// Kinds are kinds that a configuration can name. Each function returns a new, empty value of its
// kind. No two kinds of sources, of sinks or of stores have one name, and the standard ones are taken.
type Kinds struct {
	Sources []func() Source
	Sinks   []func() Sink
	Stores  []func() Store
}

// Kind is what all kinds have.
type Kind interface {
	// Kind returns the word for the kind in a configuration, as in source: { WORD: { … } }. It
	// has letters, digits, - and _.
	Kind() string
	// Fields describes the kind in a sentence, and declares its fields, bound to this value.
	Fields() (doc string, fields []Field)
}

// Source is a kind of source.
type Source interface {
	Kind
	// About describes the source, for semel explain. The value is filled.
	About() SourceAbout
	// Open opens the source. It blocks until its server has answered or ctx ends.
	Open(ctx context.Context, env *Env) (pipeline.Source, error)
}

// Sink is a kind of sink.
type Sink interface {
	Kind
	// About describes the sink, for semel explain. The value is filled.
	About() SinkAbout
	// Open opens the sink. It blocks until its server has answered or ctx ends.
	Open(ctx context.Context, env *Env) (pipeline.Sink, error)
}

// Store is a kind of store of keys.
type Store interface {
	Kind
	// About describes the store, for semel explain. The value is filled.
	About() StoreAbout
	// Open opens the store. It blocks until its server has answered or ctx ends. A store that is
	// an io.Closer is closed at the end.
	//
	// Keys of a store that is a semel.Resolver and a semel.Inspector can be settled by hand; see
	// StoreAbout.Settles. The audit log of that is the file semel-audit-NAME.jsonl next to the
	// configuration, unless the store has a method
	// Audit(ctx context.Context, line []byte) error. Audit returns when the line is as durable as
	// a key.
	Open(ctx context.Context, env *Env) (semel.Store, error)
}

// Env is the environment in which a kind is opened.
type Env struct {
	// Name is the name of the pipeline or of the store in the configuration.
	Name string
	// Stdout is standard output, for a sink that declares it. It may be nil.
	Stdout io.Writer
	// ReadOnly means that nothing will change the store: a verb such as semel dry-run asks it with
	// semel.Inspector. Open then makes no file. If there is no store yet, its error wraps
	// fs.ErrNotExist.
	ReadOnly bool
}

// SourceAbout describes a source. Its texts are parts of sentences: they start in lower case and
// have no full stop.
type SourceAbout struct {
	// Name describes the source in a few words, as in "stream orders of Redis".
	Name string
	// Shared means that several processes can take messages from it.
	Shared bool
	// Again says how a message is delivered again after a crash, as in "the server delivers the
	// entry again after its idle time".
	Again string
	// Unacknowledged says what a crash after the acknowledgement may lose, as in "the
	// acknowledgement may not be durable yet". Empty: "the position may not be durable yet".
	Unacknowledged string
	// Behind says what is blocked while a message waits, as in "no entry behind it is
	// acknowledged". It is empty if the source can take messages back. TakesBack then says how,
	// with one %s for the time until the message comes again.
	Behind, TakesBack string
	// NoPositions says why its messages have no positions, as in "a queue has no positions". A key
	// can then not be made of one. It is empty if they have.
	NoPositions string
	// Exceptions are limits of the promise that no setting removes.
	Exceptions []string
}

// SinkAbout describes a sink. Its texts are as those of [SourceAbout].
type SinkAbout struct {
	// Name describes the sink in a few words, as in "stream paid of Redis".
	Name string
	// Place is a target that two pipelines must not both write. PlaceName is its name in
	// messages, as in "file". Both may be empty.
	Place, PlaceName string
	// Stdout means that the sink writes to standard output. Nothing else may write there.
	Stdout bool
	// Handed says where a target finds the key, the attempt and the token of a repetition, as in
	// "which an entry has in its fields semel-key, semel-attempt and semel-token". It may be empty.
	Handed string
	// Answer is the longest time that one delivery waits for the target's answer. 0 means that
	// an outcome never stays unknown for long.
	Answer time.Duration
	// Exceptions are limits of the promise that no setting removes.
	Exceptions []string
}

// StoreAbout describes a store. Its texts are as those of [SourceAbout].
type StoreAbout struct {
	// Shared means that several processes can use it.
	Shared bool
	// Place is a location that two stores must not share. PlaceName is its name in messages, as in
	// "directory". Both may be empty.
	Place, PlaceName string
	// Address is the address of its server, without passwords. It may be empty.
	Address string
	// Settles means that the open store is a semel.Resolver and a semel.Inspector, so that an
	// operator can settle its keys.
	Settles bool
	// ClaimsEnd means that claims end with the process, and BestEffort that keys may be lost in
	// ways that no setting prevents.
	ClaimsEnd, BestEffort bool
	// Gaps are ways in which an effect can repeat. Exceptions are limits that no setting removes.
	Gaps, Exceptions []string
}

// Finding is a result of Lint or Examine.
type Finding struct {
	Severity doctor.Severity
	// Loss says that a message may have no effect, and Repeat that an effect may happen twice.
	// Only Lint sets them.
	Loss, Repeat bool
	// Field is the name of a field of the kind, or "" for the kind itself.
	Field string
	// Found says what is there, without a secret, Cost how the promise suffers, and Remedy what to
	// do. Only Found is set if the severity is doctor.Fine.
	Found, Cost, Remedy string
}

// The interfaces below are optional.

// Checker is a kind that finds contradictions between its fields. Check is called when the file is
// read. The file is invalid if it returns an error, whose text says what to do.
type Checker interface{ Check() error }

// Linter is a kind that finds settings that weaken the promise. Lint connects to nothing.
type Linter interface{ Lint() []Finding }

// Examiner is a kind that looks at its servers and directories, for semel doctor. Examine changes
// nothing, and blocks until they have answered or ctx ends. The error says what could not be looked
// at.
type Examiner interface {
	Examine(ctx context.Context) ([]Finding, error)
}

// Advisor is a kind that knows what errors of its servers mean. Advise returns the cause without a
// part of a message, and what to do; "" if it does not know the error. It may be called
// concurrently.
type Advisor interface {
	Advise(err error) (cause, remedy string)
}

// Sampler is a kind of source that can be read without taking a message, for semel dry-run. Sample
// passes messages from the beginning to fn until that returns false, none is left, or ctx ends,
// which is no error. Each message has the Origin that the opened source gives it.
type Sampler interface {
	Sample(ctx context.Context, fn func(*semel.Message) bool) error
}
