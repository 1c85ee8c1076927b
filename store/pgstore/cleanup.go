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
// chosen when the tables are made, and cannot be changed later.
type Cleanup string

const (
	// CleanupDelete deletes rows one by one, in short statements. It suits any
	// mix of windows, and costs a vacuum of what it leaves behind.
	CleanupDelete Cleanup = "delete"
	// CleanupGenerations keeps keys in three tables by turns and truncates the
	// oldest: to forget costs nothing, whatever the number of keys. A key that
	// is remembered for longer than a generation lasts is copied once for each
	// generation.
	CleanupGenerations Cleanup = "generations"
	// CleanupMessageTime keeps keys in partitions by the time inside their ids,
	// and truncates those of messages that are too old to be answered for. Ids
	// must have a time, a UUID of version 7 for instance, and a message must
	// come with the same id at every delivery.
	CleanupMessageTime Cleanup = "message-time"
)

// DefaultCleanup is the form of tables that were made without another.
const DefaultCleanup = CleanupDelete

// validate returns an error if there is no such form.
func (c Cleanup) validate(field string) error {
	switch c {
	case CleanupDelete, CleanupGenerations, CleanupMessageTime:
		return nil
	}
	return fmt.Errorf("pgstore: %s: %q is none of %s, %s and %s: %w", field, string(c), CleanupDelete, CleanupGenerations, CleanupMessageTime, semel.ErrInvalidRequest)
}

// checkCleanup compares the form that was asked for with that of the tables.
func (o *MigrateOptions) checkCleanup(ctx context.Context, db Beginner) error {
	if o.Cleanup == "" {
		return nil
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	defer rollback(ctx, tx)
	var form []byte
	err = tx.QueryRow(ctx, "SELECT value FROM "+o.quoted("meta")+" WHERE name = 'cleanup'", pgx.QueryExecModeDescribeExec).Scan(&form)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return Cleanup(form).suits(o.Cleanup)
}

// suits returns an error if tables of a form are not what is wanted. To change
// the form would forget all keys.
func (c Cleanup) suits(wanted Cleanup) error {
	if have := cmp.Or(c, DefaultCleanup); wanted != "" && have != wanted {
		return fmt.Errorf("the tables were made for clean-up by %s, not by %s: %w", string(have), string(wanted), ErrSchema)
	}
	return nil
}

// setForm makes the store work on tables of a form.
func (s *Store) setForm(ctx context.Context, form Cleanup) error {
	if err := form.suits(s.opts.Cleanup); err != nil {
		return err
	}
	switch form {
	case CleanupGenerations:
		s.ring = newRing(s.opts.Names, s.opts.KeepIDs)
		return s.onPool().learn(ctx)
	case CleanupMessageTime:
		times, err := s.onPool().messageTimes(ctx)
		if err != nil {
			return err
		}
		s.hasher.times = times
		s.plain = messageTimeStatements(s.opts.Names, s.opts.KeepIDs, times)
	}
	return nil
}
