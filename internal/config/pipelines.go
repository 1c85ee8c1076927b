package config

import (
	"net/netip"
	"time"

	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
)

// Pipeline is one member of "pipelines". Defaults are filled in; a number, size
// or duration that is 0 is left to whoever uses it, unless it says otherwise.
type Pipeline struct {
	Name string
	// At is where its name stands.
	At schema.Place
	// Source is *FileSource, *HTTPSource or *KafkaSource.
	Source Source
	// Sink is *FileSink, *StdoutSink, *WebhookSink, *PostgresSink or *KafkaSink.
	Sink Sink
	Key  Key
	// Window is how long a key is remembered, Lease how long a claim lasts
	// without being extended.
	Window, Lease time.Duration
	// OnLeaseExpired is retry or hold.
	OnLeaseExpired string
	// OnLate is run, park or drop.
	OnLate string
	// OnMismatch is park, drop or stop.
	OnMismatch string
	// Store is the store of the keys. It has no name if the keys live in Kafka:
	// see [File.Mode].
	Store     schema.Reference
	OnFailure Failure
	// OnStoreError is stop or pass.
	OnStoreError string
	// Observe decides and counts, and delivers whatever the decision is.
	Observe bool
	// Order is key or lane.
	Order string
	// Parallel is how many batches are under way at once.
	Parallel int
	// Batch bounds one batch, InFlight all that is under way.
	Batch, InFlight Limit
	// Wait is how long a message waits for a key that another holds.
	Wait time.Duration
	// Parked is where messages are put aside.
	Parked Parked
	// Lossy allows a store that drops new messages at a stated rate.
	Lossy bool
	// Transaction is how Kafka to Kafka commits.
	Transaction Transaction
}

// Key says what makes two deliveries the same.
type Key struct {
	// Rule finds the id. It may be one that is not stable, if Unstable.
	Rule *key.Rule
	// Scope is what the id is unique within. It defaults to the pipeline's name.
	Scope string
	// OnMissing is fail, park, pass, hash or drop.
	OnMissing string
	// Fingerprint notices one key used for two different bodies.
	Fingerprint bool
	// Unstable says that a rule which is not stable is meant.
	Unstable bool
}

// Failure is what follows a delivery that failed.
type Failure struct {
	// Attempts is how often a message is delivered before it is given up.
	Attempts int
	Backoff  Backoff
	// Then is park, drop or stop.
	Then string
}

// Backoff bounds the pause before the next attempt.
type Backoff struct{ From, To time.Duration }

// Limit bounds a number of messages and their bytes.
type Limit struct{ Max, Bytes int64 }

// Parked is where a pipeline puts messages aside. One member is set.
type Parked struct {
	// Path is a directory.
	Path string
	// Store is a store of the kind postgres, in whose database they are.
	Store schema.Reference
	// Topic is one of the Kafka that is source or sink.
	Topic string
}

// Transaction is how a pipeline from Kafka to Kafka commits outputs, keys and
// offsets together.
type Transaction struct {
	// Interval, MaxRecords and MaxBytes end a transaction, whichever is first.
	Interval             time.Duration
	MaxRecords, MaxBytes int64
	// ID is what transactional ids begin with. It defaults to the group.
	ID string
	// Changelog is the topic that holds the keys. It defaults to the group with
	// "-keys" behind it.
	Changelog string
	// State is the directory of the local copy of the keys.
	State string
	// Time is processing or event: by which time keys expire.
	Time string
	// Grace is how much older than the newest message one may be with
	// Time event.
	Grace time.Duration
	// Sessions is how many transactions are open at once in a process.
	Sessions int
	// Standby keeps the keys of all partitions in every process.
	Standby bool
}

// Source is the description of one kind of source.
type Source interface {
	// Kind is the name of the kind in a configuration.
	Kind() string
}

// FileSource reads lines of files.
type FileSource struct {
	// Paths are names of files, with *, ? and […] as in a shell.
	Paths []string
	// Follow goes on reading what is added.
	Follow bool
	// Format is jsonl, whose blank lines are no messages, or text.
	Format string
	// From is beginning or end: where a file that is met first is read from.
	From string
	// State is the directory in which positions are kept.
	State string
	// MaxLine is the longest line in bytes.
	MaxLine int64
}

// HTTPSource takes messages as requests and answers when their fate is durable.
type HTTPSource struct {
	Listen string
	Path   string
	// MaxBody is the longest body in bytes.
	MaxBody int64
	TLS     *ServerTLS
	// Token is what requests must show as a bearer token; none if it is zero.
	Token schema.Secret
	// Wait is how long a request waits for its message's fate.
	Wait time.Duration
}

// ServerTLS is how a server secures its connections.
type ServerTLS struct {
	Certificate, Key string
	// ClientCA has clients show a certificate of these authorities.
	ClientCA string
}

// KafkaClient is how Kafka is reached.
type KafkaClient struct {
	Brokers []string
	TLS     *TLS
	SASL    *SASL
}

// SASL is how a client proves to Kafka who it is.
type SASL struct {
	// Mechanism is plain, scram-sha-256 or scram-sha-512.
	Mechanism string
	Username  string
	Password  schema.Secret
}

// KafkaSource reads topics as a member of a group, always read_committed.
type KafkaSource struct {
	KafkaClient
	Topics []string
	Group  string
	// Instance is the name of the member. "" is one made from pipeline and host.
	Instance       string
	SessionTimeout time.Duration
	// Start is earliest or latest: where a group without offsets begins.
	Start string
	// Repartition has all copies of a key meet in one partition of a topic, before
	// they are decided. nil is none.
	Repartition *Repartition
	// Protocol is classic or consumer.
	Protocol string
	// MaxPoll is the most messages that one read returns.
	MaxPoll int64
	// Retention is how long the topics keep a record; it is not asked, only
	// compared. 0 is unknown.
	Retention time.Duration
}

// Repartition is a stage before the transaction.
type Repartition struct {
	// Topic is "" for the group with "-repartition" behind it: see
	// KafkaSource.RepartitionTopic.
	Topic string
	// Partitions is how many the topic has. 0 is as many as the input.
	Partitions int
}

// RepartitionTopic returns the topic between the stages, "" if there is one stage.
func (s *KafkaSource) RepartitionTopic() string {
	switch {
	case s.Repartition == nil:
		return ""
	case s.Repartition.Topic == "":
		return s.Group + "-repartition"
	}
	return s.Repartition.Topic
}

// Sink is the description of one kind of sink.
type Sink interface {
	// Kind is the name of the kind in a configuration.
	Kind() string
}

// FileSink appends lines to a file.
type FileSink struct{ Path string }

// StdoutSink writes lines to standard output.
type StdoutSink struct{}

// WebhookSink sends each message as a request.
type WebhookSink struct {
	// URL may hold a password.
	URL     schema.Secret
	Method  string
	Headers []Header
	// Timeout bounds one request.
	Timeout time.Duration
	// AllowPrivate are the networks of private addresses that may be reached.
	AllowPrivate []netip.Prefix
	TLS          *TLS
	// MaxResponse is the longest response in bytes that is kept.
	MaxResponse int64
	// Success and Retry are statuses beside the usual ones that mean that the
	// effect is there, and that another attempt may succeed.
	Success, Retry []int
	// Forward are the names of headers of the message that are sent on.
	Forward []string
}

// Header is a header of a request.
type Header struct {
	Name  string
	Value schema.Secret
}

// PostgresSink writes rows. One of Statement, Table and Upsert is set.
type PostgresSink struct {
	// Store is a store of the kind postgres, whose database it is; DSN is the
	// address of another. One of them is set.
	Store schema.Reference
	DSN   schema.Secret
	// Statement is executed with Args for each message.
	Statement string
	Args      []string
	// Table gets a row of Columns for each message.
	Table   string
	Columns []Column
	Upsert  *Upsert
}

// Column is a column and where its value comes from: ".a.b", "header:NAME",
// "record-key", "property:message-id", "body", "key", "scope", "time",
// "attempt", "token", "source", "partition" or "offset".
type Column struct{ Name, From string }

// Upsert keeps one row for each value of the columns Key.
type Upsert struct {
	Table   string
	Columns []Column
	// Key are the columns that are unique together.
	Key []string
	// Version is the column that must grow for a row to be replaced; "" is none.
	Version string
}

// KafkaSink produces to a topic, always idempotent and with acks=all unless
// the file asks for less, which [File.Lint] reports as broken.
type KafkaSink struct {
	KafkaClient
	Topic string
	// Partition is record-key (by the hash of the record key) or same (the
	// number of the source's partition).
	Partition string
	// Acks is all, 1 or 0.
	Acks       string
	Idempotent bool
	// Compression is none, gzip, snappy, lz4 or zstd.
	Compression string
	// KeyHeaders adds headers that name the key and the attempt.
	KeyHeaders bool
}

// Admin is the server for probes and metrics.
type Admin struct {
	// Listen is an address, or off.
	Listen string
	Auth   *Auth
	TLS    *ServerTLS
}

// Auth says who may use the admin server.
type Auth struct {
	Username string
	Password schema.Secret
	// Token is accepted as a bearer token. It may be zero.
	Token schema.Secret
}

// Log is how a daemon logs.
type Log struct {
	// Format is auto (text on a terminal, JSON elsewhere), text or json.
	Format string
	// Level is debug, info, warn or error.
	Level string
}

// Kind implements Source.
func (*FileSource) Kind() string { return "file" }

// Kind implements Source.
func (*HTTPSource) Kind() string { return "http" }

// Kind implements Source.
func (*KafkaSource) Kind() string { return "kafka" }

// Kind implements Sink.
func (*FileSink) Kind() string { return "file" }

// Kind implements Sink.
func (*StdoutSink) Kind() string { return "stdout" }

// Kind implements Sink.
func (*WebhookSink) Kind() string { return "webhook" }

// Kind implements Sink.
func (*PostgresSink) Kind() string { return "postgres" }

// Kind implements Sink.
func (*KafkaSink) Kind() string { return "kafka" }
