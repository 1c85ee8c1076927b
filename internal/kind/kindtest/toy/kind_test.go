package toy_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/kindtest/toy"
)

func TestSource(t *testing.T) {
	kindtest.Source(t, toy.NewSource, kindtest.Case{Least: "{}"})
}

func TestSink(t *testing.T) {
	kindtest.Sink(t, toy.NewSink, kindtest.Case{Least: "{}"})
}
