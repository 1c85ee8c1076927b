package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/store/pgstore/internal/pgschema"
)

// Defaults of the names under which tables are created.
const (
	DefaultSchema = "public"
	DefaultPrefix = "semel_"
)

// Names is the schema and the name prefix of the tables. The zero value is valid.
type Names struct {
	// Schema of the tables. Defaults to "public". Must consist of a-z, 0-9 and _,
	// not begin with a digit, and have at most 63 bytes.
	Schema string
	// Prefix of the names of tables and of the sequence. Defaults to "semel_". Must
	// consist of the same characters and have at most 40 bytes.
	Prefix string
}

func (n Names) withDefaults() Names {
	return Names{Schema: cmp.Or(n.Schema, DefaultSchema), Prefix: cmp.Or(n.Prefix, DefaultPrefix)}
}

func (n Names) validate() []error { return pgschema.Names(n).Validate() }

// quoted returns the name of a table, quoted with its schema.
func (n Names) quoted(table string) string { return pgschema.Names(n).Quoted(table) }

// Table returns the name of one of the store's tables, such as "parked", quoted
// with its schema. If the names are invalid, the error wraps
// semel.ErrInvalidRequest.
func (n Names) Table(table string) (string, error) {
	n = n.withDefaults()
	return n.quoted(table), errors.Join(n.validate()...)
}

// MigrateOptions are the options of [Migrate]. The zero value is valid.
type MigrateOptions struct {
	Names
	// Partitions is the number of hash partitions of the table of keys, which
	// clean-up and autovacuum process one by one. It applies when the table is
	// created and cannot be changed later. Defaults to 0: a plain table. Must be
	// between 0 and 1024. If clean-up is by message time, it is the number of
	// partitions by time, four of which are spare. Then it defaults to 32 and must
	// be between 8 and 256.
	Partitions int
	// Cleanup is the form in which expired keys are removed. It applies when the
	// table is created and cannot be changed later. Defaults to the form of the
	// table, or to CleanupDelete if none exists yet.
	Cleanup Cleanup
	// MessageAge is the maximum age of a message, by the time inside its id, if
	// clean-up is by message time. The store answers for messages up to this age.
	// It applies when the table is created and cannot be changed later. Defaults to
	// 7 days. Must be at least as many hours as there are partitions.
	MessageAge time.Duration
	// FillFactor is the share of a page, in percent, that new rows fill. The rest
	// is left for updates. It applies when the table is created. With 90, most
	// completions of large batches need a second index entry. With 50 they do not,
	// which is a third faster and takes twice the pages. Keys that are done in one
	// step need no room. Defaults to 90. Must be between 10 and 100.
	FillFactor int
	// KeepIDs adds the columns for readable keys, which a store with
	// Options.KeepIDs needs. Defaults to false.
	KeepIDs bool
	// KeepOrigins adds the column for origins. A store that finds it has
	// Traits.Origins. It makes each row 8 bytes longer, in addition to the origin.
	// Defaults to false.
	KeepOrigins bool
}

// Migration is one step of the schema.
type Migration struct {
	// Version is the number of the step. It is 0 if the step only adds the columns
	// of KeepIDs or KeepOrigins.
	Version int
	// Name describes the step.
	Name string
	// Applied is when the step was applied, by the server's clock. It is zero if it
	// was not.
	Applied time.Time
	// Newer: a newer version of this package applied the step, and this one does not
	// know it.
	Newer bool
	// Missing are the quoted names of tables, sequences and functions that the step has
	// created and that are not there.
	Missing []string
}

// Beginner begins transactions: a *pgxpool.Pool or a *pgx.Conn.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// defaultFillFactor is the default of [MigrateOptions].
const defaultFillFactor = 90

const maxPartitions = 1024

// migrationLock is the key of the advisory lock under which steps are applied. It
// spells "semel" in hexadecimal.
const migrationLock = 0x73656d656c

// Migrate applies the steps that the database lacks, each in its own transaction,
// and returns them. Many processes may run it concurrently, and each may be
// killed: a step is applied completely or not at all. Migrate waits for other
// runners until ctx ends. Nil options are the zero options. If the tables were
// created for another form of clean-up, the error wraps [ErrSchema]. If something that an
// applied step has created is missing, the error is a [*MissingError].
//
// [Options].Migrate does this when a store is opened.
func Migrate(ctx context.Context, db Beginner, opts *MigrateOptions) ([]Migration, error) {
	o, err := opts.checked()
	if err != nil {
		return nil, err
	}
	steps, err := o.layout().Steps()
	if err != nil {
		return nil, err
	}
	if err := o.checkCleanup(ctx, db); err != nil {
		return nil, fmt.Errorf("pgstore: migrate: %w", failure(err))
	}
	if err := o.checkMissing(ctx, db, steps); err != nil {
		return nil, fmt.Errorf("pgstore: migrate: %w", failure(err))
	}
	var applied []Migration
	for _, step := range steps {
		m, err := o.apply(ctx, db, step)
		if err != nil {
			return applied, fmt.Errorf("pgstore: migration %d (%s): %w", step.Version, step.Name, failure(err))
		}
		if m != nil {
			applied = append(applied, *m)
		}
	}
	for _, c := range o.optional() {
		m, err := o.addColumns(ctx, db, &c)
		if err != nil {
			return applied, fmt.Errorf("pgstore: add %s to the table of keys: %w", c.name, failure(err))
		}
		if m != nil {
			applied = append(applied, *m)
		}
	}
	return applied, nil
}

// checkMissing returns an error if something is missing that an applied step has created.
// It holds the lock of the steps. Otherwise another runner could apply one between two
// statements, which would then see two states of the schema.
func (o *MigrateOptions) checkMissing(ctx context.Context, db Beginner, steps []pgschema.Step) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer rollback(ctx, tx)
	if err := lockMigrations(ctx, tx); err != nil {
		return err
	}
	applied, err := o.applied(ctx, tx)
	if err != nil {
		return err
	}
	if applied == nil {
		there, err := o.hasTable(ctx, tx, "keys")
		if err == nil && there {
			err = &MissingError{Name: o.quoted("migrations")}
		}
		return err
	}
	lost, err := o.lost(ctx, tx, steps, applied)
	if err == nil && len(lost) > 0 {
		err = lost[0]
	}
	return err
}

// Status returns every step that this version knows, with the time when it was
// applied and the parts of it that are missing, and then the steps of newer versions.
func Status(ctx context.Context, db Beginner, opts *MigrateOptions) ([]Migration, error) {
	o, err := opts.checked()
	if err != nil {
		return nil, err
	}
	steps, err := o.layout().Steps()
	if err != nil {
		return nil, err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgstore: status: %w", failure(err))
	}
	defer rollback(ctx, tx)
	applied, err := o.applied(ctx, tx)
	if err != nil {
		return nil, fmt.Errorf("pgstore: status: %w", failure(err))
	}
	lost, err := o.lost(ctx, tx, steps, applied)
	if err != nil {
		return nil, fmt.Errorf("pgstore: status: %w", failure(err))
	}
	status := make([]Migration, len(steps))
	for i, step := range steps {
		status[i] = Migration{Version: step.Version, Name: step.Name, Applied: applied[step.Version].Applied}
		for _, e := range lost {
			if e.Version == step.Version {
				status[i].Missing = append(status[i].Missing, e.Name)
			}
		}
	}
	known := status[len(status)-1].Version
	for _, version := range slices.Sorted(maps.Keys(applied)) {
		if m := applied[version]; version > known {
			m.Newer = true
			status = append(status, m)
		}
	}
	return status, nil
}

// SQL returns all steps as a script for psql or another tool, for databases whose
// schema programs may not change. Each step is one transaction. It fails as a
// whole if it was applied before.
func SQL(opts *MigrateOptions) (string, error) {
	o, err := opts.checked()
	if err != nil {
		return "", err
	}
	steps, err := o.layout().Steps()
	if err != nil {
		return "", err
	}
	names := pgschema.Names(o.Names)
	var script strings.Builder
	fmt.Fprintf(&script, "BEGIN;\n%s;\n%s;\nCOMMIT;\n", names.CreateSchema(), names.CreateMigrations())
	for _, step := range steps {
		fmt.Fprintf(&script, "\n-- %d: %s\nBEGIN;\nSELECT pg_advisory_xact_lock(%d);\n%s\nINSERT INTO %s (version, name) VALUES (%d, '%s');\nCOMMIT;\n",
			step.Version, step.Name, migrationLock, step.SQL, o.quoted("migrations"), step.Version, step.Name)
	}
	for _, c := range o.optional() {
		sql, err := c.add()
		if err != nil {
			return "", err
		}
		script.WriteString("\n" + sql)
	}
	return script.String(), nil
}

// optionalColumns are columns that only some tables have.
type optionalColumns struct {
	name string
	has  string                 // asks whether the table has them
	add  func() (string, error) // returns the SQL that adds them
}

// optional returns the optional columns that the options ask for.
func (o *MigrateOptions) optional() (all []optionalColumns) {
	if o.KeepIDs {
		all = append(all, optionalColumns{"columns scope and id", hasIDs, o.layout().ReadableKeys})
	}
	if o.KeepOrigins {
		all = append(all, optionalColumns{"column origin", hasOrigin, o.layout().Origins})
	}
	return all
}

func (o *MigrateOptions) checked() (*MigrateOptions, error) {
	var c MigrateOptions
	if o != nil {
		c = *o
	}
	c.Names = c.Names.withDefaults()
	c.FillFactor = cmp.Or(c.FillFactor, defaultFillFactor)
	wrong := invalid.In("pgstore: MigrateOptions.")
	wrong.Join(c.Names.validate()...)
	if c.Cleanup != "" {
		wrong.Join(c.Cleanup.validate("MigrateOptions.Cleanup"))
	}
	if c.Cleanup == CleanupMessageTime {
		c.checkMessageTime(wrong)
	}
	if c.FillFactor < 10 || c.FillFactor > 100 {
		wrong.Add("FillFactor: %d is not between 10 and 100", c.FillFactor)
	}
	if c.Partitions < 0 || c.Partitions > maxPartitions {
		wrong.Add("Partitions: %d is not between 0 and %d", c.Partitions, maxPartitions)
	}
	return &c, wrong.Err()
}

// layout returns the table settings that the options choose.
func (o *MigrateOptions) layout() *pgschema.Layout {
	return &pgschema.Layout{
		Names: pgschema.Names(o.Names), Cleanup: string(cmp.Or(o.Cleanup, defaultCleanup)),
		Partitions: o.Partitions, MessageAge: o.MessageAge, FillFactor: o.FillFactor,
	}
}

// apply applies one step. It returns nil if the step was applied before.
func (o *MigrateOptions) apply(ctx context.Context, db Beginner, s pgschema.Step) (*Migration, error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer rollback(ctx, tx)
	if err := lockMigrations(ctx, tx); err != nil {
		return nil, err
	}
	applied, err := o.applied(ctx, tx)
	if err != nil {
		return nil, err
	}
	if _, was := applied[s.Version]; was {
		return nil, nil
	}
	if applied == nil {
		if err := o.prepare(ctx, tx); err != nil {
			return nil, err
		}
	}
	if _, err := tx.Exec(ctx, s.SQL); err != nil {
		return nil, err
	}
	m := Migration{Version: s.Version, Name: s.Name}
	insert := "INSERT INTO " + o.quoted("migrations") + " (version, name) VALUES ($1, $2) RETURNING applied"
	if err := tx.QueryRow(ctx, insert, pgx.QueryExecModeDescribeExec, s.Version, s.Name).Scan(&m.Applied); err != nil {
		return nil, err
	}
	return &m, tx.Commit(ctx)
}

// lockMigrations waits until no other runner applies a step, and keeps them waiting until
// the transaction ends.
func lockMigrations(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", pgx.QueryExecModeExec, int64(migrationLock))
	return err
}

// applied returns the applied steps by version, or nil if none ever was.
func (o *MigrateOptions) applied(ctx context.Context, tx pgx.Tx) (map[int]Migration, error) {
	exists, err := o.hasTable(ctx, tx, "migrations")
	if err != nil || !exists {
		return nil, err
	}
	rows, err := tx.Query(ctx, "SELECT version, name, applied FROM "+o.quoted("migrations"), pgx.QueryExecModeDescribeExec)
	if err != nil {
		return nil, err
	}
	applied := make(map[int]Migration)
	var m Migration
	_, err = pgx.ForEachRow(rows, []any{&m.Version, &m.Name, &m.Applied}, func() error {
		applied[m.Version] = m
		return nil
	})
	return applied, err
}

// hasTable reports whether a table exists. It reads the catalog itself. If the
// same session has looked for the table before, to_regclass may answer from a
// cache older than the lock that the transaction has waited for.
func (o *MigrateOptions) hasTable(ctx context.Context, tx pgx.Tx, table string) (exists bool, err error) {
	const sql = "SELECT EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relname = $2)"
	err = tx.QueryRow(ctx, sql, pgx.QueryExecModeDescribeExec, o.Schema, o.Prefix+table).Scan(&exists)
	return exists, err
}

// prepare creates what the first step needs. It does not try to create an
// existing schema, because even the attempt needs a privilege on the database.
func (o *MigrateOptions) prepare(ctx context.Context, tx pgx.Tx) error {
	names := pgschema.Names(o.Names)
	var exists bool
	err := tx.QueryRow(ctx, "SELECT to_regnamespace($1) IS NOT NULL", pgx.QueryExecModeDescribeExec, names.QuotedSchema()).Scan(&exists)
	if err != nil {
		return err
	}
	if !exists {
		if _, err := tx.Exec(ctx, names.CreateSchema()); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, names.CreateMigrations())
	return err
}

// addColumns adds optional columns. It returns nil if the table has them.
func (o *MigrateOptions) addColumns(ctx context.Context, db Beginner, c *optionalColumns) (*Migration, error) {
	sql, err := c.add()
	if err != nil {
		return nil, err
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer rollback(ctx, tx)
	has := func() (has bool, err error) {
		err = tx.QueryRow(ctx, c.has, pgx.QueryExecModeDescribeExec, o.quoted("keys")).Scan(&has)
		return has, err
	}
	if there, err := has(); err != nil || there {
		return nil, err
	}
	if err := lockMigrations(ctx, tx); err != nil {
		return nil, err
	}
	if there, err := has(); err != nil || there { // another runner added them
		return nil, err
	}
	if _, err := tx.Exec(ctx, sql); err != nil {
		return nil, err
	}
	m := &Migration{Name: c.name}
	if err := tx.QueryRow(ctx, "SELECT now()", pgx.QueryExecModeDescribeExec).Scan(&m.Applied); err != nil {
		return nil, err
	}
	return m, tx.Commit(ctx)
}

// hasIDs asks whether a table has the columns of readable keys. Even an ALTER
// that changes nothing would wait for every transaction.
const hasIDs = "SELECT count(*) = 2 FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname IN ('scope', 'id') AND NOT attisdropped"

// hasOrigin asks whether a table has the column of origins.
const hasOrigin = "SELECT count(*) = 1 FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = 'origin' AND NOT attisdropped"

// rollback ends a transaction that may have ended already. Its error does not
// matter: the server rolls back a transaction whose connection is lost.
func rollback(ctx context.Context, tx pgx.Tx) {
	_ = tx.Rollback(context.WithoutCancel(ctx))
}
