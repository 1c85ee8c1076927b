package config

import (
	"errors"
	"slices"
	"time"

	"github.com/semel-dev/semel/internal/envelope"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// Pipeline is one member of "pipelines". Defaults are filled in. A number, size
// or duration of 0 means the default of the code that uses it, unless stated
// otherwise.
type Pipeline struct {
	Name string
	// At is the place of its name.
	At     schema.Place
	Source Source
	Sink   Sink
	// Unwrap takes the message out of each message that the source has; nil if it is that
	// message. Key, FilterMap and Sink see what it returns.
	Unwrap *envelope.Unwrapper
	Key    Key
	// Filter and Map are the expressions of the pipeline, or empty. FilterMap evaluates
	// both; it is nil if none exist.
	Filter, Map string
	FilterMap   pipeline.FilterMap
	// Tables are the tables whose rows FilterMap uses. They are attached when the pipeline
	// runs.
	Tables []*stream.Table
	// Window is how long a key is remembered. Lease is how long a claim lasts
	// unless it is extended.
	Window, Lease time.Duration
	// OnLeaseExpired is retry or hold.
	OnLeaseExpired string
	// OnLate is run, park or drop.
	OnLate string
	// OnMismatch is ignore, park, drop or stop. Unless it is ignore, a key that is
	// used for two different bodies is detected.
	OnMismatch string
	// Store is the store of the keys. It has no name if the keys live in Kafka; see
	// [File.Mode].
	Store schema.Reference
	// OnFailure has no From: the first pause is always the same.
	OnFailure pipeline.Failure
	// OnStoreError is stop or pass.
	OnStoreError string
	// Observe makes the pipeline decide and count, but deliver every message.
	Observe bool
	// Order is key or partition.
	Order string
	// Parallel is the maximum number of concurrent batches or transactions.
	Parallel int
	// Batch is the maximum number of messages in a batch.
	Batch int64
	// InFlight limits all messages under way.
	InFlight Limit
	// Parked is where messages are parked.
	Parked Parked
	// Lossy allows a store that drops new messages at a stated rate.
	Lossy bool
	// Aggregate makes a Kafka-to-Kafka pipeline write results of windows. It may be
	// nil.
	Aggregate *stream.Aggregate
	// Transaction configures how a Kafka-to-Kafka pipeline commits.
	Transaction Transaction
}

// Key says how the key of a message is made.
type Key struct {
	// Rule extracts the id. The id may be unstable if Unstable is set.
	Rule *key.Rule
	// Scope is the scope in which the id is unique. Defaults to the pipeline's
	// name.
	Scope string
	// SameScope: the scope is shared, since equal ids mean the same message.
	SameScope bool
	// OnMissing is fail, park, pass, hash or drop.
	OnMissing string
	// Unstable allows a rule whose ids are not stable.
	Unstable bool
	// Keep says which message of a key takes effect. It is nil for the first one.
	Keep *stream.Keep
}

// IDWithout returns the id of a message in which the rule found none because of err: that of
// the content, with on_missing: hash. It returns nil if such a message has no id.
func (k *Key) IDWithout(err error, body []byte) []byte {
	lacks := errors.Is(err, key.ErrMissing) || errors.Is(err, key.ErrSyntax) || errors.Is(err, key.ErrNotScalar)
	if !lacks || k.OnMissing != "hash" {
		return nil
	}
	if id, err := key.AppendContent(nil, body); err == nil {
		return id
	}
	return key.AppendBytes(nil, body)
}

// OfBody reports whether the rule, or a rule inside it, is the whole body as bytes. No
// other stable rule finds an id in a blank body.
func (k *Key) OfBody() bool { return ofBody(k.Rule) }

func ofBody(rule *key.Rule) bool {
	return rule.Form() == key.FormLine || slices.ContainsFunc(rule.Rules(), ofBody)
}

// Limit is a maximum number of messages and of their bytes.
type Limit struct{ Max, Bytes int64 }

// Parked is where a pipeline parks messages. Exactly one place is set.
type Parked struct {
	// Path is a directory.
	Path string
	// Store is a postgres store. Messages are parked in its database.
	Store schema.Reference
	// Topic is a topic of the Kafka cluster of the source or sink.
	Topic string
	// MaxAge is how long a message stays parked in a directory or store. The zero
	// value means for ever.
	MaxAge time.Duration
}

// Transaction configures how a Kafka-to-Kafka pipeline commits outputs, keys and
// offsets together.
type Transaction struct {
	// A transaction ends after Interval, or earlier at the limits of InFlight.
	Interval time.Duration
	// Changelog is the topic that holds the keys. Defaults to the group followed by
	// "-keys".
	Changelog string
	// State is the directory of the local copy of the keys.
	State string
	// Time is processing or event. It selects the time by which keys expire.
	Time string
	// Grace is how much older than the newest message a message may be. It applies
	// if Time is event.
	Grace time.Duration
	// Standby keeps the keys of all partitions in every process.
	Standby bool
}

// Admin is the server for probes and metrics.
type Admin struct {
	// Listen is an address, or off.
	Listen string
	// PublicURL is the URL at which others reach the server. It may be "".
	PublicURL string
	Auth      *Auth
	TLS       *ServerTLS
}

// Auth configures access to the admin server.
type Auth struct {
	Username string
	Password schema.Secret
	// Token is the accepted bearer token. It may be zero.
	Token schema.Secret
	// Viewer are credentials that may look and change nothing. It may be nil, and has no
	// Viewer itself.
	Viewer *Auth
}

// Log configures the log of a daemon.
type Log struct {
	// Format is auto (text on a terminal, JSON elsewhere), text or json.
	Format string
	// Level is debug, info, warn or error.
	Level string
	// Duplicates is the share of dropped duplicates that are logged at info.
	Duplicates float64
}
