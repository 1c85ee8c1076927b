package pgstore

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/services/servicestest"
)

type readier interface {
	Ready(ctx context.Context) error
}

func TestReadySaysThatTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	b := openedAt(t, server.URL(), nil)
	ready, ok := semel.As[readier](semel.Join(b.Store, 0))
	if !ok {
		t.Fatal("a joined store does not say whether it is ready")
	}
	if err := ready.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	// The first call may find that an open connection was closed.
	eventually(t, "the error names the server", func() bool {
		err := ready.Ready(t.Context())
		if !errors.Is(err, semel.ErrStoreUnavailable) {
			t.Fatalf("without the server: %v", err)
		}
		return strings.Contains(err.Error(), server.Addr())
	})
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store is ready again", func() bool { return ready.Ready(t.Context()) == nil })
}

func TestReadySaysThatNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	b := openedAt(t, address, nil)
	s := openSame(t, b)
	s.pool = pool(t, address+"&default_transaction_read_only=on")
	if err := s.Ready(t.Context()); !errors.Is(err, semel.ErrStoreUnavailable) || !errors.Is(err, errReadOnly) {
		t.Errorf("where nothing can be written: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Ready(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
	if err := b.Store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Ready(t.Context()); !errors.Is(err, semel.ErrClosed) {
		t.Errorf("after it was closed: %v", err)
	}
}
