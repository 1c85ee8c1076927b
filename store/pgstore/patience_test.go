package pgstore

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/storetest"
)

// behind returns the address of a server with another host and port.
func behind(t *testing.T, server, address string) string {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = address
	return u.String()
}

func TestEveryCallTimesOutOnASilentServer(t *testing.T) {
	t.Parallel()
	database := shared.Database(t)
	migrated(t, database, nil)
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	storetest.RunSilent(t, u.Host, 2*time.Minute, func(t *testing.T, address string) semel.Store {
		s, err := Connect(t.Context(), behind(t, database, address), nil)
		if err != nil {
			t.Fatal(err)
		}
		s.patience = time.Second / 2 // a listing waits 15 times as long
		return s
	})
}

// A claim in a transaction of a guard waits no longer than one without, and nothing of it
// is in doubt.
func TestTransactionClaimTimesOutOnASilentServer(t *testing.T) {
	t.Parallel()
	b := opened(t, &Options{LockWait: mostLockWait}) // the server's own limit is not that of this test
	b.patience = 300 * time.Millisecond
	g, err := NewGuard(b.Store, nil)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+b.opts.quoted("keys")+" IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	_, err = g.DoTx(t.Context(), keyOf(1), func(context.Context, pgx.Tx) ([]byte, error) {
		t.Error("the effect ran")
		return nil, nil
	})
	if !errors.Is(err, semel.ErrStoreUnavailable) || errors.Is(err, semel.ErrOutcomeUnknown) {
		t.Errorf("the error is %v", err)
	}
}
