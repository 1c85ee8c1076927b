package wiring

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/store/pgstore"
)

// Schema is the schema of a store in PostgreSQL.
type Schema struct {
	file *config.File
	spec *config.Postgres
}

// NewSchema finds the schema that a store of a configuration needs: its own, or
// that of the PostgreSQL store at the bottom of its stack.
func NewSchema(f *config.File, name string) (*Schema, error) {
	for _, s := range f.Stack(name) {
		if spec, ok := s.Spec.(*config.Postgres); ok {
			return &Schema{f, spec}, nil
		}
	}
	return nil, fmt.Errorf("%s has no schema: only a store of the kind postgres has one: %w", name, semel.ErrInvalidRequest)
}

// Migrate applies the steps that are missing and returns them. It waits for
// other runners as long as ctx allows. It may be killed and run again.
func (s *Schema) Migrate(ctx context.Context) (applied []pgstore.Migration, err error) {
	err = s.connected(ctx, func(pool *pgxpool.Pool) error {
		applied, err = pgstore.Migrate(ctx, pool, s.options())
		return err
	})
	return applied, err
}

// Status returns every step, and when it was applied.
func (s *Schema) Status(ctx context.Context) (steps []pgstore.Migration, err error) {
	err = s.connected(ctx, func(pool *pgxpool.Pool) error {
		steps, err = pgstore.Status(ctx, pool, s.options())
		return err
	})
	return steps, err
}

// SQL returns all steps as a script. It connects to nothing.
func (s *Schema) SQL() (string, error) { return pgstore.SQL(s.options()) }

func (s *Schema) options() *pgstore.MigrateOptions {
	return &pgstore.MigrateOptions{Names: names(s.spec), Cleanup: pgstore.Cleanup(s.spec.Cleanup), MessageAge: s.spec.MessageAge, Partitions: s.spec.Partitions, KeepIDs: s.spec.KeepIDs}
}

func (s *Schema) connected(ctx context.Context, use func(*pgxpool.Pool) error) error {
	pool, err := pgxpool.New(ctx, s.spec.DSN.Reveal())
	if err != nil {
		return s.file.RedactError(fmt.Errorf("dsn: %w: %w", semel.ErrInvalidRequest, err))
	}
	defer pool.Close()
	return s.file.RedactError(use(pool))
}
