package pgstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/internal/retry"
)

// schemaVersion is the last step that this version needs.
const schemaVersion = 2

// minServer is the oldest supported server. Older ones cannot read a range of
// table pages, which clean-up needs.
const minServer = 140000

// Store is a [semel.Store] in PostgreSQL. It is safe for concurrent use. Each
// method blocks for a free connection and for one statement, or two if keys were
// known before. If the server does not answer, a statement fails after 8 s and
// Options.LockWait; one that reads a whole table, as Count does, after 15 times that.
type Store struct {
	opts     Options
	pool     *pgxpool.Pool
	asTexts  bool // batches on the pool send their arguments as text
	owned    bool // the store must close the pool
	hasher   hasher
	secret   []byte  // of the hasher
	form     Cleanup // of the table
	has      columns
	sql      statements
	wait     string // the lock_timeout of Options.LockWait
	patience time.Duration
	known    share
	optimism optimism
	plans    plans
	scopes   sync.Map // the rows of the scopes that BindScope has seen: name to []byte

	leastOptimistic int

	mu     sync.RWMutex // read-locked during each call; guards closed
	closed bool
}

var (
	_ semel.Store          = (*Store)(nil)
	_ semel.Inspector      = (*Store)(nil)
	_ semel.Resolver       = (*Store)(nil)
	_ semel.DigestResolver = (*Store)(nil)
	_ semel.Purger         = (*Store)(nil)
	_ semel.ScopeBinder    = (*Store)(nil)
)

// connectTimeout limits one connection attempt if the address sets no connect_timeout.
// A server that never answers would otherwise hold up every caller.
const connectTimeout = 5 * time.Second

// Connect opens a connection pool and a store on it. [Store.Close] closes both.
// The address is a PostgreSQL URL or a list of settings, and may contain several
// hosts. With target_session_attrs=read-write the store finds the primary. With
// [Options].Migrate, a fresh database is enough.
//
// The pool uses no named prepared statements, so that it works behind a pooler in
// transaction mode. This changes if Options.Prepare is set, or if the address
// sets default_query_exec_mode; cache_statement there sets Options.Prepare too. An
// attempt to connect takes at most 5 s, unless the address sets connect_timeout.
func Connect(ctx context.Context, address string, opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	pool, err := poolOf(ctx, address, &o)
	if err != nil {
		return nil, err
	}
	s, err := New(ctx, pool, &o)
	if err != nil {
		pool.Close()
		return nil, err
	}
	s.owned = true
	return s, nil
}

// poolOf returns the pool of Connect. It sets Options.Prepare if the address asks for it.
func poolOf(ctx context.Context, address string, o *Options) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		// The pgx error does not contain the password.
		return nil, fmt.Errorf("pgstore: address: %w: %w", semel.ErrInvalidRequest, err)
	}
	mode := &config.ConnConfig.DefaultQueryExecMode // the default of pgx, unless the address or a file that it names sets another
	if *mode == pgx.QueryExecModeCacheStatement && !o.Prepare {
		if strings.Contains(address, "default_query_exec_mode") {
			o.Prepare = true
		} else {
			*mode = pgx.QueryExecModeCacheDescribe // transactions of a guard use the mode of the pool
		}
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("pgstore: connect: %w", failure(err))
	}
	return pool, nil
}

// New returns a store on a pool. The caller must close the pool. Nil options are
// the zero options. If options are out of bounds, one error names all of them; it
// wraps ErrInvalidRequest. New reads the schema version from the database. If it
// does not suit the store, the error wraps [ErrSchema]. With Options.Migrate, New
// applies the missing steps instead.
func New(ctx context.Context, pool *pgxpool.Pool, opts *Options) (*Store, error) {
	o, err := opts.checked()
	if err != nil {
		return nil, err
	}
	mode := pool.Config().ConnConfig.DefaultQueryExecMode // a copy of the whole configuration, which no call should make
	s := &Store{opts: o, pool: pool, asTexts: mode == pgx.QueryExecModeExec || mode == pgx.QueryExecModeSimpleProtocol, wait: lockTimeout(o.LockWait), patience: answerWait + o.LockWait, leastOptimistic: leastOptimistic}
	if err := within(ctx, s.patience, s.checkServer); err != nil {
		return nil, fmt.Errorf("pgstore: open: %w", failure(err))
	}
	if o.Migrate {
		if _, err := Migrate(ctx, pool, &MigrateOptions{Names: o.Names, Cleanup: o.Cleanup, KeepIDs: o.KeepIDs, KeepOrigins: o.KeepOrigins}); err != nil {
			return nil, err
		}
	}
	if err := within(ctx, s.patience, s.checkSchema); err != nil {
		return nil, fmt.Errorf("pgstore: open: %w", failure(err))
	}
	return s, nil
}

// checkServer checks that the store supports the server's version.
func (s *Store) checkServer(ctx context.Context) error {
	var version int
	var isolation string
	err := s.queryRow(ctx, s.pool, "SELECT current_setting('server_version_num')::int, current_setting('transaction_isolation')").Scan(&version, &isolation)
	switch {
	case err != nil:
		return err
	case version < minServer:
		return fmt.Errorf("server version %d: at least %d is needed: %w", version, minServer, semel.ErrInvalidRequest)
	case isolation != "read committed":
		return fmt.Errorf("transactions are %s by default; a claim must see what others have committed: set default_transaction_isolation to 'read committed' for this role: %w",
			isolation, semel.ErrInvalidRequest)
	}
	return nil
}

// checkSchema checks that the tables suit the store, and reads the secret of its
// digests.
func (s *Store) checkSchema(ctx context.Context) error {
	var version int
	var schema, ids, origins bool
	var secret, form []byte
	err := s.queryRow(ctx, s.pool, "SELECT to_regclass($1) IS NOT NULL", s.opts.quoted("migrations")).Scan(&schema)
	switch {
	case err != nil:
		return err
	case !schema:
		return fmt.Errorf("no tables %s in schema %s: run `semel migrate up`, or set pgstore.Options.Migrate: %w", s.opts.Prefix+"*", s.opts.Schema, ErrSchema)
	}
	if err := s.opts.Check(ctx, s.pool, "meta", "keys", "tokens"); err != nil {
		return err
	}
	err = s.queryRow(ctx, s.pool, "SELECT (SELECT coalesce(max(version), 0) FROM "+s.opts.quoted("migrations")+"), ("+hasIDs+"), ("+hasOrigin+"), (SELECT value FROM "+s.opts.quoted("meta")+" WHERE name = 'secret'), (SELECT value FROM "+s.opts.quoted("meta")+" WHERE name = 'cleanup')",
		s.opts.quoted("keys")).Scan(&version, &ids, &origins, &secret, &form)
	switch {
	case err != nil:
		return err
	case version < schemaVersion:
		return fmt.Errorf("the schema has version %d, this program needs %d: run `semel migrate up`, or set pgstore.Options.Migrate: %w", version, schemaVersion, ErrSchema)
	case s.opts.KeepIDs && !ids:
		return fmt.Errorf("no columns for readable keys: run `semel migrate up` with keep_ids, or set pgstore.Options.Migrate: %w", ErrSchema)
	case s.opts.KeepOrigins && !origins:
		return fmt.Errorf("no column for origins: run `semel migrate up` with keep_origin, or set pgstore.Options.Migrate: %w", ErrSchema)
	case secret == nil:
		return fmt.Errorf("%s was emptied: it has no secret, without which no key is found: let a process that still uses the store write it again, or restore the row from a backup: %w", s.opts.quoted("meta"), semel.ErrCorrupt)
	case len(secret) != len(digest.Secret{}):
		return fmt.Errorf("the secret of the digests has %d bytes: %w", len(secret), semel.ErrCorrupt)
	}
	s.secret, s.form = secret, Cleanup(form)
	s.hasher.Hasher = digest.New(digest.Secret(secret))
	s.has = columns{ids: s.opts.KeepIDs, origins: origins}
	s.sql = newStatements(s.opts.Names, s.has)
	return s.setForm(ctx, Cleanup(form))
}

// KeepsIDs reports whether the store keeps readable keys; see [Options].
func (s *Store) KeepsIDs() bool { return s.has.ids }

// Traits implements [semel.Store].
func (s *Store) Traits() semel.Traits {
	return semel.Traits{
		Durable: true, PowerSafe: true, DurableClaims: true, Shared: true, Transactional: true, Exact: true,
		Results: true, MaxResult: s.opts.MaxResult, Origins: s.has.origins, Tick: time.Microsecond,
		Batching: semel.Batching{Calls: 2}, // more do not pay
	}
}

// Close waits for running calls. If the store opened the pool, Close closes it.
// Later calls get ErrClosed. A second Close does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	close := !s.closed && s.owned
	s.closed = true
	s.mu.Unlock()
	// Wait for transactions that still have a connection without holding the lock,
	// because they may call the store.
	if close {
		s.pool.Close()
	}
	return nil
}

// enter starts a call. Unless it returns an error, the caller must call leave.
func (s *Store) enter(ctx context.Context, verb string, requests, answers int) error {
	if requests != answers {
		return fmt.Errorf("pgstore: %s: %d requests and %d answers: %w", verb, requests, answers, semel.ErrInvalidRequest)
	}
	s.mu.RLock()
	if s.closed {
		s.mu.RUnlock()
		return fmt.Errorf("pgstore: %s: %w", verb, semel.ErrClosed)
	}
	if ctx.Err() != nil {
		s.mu.RUnlock()
		return fmt.Errorf("pgstore: %s: nothing was changed: %w: %w", verb, semel.ErrStoreUnavailable, context.Cause(ctx))
	}
	return nil
}

func (s *Store) leave() { s.mu.RUnlock() }

// querier sends statements: the pool, or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// rowQuerier sends statements that return one row: a querier, or a connection.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// query sends one statement in one round trip, whatever the pgx mode of the pool.
func (s *Store) query(ctx context.Context, q querier, sql string, args ...any) (pgx.Rows, error) {
	return q.Query(ctx, s.plans.text(sql), append([]any{s.mode()}, args...)...)
}

func (s *Store) queryRow(ctx context.Context, q rowQuerier, sql string, args ...any) pgx.Row {
	return q.QueryRow(ctx, sql, append([]any{s.mode()}, args...)...)
}

func (s *Store) mode() pgx.QueryExecMode {
	if s.opts.Prepare {
		return pgx.QueryExecModeCacheStatement
	}
	return pgx.QueryExecModeCacheDescribe
}

// repeat runs f again, with growing pauses, while the server rolls it back
// because of another transaction. Options.retries limits the repetitions.
func (s *Store) repeat(ctx context.Context, f func() error) error {
	for try := 0; ; try++ {
		err := f()
		if !repeatable(err) || try >= s.opts.retries {
			return failure(err)
		}
		if backOff(ctx, try) != nil {
			return failure(err)
		}
	}
}

// backOff waits before the next try of a transaction that the server rolled back because
// of another one.
func backOff(ctx context.Context, try int) error {
	return retry.Sleep(ctx, retry.Around(retry.Backoff(try, time.Millisecond, time.Minute), 0.5))
}

var errReadOnly = errors.New("the server takes no writes: it is a standby, or read-only for this role")

// Ready returns nil if the database answers and accepts writes. It blocks for a
// free connection and one statement, at most until ctx ends. It also returns nil
// if all connections are busy until then. Errors wrap ErrStoreUnavailable,
// ErrInvalidRequest if the database refuses the role, ErrCorrupt if the secret of the digests
// was replaced, ErrClosed, or the cause of
// ctx.
func (s *Store) Ready(ctx context.Context) error {
	if err := s.enter(ctx, "ready", 0, 0); err != nil {
		return err
	}
	defer s.leave()
	var readOnly bool
	var secret []byte
	limited, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	err := s.pool.QueryRow(limited, "SELECT current_setting('transaction_read_only')::bool, (SELECT value FROM "+s.opts.quoted("meta")+" WHERE name = 'secret')", pgx.QueryExecModeExec).Scan(&readOnly, &secret)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("no answer within %v: %w", s.patience, semel.ErrStoreUnavailable)
	}
	if err != nil && ctx.Err() != nil && s.pool.Stat().AcquiredConns() >= s.pool.Config().MaxConns {
		return nil // all connections are busy
	}
	if err == nil && readOnly {
		err = fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, errReadOnly)
	}
	if err == nil && !bytes.Equal(secret, s.secret) {
		err = s.restoreMeta(limited, secret)
	}
	if err != nil {
		return fmt.Errorf("pgstore: ready: %w", rolledBack(err)) // the statement changed nothing
	}
	return nil
}

// Connected calls fn with one of the store's connections, which fn must leave as it was. It
// blocks until one is free.
func (s *Store) Connected(ctx context.Context, fn func(*pgx.Conn) error) error {
	if err := s.enter(ctx, "connected", 0, 0); err != nil {
		return err
	}
	defer s.leave()
	return s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return fn(conn.Conn()) })
}

// restoreMeta writes the rows of the table of settings again after a loss. They are the
// secret, so that the next process finds the keys of this process, and the scopes with an owner, so
// that no other rule or pipeline takes them. If the table has another secret, the two processes do
// not find each other's keys.
func (s *Store) restoreMeta(ctx context.Context, found []byte) error {
	meta := s.opts.quoted("meta")
	if found != nil {
		return fmt.Errorf("the secret in %s was replaced, so that new processes do not find the keys of this one: restore the row, or restart this process to go on without those keys: %w", meta, semel.ErrCorrupt)
	}
	names, owners := []string{}, [][]byte{}
	for name, owner := range s.scopes.Range {
		names, owners = append(names, name.(string)), append(owners, owner.([]byte))
	}
	_, err := s.pool.Exec(ctx, "INSERT INTO "+meta+" (name, value, at) VALUES ('secret', $1::bytea, NULL), ('cleanup', $2::bytea, NULL), ('cleaning', NULL, '-infinity'), ('cleaned', NULL, clock_timestamp()) UNION ALL SELECT name, owner, NULL FROM unnest($3::text[], $4::bytea[]) AS scope (name, owner) ON CONFLICT (name) DO NOTHING",
		pgx.QueryExecModeExec, s.secret, []byte(s.form), names, owners)
	if err != nil {
		return fmt.Errorf("%s was emptied, and cannot be filled again: %w", meta, err)
	}
	return nil
}
