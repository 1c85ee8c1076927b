package pgstore

import (
	"cmp"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
)

// Defaults of [Options].
const (
	defaultMaxResult = 1 << 20
	DefaultLockWait  = 2 * time.Second
	defaultRetries   = 5
)

// Options are the options of [Connect] and [New]. The zero value is valid.
type Options struct {
	Names
	// Migrate makes Connect and New create the tables in a fresh database, and
	// apply the steps that an older one lacks, like the function Migrate.
	// Partitions, FillFactor and MessageAge then have their defaults. If tables are
	// missing, the role must be allowed to create them. Defaults to false.
	Migrate bool
	// KeepIDs keeps the readable scope and id in each row, for listings. It needs
	// the columns that MigrateOptions.KeepIDs adds; Migrate adds them too. Defaults
	// to false.
	KeepIDs bool
	// KeepOrigins needs the column for Call.Origin that MigrateOptions.KeepOrigins
	// adds; Migrate adds it too. A store that finds the column keeps origins in any
	// case. Defaults to false.
	KeepOrigins bool
	// Cleanup is the form of clean-up that the tables must have been created for.
	// Defaults to the form of the tables.
	Cleanup Cleanup
	// MessageTime returns the time inside an id, or false if the id has none. It is
	// used for clean-up by message time. It must return the same time for every
	// delivery and in every process, and never change. Defaults to the time inside a
	// version 7 UUID, with or without hyphens, or a ULID.
	MessageTime func(key semel.Key) (time.Time, bool)
	// MaxResult is the maximum size in bytes of a stored result. A larger one is
	// refused with ErrResultTooLarge. Defaults to 1 MiB. Must not be negative, nor
	// above 256 MiB.
	MaxResult int64
	// LockWait is how long a statement waits for a key that another transaction is
	// about to write. Defaults to 2 s. Must be between 1 ms and 20 s.
	LockWait time.Duration
	// Prepare uses named prepared statements, once for each connection. This saves
	// planning time on the server, which matters for small calls. It breaks behind
	// a pooler in transaction mode that does not track prepared statements. The
	// pool that Connect opens then has the mode cache_statement, unless the address
	// names another. Defaults to false.
	Prepare bool

	// retries is how often a statement is sent again after the server rolled it back
	// because of another transaction. Tests with much contention set it.
	retries int
}

const (
	mostResult   = 256 << 20
	mostLockWait = 20 * time.Second
)

func (o *Options) checked() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	c.Names = c.Names.withDefaults()
	c.MaxResult = cmp.Or(c.MaxResult, defaultMaxResult)
	c.LockWait = cmp.Or(c.LockWait, DefaultLockWait)
	c.retries = cmp.Or(c.retries, defaultRetries)
	if c.MessageTime == nil {
		c.MessageTime = idTime
	}
	wrong := invalid.In("pgstore: Options.")
	wrong.Join(c.Names.validate()...)
	if c.MaxResult < 0 || c.MaxResult > mostResult {
		wrong.Add("MaxResult: %d is not between 0 and %d", c.MaxResult, mostResult)
	}
	if c.Cleanup != "" {
		wrong.Join(c.Cleanup.validate("Options.Cleanup"))
	}
	if c.LockWait < time.Millisecond || c.LockWait > mostLockWait {
		wrong.Add("LockWait: %v is not between 1ms and %v", c.LockWait, mostLockWait)
	}
	return c, wrong.Err()
}
