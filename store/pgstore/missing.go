package pgstore

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/store/pgstore/internal/pgschema"
)

// MissingError means that a table, sequence or function is not there although its migration
// was applied. It wraps [ErrSchema].
type MissingError struct {
	// Name is its quoted name. Version and Step are the migration that created it, or 0 and
	// "" for the table of migrations itself.
	Name    string
	Version int
	Step    string
}

// Error implements error.
func (e *MissingError) Error() string { return e.Cause() + ": " + e.Remedy() }

// Cause says what is wrong.
func (e *MissingError) Cause() string {
	if e.Version == 0 {
		return e.Name + " is missing, and the tables of applied migrations are there: it was renamed or dropped"
	}
	return fmt.Sprintf("%s is missing: migration %d (%s) created it, and it was renamed or dropped since", e.Name, e.Version, e.Step)
}

// Remedy says how to correct it.
func (e *MissingError) Remedy() string {
	if e.Version == 0 {
		return "rename it back or restore it"
	}
	return "rename it back or restore it; if its rows may be lost, run the statements about it that semel migrate sql prints"
}

// Unwrap returns ErrSchema.
func (*MissingError) Unwrap() error { return ErrSchema }

// created finds what a step creates, not what it replaces.
var created = regexp.MustCompile(`(?m)^CREATE (TABLE|SEQUENCE|FUNCTION) ("[a-z0-9_]+"\."[a-z0-9_]+")( PARTITION OF)?`)

// objectsOf returns the quoted names of what a step creates.
func objectsOf(s pgschema.Step) (names []string) {
	for _, found := range created.FindAllStringSubmatch(s.SQL, -1) {
		if found[3] == "" && !slices.Contains(names, found[2]) {
			names = append(names, found[2])
		}
	}
	return names
}

// absentSQL returns the names of a list that neither a table or sequence nor a function has.
const absentSQL = `SELECT array(SELECT t FROM unnest($1::text[]) WITH ORDINALITY AS u (t, n)
	WHERE NOT EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS s ON s.oid = c.relnamespace WHERE format('"%s"."%s"', s.nspname, c.relname) = t)
	AND NOT EXISTS (SELECT FROM pg_proc AS p JOIN pg_namespace AS s ON s.oid = p.pronamespace WHERE format('"%s"."%s"', s.nspname, p.proname) = t)
	ORDER BY n)`

// Check returns an error that wraps [ErrSchema] if one of some tables is not there, such as
// "parked". It is a [*MissingError] if a migration has created the table. Other errors are
// those of the database. Check blocks for one statement, and for two or three more if a
// table is missing. If the names are invalid, the error wraps semel.ErrInvalidRequest.
func (n Names) Check(ctx context.Context, db interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, tables ...string,
) error {
	quoted := make([]string, len(tables))
	for i, table := range tables {
		var err error
		if quoted[i], err = n.Table(table); err != nil {
			return err
		}
	}
	var absent []string
	// One round trip: behind a pooler, a second one may meet another server process.
	if err := db.QueryRow(ctx, absentSQL, pgx.QueryExecModeExec, quoted).Scan(&absent); err != nil || len(absent) == 0 {
		return err
	}
	plain := fmt.Errorf("there is no table %s: run semel migrate up: %w", absent[0], ErrSchema)
	o, err := (&MigrateOptions{Names: n}).checked()
	if err != nil {
		return err
	}
	steps, err := o.layout().Steps()
	if err != nil {
		return err
	}
	at := slices.IndexFunc(steps, func(s pgschema.Step) bool { return slices.Contains(objectsOf(s), absent[0]) })
	var applied bool
	if at < 0 || db.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+o.quoted("migrations")+" WHERE version = $1)", pgx.QueryExecModeExec, steps[at].Version).Scan(&applied) != nil {
		return plain // the table of migrations is missing, or this role may not read it
	}
	if !applied {
		return plain
	}
	// The step may have been applied since the first statement. Then the table is there now.
	missing := &MissingError{Name: absent[0], Version: steps[at].Version, Step: steps[at].Name}
	if err := db.QueryRow(ctx, absentSQL, pgx.QueryExecModeExec, quoted).Scan(&absent); err != nil || len(absent) == 0 {
		return err
	}
	if absent[0] != missing.Name {
		return fmt.Errorf("there is no table %s: run semel migrate up: %w", absent[0], ErrSchema)
	}
	return missing
}

// lost returns what applied steps have created and is missing.
func (o *MigrateOptions) lost(ctx context.Context, tx pgx.Tx, steps []pgschema.Step, applied map[int]Migration) (list []*MissingError, err error) {
	var names []string
	for _, s := range steps {
		if _, was := applied[s.Version]; was {
			names = append(names, objectsOf(s)...)
		}
	}
	if names == nil {
		return nil, nil
	}
	var absent []string
	if err := tx.QueryRow(ctx, absentSQL, pgx.QueryExecModeDescribeExec, names).Scan(&absent); err != nil {
		return nil, err
	}
	for _, name := range absent {
		at := slices.IndexFunc(steps, func(s pgschema.Step) bool { return slices.Contains(objectsOf(s), name) })
		list = append(list, &MissingError{Name: name, Version: steps[at].Version, Step: steps[at].Name})
	}
	return list, nil
}
