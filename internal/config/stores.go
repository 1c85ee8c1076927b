package config

import (
	"time"

	"github.com/semel-dev/semel/internal/schema"
)

// Store is one member of "stores".
type Store struct {
	Name string
	// At is where its name stands.
	At schema.Place
	// Spec is what the store is: *Memory, *Embedded, *Redis, *Postgres, *Tiered
	// or *Filter.
	Spec Spec
}

// Spec is the description of one kind of store.
type Spec interface {
	// Kind is the name of the kind in a configuration.
	Kind() string
}

// Memory is a store in the process.
type Memory struct {
	// MaxKeys is the most keys it holds. 0 is no limit.
	MaxKeys int64
	// KeepIDs keeps scope and id readable.
	KeepIDs bool
	// MaxResult is the longest result in bytes. 0 is the store's default.
	MaxResult int64
}

// Embedded is a durable store in a directory.
type Embedded struct {
	Path string
	// Fsync is always, interval or never.
	Fsync         string
	FsyncInterval time.Duration // 0 is the store's default
	KeepIDs       bool
	MaxResult     int64 // 0 is the store's default
}

// Redis is a store in Redis or Valkey. One of URL, Cluster and Sentinel is set.
type Redis struct {
	URL      schema.Secret
	Cluster  []string
	Sentinel *Sentinel
	// Username, Password, Database and TLS are for Cluster and Sentinel; a URL
	// has its own.
	Username string
	Password schema.Secret
	Database int
	TLS      *TLS
	// ConnectTimeout and Timeout bound making a connection, and one call. 0 is
	// the store's default.
	ConnectTimeout, Timeout time.Duration
	// Prefix is what the names of its keys in Redis begin with.
	Prefix string
	// LegacyPrefix is that of markers "SET <prefix><id> 1 NX EX n", which are
	// read during a migration. "" reads none.
	LegacyPrefix string
	// Persistence is what the server is known to keep: volatile, logged or
	// synced.
	Persistence string
	KeepIDs     bool
	MaxResult   int64
	Compact     *Compact
}

// Sentinel finds the primary of a set of Redis servers.
type Sentinel struct {
	Addresses []string
	Master    string
	Username  string
	Password  schema.Secret
}

// Compact keeps keys that are done in few bytes each.
type Compact struct {
	Window time.Duration
	Slices int           // 0 is the store's default
	Expect int64         // 0 is the store's default
	Grace  time.Duration // 0 is the store's default
}

// TLS is how a connection is secured.
type TLS struct {
	CA, Certificate, Key string // names of files; "" is the system's, and none
	ServerName           string
	InsecureSkipVerify   bool
}

// Postgres is a store in PostgreSQL.
type Postgres struct {
	DSN schema.Secret
	// Schema and Prefix name its tables.
	Schema, Prefix string
	// Cleanup is the form in which expired keys are taken away: delete,
	// generations or message-time; "" is what the tables were made for.
	Cleanup string
	// CleanupRate is the most rows a second that a clean-up deletes or moves. 0 is
	// the store's default.
	CleanupRate int
	// CleanupHours are the hours in which keys are cleaned up. The zero value is
	// all day.
	CleanupHours schema.Hours
	// Generation is how long a generation lasts. 0 is the store's default.
	Generation time.Duration
	// MessageAge is how old a message may be by the time inside its id. 0 is
	// the store's default.
	MessageAge time.Duration
	Partitions int // 0 is the store's default
	// Prepare has statements prepared by name.
	Prepare   bool
	KeepIDs   bool
	MaxResult int64 // 0 is the store's default
}

// Tiered is layers above one durable store.
type Tiered struct {
	// Layers are the names of the stores, from the top; the last one decides.
	Layers []schema.Reference
	// OnStoreError is what happens while the last one is down: stop, wait or
	// pass.
	OnStoreError string
	// MaxAge bounds how long a layer answers without the store below. 0 is the
	// store's default.
	MaxAge time.Duration
	// LayerTimeout is how long one call of an upper layer may take. 0 is the
	// store's default.
	LayerTimeout time.Duration
	// SeesEveryWriter says that the filters know every key that becomes done in
	// the last store: no other process writes there, or all share the filters.
	SeesEveryWriter bool
}

// Filter remembers keys in a few bits each, with an error.
type Filter struct {
	// Redis is the name of the Redis store whose server holds it; without a
	// name it is in the memory of the process.
	Redis schema.Reference
	Rate  float64
	// Expect is how many keys there are in a window.
	Expect int64
	Window time.Duration
}

// Kind implements Spec.
func (*Memory) Kind() string { return "memory" }

// Kind implements Spec.
func (*Embedded) Kind() string { return "embedded" }

// Kind implements Spec.
func (*Redis) Kind() string { return "redis" }

// Kind implements Spec.
func (*Postgres) Kind() string { return "postgres" }

// Kind implements Spec.
func (*Tiered) Kind() string { return "tiered" }

// Kind implements Spec.
func (*Filter) Kind() string { return "filter" }
