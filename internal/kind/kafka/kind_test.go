package kafka_test

import (
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/kafka"
	"github.com/semel-dev/semel/internal/kind/kindtest"
)

func TestSourcePassesTheKindSuite(t *testing.T) {
	kindtest.Source(t, kafka.NewSource, kindtest.Case{
		Least: `{ brokers: ["h:9092"], topics: [in], group: g }`,
		Secrets: []string{
			`{ brokers: ["h:9092"], topics: [in], group: g, sasl: { mechanism: PLAIN, username: u, password: ` + kindtest.Secret + ` } }`,
			`{ brokers: ["h:9092"], topics: [in], group: g, sasl: { oauthbearer: { token_endpoint: 'https://h/t', client_id: c, client_secret: ` + kindtest.Secret + ` } } }`,
		},
	})
}

func TestSinkPassesTheKindSuite(t *testing.T) {
	kindtest.Sink(t, kafka.NewSink, kindtest.Case{
		Least: `{ brokers: ["h:9092"], topic: out }`,
		Secrets: []string{
			`{ brokers: ["h:9092"], topic: out, sasl: { mechanism: PLAIN, username: u, password: ` + kindtest.Secret + ` } }`,
			`{ brokers: ["h:9092"], topic: out, sasl: { oauthbearer: { token_endpoint: 'https://h/t', client_id: c, client_secret: ` + kindtest.Secret + ` } } }`,
		},
	})
}

func TestEveryFieldIsRead(t *testing.T) {
	t.Parallel()
	source := kindtest.ReadSource[*kafka.Source](t, `{ kafka: { brokers: [a:9092, "b:9092"], tls: {}, sasl: { mechanism: SCRAM-SHA-512, username: app, password: "${env:NONE:-secret1}" },
  topics: [orders, refunds], group: once, instance: once-1, session_timeout: 10s, start: latest, protocol: consumer, retention: 3d } }`)
	if strings.Join(source.Brokers, " ") != "a:9092 b:9092" || source.TLS == nil || source.SASL.Mechanism != "SCRAM-SHA-512" || source.SASL.Username != "app" || source.SASL.Password.Reveal() != "secret1" ||
		strings.Join(source.Topics, " ") != "orders refunds" || source.Group != "once" || source.Instance != "once-1" || source.SessionTimeout != 10*time.Second ||
		source.Start != "latest" || source.Protocol != "consumer" || source.Retention != 72*time.Hour {
		t.Errorf("source: %+v", source)
	}
	login := func(fields string) *kafka.SASL {
		return kindtest.ReadSink[*kafka.Sink](t, `{ kafka: { brokers: ["h:1"], topic: out, sasl: { `+fields+` } } }`).SASL
	}
	o := login(`oauthbearer: { token_endpoint: "https://issuer/token", client_id: app, client_secret: "${env:NONE:-secret1}", scope: kafka, audience: broker, extensions: { logicalCluster: lkc-1 } }`).OAuth
	if o.TokenEndpoint != "https://issuer/token" || o.ClientID != "app" || o.ClientSecret.Reveal() != "secret1" || o.Scope != "kafka" || o.Audience != "broker" || o.Extensions["logicalCluster"] != "lkc-1" {
		t.Errorf("tokens of an endpoint: %+v", o)
	}
	if o := login("oauthbearer: { file: /run/token }").OAuth; o.File != "/run/token" {
		t.Errorf("tokens of a file: %+v", o)
	}
	if o := login("oauthbearer: { command: [get-token, --quiet] }").OAuth; strings.Join(o.Command, " ") != "get-token --quiet" {
		t.Errorf("tokens of a command: %+v", o)
	}
	if a := login("aws_msk_iam: { region: eu-west-1, profile: p, role: 'arn:aws:iam::1:role/r' }").AWS; a.Region != "eu-west-1" || a.Profile != "p" || a.Role != "arn:aws:iam::1:role/r" {
		t.Errorf("AWS credentials: %+v", a)
	}
	if a := login("aws_msk_iam: {}").AWS; a == nil || a.Region != "" {
		t.Errorf("AWS credentials: %+v", a)
	}
	sink := kindtest.ReadSink[*kafka.Sink](t, `{ kafka: { brokers: ["h:1"], topic: out, partition: same, compression: zstd, key_headers: false } }`)
	if sink.Topic.Name != "out" || sink.Partition != "same" || sink.Compression != "zstd" || sink.KeyHeaders {
		t.Errorf("sink: %+v", sink)
	}
	if least := kindtest.ReadSink[*kafka.Sink](t, `{ kafka: { brokers: ["h:1"], topic: out } }`); !least.KeyHeaders {
		t.Error("headers that name the key are left out by default")
	}
}

// inTransaction returns a configuration from Kafka to Kafka without a store.
func inTransaction(source, more string) string {
	return "pipelines: { p: { key: { id: .id }, source: { kafka: { brokers: ['h:1'], topics: [in], group: g" + source + " } }, sink: { kafka: { brokers: ['h:1'], topic: out } }" + more + " } }"
}

func TestConfigurationErrorsSayWhatToWrite(t *testing.T) {
	t.Parallel()
	source := func(topics string) string {
		return kindtest.WithSource("{ kafka: { brokers: ['h:1'], topics: [" + topics + "], group: g } }")
	}
	login := func(fields string) string {
		return kindtest.WithSink("{ kafka: { brokers: ['h:1'], topic: t, sasl: { " + fields + " } } }")
	}
	sink := func(topic string) string {
		return kindtest.WithSink("{ kafka: { brokers: ['h:1'], topic: " + topic + " } }")
	}
	kindtest.Refused(t, [][2]string{
		{kindtest.WithSink("{ kafka: { brokers: ['h:1'], topic: { from: topic, allow: [out] } } }"), `pipelines.p.sink.kafka.topic.from: "topic": write source or header:NAME`},
		{kindtest.WithSource("{ kafka: { brokers: [h], topics: [a], group: g } }"), "pipelines.p.source.kafka.brokers[0]: write it like h:9092"},
		{kindtest.WithSource("{ kafka: { brokers: ['h:1'], topics: [], group: g } }"), "pipelines.p.source.kafka.topics: the list is empty"},
		{kindtest.WithSink("{ kafka: { brokers: ['h:1'], topic: t, compression: most } }"), `pipelines.p.sink.kafka.compression: "most": write one of none, gzip, snappy, lz4, zstd`},
		{kindtest.WithSource("{ kafka: { brokers: ['h:1'], topics: [a], group: g, sasl: { mechanism: GSSAPI, username: a, password: b } } }"), `sasl.mechanism: "GSSAPI": write one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512`},
		{login("mechanism: OAUTHBEARER"), `sasl.mechanism: "OAUTHBEARER": write oauthbearer: { token_endpoint`},
		{login("mechanism: AWS_MSK_IAM"), `sasl.mechanism: "AWS_MSK_IAM": write aws_msk_iam: {} instead`},
		{login("mechanism: PLAIN, username: u"), "sink.kafka.sasl: password is missing"},
		{login("username: u, aws_msk_iam: {}"), "sasl.username: it belongs to mechanism: leave it out"},
		{login("aws_msk_iam: {}, oauthbearer: { file: f }"), "aws_msk_iam and oauthbearer exclude each other"},
		{login("oauthbearer: {}"), "one of token_endpoint, file, command is missing"},
		{login("oauthbearer: { file: f, command: [c] }"), "exclude each other"},
		{login("oauthbearer: { file: f, scope: s }"), "oauthbearer.scope: it belongs to token_endpoint: leave it out"},
		{login("oauthbearer: { token_endpoint: 'https://h/t', client_id: c }"), "oauthbearer: client_secret is missing"},
		{login("oauthbearer: { token_endpoint: 'ftp://h/t', client_id: c, client_secret: s }"), "token_endpoint: not an address of a token endpoint: write https://host/path"},
		{login("oauthbearer: { token_endpoint: 'https://u:p@h/t', client_id: c, client_secret: s }"), "token_endpoint: not an address of a token endpoint"},
		{login("oauthbearer: { file: f, extensions: { auth: x } }"), "extensions.auth: a name consists of letters, and is not auth"},
		{source("'orders-.*'"), `source.kafka.topics: "orders-.*" is not the name of a topic: it looks like a pattern`},
		{source("in, '^orders-'"), "it looks like a pattern"},
		{source("'orders-*'"), "it looks like a pattern"},
		{source("'a b'"), "it has other characters"},
		{source("'..'"), "is not the name of a topic"},
		{source("'" + strings.Repeat("x", 250) + "'"), "it is longer than 249 characters"},
		{sink("'out.*'"), `sink.kafka.topic: "out.*" is not the name of a topic`},
		{sink("{ from: source, allow: [a, 'b(c)'] }"), `"b(c)" is not the name of a topic`},
		{sink("{ from: source, allow: ['^b*'] }"), `"^ba" is not the name of a topic`},
		{kindtest.WithSource("{ kafka: { brokers: ['h:1'], topics: [in], group: g } }", ", parked: { topic: 'p-*' }"), `parked.topic: "p-*" is not the name of a topic`},
		{inTransaction("", ", transaction: { changelog: 'k|l' }"), `transaction.changelog: "k|l" is not the name of a topic`},
		{strings.Replace(inTransaction("", ""), "group: g", "group: 'my group'", 1), `"my group-keys" is not the name of a topic`},
		{inTransaction("", ", filter: 'has(tables.r)', tables: { r: { topic: 'rows-*', by: .id } }"), `tables.r.topic: "rows-*" is not the name of a topic`},
	})
	for _, text := range []string{source("orders.v1, O_1-x"), sink("{ from: source, allow: ['eu.*', '*'] }")} {
		kindtest.Parse(t, text)
	}
	text := strings.NewReader(source("'${env:TOPIC}', b")) // a reference that this machine cannot resolve
	if _, err := kind.All().ReadWithPlaceholders("c.yaml", text, func(string) string { return "" }); err != nil {
		t.Error(err)
	}
}

func TestLintWarnsOfSettingsThatWeakenThePromise(t *testing.T) {
	t.Parallel()
	source := func(fields string) string {
		return "stores: { k: { postgres: { dsn: 'host=h' } } }\npipelines: { p: { key: { id: .id }, store: k, source: { kafka: { brokers: ['h:1'], topics: [in], group: g, retention: 3d" + fields + " } }, sink: { webhook: { url: 'https://example.org' } } } }"
	}
	kindtest.Warned(t, [][2]string{
		{kindtest.WithSink("{ kafka: { brokers: ['h:1'], topic: t, sasl: { mechanism: PLAIN, username: u, password: '${env:NONE:-p}' } } }"), "warning  pipelines.p.sink.kafka.sasl.mechanism: PLAIN without tls"},
		{kindtest.WithSink("{ kafka: { brokers: ['h:1'], topic: t, sasl: { oauthbearer: { file: f } } } }"), "warning  pipelines.p.sink.kafka.sasl.oauthbearer: tokens without tls"},
		{kindtest.WithSink("{ kafka: { brokers: ['h:1'], topic: t, tls: {}, sasl: { oauthbearer: { token_endpoint: 'http://h/t', client_id: c, client_secret: '${env:NONE:-p}' } } } }"), "warning  pipelines.p.sink.kafka.sasl.oauthbearer.token_endpoint: http"},
		{kindtest.WithSink("{ kafka: { brokers: ['h:1'], topic: t, tls: {}, sasl: { oauthbearer: { token_endpoint: 'http://127.0.0.1/t', client_id: c, client_secret: '${env:NONE:-p}' } } } }"), ""},
		{kindtest.WithSink("{ kafka: { brokers: ['h:1'], topic: t, sasl: { aws_msk_iam: {} } } }"), "broken  pipelines.p.sink.kafka.sasl.aws_msk_iam: AWS credentials without tls"},
		{source(""), ""},
		{source(", start: latest"), "warning loss pipelines.p.source.kafka.start: latest"},
		{source(", repartition: true"), "broken  pipelines.p.source.kafka.repartition: a stage for keys in Kafka, but the keys are in the store k"},
		{inTransaction(", retention: 3d, repartition: true", ""), ""},
		{inTransaction(", retention: 3d, repartition: true", ", transaction: { changelog: g-repartition }"), "broken  pipelines.p.source.kafka.repartition: g-repartition, which the pipeline also uses for something else"},
		{inTransaction(", retention: 3d, repartition: true", ", transaction: { time: event, grace: 5m }"), "warning  pipelines.p.transaction.grace: 5m, with a repartition stage"},
	})
}
