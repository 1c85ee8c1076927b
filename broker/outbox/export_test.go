package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/semel-dev/semel"
)

// ExamineAfter is Examine with a patience of its own. It warns of all deleted rows that are kept.
func ExamineAfter(ctx context.Context, dsn string, opts *Options, patience time.Duration) ([]semel.Finding, error) {
	return examine(ctx, dsn, opts, patience, 0)
}

// Postpone makes the next Read of a source wait, unless it is woken.
func Postpone(s *Source, until time.Time) {
	select {
	case <-s.wake:
	default:
	}
	s.reading.next = until
}

// Owned returns how many shards a source owns.
func Owned(s *Source) int { return len(s.owned()) }

// Hear listens for notifications until ctx ends. The error says whether a pooler is
// between.
func Hear(ctx context.Context, s *Source) (pooled bool) { return errors.Is(s.hear(ctx), errPooled) }
