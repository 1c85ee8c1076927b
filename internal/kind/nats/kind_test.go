package nats_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/nats"
)

func TestSource(t *testing.T) {
	kindtest.Source(t, nats.NewSource, kindtest.Case{
		Least:   `{ servers: ["h:4222"], stream: ORDERS, consumer: c }`,
		Secrets: []string{`{ servers: ["h:4222"], stream: ORDERS, consumer: c, username: u, password: ` + kindtest.Secret + ` }`},
	})
}

func TestSink(t *testing.T) {
	kindtest.Sink(t, nats.NewSink, kindtest.Case{
		Least:   `{ servers: ["h:4222"], subject: orders.out }`,
		Secrets: []string{`{ servers: ["h:4222"], subject: orders.out, password: ` + kindtest.Secret + ` }`},
	})
}
