package logstore

import "context"

// MergePairs lets the store merge two runs, not only many, for the suites.
func MergePairs(s *Store) { mergePairs(s) }

// Spill lets all keys leave memory that are not in an open transaction, for the suites.
func Spill(ctx context.Context, s *Store) error {
	if err := s.log.prepareSpare(minSegmentSize); err != nil {
		return err
	}
	c := s.committer
	if err := c.enter(ctx); err != nil {
		return err
	}
	if s.log.spare == nil {
		s.log.mu.Unlock()
		return nil
	}
	c.rotate()
	b := c.newBatch() // the writer seals the segment before this record
	c.closeBatch(b)
	c.last = b
	s.log.mu.Unlock()
	c.follow(b)
	if b.err != nil {
		return b.err
	}
	return spillNow(s)
}
