package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/store/pgstore"
)

// Schema is the database schema of a PostgreSQL store.
type Schema struct {
	// Patience is the maximum wait for the server's first answer, and for each
	// lock. Defaults to 30 s.
	Patience time.Duration

	file  *config.File
	store *Store
}

const defaultPatience = 30 * time.Second

// NewSchema returns the schema that a store of a configuration needs. It belongs
// to the store itself, or to the PostgreSQL store at the bottom of its stack.
func NewSchema(f *config.File, name string) (*Schema, error) {
	for _, s := range f.Stack(name) {
		if spec, ok := s.Spec.(*Store); ok {
			return &Schema{defaultPatience, f, spec}, nil
		}
	}
	return nil, fmt.Errorf("%s has no schema: only a store of the kind postgres has one: %w", name, semel.ErrInvalidRequest)
}

// Migrate applies the missing steps and returns them. It can be killed and run
// again. If the role may not create tables, the error has the remedy.
func (s *Schema) Migrate(ctx context.Context) (applied []pgstore.Migration, err error) {
	err = s.connected(ctx, func(db pgstore.Beginner) error {
		applied, err = pgstore.Migrate(ctx, db, s.options())
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

// Status returns every step with the time when it was applied.
func (s *Schema) Status(ctx context.Context) (steps []pgstore.Migration, err error) {
	err = s.connected(ctx, func(db pgstore.Beginner) error {
		steps, err = pgstore.Status(ctx, db, s.options())
		return err
	})
	return steps, err
}

// Newer implements config.Versioned.
func (s *Store) Newer(ctx context.Context, f *config.File, name string) (string, error) {
	schema, err := NewSchema(f, name)
	if err != nil {
		return "", err
	}
	steps, err := schema.Status(ctx)
	if err != nil {
		return "", err
	}
	var names []string
	for _, step := range steps {
		if step.Newer {
			names = append(names, fmt.Sprintf("%d (%s)", step.Version, step.Name))
		}
	}
	if names == nil {
		return "", nil
	}
	return "a newer version of semel changed the tables, by step " + strings.Join(names, ", "), nil
}

// SQL returns all steps as a script. It does not connect.
func (s *Schema) SQL() (string, error) { return pgstore.SQL(s.options()) }

func (s *Schema) options() *pgstore.MigrateOptions {
	return &pgstore.MigrateOptions{Names: s.store.names(), Cleanup: pgstore.Cleanup(s.store.Cleanup), MessageAge: s.store.MessageAge, Partitions: s.store.Partitions, KeepIDs: s.store.KeepIDs, KeepOrigins: s.store.KeepOrigin}
}

// lockNotAvailable is the SQLSTATE that PostgreSQL returns when lock_timeout
// ends.
const lockNotAvailable = "55P03"

func (s *Schema) connected(ctx context.Context, use func(pgstore.Beginner) error) error {
	pool, err := pgxpool.New(ctx, s.store.DSN.Reveal())
	if err != nil {
		return s.file.RedactError(fmt.Errorf("dsn: %w: %w", semel.ErrInvalidRequest, err))
	}
	defer pool.Close()
	patient, cancel := context.WithTimeout(ctx, s.Patience)
	defer cancel()
	if err := pool.Ping(patient); err != nil {
		return s.file.RedactError(fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err))
	}
	err = use(impatient{pool, s.Patience})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == lockNotAvailable {
		err = fmt.Errorf("waited %v for a lock of another migration, or of a transaction that uses these tables; the view pg_locks shows which: %w", s.Patience, err)
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
