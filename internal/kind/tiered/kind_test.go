package tiered_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/tiered"
)

func TestKind(t *testing.T) {
	kindtest.Store(t, tiered.NewStore, kindtest.Case{Least: `[beside, rows]`})
}
