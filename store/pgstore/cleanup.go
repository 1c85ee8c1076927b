package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// Cleanup is the form in which keys are forgotten after their window. It is
// chosen when the tables are created and cannot be changed later.
type Cleanup string

const (
	// CleanupDelete deletes rows in short statements. It suits any ids and any mix
	// of windows. Autovacuum must remove the dead rows that it leaves.
	CleanupDelete Cleanup = "delete"
	// CleanupMessageTime keeps keys in partitions by the time inside their ids,
	// and truncates a partition once all its messages are too old to be answered
	// for. Each id must contain a time, as a UUID of version 7 does, and a message
	// must have the same id at every delivery.
	CleanupMessageTime Cleanup = "message-time"
)

// DefaultCleanup is the form of tables that were created without another.
const DefaultCleanup = CleanupDelete

// validate returns an error if there is no such form.
func (c Cleanup) validate(field string) error {
	switch c {
	case CleanupDelete, CleanupMessageTime:
		return nil
	}
	return fmt.Errorf("pgstore: %s: %q is neither %s nor %s: %w", field, string(c), CleanupDelete, CleanupMessageTime, semel.ErrInvalidRequest)
}

// checkCleanup compares the wanted form with that of the tables, if there are
// any. It comes before the first step: tables of a form that this version does
// not have are left as they are.
func (o *MigrateOptions) checkCleanup(ctx context.Context, db Beginner) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer rollback(ctx, tx)
	exists, err := o.hasTable(ctx, tx, "meta")
	if err != nil || !exists {
		return err
	}
	var form []byte
	err = tx.QueryRow(ctx, "SELECT value FROM "+o.quoted("meta")+" WHERE name = 'cleanup'", pgx.QueryExecModeDescribeExec).Scan(&form)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return Cleanup(form).suits(o.Cleanup, o.Names)
}

// suits returns an error if tables of this form cannot be used, or are not of
// the wanted form. A change of the form would forget all keys.
func (c Cleanup) suits(wanted Cleanup, n Names) error {
	have := cmp.Or(c, DefaultCleanup)
	switch {
	case have != CleanupDelete && have != CleanupMessageTime:
		return fmt.Errorf("the tables %s* in schema %s were created for clean-up by %q, which this version does not support. "+
			"Create tables under another prefix and use those; keys remembered in the old tables are not copied: %w", n.Prefix, n.Schema, string(have), ErrSchema)
	case wanted != "" && have != wanted:
		return fmt.Errorf("the tables %s* in schema %s were created for clean-up by %s, not by %s: %w", n.Prefix, n.Schema, string(have), string(wanted), ErrSchema)
	}
	return nil
}

// setForm makes the store work on tables of a form.
func (s *Store) setForm(ctx context.Context, form Cleanup) error {
	if err := form.suits(s.opts.Cleanup, s.opts.Names); err != nil {
		return err
	}
	if form != CleanupMessageTime {
		return nil
	}
	times, err := s.onPool().messageTimes(ctx)
	if err != nil {
		return err
	}
	s.hasher.times = times
	s.sql = messageTimeStatements(s.opts.Names, s.opts.KeepIDs, times)
	return nil
}
