package filter_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/filter"
	"github.com/semel-dev/semel/internal/kind/kindtest"
)

func TestKind(t *testing.T) {
	kindtest.Store(t, filter.NewStore, kindtest.Case{Least: `{ rate: 0.01, expect: 100, window: 7d }`})
}
