package pgstore

import (
	"context"
	"fmt"
)

// Audit appends a line of JSON to the table of the audit log: who changed a key
// by hand, and why. Write it before the change it tells of: then no change goes
// without its line. It blocks for one statement. A role needs the privilege to
// insert into that table for nothing else.
func (s *Store) Audit(ctx context.Context, line []byte) error {
	if err := s.enter("audit", 0, 0); err != nil {
		return err
	}
	defer s.leave()
	var number int64
	err := s.queryRow(ctx, s.pool, "INSERT INTO "+s.opts.quoted("audit")+" (line) VALUES ($1::text::json) RETURNING number", string(line)).Scan(&number)
	if err != nil {
		return fmt.Errorf("pgstore: audit: %w", failure(err))
	}
	return nil
}
