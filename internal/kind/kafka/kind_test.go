package kafka_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kafka"
	"github.com/semel-dev/semel/internal/kind/kindtest"
)

func TestSource(t *testing.T) {
	kindtest.Source(t, kafka.NewSource, kindtest.Case{
		Least:   `{ brokers: ["h:9092"], topics: [in], group: g }`,
		Secrets: []string{`{ brokers: ["h:9092"], topics: [in], group: g, sasl: { mechanism: PLAIN, username: u, password: ` + kindtest.Secret + ` } }`},
	})
}

func TestSink(t *testing.T) {
	kindtest.Sink(t, kafka.NewSink, kindtest.Case{
		Least:   `{ brokers: ["h:9092"], topic: out }`,
		Secrets: []string{`{ brokers: ["h:9092"], topic: out, sasl: { mechanism: PLAIN, username: u, password: ` + kindtest.Secret + ` } }`},
	})
}
