package stdout_test

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/stdout"
	"github.com/semel-dev/semel/pipeline"
)

func TestSinkPassesTheKindSuite(t *testing.T) {
	kindtest.Sink(t, stdout.NewSink, kindtest.Case{Least: `{}`})
}

func TestBodiesBecomeLines(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, kindtest.WithSink("{ stdout: {} }"))
	p := f.Pipelines[0]
	var out strings.Builder
	sink, err := p.Sink.Open(t.Context(), &config.Env{File: f, Pipeline: p, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	items := []*pipeline.Item{{Message: semel.Message{Body: []byte("a")}}, {Message: semel.Message{Body: []byte("b")}}}
	sink.Deliver(t.Context(), items)
	if err := sink.Close(t.Context()); err != nil || out.String() != "a\nb\n" || items[0].Err != nil || items[1].Err != nil {
		t.Errorf("%q, %v, %v, %v", out.String(), err, items[0].Err, items[1].Err)
	}
}
