package kafka_test

import (
	"os"
	"slices"
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
	if by := kindtest.ReadSource[*kafka.Source](t, `{ kafka: { brokers: ["h:1"], topics: { pattern: "orders-.*" }, group: g } }`).Pattern; by.String() != "orders-.*" || !by.Matches("orders-eu") || by.Matches("my-orders-eu") {
		t.Errorf("pattern: %v", by)
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
	pattern := func(text, more string) string {
		return kindtest.WithSource("{ kafka: { brokers: ['h:1'], topics: { pattern: " + text + " }, group: g" + more + " } }")
	}
	toSame := func(topic string) string {
		return "stores: { k: { embedded: { path: k } } }\npipelines: { p: { key: { id: .id }, store: k, source: { kafka: { brokers: ['h:1'], topics: { pattern: 'out-.*' }, group: g } }, sink: { kafka: { brokers: ['h:1'], topic: " + topic + " } } } }"
	}
	beside := func(pattern string) string { // in-parked, g-keys and g-repartition belong to the other pipeline
		return strings.Replace(inTransaction(", repartition: true", ""), "pipelines: {", "stores: { k: { embedded: { path: k } } }\npipelines: { all: { key: { id: .id }, store: k, source: { kafka: { brokers: ['h:1'], topics: { pattern: '"+pattern+"' }, group: all } }, sink: { kafka: { brokers: ['h:1'], topic: all-out } } },", 1)
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
		{login("username: u, password: p"), "sink.kafka.sasl: one of mechanism, oauthbearer, aws_msk_iam is missing"},
		{login("oauthbearer: { client_id: c, client_secret: s }"), "one of token_endpoint, file, command is missing"},
		{login("username: u, aws_msk_iam: {}"), "sasl.username: it belongs to mechanism: leave it out"},
		{login("aws_msk_iam: {}, oauthbearer: { file: f }"), "aws_msk_iam and oauthbearer exclude each other"},
		{login("oauthbearer: {}"), "one of token_endpoint, file, command is missing"},
		{login("oauthbearer: { file: f, command: [c] }"), "exclude each other"},
		{login("oauthbearer: { file: f, scope: s }"), "oauthbearer.scope: it belongs to token_endpoint: leave it out"},
		{login("oauthbearer: { token_endpoint: 'https://h/t', client_id: c }"), "oauthbearer: client_secret is missing"},
		{login("oauthbearer: { token_endpoint: 'ftp://h/t', client_id: c, client_secret: s }"), "token_endpoint: not an address of a token endpoint: write https://host/path"},
		{login("oauthbearer: { token_endpoint: 'https://u:p@h/t', client_id: c, client_secret: s }"), "token_endpoint: not an address of a token endpoint"},
		{login("oauthbearer: { file: f, extensions: { auth: x } }"), "extensions.auth: a name consists of letters, and is not auth"},
		{source("'orders-.*'"), `source.kafka.topics: "orders-.*" is not the name of a topic: it looks like a pattern: write topics: { pattern: 'orders-.*' }`},
		{source("in, '^orders-'"), "it looks like a pattern: write topics: { pattern: 'orders-.*' }"},
		{source("'orders-*'"), "it looks like a pattern: write topics: { pattern: 'orders-.*' }"},
		{source("'^a$'"), "write topics: { pattern: 'a' }"},
		{source("'a('"), "write topics: { pattern: 'orders-.*' }"},
		{pattern("'a('", ""), `source.kafka.topics.pattern: "a(" is no regular expression: missing closing )`},
		{pattern("'a)|(b'", ""), "is no regular expression"},
		{pattern("[a]", ""), "topics.pattern: expected a text, got a list"},
		{strings.Replace(source("a"), "[a]", "a", 1), "source.kafka.topics: expected a list, got a text"},
		{pattern("'in-.*'", ", start: latest"), "source.kafka.start: latest is not possible with a pattern"},
		{kindtest.WithSource("{ kafka: { brokers: ['h:1'], topics: { pattern: 'in-.*' }, group: g } }", ", parked: { topic: in-parked }"), "parked.topic: in-parked is already the topic that the pipeline reads"},
		{strings.Replace(inTransaction("", ""), "[in]", "{ pattern: 'in-.*' }", 1), "store is missing: source.kafka.topics is a pattern, and a Kafka transaction needs the list of its topics"},
		{beside("in-.*"), "pipelines.all.source.kafka.topics: the pattern in-.* matches in-parked, the topic of pipeline p for parked messages"},
		{beside("g-k.*"), "the pattern g-k.* matches g-keys, the topic of pipeline p that holds the keys"},
		{beside("g-r.*"), "the pattern g-r.* matches g-repartition, the topic of pipeline p between its two stages"},
		{toSame("out-x"), "sink.kafka.topic: out-x is already the topic that the pipeline reads, so the pipeline would read its own output"},
		{toSame("{ from: source, allow: [out-x] }"), "so the pipeline would read its own output"},
		{toSame("{ from: source, allow: ['ou*'] }"), `a message may name a topic with the beginning "ou", which may match the pattern out-.*`},
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
	for _, text := range []string{source("orders.v1, O_1-x"), pattern("'orders-.*'", ""), toSame("clean"), beside("in|out"), toSame("{ from: source, allow: ['in-*'] }"), sink("{ from: source, allow: ['eu.*', '*'] }")} {
		kindtest.Parse(t, text)
	}
	for _, text := range []string{source("'${env:TOPIC}', b"), pattern("'${env:TOPIC}'", "")} { // a reference that this machine cannot resolve
		if _, err := kind.All().ReadWithPlaceholders("c.yaml", strings.NewReader(text), func(string) string { return "" }); err != nil {
			t.Error(err)
		}
	}
}

// TestTheLinesOfEachProviderAreValid reads the page that has them.
func TestTheLinesOfEachProviderAreValid(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/guides/kafka-login.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	file, _, _ := strings.Cut(rest, "```")
	file = strings.ReplaceAll(file, "${env:KAFKA_SECRET}", "${env:NONE:-secret1}")
	for _, provider := range []string{"msk", "confluent", "azure", "redpanda", "aiven"} {
		_, lines, _ := strings.Cut(file, "x-"+provider+":")
		lines, _, _ = strings.Cut(lines, "\n\n")
		if n := strings.Count(lines, "\n") + 1; n > 5 {
			t.Errorf("%s has %d lines", provider, n)
		}
		f := kindtest.Parse(t, strings.Replace(file, "<<: *msk", "<<: *"+provider, 1))
		if client := f.Pipelines[0].Source.(*kafka.Source).Client; len(client.Brokers) != 1 || client.TLS == nil {
			t.Errorf("%s: %+v", provider, client)
		}
		for _, found := range kindtest.Findings(f) {
			if strings.Contains(found, "source.kafka") {
				t.Errorf("%s: %s", provider, found)
			}
		}
	}
}

func TestLintNamesTopicsOfToolsThatAPatternMatches(t *testing.T) {
	t.Parallel()
	for pattern, noticed := range map[string]bool{".*": true, ".+s": true, "[^_].*": false, "orders-.*": false, "_orders.*": false} {
		lines := kindtest.Findings(kindtest.Parse(t, kindtest.WithSource("{ kafka: { brokers: ['h:1'], topics: { pattern: '"+pattern+"' }, group: g } }")))
		if got := slices.ContainsFunc(lines, func(line string) bool {
			return strings.HasSuffix(line, "notice  pipelines.p.source.kafka.topics.pattern: "+pattern)
		}); got != noticed {
			t.Errorf("%s: %q", pattern, lines)
		}
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
		{strings.Replace(source(""), "[in]", "{ pattern: 'in-.*' }", 1), ""},
		{strings.Replace(source(""), "[in]", "{ pattern: '[^_].*' }", 1), ""},
		{source(", start: latest"), "warning loss pipelines.p.source.kafka.start: latest"},
		{source(", repartition: true"), "broken  pipelines.p.source.kafka.repartition: a stage for keys in Kafka, but the keys are in the store k"},
		{inTransaction(", retention: 3d, repartition: true", ""), ""},
		{inTransaction(", retention: 3d, repartition: true", ", transaction: { changelog: g-repartition }"), "broken  pipelines.p.source.kafka.repartition: g-repartition, which the pipeline also uses for something else"},
		{inTransaction(", retention: 3d, repartition: true", ", transaction: { time: event, grace: 5m }"), "warning  pipelines.p.transaction.grace: 5m, with a repartition stage"},
	})
}
