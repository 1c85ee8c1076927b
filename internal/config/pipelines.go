package config

import (
	"time"

	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
)

// Pipeline is one member of "pipelines". Defaults are filled in; a number, size
// or duration that is 0 is left to whoever uses it, unless it says otherwise.
type Pipeline struct {
	Name string
	// At is where its name stands.
	At     schema.Place
	Source Source
	Sink   Sink
	Key    Key
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
	// Order is key or partition.
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
