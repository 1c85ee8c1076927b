package postgres

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/internal/pglock"
	"github.com/semel-dev/semel/internal/retry"
)

// notPastLocks runs a check that changes nothing. It ends a check that waits for a lock
// for more than a second or two. The error is then a *postgres.LockError with the
// session that holds the lock.
func notPastLocks(ctx context.Context, server *pgx.ConnConfig, check func(context.Context) error) error {
	checking, end := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		for retry.Sleep(checking, time.Second) == nil {
			// A server that does not answer is an error of the check.
			if by, _ := pglock.Holder(checking, server); by != "" {
				end(&postgres.LockError{By: by, Err: context.Canceled})
			}
		}
	})
	err := check(checking)
	end(nil)
	watch.Wait()
	if behind, ok := errors.AsType[*postgres.LockError](context.Cause(checking)); ok && err != nil {
		return behind
	}
	return err
}
