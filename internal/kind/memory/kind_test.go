package memory_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/memory"
)

func TestKind(t *testing.T) {
	kindtest.Store(t, memory.NewStore, kindtest.Case{Least: `{}`})
}
