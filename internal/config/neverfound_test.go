package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/kindtest"
)

const (
	inFile   = "{ file: { paths: [in.jsonl] } }"
	inHTTP   = "{ http: { listen: '127.0.0.1:8080' } }"
	inKafka  = "{ kafka: { brokers: ['h:1'], topics: [in], group: g, retention: 1d } }"
	inNATS   = "{ nats: { servers: ['h:1'], stream: s, consumer: c } }"
	inRabbit = "{ rabbitmq: { servers: ['h:1'], queue: q } }"
	inSQS    = "{ sqs: { queue: 'https://sqs.eu-west-1.amazonaws.com/1/o' } }"
	outFile  = "{ file: { path: out.jsonl } }"
	outKafka = "{ kafka: { brokers: ['h:1'], topic: out } }"
)

func pipelineOf(source, id, sink, more string) string {
	return "stores: { a: { embedded: { path: k } }, db: { postgres: { dsn: 'host=h dbname=d' } } }\npipelines: { p: { key: { id: " + id + " }, store: a, source: " + source + ", sink: " + sink + more + " } }"
}

// A rule that finds nothing in any message of its source parks every message, or drops it.
func TestLintReportsARuleThatCanNeverMatch(t *testing.T) {
	t.Parallel()
	webhook := func(forward string) string {
		return "{ webhook: { url: 'https://example.com/', forward: [" + forward + "] } }"
	}
	columns := func(from string) string {
		return "{ postgres: { store: db, table: t, columns: { id: .id, h: '" + from + "' } } }"
	}
	for _, c := range []struct {
		source, id, sink, more string
		want                   string // severity and field, or "" for no such finding
	}{
		{inFile, "'header:event-id'", outFile, "", "broken key.id"},
		{inFile, "record-key", outFile, "", "broken key.id"},
		{inFile, "'property:message-id'", outFile, "", "broken key.id"},
		{inFile, "{ all: [.a, 'header:x'] }", outFile, "", "broken key.id"},
		{inFile, "{ template: '{header:x}-{.id}' }", outFile, "", "broken key.id"},
		{inFile, "['header:x', record-key]", outFile, "", "broken key.id"},
		{inFile, "'header:x', on_missing: hash", outFile, "", "warning key.id"},
		{inFile, "['header:x', .id]", outFile, "", "notice key.id"},
		{inFile, ".id", outFile, "", ""},
		{inFile, ".id", webhook("x-request-id"), "", "warning sink.webhook.forward"},
		{inFile, ".id", columns("header:x"), "", "warning sink.postgres.columns"},
		{inFile, ".id", columns("key"), "", ""},
		{inFile, ".id", "{ kafka: { brokers: ['h:1'], topic: { from: 'header:topic', allow: [a] } } }", "", "warning sink.kafka.topic.from"},
		{inFile, ".id", outFile, `, filter: '"x-event" in headers'`, "warning filter"},
		{inFile, ".id", outFile, `, filter: 'headers["x"] == "y" || value.headers == 1'`, "warning filter"},
		{inFile, ".id", outFile, `, map: '{"a": headers.x}'`, "warning map"},
		{inFile, ".id", outFile, `, filter: '"headers" in value && value["headers"].x == 1'`, ""},
		{inHTTP, "'header:X-GitHub-Delivery'", outFile, "", ""},
		{inHTTP, "'header:webhook-id'", outFile, `, filter: '"x-github-event" in headers'`, ""},
		{inHTTP, "'header:Authorization'", outFile, "", "broken key.id"},
		{inHTTP, "'header:cookie'", outFile, "", "broken key.id"},
		{inHTTP, "'header:a:b'", outFile, "", "broken key.id"},
		{inHTTP, "record-key", outFile, "", "broken key.id"},
		{inHTTP, "'property:message-id'", outFile, "", "broken key.id"},
		{inHTTP, ".id", webhook("Cookie"), "", "warning sink.webhook.forward"},
		{inHTTP, ".id", outFile, `, filter: '"content-encoding" in headers'`, "warning filter"},
		{inKafka, "'property:message-id'", outFile, "", "broken key.id"},
		{inKafka, "'header:X'", outFile, "", ""},
		{inNATS, "record-key", outFile, "", "broken key.id"},
		{inNATS, "'header:Nats-Msg-Id'", outFile, "", ""},
		{inRabbit, "'property:message-id'", outFile, "", ""},
		{inSQS, "'header:X'", outFile, "", ""},
	} {
		f, err := kind.All().Parse("c.yaml", []byte(pipelineOf(c.source, c.id, c.sink, c.more)), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, x := range f.Lint() {
			if strings.Contains(x.Found, "can never match") && got == "" {
				got = fmt.Sprintf("%s %s", x.Severity, strings.TrimPrefix(x.Subject, "pipelines.p."))
			}
		}
		if got != c.want {
			t.Errorf("%s %s %s%s: %q, want %q\n%s", c.source, c.id, c.sink, c.more, got, c.want, strings.Join(kindtest.Findings(f), "\n"))
		}
	}
}

func TestLintShowsAnExampleOfAnAmbiguousTemplate(t *testing.T) {
	t.Parallel()
	for template, want := range map[string][]string{
		"order-{.order_id}-placed": {`notice  pipelines.p.key.id: order-{.order_id}-placed makes one id, order-7-placed, of .order_id 7 and of .order_id "7"`},
		"{header:tenant}/{.id}": {
			`notice  pipelines.p.key.id: {header:tenant}/{.id} makes one id, 1/7, of .id 7 and of .id "7"`,
			`notice  pipelines.p.key.id: {header:tenant}/{.id} makes one id, x/y/z, of header:tenant "x/y", .id "z" and of header:tenant "x", .id "y/z"`,
		},
		"{lower(.a)}-x": {`notice  pipelines.p.key.id: {lower(.a)}-x makes one id, 7-x, of lower(.a) 7 and of lower(.a) "7"`, `notice  pipelines.p.key.id: template {lower(.a)}-x ignores upper and lower case`},
		"{.a}{.b}":      {`warning loss pipelines.p.key.id: {.a}{.b} makes one id, xyz, of .a "xy", .b "z" and of .a "x", .b "yz"`},
		"{header:a}":    nil,
	} {
		f, err := kind.All().Parse("c.yaml", []byte(pipelineOf(inHTTP, "{ template: '"+template+"' }", outFile, "")), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		list := strings.Join(kindtest.Findings(f), "\n")
		for _, line := range want {
			if !strings.Contains(list, line) {
				t.Errorf("%s: %s\nis not among\n%s", template, line, list)
			}
		}
		if want == nil && strings.Contains(list, "makes one id") {
			t.Errorf("%s: %s", template, list)
		}
	}
}
