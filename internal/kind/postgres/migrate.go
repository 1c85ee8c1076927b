package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/store/pgstore"
)

// defaultPatience is for callers whose context ends earlier.
const defaultPatience = 30 * time.Second

// tables are the tables of a store.
type tables struct {
	file     *config.File
	store    *Store
	patience time.Duration
}

// Tables implements config.Database. The server's first answer, and each lock, may take as
// long as patience.
func (s *Store) Tables(f *config.File, patience time.Duration) config.Tables {
	return &tables{f, s, patience}
}

// Migrate implements config.Tables. If the role may not create tables, the error has the
// remedy.
func (s *tables) Migrate(ctx context.Context) (applied []config.Migration, err error) {
	err = s.connected(ctx, func(db pgstore.Beginner) error {
		steps, err := pgstore.Migrate(ctx, db, s.options())
		applied = migrations(steps)
		return err
	})
	if of := refusal(err); of != nil && (of.Code == "42501" || of.Code == "25006") {
		user, _ := identity(s.store.DSN)
		err = &diagnose.Error{
			Cause:  "user " + user + " may not create tables: " + of.Message,
			Remedy: "run semel migrate up with a role that may, or GRANT CREATE ON SCHEMA " + pgx.Identifier{cmp.Or(s.store.Schema, "public")}.Sanitize() + " TO " + user, Err: err,
		}
	}
	return applied, err
}

// Status implements config.Tables.
func (s *tables) Status(ctx context.Context) (all []config.Migration, err error) {
	err = s.connected(ctx, func(db pgstore.Beginner) error {
		steps, err := pgstore.Status(ctx, db, s.options())
		all = migrations(steps)
		return err
	})
	return all, err
}

func migrations(steps []pgstore.Migration) (all []config.Migration) {
	for _, step := range steps {
		all = append(all, config.Migration(step))
	}
	return all
}

// SQL implements config.Tables.
func (s *tables) SQL() (string, error) { return pgstore.SQL(s.options()) }

func (s *tables) options() *pgstore.MigrateOptions {
	return &pgstore.MigrateOptions{Names: s.store.names(), Cleanup: pgstore.Cleanup(s.store.Cleanup), MessageAge: s.store.MessageAge, Partitions: s.store.Partitions, KeepIDs: s.file.KeepsIDs(s.store, s.store.KeepIDs), KeepOrigins: s.store.KeepOrigin}
}

// lockNotAvailable is the SQLSTATE that PostgreSQL returns when lock_timeout
// ends.
const lockNotAvailable = "55P03"

func (s *tables) connected(ctx context.Context, use func(pgstore.Beginner) error) error {
	pool, err := pgxpool.New(ctx, s.store.DSN.Reveal())
	if err != nil {
		return s.file.RedactError(fmt.Errorf("dsn: %w: %w", semel.ErrInvalidRequest, err))
	}
	defer pool.Close()
	patient, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	if err := pool.Ping(patient); err != nil {
		return s.file.RedactError(fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err))
	}
	err = use(impatient{pool, s.patience})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == lockNotAvailable {
		err = fmt.Errorf("waited %v for a lock of another migration, or of a transaction that uses these tables; the view pg_locks shows which: %w", s.patience, err)
	}
	return s.file.RedactError(err)
}

// impatient begins transactions with a limit on waiting for locks.
type impatient struct {
	*pgxpool.Pool
	wait time.Duration
}

// Begin implements pgstore.Beginner. The limit is set in the transaction, because
// a pooler hands the connection to other clients.
func (p impatient) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := p.Pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", p.wait.Milliseconds())); err != nil {
		return nil, errors.Join(err, tx.Rollback(context.WithoutCancel(ctx)))
	}
	return tx, nil
}
