package postgres_test

import (
	"errors"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/postgres"
)

func TestASessionNeedsItsGuardAndFunction(t *testing.T) {
	t.Parallel()
	if _, err := postgres.NewSession(nil, &postgres.Options{}); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("NewSession: %v", err)
	}
	defer func() {
		if recover() == nil {
			t.Error("NewHandler took nothing for a guard and a function")
		}
	}()
	postgres.NewHandler(nil, nil)
}
