package rabbitmq_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	client "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
	broker "github.com/semel-dev/semel/broker/rabbitmq"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/rabbitmq"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

func TestSourcePassesTheKindSuite(t *testing.T) {
	kindtest.Source(t, rabbitmq.NewSource, kindtest.Case{
		Least:   `{ servers: ["h:5672"], queue: orders }`,
		Secrets: []string{`{ servers: ["h:5672"], queue: orders, username: u, password: ` + kindtest.Secret + ` }`},
	})
}

func TestSinkPassesTheKindSuite(t *testing.T) {
	kindtest.Sink(t, rabbitmq.NewSink, kindtest.Case{
		Least:   `{ servers: ["h:5672"], routing_key: orders }`,
		Secrets: []string{`{ servers: ["h:5672"], routing_key: orders, password: ` + kindtest.Secret + ` }`},
	})
}

func TestSinkNamesTheQueueOrExchangeOfAMessage(t *testing.T) {
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
		if got := f.Pipelines[0].Sink.About().Address(m); got != want {
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
			found = found || x.Severity == doctor.Notice && strings.Contains(x.Cost, "a classic queue")
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

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	source := kindtest.ReadSource[*rabbitmq.Source](t, "{ rabbitmq: { servers: ['a:5672', 'b:5672'], tls: { ca: ca.pem }, vhost: /shop, username: u, password: secret1, management: 'http://h:15672', queue: orders, create: true } }")
	if strings.Join(source.Servers, " ") != "a:5672 b:5672" || source.TLS.CA != filepath.Join("dir", "ca.pem") || source.VHost != "/shop" || source.Username != "u" || source.Password.Reveal() != "secret1" ||
		source.Management != "http://h:15672" || source.Queue != "orders" || !source.Create {
		t.Errorf("source: %+v", source)
	}
	sink := kindtest.ReadSink[*rabbitmq.Sink](t, "{ rabbitmq: { servers: ['a:5672'], exchange: shop, routing_key: paid } }")
	if sink.VHost != "/" || sink.Username != "guest" || sink.Exchange != "shop" || sink.RoutingKey.Name != "paid" || sink.Create {
		t.Errorf("sink: %+v", sink)
	}
}

func TestConfigurationErrorsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	kindtest.Refused(t, [][2]string{
		{kindtest.WithSink("{ rabbitmq: { servers: ['h:1'], create: true, routing_key: { from: source, allow: [a] } } }"), "pipelines.p.sink.rabbitmq: create cannot make the queues that messages name"},
		{kindtest.WithSource("{ rabbitmq: { servers: [h], queue: q } }"), "pipelines.p.source.rabbitmq.servers[0]: write it like h:5672"},
		{kindtest.WithSource("{ rabbitmq: { servers: ['h:1'] } }"), "pipelines.p.source.rabbitmq: queue is missing"},
	})
}

func TestLintNamesRoutingKeysThatLookLikePatterns(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{"orders.#": true, "'*.paid'": true, "orders.paid": false, "a*b": false} {
		found := strings.Join(kindtest.Findings(kindtest.Parse(t, kindtest.WithSink("{ rabbitmq: { servers: ['h:1'], exchange: e, routing_key: "+key+" } }"))), "\n")
		if got := strings.Contains(found, "looks like the pattern of a binding"); got != want {
			t.Errorf("%s: %v, want %v\n%s", key, got, want, found)
		}
	}
}

// TestErrorsHaveACauseAndARemedy has the errors of the client library, of the server and of
// the network.
func TestErrorsHaveACauseAndARemedy(t *testing.T) {
	t.Parallel()
	source := rabbitmq.NewSource().(*rabbitmq.Source)
	source.Servers = []string{"h:5672"}
	for _, c := range []struct {
		err  error
		want string // a part of cause: remedy
	}{
		{&broker.MissingError{Queue: "q"}, "create it with rabbitmqadmin declare queue name=q durable=true"},
		{&broker.MissingError{Exchange: "e"}, "create it with rabbitmqadmin declare exchange name=e type=topic durable=true, or set p.source.create: true"},
		{&broker.UnroutableError{RoutingKey: "q"}, "create the queue q; the pipeline then continues by itself"},
		{&broker.UnroutableError{Exchange: "e", RoutingKey: "k"}, "e"},
		{&client.Error{Code: client.AccessRefused, Reason: "refused"}, "refused: grant the user this right with rabbitmqctl set_permissions"},
		{&client.Error{Code: client.PreconditionFailed, Reason: "timeout of 1000 ms"}, "the server's consumer time-out has passed: timeout of 1000 ms: the messages come again by themselves; raise consumer_timeout on the server if effects take that long"},
		{&client.Error{Code: client.FrameError, Reason: "x"}, "a server at h:5672 does not answer with AMQP: does it expect TLS? Then write p.source.tls: {}."},
		{errors.New("tls: first record does not look like a TLS handshake"), "a server at h:5672 has no TLS at this port: leave p.source.tls out, or correct p.source.servers"},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, "no RabbitMQ server answers at h:5672: is a server up there"},
		{io.EOF, ""},
	} {
		got := ""
		if said := source.Advise(nil, nil, "p.source", fmt.Errorf("rabbitmq: %w", c.err)); said != nil {
			got = said.Cause + ": " + said.Remedy
		}
		if !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// TestMessagesPassThroughAServer has a pipeline whose source reads what its sink
// publishes, at a real server.
func TestMessagesPassThroughAServer(t *testing.T) {
	t.Parallel()
	address, queue := servers.RabbitMQ(t), servicestest.Topic()
	f := kindtest.Parse(t, `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  p:
    key: { id: .id }
    store: keys
    source: { rabbitmq: { servers: ["`+address+`"], queue: `+queue+`, create: true } }
    sink: { rabbitmq: { servers: ["`+address+`"], routing_key: `+queue+`, create: true } }
`)
	p := f.Pipelines[0]
	kindtest.Deliver(t, f, `{"id":1}`, `{"id":2}`)
	for _, end := range []config.Kind{p.Source, p.Sink} {
		if lines, err := kindtest.Examine(t, f, end); err != nil || !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "fine server: RabbitMQ ") }) {
			t.Errorf("%T: %q, %v", end, lines, err)
		}
	}
	if got, want := kindtest.Receive(t, f, 2), []string{`{"id":1}`, `{"id":2}`}; !slices.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
}

func TestAQueueThatIsMissingIsReported(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, kindtest.WithSource("{ rabbitmq: { servers: ['"+servers.RabbitMQ(t)+"'], queue: "+servicestest.Topic()+" } }"))
	p := f.Pipelines[0]
	if _, err := p.Source.Open(t.Context(), &config.Env{File: f, Pipeline: p}); !errors.As(err, new(*broker.MissingError)) {
		t.Errorf("%v", err)
	}
	if lines, err := kindtest.Examine(t, f, p.Source); !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "broken ") }) {
		t.Errorf("%q, %v", lines, err)
	}
}
