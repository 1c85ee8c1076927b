package nats_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	client "github.com/nats-io/nats.go"

	"github.com/semel-dev/semel"
	broker "github.com/semel-dev/semel/broker/nats"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/nats"
	"github.com/semel-dev/semel/test/services/servicestest"
)

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

func TestSourcePassesTheKindSuite(t *testing.T) {
	kindtest.Source(t, nats.NewSource, kindtest.Case{
		Least:   `{ servers: ["h:4222"], stream: ORDERS, consumer: c }`,
		Secrets: []string{`{ servers: ["h:4222"], stream: ORDERS, consumer: c, username: u, password: ` + kindtest.Secret + ` }`},
	})
}

func TestSinkPassesTheKindSuite(t *testing.T) {
	kindtest.Sink(t, nats.NewSink, kindtest.Case{
		Least:   `{ servers: ["h:4222"], subject: orders.out }`,
		Secrets: []string{`{ servers: ["h:4222"], subject: orders.out, password: ` + kindtest.Secret + ` }`},
	})
}

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	source := kindtest.ReadSource[*nats.Source](t, "{ nats: { servers: ['a:4222', 'b:4222'], tls: {}, credentials: c.creds, stream: ORDERS, consumer: c, subjects: [a, b], create: true, confirm_acks: true } }")
	if strings.Join(source.Servers, " ") != "a:4222 b:4222" || source.TLS == nil || source.Credentials != filepath.Join("dir", "c.creds") || source.Stream != "ORDERS" || source.Consumer != "c" ||
		strings.Join(source.Subjects, " ") != "a b" || !source.Create || !source.ConfirmAcks {
		t.Errorf("source: %+v", source)
	}
	sink := kindtest.ReadSink[*nats.Sink](t, "{ nats: { servers: ['a:4222'], username: u, password: secret1, subject: out, stream: OUT, create: true } }")
	if sink.Username != "u" || sink.Password.Reveal() != "secret1" || sink.Subject.Name != "out" || sink.Stream != "OUT" || !sink.Create {
		t.Errorf("sink: %+v", sink)
	}
}

// TestNamesThatNoServerAcceptsAreRefused has subjects and streams that are patterns or
// have white space.
func TestNamesThatNoServerAcceptsAreRefused(t *testing.T) {
	t.Parallel()
	sink := func(fields string) string { return kindtest.WithSink("{ nats: { servers: ['h:1'], " + fields + " } }") }
	source := func(fields string) string {
		return kindtest.WithSource("{ nats: { servers: ['h:1'], " + fields + " } }")
	}
	kindtest.Refused(t, [][2]string{
		{sink("subject: { from: source }"), "pipelines.p.sink.nats.subject: allow is missing"},
		{sink("subject: { from: source, allow: ['a.*.b'] }"), "pipelines.p.sink.nats.subject.allow: write names, with * at the end of a name at most"},
		{sink("subject: 't.*'"), `pipelines.p.sink.nats.subject: nothing can be published to "t.*": it is a pattern of subjects: write one subject, or { from: source, allow: ["t.*"] } if each message names its own`},
		{sink("subject: '>'"), `nothing can be published to ">": it is a pattern`},
		{sink("subject: 't..u'"), "a part between dots is empty"},
		{sink("subject: 't u'"), "it has white space"},
		{sink("subject: { from: source, allow: ['t.>'] }"), "it is a pattern"},
		{sink("subject: t, stream: 'a.b'"), `pipelines.p.sink.nats.stream: no stream can have the name "a.b"`},
		{sink("subject: t, create: true"), "pipelines.p.sink.nats: create needs the name of the stream: write stream"},
		{sink("subject: { from: source, allow: [a] }, stream: s, create: true"), "pipelines.p.sink.nats: create needs one subject: leave it out, and create the stream with nats stream add"},
		{source("stream: 'a*', consumer: c"), `pipelines.p.source.nats.stream: no stream can have the name "a*"`},
		{source("stream: a, consumer: 'c d'"), `pipelines.p.source.nats.consumer: no consumer can have the name "c d"`},
	})
	for _, text := range []string{sink("subject: 't.u*v'"), sink("subject: { from: source, allow: ['t.*', '*'] }")} {
		kindtest.Parse(t, text)
	}
	text := strings.NewReader(sink("subject: '${env:SUBJECT}', stream: '${env:STREAM}'")) // references that this machine cannot resolve
	if _, err := kind.All().ReadWithPlaceholders("c.yaml", text, func(string) string { return "" }); err != nil {
		t.Error(err)
	}
}

func TestLintWarnsOfServerSettingsThatDropOrShareMessages(t *testing.T) {
	t.Parallel()
	const sink = "{ nats: { servers: ['h:4222'], subject: s } }"
	kindtest.Warned(t, [][2]string{
		{kindtest.WithSink(sink, ", window: 2m"), ""},
		{"stores: { k: { embedded: { path: k } } }\npipelines:\n" +
			"  p: { key: { id: .id }, store: k, source: { nats: { servers: ['h:1', 'i:1'], stream: S, consumer: c } }, sink: { stdout: {} } }\n" +
			"  q: { key: { id: .id }, store: k, source: { nats: { servers: ['i:1'], stream: S, consumer: c } }, sink: { file: { path: o } } }", "warning loss pipelines.q.source.nats.consumer: c, which reads S in pipeline p too"},
	})
	for text, want := range map[string]string{
		kindtest.WithSink(sink, ", window: 1m"):                                                      "warning loss pipelines.p.window: ",
		kindtest.WithSource("{ nats: { servers: ['h:1'], stream: S, consumer: c, subjects: [a] } }"): "notice  pipelines.p.source.nats.subjects: it has no effect without create",
	} {
		if found := strings.Join(kindtest.Findings(kindtest.Parse(t, text)), "\n"); !strings.Contains(found, want) {
			t.Errorf("%s\n%s\nwant %s", text, found, want)
		}
	}
}

// TestErrorsHaveACauseAndARemedy has the errors of the client library and of the server.
func TestErrorsHaveACauseAndARemedy(t *testing.T) {
	t.Parallel()
	source := nats.NewSource().(*nats.Source)
	source.Servers = []string{"h:4222"}
	for _, c := range []struct {
		err  error
		want string // cause: remedy
	}{
		{&broker.MissingError{Stream: "S", Consumer: "c"}, "create it with nats consumer add S c --pull --ack explicit, or set p.source.create: true"},
		{&broker.MissingError{Stream: "S"}, "create it with nats stream add S, or set p.source.subjects with create: true"},
		{&broker.MissingError{Subject: "s"}, "create a stream with nats stream add, or set p.source.stream with create: true"},
		{client.ErrAuthorization, "the servers refuse these credentials: correct p.source.credentials, or username and password"},
		{client.ErrPermissionViolation, "grant it to the user of p.source"},
		{client.ErrNoServers, "no NATS server answers at h:4222: is a server up there, can this machine reach it, and is it the right kind of server? If not, correct p.source.servers"},
		{client.ErrSecureConnRequired, "the servers require TLS: set p.source.tls: {}"},
		{client.ErrSecureConnWanted, "the servers have no TLS: leave p.source.tls out, or correct p.source.servers"},
		{io.EOF, ""},
	} {
		got := ""
		if said := source.Advise(nil, nil, "p.source", fmt.Errorf("nats: %w", c.err)); said != nil {
			got = said.Cause + ": " + said.Remedy
		}
		if !strings.HasSuffix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// TestMessagesPassThroughAServer has a pipeline whose source reads what its sink
// publishes, at a real server.
func TestMessagesPassThroughAServer(t *testing.T) {
	t.Parallel()
	address, name := strings.TrimPrefix(servers.NATS(t), "nats://"), servicestest.Topic()
	f := kindtest.Parse(t, `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  p:
    key: { id: .id }
    store: keys
    source: { nats: { servers: ["`+address+`"], stream: `+name+`, consumer: c, subjects: [`+name+`.out], create: true, confirm_acks: true } }
    sink: { nats: { servers: ["`+address+`"], subject: `+name+`.out, stream: `+name+`, create: true } }
`)
	p := f.Pipelines[0]
	has := func(of config.Kind, want string) {
		t.Helper()
		if lines, err := kindtest.Examine(t, f, of); err != nil || !slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, want) }) {
			t.Errorf("%q, %v; want %s", lines, err, want)
		}
	}
	has(p.Source, "stream")
	kindtest.Deliver(t, f, `{"id":1}`, `{"id":2}`)
	kindtest.Deliver(t, f, `{"id":2}`) // the server drops it: it has its Nats-Msg-Id
	if got, want := kindtest.Sample(t, f), []string{`{"id":1}`, `{"id":2}`}; !slices.Equal(got, want) {
		t.Errorf("the sample is %q, want %q", got, want)
	}
	if got, want := kindtest.Receive(t, f, 2), []string{`{"id":1}`, `{"id":2}`}; !slices.Equal(got, want) {
		t.Errorf("received %q, want %q", got, want)
	}
	has(p.Source, "consumer")
	for _, end := range []any{p.Source, p.Sink} {
		found, looked := kindtest.Trace(t, f, end.(kindtest.Tracer), `{"id":1}`, "1")
		if len(found) != 1 || !strings.HasPrefix(found[0], "stream "+name+", subject "+name+".out, sequence 1") || len(looked) != 1 || !strings.HasSuffix(looked[0], ": 2") {
			t.Errorf("%T: found %q, looked at %q", end, found, looked)
		}
	}
	routed := kindtest.ReadSink[*nats.Sink](t, `{ nats: { servers: ["`+address+`"], subject: { from: source, allow: [a, "`+name+`.*", "b*"] } } }`)
	if _, looked := kindtest.Trace(t, f, routed, "1"); len(looked) != 2 || looked[0] != "subjects b*: not searched: only a prefix that ends with a dot can be" || !strings.HasPrefix(looked[1], "stream "+name) {
		t.Errorf("a sink whose messages name their subjects: looked at %q", looked)
	}
	if got := routed.About().Address(&semel.Message{Origin: semel.Origin{Source: "a"}}); got != "subject a" {
		t.Errorf("the address is %q", got)
	}
}

func TestAServerThatIsDownIsReported(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, kindtest.WithSource("{ nats: { servers: ['"+servicestest.FreeAddr(t)+"'], stream: S, consumer: c, password: secret1 } }"))
	if lines, err := kindtest.Examine(t, f, f.Pipelines[0].Source); err == nil || !strings.Contains(err.Error(), "no NATS server answers") || len(lines) > 0 {
		t.Errorf("%q, %v", lines, err)
	}
}
