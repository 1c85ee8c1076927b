package sqs_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/sqs"
)

func TestSource(t *testing.T) {
	kindtest.Source(t, sqs.NewSource, kindtest.Case{Least: `{ queue: "https://sqs.eu-west-1.amazonaws.com/123456789012/orders" }`})
}

func TestSink(t *testing.T) {
	kindtest.Sink(t, sqs.NewSink, kindtest.Case{Least: `{ queue: "https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo" }`})
}
