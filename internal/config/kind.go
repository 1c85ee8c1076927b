package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/tiered"
)

// Kinds are the kinds of sources, sinks and stores that a configuration can name,
// in the order in which people are told of them. Each function returns a new,
// empty value of its kind.
type Kinds struct {
	Sources []func() Source
	Sinks   []func() Sink
	Stores  []func() Spec
}

// Kind is what all kinds have. A value of a kind is a pointer to a struct that
// reading a file fills in.
type Kind interface {
	// Kind is the name of the kind in a configuration.
	Kind() string
	// Fields declares the fields of the kind, bound to this value.
	Fields() schema.Mapping
	// Examine looks at what the configuration names, such as a server or a
	// directory, and reports what it finds. It changes nothing. It blocks until
	// servers have answered or ctx ends. `semel doctor` calls it.
	Examine(ctx context.Context, x *Examination)
}

// Source is where messages come from. A kind of source embeds [SourceBase] and
// overrides what it has to say.
type Source interface {
	Kind
	// About describes the source of a pipeline for `semel explain` and for rules
	// that hold for all kinds.
	About(p *Pipeline) SourceAbout
	// Check reports what is wrong between the source and the rest of the file.
	Check(c *Checker, p *Pipeline)
	// Lint reports what weakens the promise of the linter's pipeline.
	Lint(l *Linter)
	// Open opens the source. It blocks until its server has answered.
	Open(ctx context.Context, env *Env) (pipeline.Source, error)
	// Sample hands what the source holds to fn, from the beginning, until fn
	// returns false, nothing more is there, or ctx ends, which is no error. It
	// acknowledges nothing, moves no position and joins no group.
	Sample(ctx context.Context, fn func(*semel.Message) bool) error
}

// Sink is where messages go to. A kind of sink embeds [SinkBase] and overrides
// what it has to say.
type Sink interface {
	Kind
	// About describes the sink for `semel explain` and for rules that hold for
	// all kinds.
	About() SinkAbout
	// Check reports what is wrong between the sink and the rest of the file.
	Check(c *Checker, p *Pipeline)
	// Lint reports what weakens the promise of the linter's pipeline.
	Lint(l *Linter)
	// Open opens the sink. It blocks until its server has answered.
	Open(ctx context.Context, env *Env) (pipeline.Sink, error)
}

// Spec is what a store is. A kind of store embeds [StoreBase] and overrides what
// it has to say.
type Spec interface {
	Kind
	// About describes the store for `semel explain` and for rules that hold for
	// all kinds.
	About() StoreAbout
	// Check reports what is wrong between store s, which is this one, and others.
	Check(c *Checker, s *Store)
	// Lint reports what weakens a promise: once for store s itself, with no
	// pipeline, and once for each pipeline that uses s or what stands on it.
	Lint(l *Linter, s *Store)
	// Open opens the store. It blocks until its server has answered.
	Open(ctx context.Context, env *StoreEnv) (semel.Store, error)
}

// SourceAbout describes a source. Texts are parts of sentences that `semel
// explain` composes: they begin in lower case and have no full stop.
type SourceAbout struct {
	// Name is the source in a few words, as in "file in/*.jsonl".
	Name string
	// Lines says that a message is a line of a file, so that the order of the file
	// is kept where messages become lines again.
	Lines bool
	// Shared says that several processes can take messages from it.
	Shared bool
	// Again says how a message is delivered again after a crash, as in "the line
	// is read again from the last position that was kept".
	Again string
	// AfterAck says what a crash after the acknowledgement leaves open.
	AfterAck AfterAck
	// Behind says what cannot move on while a message waits, as in "no offset
	// behind it is committed". It is empty if the source takes messages back;
	// TakesBack then says how, with one %s for the time.
	Behind, TakesBack string
	// Repartition is the topic between two stages of a transaction, if there are
	// two.
	Repartition string
	// Exceptions are what no setting changes.
	Exceptions []string
}

// AfterAck says what a crash after the acknowledgement leaves open: what is
// unsure, what comes again, and what that gets.
type AfterAck struct{ Unsure, Again, Gets string }

// SinkAbout describes a sink. Texts are as in [SourceAbout].
type SinkAbout struct {
	// Name is the sink in a few words, as in "webhook POST https://host/".
	Name string
	// Lines says that a message becomes a line, in the order of delivery.
	Lines bool
	// Stdout says that the sink writes standard output, where nothing else may.
	Stdout bool
	// Place is what two pipelines must not both write, and what messages call
	// it, as in "file".
	Place, PlaceName string
	// Store is the store in whose database the sink writes, if it names one.
	Store schema.Reference
	// Handed says by what a target can refuse a repetition, as in ", which a
	// statement gets as key, attempt and token".
	Handed string
	// Answer bounds how long one delivery waits for the target's answer. 0 is a
	// sink whose outcome is never unknown for so long.
	Answer time.Duration
	// Exceptions are what no setting changes.
	Exceptions []string
}

// StoreAbout describes a store. Texts are as in [SourceAbout].
type StoreAbout struct {
	// Layers are the stores on which it stands, from the top; the last one
	// decides.
	Layers []schema.Reference
	// Upper says that it may stand above another layer. NotLast says why it
	// cannot be the last one, as in "memory forgets everything at its end: put a
	// store that lasts behind it"; it is empty if it can.
	Upper   bool
	NotLast string
	// Filter says that it keeps no records and drops new messages at a rate.
	Filter *FilterAbout
	// NoRecords says why another process cannot look into it; it is empty if one
	// can.
	NoRecords string
	// Shared says that several processes can use it.
	Shared bool
	// Directory is where an embedded store is.
	Directory string
	// Place is what two stores must not share, and what messages call it, as in
	// "server and prefix".
	Place, PlaceName string
	// Address says where its server is, without passwords. Server is the store
	// whose server it uses, if that is another one.
	Address string
	Server  schema.Reference
	// ClaimsEnd says that claims end with the process.
	ClaimsEnd bool
	// BestEffort says that keys may be forgotten in ways that no setting
	// excludes.
	BestEffort bool
	// Gaps are ways in which an effect can repeat, Exceptions what no setting
	// changes.
	Gaps, Exceptions []string
}

// FilterAbout is how many of the new messages a filter drops.
type FilterAbout struct {
	Rate   float64
	Expect int64
}

// Env is what a kind has at hand while it opens a source, a sink or a session.
type Env struct {
	File     *File
	Pipeline *Pipeline
	// Keys is the store of the keys, nil where a filter or Kafka decides.
	Keys semel.Store
	// Observer is told what the pipeline does. It may be nil.
	Observer pipeline.Observer
	// Stdout is standard output, nil if there is none.
	Stdout io.Writer
	// Redrive says that the pipeline only redrives: its source is not read.
	Redrive bool
}

// Guard returns the policy of the pipeline's claims.
func (e *Env) Guard() semel.GuardOptions {
	if e.Observer == nil {
		return e.Pipeline.Guard(nil) // not e.Observer: a nil pipeline.Observer in a semel.Observer is no nil
	}
	return e.Pipeline.Guard(e.Observer)
}

// Options returns the policy of the pipeline.
func (e *Env) Options() *pipeline.Options { return e.File.Options(e.Pipeline, e.Observer) }

// StoreEnv is what a kind of store has at hand while it opens.
type StoreEnv struct {
	File *File
	// Name is the name of the store.
	Name string
	// Store opens another store of the file, on which this one stands.
	Store func(ctx context.Context, name string) (semel.Store, error)
	// OnClose adds what closes something that is open from now on.
	OnClose func(closing func() error)
	// OnLayer is told when a layer fails and when it returns. It may be nil.
	OnLayer func(event tiered.Event)
}

// Runnable is a pipeline that can run.
type Runnable interface {
	// Run moves messages until the source has no more or ctx ends, and then
	// drains: see pipeline.Runner.
	Run(ctx context.Context) error
	// Ready returns nil, or what keeps the pipeline from its work.
	Ready(ctx context.Context) error
}

// The interfaces below are for the ways to commit in which two kinds take part;
// see [File.Mode].

// SessionSink is a sink whose effects and keys become durable together in one
// kind of store.
type SessionSink interface {
	Sink
	// OpenSession opens what commits both. It returns a source of its own where
	// positions are committed too, and otherwise none.
	OpenSession(ctx context.Context, env *Env) (pipeline.Session, pipeline.Source, error)
}

// TransactionalSource is a source that can commit outputs, keys and positions in
// one transaction with a sink, without a store.
type TransactionalSource interface {
	Source
	// Joins returns "" if source and sink can commit together, and otherwise why
	// they cannot.
	Joins(sink Sink) (why string)
	// Changelogs names what holds the keys.
	Changelogs(p *Pipeline) []string
	// ParkedTopic is where messages are parked if the file does not say.
	ParkedTopic() string
	// OpenTransaction opens the pipeline.
	OpenTransaction(env *Env) (Runnable, error)
}

// Topics is a source or sink whose server keeps messages in topics, where messages
// can be parked too.
type Topics interface {
	// OpenParker opens the topic in which a pipeline parks messages.
	OpenParker(ctx context.Context, p *Pipeline) (ClosingParker, error)
	// OpenParked opens that topic for people who look at what is parked and settle
	// it. It makes no topic. The error wraps ErrNoTopic if there is none.
	OpenParked(ctx context.Context, f *File, p *Pipeline) (pipeline.DeadLetters, error)
}

// ClosingParker is a pipeline.Parker that is closed.
type ClosingParker interface {
	pipeline.Parker
	Close() error
}

// ErrNoTopic says that a topic does not exist.
var ErrNoTopic = errors.New("there is no such topic")

// Database is a store in whose database messages can be parked.
type Database interface {
	Spec
	OpenDeadLetters(ctx context.Context) (pipeline.DeadLetterStore, error)
}

// AddressChecker is a store that can tell without connecting that its address is
// wrong: a port that is none, a file of certificates that cannot be read. field is
// the field within the store's kind. It reads the files that the configuration names
// only if files is true.
type AddressChecker interface {
	CheckAddress(files bool) (field string, err error)
}

// FilterSpec is a store that decides alone, by a filter.
type FilterSpec interface {
	Spec
	OpenFilter(ctx context.Context, env *StoreEnv) (semel.KeyFilter, error)
}

// Cleaner is a store whose expired keys go only where a process cleans up.
type Cleaner interface {
	Spec
	// Clean returns what cleans up the open store until its context ends, or nil
	// if that store forgets by itself. It reports each pass.
	Clean(store semel.Store) func(ctx context.Context, pass func(gone int64, err error)) error
}

// ErrNoSample is the answer of a source to which messages come by themselves: there
// is nothing to read beforehand.
var ErrNoSample = fmt.Errorf("messages come to the source by themselves: there is nothing to read beforehand: %w", semel.ErrInvalidRequest)

// SourceBase has nothing to say. Kinds of sources embed it.
type SourceBase struct{}

// Check implements Source.
func (SourceBase) Check(*Checker, *Pipeline) {}

// Lint implements Source.
func (SourceBase) Lint(*Linter) {}

// Examine implements Kind.
func (SourceBase) Examine(context.Context, *Examination) {}

// Sample implements Source: messages come to the source by themselves.
func (SourceBase) Sample(context.Context, func(*semel.Message) bool) error { return ErrNoSample }

// SinkBase has nothing to say. Kinds of sinks embed it.
type SinkBase struct{}

// Check implements Sink.
func (SinkBase) Check(*Checker, *Pipeline) {}

// Lint implements Sink.
func (SinkBase) Lint(*Linter) {}

// Examine implements Kind.
func (SinkBase) Examine(context.Context, *Examination) {}

// StoreBase has nothing to say. Kinds of stores embed it.
type StoreBase struct{}

// Check implements Spec.
func (StoreBase) Check(*Checker, *Store) {}

// Lint implements Spec.
func (StoreBase) Lint(*Linter, *Store) {}

// Examine implements Kind.
func (StoreBase) Examine(context.Context, *Examination) {}

// ReadAgain is what a crash after the acknowledgement leaves open where the source
// is read again from a position.
func ReadAgain() AfterAck {
	return AfterAck{Unsure: "the position may not be durable yet", Again: "what is read again", Gets: "is acknowledged without effect"}
}
