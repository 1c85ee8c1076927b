package rabbitmq_test

import (
	"strings"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
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

func TestAMessageHasAnAddress(t *testing.T) {
	m := &semel.Message{Origin: semel.Origin{Source: "paid"}}
	for text, want := range map[string]string{
		"{ servers: ['h:5672'], routing_key: orders }":                                          "queue orders",
		"{ servers: ['h:5672'], exchange: shop, routing_key: orders }":                          "exchange shop, routing key orders",
		"{ servers: ['h:5672'], exchange: shop, routing_key: { from: source, allow: [paid] } }": "exchange shop, routing key paid",
		"{ servers: ['h:5672'], exchange: shop, routing_key: { from: source, allow: [sent] } }": "",
	} {
		f, err := kind.All().Parse("c.yaml", []byte("stores: { a: { embedded: { path: k } } }\npipelines: { p: { key: { id: .id }, store: a, source: { file: { paths: [in] } }, sink: { rabbitmq: "+text+" } } }"), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Pipelines[0].Sink.(config.Addressed).Address(m); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestAQueueOfUnknownTypeIsNoted(t *testing.T) {
	for text, noted := range map[string]bool{"queue: orders": true, "queue: orders, create: true": false, "queue: orders, management: 'http://h:15672'": false} {
		f, err := kind.All().Parse("c.yaml", []byte("stores: { a: { embedded: { path: k } } }\npipelines: { p: { key: { id: .id }, store: a, source: { rabbitmq: { servers: ['h:5672'], "+text+" } }, sink: { stdout: {} } } }"), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, x := range f.Lint() {
			found = found || x.Severity == semel.Notice && strings.Contains(x.Cost, "a classic queue")
		}
		if found != noted {
			t.Errorf("%s: noted is %t, want %t", text, found, noted)
		}
	}
}

func TestTwoPipelinesOfAQueueAreReported(t *testing.T) {
	const one = "{ key: { id: .id }, store: a, source: { rabbitmq: { servers: ['h:5672'], queue: orders } }, sink: { stdout: {} } }"
	f, err := kind.All().Parse("c.yaml", []byte("stores: { a: { embedded: { path: k } } }\npipelines: { p: "+one+", q: "+one+" }"), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	reported := 0
	for _, x := range f.Lint() {
		if strings.Contains(x.Found, "which pipeline p reads too") {
			reported++
		}
	}
	if reported != 1 {
		t.Errorf("reported %d times, want once", reported)
	}
}
