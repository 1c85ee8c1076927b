package pipeline_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

func TestRouteAllowsListedTargetsOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, source, header string
		want                 string // "" means that the message has no target
		says                 string
	}{
		{from: "source", source: "orders", want: "orders"},
		{from: "source", source: "billing.paid", want: "billing.paid"},
		{from: "source", source: "billing.", says: `"billing."`},
		{from: "source", source: "order", says: `"order", which is not allowed (orders, billing.*)`},
		{from: "source", source: "orders2", says: "not allowed"},
		{from: "source", header: "orders", says: "source of the message is empty"},
		{from: "header:to", source: "elsewhere", header: "orders", want: "orders"},
		{from: "header:to", source: "orders", says: "header:to of the message is empty"},
	} {
		route, err := pipeline.NewRoute(c.from, "orders", "billing.*")
		if err != nil {
			t.Fatal(err)
		}
		m := &semel.Message{Origin: semel.Origin{Source: c.source}}
		if c.header != "" {
			m.Headers = []semel.Header{{Name: "to", Value: []byte("former")}, {Name: "to", Value: []byte(c.header)}}
		}
		got, err := route.Target(m)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
		if err != nil && (!errors.Is(err, pipeline.ErrRoute) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: %v", c, err)
		}
		if _, permanent := errors.AsType[*semel.PermanentError](err); permanent {
			t.Errorf("%+v: it is not retried: %v", c, err)
		}
	}
	for _, c := range [][]string{{"topic", "a"}, {"header:", "a"}, {"", "a"}, {"source"}, {"source", ""}, {"source", "a*b"}, {"source", "**"}} {
		if r, err := pipeline.NewRoute(c[0], c[1:]...); r != nil || !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%q: %v, %v", c, r, err)
		}
	}
	if r, err := pipeline.NewRoute("source", "orders", "billing.*", "*"); err != nil || r.String() != "orders, billing.*, * by source" || !r.Allows("x") {
		t.Errorf("%v, %v", r, err)
	}
}
