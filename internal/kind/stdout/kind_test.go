package stdout_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/stdout"
)

func TestKind(t *testing.T) {
	kindtest.Sink(t, stdout.NewSink, kindtest.Case{Least: `{}`})
}
