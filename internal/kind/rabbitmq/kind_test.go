package rabbitmq_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/rabbitmq"
)

func TestSource(t *testing.T) {
	kindtest.Source(t, rabbitmq.NewSource, kindtest.Case{
		Least:   `{ servers: ["h:5672"], queue: orders }`,
		Secrets: []string{`{ servers: ["h:5672"], queue: orders, username: u, password: ` + kindtest.Secret + ` }`},
	})
}

func TestSink(t *testing.T) {
	kindtest.Sink(t, rabbitmq.NewSink, kindtest.Case{
		Least:   `{ servers: ["h:5672"], routing_key: orders }`,
		Secrets: []string{`{ servers: ["h:5672"], routing_key: orders, password: ` + kindtest.Secret + ` }`},
	})
}
