package embedded_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/embedded"
	"github.com/semel-dev/semel/internal/kind/kindtest"
)

func TestKind(t *testing.T) {
	kindtest.Store(t, embedded.NewStore, kindtest.Case{Least: `{ path: other }`})
}
