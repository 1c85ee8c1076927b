package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/filter"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/tiered"
	"github.com/semel-dev/semel/stream"
)

// Kinds are the kinds of sources, sinks and stores that a configuration can name,
// in the order of messages and listings. Each function returns a new, empty value
// of its kind.
type Kinds struct {
	Sources []func() Source
	Sinks   []func() Sink
	Stores  []func() StoreKind
	// Directory returns the store in a directory that no configuration describes. Memory
	// returns one that lasts as long as the process.
	Directory func(dir string) StoreKind
	Memory    func() StoreKind
	// Missing says how to get the other kinds, if there are any. It follows the errors
	// of an invalid configuration.
	Missing string
	// Expressions compiles the filter and the map of a pipeline. Either may be empty.
	// tables find the rows of its tables. It is nil in a build without expressions.
	Expressions func(filter, mapping string, tables map[string]func(*semel.Message) ([]byte, error)) (pipeline.FilterMap, error)
}

// Kind is the part that all kinds have. A value of a kind is a pointer to a
// struct, which is filled when a file is read.
type Kind interface {
	// Kind returns the name of the kind in a configuration.
	Kind() string
	// Fields declares the fields of the kind, bound to this value.
	Fields() schema.Mapping
	// Examine checks the servers and directories that the configuration names, and
	// reports findings. It changes nothing. It blocks until the servers have
	// answered or ctx ends. `semel doctor` calls it.
	Examine(ctx context.Context, x *Examination)
	// Advise says what an error of the kind's servers means and what to do. path is the
	// kind's place in the configuration, as in stores.db.postgres or sink.kafka. p is nil
	// for a store. Advise returns nil if it does not know the error, or if the network
	// explains it.
	Advise(f *File, p *Pipeline, path string, err error) *diagnose.Error
}

// Source is a kind of source. Implementations embed [SourceBase] and override the
// methods that they need.
type Source interface {
	Kind
	// About describes the source of a pipeline, for `semel explain` and for rules
	// that apply to all kinds.
	About(p *Pipeline) SourceAbout
	// Check reports conflicts between the source and the rest of the file.
	Check(c *Checker, p *Pipeline)
	// Lint reports findings that weaken the promise of the linter's pipeline.
	Lint(l *Linter)
	// Open opens the source. It blocks until its server has answered.
	Open(ctx context.Context, env *Env) (pipeline.Source, error)
	// Sample hands the messages in the source of a pipeline to fn, from the beginning. It ends
	// when fn returns false, no messages are left, or ctx ends, which is not an
	// error. It acknowledges nothing, moves no position and joins no consumer
	// group.
	Sample(ctx context.Context, p *Pipeline, fn func(*semel.Message) bool) error
	// Trace reports the messages of a key that the server keeps to t, and where it looked.
	// It also reports the records of its
	// keys, if the source has them. It takes no message and changes nothing. It blocks until it has looked, or ctx ends.
	// If its server cannot be searched, the error is ErrUnsearched. `semel why` calls it.
	Trace(ctx context.Context, p *Pipeline, t *Tracing) error
}

// Sink is a kind of sink. Implementations embed [SinkBase] and override the
// methods that they need.
type Sink interface {
	Kind
	// About describes the sink, for `semel explain` and for rules that apply to all
	// kinds.
	About() SinkAbout
	// Check reports conflicts between the sink and the rest of the file.
	Check(c *Checker, p *Pipeline)
	// Lint reports findings that weaken the promise of the linter's pipeline.
	Lint(l *Linter)
	// Open opens the sink. It blocks until its server has answered.
	Open(ctx context.Context, env *Env) (pipeline.Sink, error)
	// Trace reports the messages of a key that the server keeps to t, and where it looked.
	// It takes no message and changes nothing. It blocks until it has looked, or ctx ends.
	// If its server cannot be searched, the error is ErrUnsearched. `semel why` calls it.
	Trace(ctx context.Context, p *Pipeline, t *Tracing) error
}

// StoreKind is a kind of store. Implementations embed [StoreBase] and override the
// methods that they need.
type StoreKind interface {
	Kind
	// About describes the store, for `semel explain` and for rules that apply to
	// all kinds.
	About() StoreAbout
	// Check reports conflicts between store s, which is this one, and other stores.
	Check(c *Checker, s *Store)
	// Lint reports findings that weaken a promise. It is called once for store s
	// itself, without a pipeline, and once for each pipeline that uses s or a store
	// built on s.
	Lint(l *Linter, s *Store)
	// CheckAddress detects a wrong address without connecting: an invalid port, or a
	// certificate file that cannot be read. field is the field within the kind. It reads the
	// files that the configuration names only if files is true.
	CheckAddress(files bool) (field string, err error)
	// Open opens the store. It blocks until its server has answered.
	Open(ctx context.Context, env *StoreEnv) (semel.Store, error)
}

// SourceAbout describes a source. Its texts are parts of sentences that `semel
// explain` composes. They start in lower case and have no full stop.
type SourceAbout struct {
	// Name describes the source in a few words, as in "file in/*.jsonl".
	Name string
	// Lines means that each message is a line of a file. The order of the file is
	// kept if messages become lines again.
	Lines bool
	// Shared means that several processes can take messages from it.
	Shared bool
	// Again says how a message is delivered again after a crash, as in "the line is
	// read again from the last position that was kept".
	Again string
	// AfterAck describes the effect of a crash after the acknowledgement.
	AfterAck AfterAck
	// Behind says what is blocked while a message waits, as in "no offset behind it
	// is committed". It is empty if the source can take messages back. TakesBack
	// then says how, with one %s for the time.
	Behind, TakesBack string
	// Outbox is the store whose database has the messages, if the source is an outbox.
	// A message stays there until it was delivered, under an id that never changes, so
	// a pipeline needs no store of keys.
	Outbox schema.Reference
	// Repartition is the topic between the two stages of a transaction, if it has
	// two.
	Repartition string
	// NoPositions says why its messages have no positions, as in "a queue of RabbitMQ
	// has no positions". A key can then not be made of one. It is empty if they have.
	NoPositions string
	// Drops describes a server that drops a message whose id was stored lately, and reports
	// success.
	Drops Drops
	// Never says why a rule for a header, the record key or the message id finds nothing in
	// any message of the source. An example is "a line of a file has no headers". It returns
	// "" if the rule may find something. Nil means that every such rule may.
	Never func(*key.Rule) string
	// Key is the key rule of a pipeline that has none, because the source knows the sender of
	// its messages. It is nil if the pipeline must have one.
	Key *key.Rule
	// Varies says that attempts of one message differ in content, although Key finds one id.
	Varies bool
	// CaselessHeaders is that of its messages: see semel.Message.
	CaselessHeaders bool
	// Exceptions are limits of the promise that no setting removes.
	Exceptions []string
}

// AfterAck describes the effect of a crash after the acknowledgement: which step
// is uncertain, which messages are delivered again, and which decision they get.
type AfterAck struct{ Unsure, Again, Gets string }

// SinkAbout describes a sink. Texts are as in [SourceAbout].
type SinkAbout struct {
	// Name describes the sink in a few words, as in "webhook POST https://host/".
	Name string
	// Lines means that each message becomes a line, in delivery order.
	Lines bool
	// Stdout means that the sink writes standard output. Nothing else may write
	// there.
	Stdout bool
	// Place is a target that two pipelines must not both write. PlaceName is its
	// name in messages, as in "file".
	Place, PlaceName string
	// Store is the store whose database the sink writes to, if it names one.
	Store schema.Reference
	// Route is how messages name their targets, or nil if they do not.
	Route *pipeline.Route
	// Address describes where a message is written, as in "exchange orders, routing key
	// paid". It returns "" if the message names no target that is allowed. It is nil if
	// only the server knows.
	Address func(m *semel.Message) string
	// Handed says where a target finds the key, the attempt and the token of a repetition, as in
	// "which a statement gets as key, attempt and token". It may be empty.
	Handed string
	// Drops describes how its server drops what the pipeline delivers again.
	Drops Drops
	// Answer is the maximum time that one delivery waits for the target's answer. 0
	// means that an outcome never stays unknown for long.
	Answer time.Duration
	// Exceptions are limits of the promise that no setting removes.
	Exceptions []string
}

// Drops describes a server that drops a message whose id it stored lately, and
// answers as if it had stored it. The zero value is a server that does not.
type Drops struct {
	// Server is its name in messages.
	Server string
	// For is how long it does so after it stored a message. Setting may change that;
	// it is empty if nothing does.
	For     time.Duration
	Setting string
}

// StoreAbout describes a store. Texts are as in [SourceAbout].
type StoreAbout struct {
	// Layers are the stores that it is built on, from the top. The last one
	// decides.
	Layers []schema.Reference
	// Upper means that it may be placed above another layer. NotLast says why it
	// cannot be the last layer, as in "memory forgets everything at its end: put a
	// store that lasts behind it". NotLast is empty if it can be the last one.
	Upper   bool
	NotLast string
	// Filter is set if the store keeps no records and drops new messages at some
	// rate.
	Filter *FilterAbout
	// NoRecords says why another process cannot read its records. It is empty if
	// one can.
	NoRecords string
	// Shared means that several processes can use it.
	Shared bool
	// Directory is the directory of an embedded store. Exists reports whether it has a store
	// already; it is nil without a directory.
	Directory string
	Exists    func() (bool, error)
	// Place is a location that two stores must not share. PlaceName is its name in
	// messages, as in "server and prefix".
	Place, PlaceName string
	// Address is the address of its server, without passwords. Server is the store
	// whose server it uses, if that is another store.
	Address string
	Server  schema.Reference
	// Timeout is the timeout that the configuration sets for a call of its server.
	// 0 means that it sets none.
	Timeout time.Duration
	// Origins means that pipelines tell it where each message comes from.
	Origins bool
	// Unsettled means that no operator can settle its keys by hand.
	Unsettled bool
	// ClaimsEnd means that claims end with the process.
	ClaimsEnd bool
	// BestEffort means that keys may be lost in ways that no setting prevents.
	BestEffort bool
	// Gaps are ways in which an effect can repeat. Exceptions are limits that no
	// setting removes.
	Gaps, Exceptions []string
}

// FilterAbout describes the share of new messages that a filter drops.
type FilterAbout struct {
	Rate   float64
	Expect int64
}

// Env is the environment in which a kind opens a source, a sink or a session.
type Env struct {
	File     *File
	Pipeline *Pipeline
	// Keys is the store of the keys. It is nil if a filter or Kafka decides.
	Keys semel.Store
	// Observer receives the events of the pipeline. It may be nil.
	Observer pipeline.Observer
	// Stdout is standard output, or nil if none exists.
	Stdout io.Writer
	// Redrive means that the pipeline only redrives; its source is not read.
	Redrive bool
}

// Guard returns the policy for the pipeline's claims.
func (e *Env) Guard() semel.GuardOptions {
	if e.Observer == nil {
		return e.Pipeline.Guard(nil) // not e.Observer: a nil pipeline.Observer becomes a non-nil semel.Observer
	}
	return e.Pipeline.Guard(e.Observer)
}

// Options returns the options of the pipeline.
func (e *Env) Options() *pipeline.Options { return e.File.Options(e.Pipeline, e.Observer) }

// StoreEnv is the environment in which a kind of store opens.
type StoreEnv struct {
	File *File
	// Name is the name of the store.
	Name string
	// Store opens another store of the file, on which this one is built.
	Store func(ctx context.Context, name string) (semel.Store, error)
	// OnClose registers a function that closes a resource opened by the store.
	OnClose func(closing func() error)
	// OnLayer is called when a layer fails and when it recovers. It may be nil.
	OnLayer func(event tiered.Event)
	// KeepIDs makes the store keep readable ids, and KeepClaims makes claims outlive the
	// process, if the store would do neither by itself.
	KeepIDs, KeepClaims bool
	// ReadOnly means that no caller will change the store. A kind of another module need then not
	// make its files; the error wraps ErrNoStore if there is nothing to read.
	ReadOnly bool
}

// Runnable is a pipeline that can run.
type Runnable interface {
	// Run moves messages until the source ends or ctx ends, and then drains. See
	// pipeline.Runner.
	Run(ctx context.Context) error
	// Ready returns nil if the pipeline can work, and otherwise the reason why not.
	Ready(ctx context.Context) error
	// Lag and Gauges return the backlog and the gauges of the source; see
	// pipeline.SourceTraits. If the source has none, the error wraps errors.ErrUnsupported.
	Lag(ctx context.Context) ([]pipeline.Lag, error)
	Gauges(ctx context.Context) ([]pipeline.Gauge, error)
}

// The interfaces below are optional: only some kinds have what they need. The first two
// serve the commit modes that need two kinds; see [File.Mode].

// SessionSink is a sink whose effects become durable together with the keys in
// one kind of store.
type SessionSink interface {
	Sink
	// OpenSession opens the session that commits both, with the FilterMap of the
	// pipeline. It returns its own source if positions are committed too, and otherwise
	// nil.
	OpenSession(ctx context.Context, env *Env) (pipeline.Session, pipeline.Source, error)
}

// TransactionalSource is a source that can commit outputs, keys and positions in
// one transaction with a sink, without a store.
type TransactionalSource interface {
	Source
	// Joins returns "" if source and sink can commit together, and otherwise the
	// reason why they cannot.
	Joins(sink Sink) (why string)
	// Changelogs names the topics that hold the keys.
	Changelogs(p *Pipeline) []string
	// States names the topics that hold the state of an operator: the open windows of an
	// aggregate, or the held records or versions of a keep rule.
	States(p *Pipeline) []string
	// CheckTable reports why the pipeline cannot have a table.
	CheckTable(p *Pipeline, t *stream.Table, v schema.Value)
	// ParkedTopic is the default topic for parked messages.
	ParkedTopic() string
	// OpenTransaction opens the pipeline, with its FilterMap.
	OpenTransaction(env *Env) (Runnable, error)
	// Records returns the record of each key in the partition of its origin, whether or not
	// a process runs the pipeline. It writes nothing. If the pipeline has never run, no
	// record is known.
	Records(ctx context.Context, f *File, p *Pipeline, keys []OriginKey) ([]semel.Record, error)
	// Try returns a trial of the pipeline from a time on. Its input has a number of
	// partitions. It connects to no server.
	Try(f *File, p *Pipeline, now time.Time, partitions int32) (Trial, error)
	// ReadRows passes the records of the pipeline's tables to fn, up to the ends that their
	// topics have at the call, or until ctx ends. It joins no group.
	ReadRows(ctx context.Context, f *File, p *Pipeline, fn func(*semel.Message)) error
}

// OriginKey is the key of a message that came from a partition of a source.
type OriginKey struct {
	semel.Key
	Source    string
	Partition int32
}

// Trial decides example messages as a transaction does, without a server. One goroutine
// uses it at a time.
type Trial interface {
	// Send decides a message at a time.
	Send(ctx context.Context, now time.Time, m *semel.Message) (TrialOutcome, error)
	// Pass lets time pass, and returns the values of what takes effect until then.
	Pass(ctx context.Context, now time.Time) (results [][]byte, err error)
}

// TrialOutcome is what became of a message of a Trial.
type TrialOutcome struct {
	// Key is that of the message. It is zero if the message has none.
	Key semel.Key
	// Decision is Fresh, Duplicate, Late or Superseded.
	Decision semel.Decision
	// Held says that the message takes effect later, unless another one replaces it.
	// Filtered says that the filter left it out.
	Held, Filtered bool
	// Reason is why the message is parked, or else dropped or a reason to stop. It is
	// empty for other messages. Err has the details.
	Reason pipeline.Reason
	Err    error
	// Body is that of the message behind the map.
	Body []byte
}

// Topics is a source or sink whose server keeps messages in topics. Messages can
// be parked in a topic as well.
type Topics interface {
	// OpenParker opens the topic in which a pipeline parks messages.
	OpenParker(ctx context.Context, p *Pipeline) (ClosingParker, error)
	// OpenParked opens that topic for commands that inspect and settle parked
	// messages. It does not create the topic. The error wraps ErrNoTopic if the
	// topic is missing.
	OpenParked(ctx context.Context, f *File, p *Pipeline) (pipeline.DeadLetters, error)
}

// ClosingParker is a pipeline.Parker that must be closed.
type ClosingParker interface {
	pipeline.Parker
	Close() error
}

// ErrNoTopic means that a topic does not exist.
var ErrNoTopic = errors.New("there is no such topic")

// Database is a store with tables, which can hold parked messages as well.
type Database interface {
	StoreKind
	OpenDeadLetters(ctx context.Context) (pipeline.DeadLetterStore, error)
	// Clean returns a function that deletes expired keys of the open store until its
	// context ends. It reports each pass. Clean returns nil if the database deletes them
	// itself.
	Clean(store semel.Store) func(ctx context.Context, pass func(gone int64, err error)) error
	// Tables returns the tables of the store, whose server may not answer for longer than
	// patience.
	Tables(f *File, patience time.Duration) Tables
}

// Tables are the tables that a store needs, and the steps that create and change them. Its
// methods block until the server has answered.
type Tables interface {
	// Migrate applies the missing steps and returns them. It can be killed and run again.
	Migrate(ctx context.Context) (applied []Migration, err error)
	// Status returns every step with the time when it was applied.
	Status(ctx context.Context) ([]Migration, error)
	// SQL returns all steps as a script. It does not connect.
	SQL() (string, error)
}

// Migration is one of these steps.
type Migration struct {
	// Version is the number of the step, or 0 if it only adds columns that options ask for.
	Version int
	// Name describes the step.
	Name string
	// Applied is when the step was applied, by the server's clock, or zero.
	Applied time.Time
	// Newer: a newer version of the program applied the step, and this one does not know it.
	Newer bool
	// Missing are the quoted names of objects that the step has created and that do not exist.
	Missing []string
}

// NewerTables says which steps of a newer version of the program have changed tables, or
// returns "".
func NewerTables(steps []Migration) string {
	var names []string
	for _, step := range steps {
		if step.Newer {
			names = append(names, fmt.Sprintf("%d (%s)", step.Version, step.Name))
		}
	}
	if names == nil {
		return ""
	}
	return "a newer version of semel changed the tables, by step " + strings.Join(names, ", ")
}

// FilterStore is a store that decides by a filter alone.
type FilterStore interface {
	StoreKind
	OpenFilter(ctx context.Context, env *StoreEnv) (filter.KeyFilter, error)
}

// UpgradeProgram is the remedy for a program that is older than the tables of a store.
const UpgradeProgram = "install the same version of semel here"

// ErrNoSample is returned by a source to which messages are pushed. There is
// nothing to read beforehand. Its text continues one that names the source.
var ErrNoSample = fmt.Errorf("receives messages and cannot be read in advance: %w", semel.ErrInvalidRequest)

// ErrNoStore is wrapped by the error of a store that was opened to be read, and is not there.
var ErrNoStore = errors.New("there is no store yet")

// ErrUnsearched is returned by a source or sink whose server cannot be searched.
var ErrUnsearched = errors.New("it cannot be searched")

// unable has the methods of a kind that knows no errors of servers and cannot be searched.
// They are a level below the methods of the bases, so that a kind gets the methods of another
// embedded type, such as a client of its server, instead.
type unable struct{}

// Advise implements Kind. It knows no error.
func (unable) Advise(*File, *Pipeline, string, error) *diagnose.Error { return nil }

// Trace implements Source and Sink. It returns ErrUnsearched.
func (unable) Trace(context.Context, *Pipeline, *Tracing) error { return ErrUnsearched }

// SourceBase has default methods. Kinds of sources embed it.
type SourceBase struct{ unable }

// Check implements Source.
func (SourceBase) Check(*Checker, *Pipeline) {}

// Lint implements Source.
func (SourceBase) Lint(*Linter) {}

// Examine implements Kind.
func (SourceBase) Examine(context.Context, *Examination) {}

// Sample implements Source. It returns ErrNoSample.
func (SourceBase) Sample(context.Context, *Pipeline, func(*semel.Message) bool) error {
	return ErrNoSample
}

// SinkBase has default methods. Kinds of sinks embed it.
type SinkBase struct{ unable }

// Check implements Sink.
func (SinkBase) Check(*Checker, *Pipeline) {}

// Lint implements Sink.
func (SinkBase) Lint(*Linter) {}

// Examine implements Kind.
func (SinkBase) Examine(context.Context, *Examination) {}

// AsSource returns what opened a source, but nil after an error: a nil pointer of S in
// the interface would not be nil.
func AsSource[S pipeline.Source](s S, err error) (pipeline.Source, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// AsSink does for a sink what AsSource does for a source.
func AsSink[S pipeline.Sink](s S, err error) (pipeline.Sink, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// StoreBase has default methods. Kinds of stores embed it.
type StoreBase struct{ unable }

// Check implements StoreKind.
func (StoreBase) Check(*Checker, *Store) {}

// Lint implements StoreKind.
func (StoreBase) Lint(*Linter, *Store) {}

// Examine implements Kind.
func (StoreBase) Examine(context.Context, *Examination) {}

// CheckAddress implements StoreKind. It finds nothing.
func (StoreBase) CheckAddress(bool) (field string, err error) { return "", nil }

// ReadAgain describes a crash after the acknowledgement for a source that is read
// again from a position.
func ReadAgain() AfterAck {
	return AfterAck{Unsure: "the position may not be durable yet", Again: "what is read again", Gets: "is acknowledged without effect"}
}
