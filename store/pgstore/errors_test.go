package pgstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestErrorsOfTheServerHaveTheirClass(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]error{
		"40001": semel.ErrStoreUnavailable, // another transaction was in the way
		"40P01": semel.ErrStoreUnavailable,
		"55P03": semel.ErrStoreUnavailable,
		"57014": semel.ErrStoreUnavailable, // statement_timeout
		"57P03": semel.ErrStoreUnavailable, // starting up
		"25006": semel.ErrStoreUnavailable, // a standby
		"26000": semel.ErrStoreUnavailable, // a pooler that mixes up prepared statements
		"42P05": semel.ErrStoreUnavailable,
		"53300": semel.ErrStoreUnavailable, // no connection left
		"53100": semel.ErrStoreFull,
		"53200": semel.ErrStoreFull,
		"42P01": ErrSchema,
		"42703": ErrSchema,
		"42501": semel.ErrInvalidRequest,
		"28P01": semel.ErrInvalidRequest,
		"22P02": semel.ErrInvalidRequest,
		"57P01": semel.ErrOutcomeUnknown, // maybe after the commit
		"57P02": semel.ErrOutcomeUnknown,
		"40003": semel.ErrOutcomeUnknown,
		"08P01": semel.ErrOutcomeUnknown, // a pooler lost the server
		"XX000": semel.ErrOutcomeUnknown,
		"58030": semel.ErrOutcomeUnknown,
		"":      semel.ErrStoreUnavailable,
	} {
		server := &pgconn.PgError{Code: code, Message: "told"}
		err := failure(fmt.Errorf("wrapped: %w", server))
		if !errors.Is(err, want) || !errors.Is(err, server) {
			t.Errorf("SQLSTATE %s becomes %v, want %v", code, err, want)
		}
		if again := failure(err); again != err {
			t.Errorf("SQLSTATE %s is classified twice: %v", code, again)
		}
	}
	for err, want := range map[error]error{
		errors.New("connection reset"):                                                     semel.ErrOutcomeUnknown,
		fmt.Errorf("timeout: %w", context.DeadlineExceeded):                                semel.ErrOutcomeUnknown,
		&net.OpError{Op: "read", Err: errors.New("broken pipe")}:                           semel.ErrOutcomeUnknown,
		fmt.Errorf("acquire: %w", &pgconn.ConnectError{Config: &pgconn.Config{Host: "h"}}): semel.ErrStoreUnavailable,
	} {
		if got := failure(err); !errors.Is(got, want) || !errors.Is(got, err) {
			t.Errorf("%v becomes %v, want %v", err, got, want)
		}
	}
	if failure(nil) != nil {
		t.Error("no error becomes one")
	}
}

func TestServerThatIsNotThereIsUnavailable(t *testing.T) {
	t.Parallel()
	address := "postgres://postgres@" + servicestest.FreeAddr(t) + "/postgres?sslmode=disable&connect_timeout=2"
	if _, err := Connect(t.Context(), address, nil); !errors.Is(err, semel.ErrStoreUnavailable) || semel.Classify(err) != semel.ClassRetryable {
		t.Errorf("connect to an address without a server: %v, of class %s", err, semel.Classify(err))
	}
	p, err := pgxpool.New(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if _, err := Migrate(t.Context(), p, nil); !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("migrate nothing: %v", err)
	}
	if _, err := Connect(t.Context(), "postgres://user:secret@host:no-port/", nil); !errors.Is(err, semel.ErrInvalidRequest) || strings.Contains(err.Error(), "secret") {
		t.Errorf("connect to no address: %v", err)
	}
}

// pgx tries each address with TLS and without, and has a line for each attempt.
func TestAnUnreachableAddressIsNamedOnce(t *testing.T) {
	t.Parallel()
	for address, lines := range map[string]int{"postgres://app@127.0.0.1:1/x": 1, "postgres://app@127.0.0.1:1,127.0.0.1:2/x": 3} {
		_, err := Connect(t.Context(), address, nil)
		if semel.Classify(err) != semel.ClassRetryable {
			t.Errorf("%s: %v has class %v", address, err, semel.Classify(err))
		}
		var refused *pgconn.ConnectError
		if text := err.Error(); !errors.As(err, &refused) || len(strings.Split(text, "\n")) != lines || strings.Count(text, "dial error") != (lines+1)/2 {
			t.Errorf("%s: %s", address, text)
		}
	}
}
