package file_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/file"
	"github.com/semel-dev/semel/internal/kind/kindtest"
)

func TestSource(t *testing.T) {
	kindtest.Source(t, file.NewSource, kindtest.Case{Least: `{ paths: [in.jsonl] }`})
}

func TestSink(t *testing.T) {
	kindtest.Sink(t, file.NewSink, kindtest.Case{Least: `{ path: out.jsonl }`})
}
