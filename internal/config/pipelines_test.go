package config_test

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	rows "github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/file"
	"github.com/semel-dev/semel/internal/kind/http"
	"github.com/semel-dev/semel/internal/kind/kafka"
	"github.com/semel-dev/semel/internal/kind/kindtest"
	"github.com/semel-dev/semel/internal/kind/postgres"
	"github.com/semel-dev/semel/internal/kind/stdout"
	"github.com/semel-dev/semel/internal/kind/webhook"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// onePipeline reads a file with one pipeline and returns it.
func onePipeline(t *testing.T, text string) *config.Pipeline {
	t.Helper()
	f := kindtest.Parse(t, text)
	if len(f.Pipelines) != 1 {
		t.Fatalf("%d pipelines in:\n%s", len(f.Pipelines), text)
	}
	return f.Pipelines[0]
}

const someStores = `stores:
  keys:  { embedded: { path: ./semel-data } }
  db:    { postgres: { dsn: "host=h" } }
  cache: { redis: { url: "redis://h" } }
  both:  { tiered: [cache, db] }
  seen:  { filter: { rate: 0.01, expect: 1, window: 1d } }
`

func TestDefaultsOfAPipelineAreFilledIn(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, someStores+`pipelines:
  copy: { source: { file: { paths: [in/*.jsonl] } }, key: { id: .id }, store: keys, sink: { stdout: } }
`)
	want := &config.Pipeline{
		Name: "copy", At: schema.Place{File: "dir/semel.yaml", Line: 8, Column: 3},
		Source: &file.Source{Paths: []string{filepath.Join("dir", "in/*.jsonl")}, From: "beginning", Format: "lines", State: filepath.Join("dir", "semel-state")},
		Sink:   &stdout.Sink{},
		Key:    config.Key{Rule: rule(t, ".id"), Scope: "copy", OnMissing: "park"},
		Window: 7 * 24 * time.Hour, Lease: 30 * time.Second, OnLeaseExpired: "retry", OnLate: "run", OnMismatch: "ignore",
		Store:     schema.Reference{Name: "keys", At: schema.Place{File: "dir/semel.yaml", Line: 8, Column: 79}},
		OnFailure: pipeline.Failure{Attempts: 8, To: 30 * time.Second}, OnStoreError: "stop",
		Order: "partition", Parked: config.Parked{Path: filepath.Join("dir", "semel-parked")},
		Transaction: config.Transaction{Interval: 100 * time.Millisecond, State: filepath.Join("dir", "semel-state"), Time: "processing"},
	}
	if got := f.Pipelines[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
	if f.Admin != (config.Admin{Listen: "127.0.0.1:4195"}) || f.Shutdown != 25*time.Second || f.Log != (config.Log{Format: "auto", Level: "info"}) {
		t.Errorf("sections: %+v %v %+v", f.Admin, f.Shutdown, f.Log)
	}
}

func TestOrderDefaultsToPartitionFromFileToFile(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"source: { file: { paths: [in] } }, sink: { file: { path: out } }":                                "partition",
		"source: { file: { paths: [in] } }, sink: { file: { path: out } }, order: key":                    "key",
		"source: { file: { paths: [in] } }, sink: { webhook: { url: \"https://example.com\" } }":          "key",
		"source: { http: { listen: \"127.0.0.1:80\" } }, sink: { file: { path: out } }":                   "key",
		"source: { http: { listen: \"127.0.0.1:80\" } }, sink: { file: { path: out } }, order: partition": "partition",
	} {
		f := kindtest.Parse(t, someStores+"pipelines: { p: { key: { id: .id }, store: keys, "+text+" } }\n")
		if got := f.Pipelines[0].Order; got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

func rule(t *testing.T, text string) *key.Rule {
	t.Helper()
	r, err := key.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestEveryFieldOfAPipelineIsRead(t *testing.T) {
	t.Parallel()
	p := onePipeline(t, someStores+`pipelines:
  p:
    source:
      kafka:
        brokers: [a:9092, "b:9092"]
        tls: {}
        sasl: { mechanism: SCRAM-SHA-512, username: app, password: "${env:NONE:-secret1}" }
        topics: [orders, refunds]
        group: once
        instance: once-1
        session_timeout: 10s
        start: latest
        protocol: consumer
        retention: 3d
    key: { id: [header:event-id, { all: [.a, "header:b"] }, "hash(.x,.y)", { template: "o-{.id}" }], scope: s, on_missing: hash, unstable: false }
    window: forever
    lease: 1m
    on_lease_expired: hold
    on_late: park
    on_mismatch: drop
    store: both
    sink:
      webhook:
        url: "https://user:pass1@example.com/charge"
        method: PUT
        headers: { Authorization: Bearer x, X-B: "${env:NONE:-y}" }
        timeout: 3s
        allow_private: [10.0.0.0/8, "::1"]
        success: [304]
        retry: [420-421, 404]
        forward: [traceparent]
    on_failure: { attempts: 3, backoff: 2s, then: stop }
    on_store_error: pass
    observe: true
    order: partition
    parallel: 4
    batch: 10
    in_flight: { max: 100, bytes: 2MiB }
    parked: { store: db, max_age: 90d }
    lossy: true
admin: { listen: "0.0.0.0:9000", public_url: "https://semel.example.com", auth: { username: a, password: b, token: c }, tls: { certificate: c.pem, key: k.pem } }
shutdown: 1m
log: { format: json, level: debug }
`)
	s := p.Source.(*kafka.Source)
	if len(s.Brokers) != 2 || s.TLS == nil || s.SASL.Mechanism != "SCRAM-SHA-512" || s.SASL.Password.Reveal() != "secret1" || len(s.Topics) != 2 || s.Group != "once" ||
		s.Instance != "once-1" || s.SessionTimeout != 10*time.Second || s.Start != "latest" || s.Protocol != "consumer" || s.Retention != 72*time.Hour {
		t.Errorf("kafka: %+v", s)
	}
	w := p.Sink.(*webhook.Sink)
	if w.URL.String() != "https://user:[hidden]@example.com/charge" || w.Method != "PUT" || w.Timeout != 3*time.Second ||
		len(w.Headers) != 2 || w.Headers[1].Name != "X-B" || w.Headers[1].Value.Reveal() != "y" ||
		!reflect.DeepEqual(w.AllowPrivate, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}) ||
		!reflect.DeepEqual(w.Success, []int{304}) || !reflect.DeepEqual(w.Retry, []int{420, 421, 404}) || !reflect.DeepEqual(w.Forward, []string{"traceparent"}) {
		t.Errorf("webhook: %+v", w)
	}
	if got := p.Key.Rule.String(); got != "first of header:event-id, all of .a, header:b, hash(.x,.y), template o-{.id}" || p.Key.Scope != "s" || p.Key.OnMissing != "hash" {
		t.Errorf("key: %s %+v", got, p.Key)
	}
	p.Source, p.Sink, p.Key, p.Transaction, p.At, p.Store.At, p.Parked.Store.At = nil, nil, config.Key{}, config.Transaction{}, schema.Place{}, schema.Place{}, schema.Place{}
	want := &config.Pipeline{
		Name: "p", Window: 1<<63 - 1, Lease: time.Minute, OnLeaseExpired: "hold", OnLate: "park", OnMismatch: "drop", Store: schema.Reference{Name: "both"},
		OnFailure: pipeline.Failure{Attempts: 3, To: 2 * time.Second, Then: pipeline.Stop}, OnStoreError: "pass", Observe: true, Order: "partition", Parallel: 4,
		Batch: 10, InFlight: config.Limit{Max: 100, Bytes: 2 << 20}, Parked: config.Parked{Store: schema.Reference{Name: "db"}, MaxAge: 90 * 24 * time.Hour}, Lossy: true,
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("got\n%+v\nwant\n%+v", p, want)
	}
}

func TestEveryKindOfSourceAndSinkIsRead(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, someStores+`pipelines:
  rows: { source: { http: { listen: ":8080", path: /in, max_body: 2KiB, token: abcd, wait: 3s, tls: { certificate: c, key: k } } }, key: { id: line }, store: db, sink: { postgres: { store: db, table: app.rows, columns: { id: .id, at: time } } } }
  statement: { source: { file: { paths: [a], follow: true, from: end, state: s } }, key: { id: line }, store: db, sink: { postgres: { dsn: "host=other", statement: "SELECT f($1, $2)", args: [body, "header:x"] } } }
  upsert: { source: { file: { paths: [b] } }, key: { id: record-key }, store: keys, sink: { postgres: { store: db, table: t, columns: { id: .id, v: .v }, key: [id], version: v } } }
  lines: { source: { file: { paths: [c] } }, key: { id: line }, store: keys, sink: { file: { path: out } } }
  topic: { source: { kafka: { brokers: ["h:1"], topics: [in], group: g } }, key: { id: line }, sink: { kafka: { brokers: ["h:1"], topic: out, partition: same, compression: zstd, key_headers: false } }, transaction: { interval: 1s, changelog: c, state: d, time: event, grace: 1h, standby: true }, parallel: 2, in_flight: { max: 5, bytes: 1KiB } }
  far: { source: { kafka: { brokers: [127.0.0.1:9092], topics: [in], group: g } }, key: { id: line }, store: both, sink: { kafka: { brokers: ["i:1"], topic: in } }, observe: false }
  bloom: { source: { file: { paths: [d] } }, key: { id: line }, store: seen, lossy: true, sink: { stdout: {} } }
`)
	modes := map[string]config.Mode{"rows": config.SameTransaction, "statement": config.TwoPhase, "upsert": config.TwoPhase, "lines": config.Checkpointed, "topic": config.SourceIsSink, "far": config.TwoPhase, "bloom": config.Lossy}
	for _, p := range f.Pipelines {
		if got := f.Mode(p); got != modes[p.Name] {
			t.Errorf("%s: mode %s, want %s", p.Name, got, modes[p.Name])
		}
	}
	get := func(name string) *config.Pipeline { p, _ := f.Pipeline(name); return p }
	if got := *get("rows").Source.(*http.Source); got.Listen != ":8080" || got.Path != "/in" || got.MaxBody != 2048 || got.Token.Reveal() != "abcd" || got.Wait != 3*time.Second || got.TLS == nil {
		t.Errorf("http: %+v", got)
	}
	if got := *get("rows").Sink.(*postgres.Sink); got.Store.Name != "db" || got.Table != "app.rows" || !reflect.DeepEqual(got.Columns, []rows.Column{{Name: "id", From: ".id"}, {Name: "at", From: "time"}}) {
		t.Errorf("table: %+v", got)
	}
	if got := *get("statement").Sink.(*postgres.Sink); got.Statement != "SELECT f($1, $2)" || !reflect.DeepEqual(got.Args, []string{"body", "header:x"}) || got.DSN.Reveal() != "host=other" {
		t.Errorf("statement: %+v", got)
	}
	if got := *get("statement").Source.(*file.Source); !got.Follow || got.From != "end" || got.State != filepath.Join("dir", "s") {
		t.Errorf("file: %+v", got)
	}
	if got := *get("upsert").Sink.(*postgres.Sink); got.Table != "t" || !reflect.DeepEqual(got.Columns, []rows.Column{{Name: "id", From: ".id"}, {Name: "v", From: ".v"}}) || !reflect.DeepEqual(got.Key, []string{"id"}) || got.Version != "v" {
		t.Errorf("upsert: %+v", got)
	}
	if got := get("topic").Sink.(*kafka.Sink); got.Topic.Name != "out" || got.Partition != "same" || got.Compression != "zstd" || got.KeyHeaders {
		t.Errorf("kafka: %+v", got)
	}
	if !get("far").Sink.(*kafka.Sink).KeyHeaders {
		t.Error("headers that name the key are left out by default")
	}
	if got := get("topic"); got.Transaction != (config.Transaction{Interval: time.Second, Changelog: "c", State: filepath.Join("dir", "d"), Time: "event", Grace: time.Hour, Standby: true}) || got.Parallel != 2 || got.InFlight != (config.Limit{Max: 5, Bytes: 1024}) || got.Parked != (config.Parked{Topic: "in-parked"}) {
		t.Errorf("transaction: %+v parked %+v", got.Transaction, got.Parked)
	}
	if names := strings.Join(f.PipelineNames(), " "); names != "rows statement upsert lines topic far bloom" {
		t.Errorf("names: %s", names)
	}
}

// TestProblemsOfPipelinesSayWhereAndWhatToDo makes one change to a valid pipeline
// in each case, and checks what is reported for it.
func TestProblemsOfPipelinesSayWhereAndWhatToDo(t *testing.T) {
	t.Parallel()
	const (
		file   = "source: { file: { paths: [in] } }"
		kafka  = "source: { kafka: { brokers: ['h:1'], topics: [in], group: g } }"
		id     = "key: { id: .id }"
		stdout = "sink: { stdout: {} }"
		topic  = "sink: { kafka: { brokers: ['h:1'], topic: out } }"
	)
	keep := func(what string) string { return strings.Replace(id, "}", ", keep: "+what+" }", 1) }
	windows := func(value string) string {
		return "aggregate: { by: .g, over: { tumbling: 1m }, values: { n: " + value + " }"
	}
	for _, c := range []struct{ parts, want string }{
		{file + "," + stdout + ", store: keys", "8:6: pipelines.p: key is missing"},
		{id + "," + stdout + ", store: keys", "8:6: pipelines.p: source is missing"},
		{id + "," + file + ", store: keys", "8:6: pipelines.p: sink is missing"},
		{id + "," + file + "," + stdout, "8:6: pipelines.p: store is missing: write store: NAME, the store of the keys"},
		{id + "," + kafka + ", sink: { kafka: { brokers: ['i:1'], topic: out } }", "store is missing: source and sink are two Kafka clusters"},
		{id + "," + file + "," + stdout + ", store: kyes", `pipelines.p.store: there is no store "kyes": did you mean keys?`},
		{id + "," + file + "," + stdout + ", store: cache", "pipelines.p.store: cache is a layer of both, which only copies the decisions of another store: write both"},
		{id + "," + file + "," + stdout + ", store: keys, windwo: 1d", "unknown field pipelines.p.windwo: did you mean window?"},
		{id + "," + file + "," + stdout + ", store: keys, window: soon", `pipelines.p.window: "soon": not a duration: write it like 90s, 36h, 7d or 2w, or forever`},
		{id + "," + file + "," + stdout + ", store: keys, on_lease_expired: ask", `pipelines.p.on_lease_expired: "ask": write one of retry, hold`},
		{id + "," + file + "," + stdout + ", store: keys, batch: 9, in_flight: { max: 5 }", "pipelines.p.batch: a batch is larger than in_flight.max: write a smaller batch"},
		{id + "," + file + "," + stdout + ", store: keys, on_failure: { attempts: 0 }", `pipelines.p.on_failure.attempts: "0": must be between 1 and 1000000`},
		{id + "," + file + "," + stdout + ", store: keys, parked: {}", "pipelines.p.parked: one of path, store, topic is missing"},
		{id + "," + file + "," + stdout + ", store: keys, parked: { store: keys }", "pipelines.p.parked.store: keys is embedded: name a store of the kind postgres"},
		{id + "," + file + "," + stdout + ", store: keys, parked: { topic: x }", "pipelines.p.parked: neither source nor sink is kafka, so there is no topic: write a path or a store"},
		{id + "," + kafka + "," + stdout + ", store: keys, parked: { topic: in }", "8:141: pipelines.p.parked.topic: in is already the topic that the pipeline reads, so parked messages would be read again, or look delivered: write another topic"},
		{id + "," + kafka + "," + topic + ", parked: { topic: out }", "pipelines.p.parked.topic: out is already the topic that the sink writes, so parked messages would be read again, or look delivered: write another topic"},
		{id + "," + kafka + "," + topic + ", store: keys, parked: { topic: out }", "pipelines.p.parked.topic: out is already the topic that the sink writes"},
		{id + "," + file + "," + topic + ", store: keys, parked: { topic: out }", "pipelines.p.parked.topic: out is already the topic that the sink writes"},
		{id + "," + kafka + ", sink: { kafka: { brokers: ['h:1'], topic: in-parked } }", "pipelines.p.sink.kafka.topic: in-parked is also the topic for parked messages unless parked.topic names another, so parked messages would be read again, or look delivered: write another topic in one of the two"},
		{id + "," + kafka + "," + topic + ", transaction: { changelog: out }", "pipelines.p.transaction.changelog: out is already the topic that the sink writes, so keys would look like messages: write another topic"},
		{id + "," + kafka + "," + topic + ", transaction: { changelog: in }", "pipelines.p.transaction.changelog: in is already the topic that the pipeline reads"},
		{id + "," + kafka + "," + topic + ", transaction: { changelog: p }, parked: { topic: p }", "pipelines.p.transaction.changelog: p is already the topic for parked messages"},
		{id + "," + kafka + "," + topic + ", parked: { topic: g-keys }", "pipelines.p.parked.topic: g-keys is also the topic that holds the keys unless transaction.changelog names another"},
		{id + ", source: { kafka: { brokers: ['h:1'], topics: [a, b], group: g } }, sink: { kafka: { brokers: ['h:1'], topic: k-b } }, transaction: { changelog: k }", "pipelines.p.transaction.changelog: k-b is already the topic that the sink writes"},
		{id + "," + kafka + "," + topic + ", transaction: { interval: 5s }", "pipelines.p.transaction.interval: must be below 5s: the broker aborts a transaction after 10s of silence"},
		{id + "," + kafka + "," + topic + ", parallel: 65", "pipelines.p.parallel: a process has at most 64 open Kafka transactions: write 64 or less"},
		{id + "," + kafka + "," + topic + ", transaction: { grace: 1m }", "pipelines.p.transaction.grace: it needs time: event: write that too, or leave it out"},
		{id + "," + file + "," + stdout + ", store: keys, transaction: { interval: 1s }", "pipelines.p.transaction: it is only for Kafka to Kafka without a store"},
		{keep("{ last: { tumbling: 1m } }") + "," + file + "," + stdout + ", store: keys", "pipelines.p.key: keep is only for Kafka to Kafka without a store"},
		{keep("last") + "," + kafka + "," + topic, "pipelines.p.key.keep: expected first, { first: .time }"},
		{keep("{ first: .t, newest: .v }") + "," + kafka + "," + topic, "pipelines.p.key.keep.newest: first and newest exclude each other"},
		{keep("{ last: { hopping: 1h, every: 1m } }") + "," + kafka + "," + topic, "pipelines.p.key.keep.last: windows that overlap would keep a message several times"},
		{keep("{ last: { session: 1h } }") + "," + kafka + "," + topic, "pipelines.p.key.keep.last.session: it needs max"},
		{keep("{ newest: .v, grace: 1m }") + "," + kafka + "," + topic, "pipelines.p.key.keep.grace: newest holds no records"},
		{keep("{ first: .t }") + "," + kafka + "," + topic + ", transaction: { time: event }", "pipelines.p.transaction: time: event cannot be combined with key.keep.first"},
		{keep("{ newest: .v }") + "," + kafka + "," + topic + ", " + windows("count") + " }", "pipelines.p.aggregate: it cannot be combined with key.keep"},
		{keep("{ newest: .v }") + "," + kafka + ", sink: { kafka: { brokers: ['h:1'], topic: g-state } }", "pipelines.p.key.keep: g-state is already the topic that the sink writes, so held records or versions would look like messages"},
		{file + "," + stdout + ", store: keys, unwrap: snss", "pipelines.p.unwrap: \"snss\" is no step: did you mean sns?"},
		{file + "," + stdout + ", store: keys, unwrap: [Message, json]", "pipelines.p.unwrap[0]: \"Message\" is no step: write .Message for a path"},
		{file + "," + stdout + ", store: keys, unwrap: [.Message, json]", "pipelines.p: key is missing: unwrap: [.Message, json] knows no key for the message inside: write one"},
		{file + "," + stdout + ", store: keys, unwrap: []", "pipelines.p.unwrap: the list is empty"},
		{id + ", source: { file: { paths: [in], format: xml } }," + stdout + ", store: keys", "pipelines.p.source.file.format: \"xml\": write one of lines, csv, tsv, json"},
		{id + ", source: { file: { paths: [in], delimiter: ';' } }," + stdout + ", store: keys", "pipelines.p.source.file.delimiter: it needs format: csv, or tsv"},
		{id + ", source: { file: { paths: [in], format: csv, delimiter: ';;' } }," + stdout + ", store: keys", "pipelines.p.source.file.delimiter: write one ASCII character"},
		{id + ", source: { file: { paths: [in], format: csv, follow: true, from: end } }," + stdout + ", store: keys", "pipelines.p.source.file.from: with format: csv a record may span lines"},
		{id + "," + kafka + "," + topic + ", sql: SELECT", "pipelines.p.sql is not possible: "},
		{id + "," + kafka + "," + topic + ", sql: SELECT", "there is no SQL. Write filter, map and aggregate"},
		{id + "," + kafka + "," + topic + ", query: true", "pipelines.p.query is not possible: "},
		{id + "," + kafka + "," + topic + ", query: true", "state is not queried over the network"},
		{id + "," + kafka + "," + topic + ", join: x", "pipelines.p.join is not possible: "},
		{id + "," + kafka + "," + topic + ", join: x", "write both to one topic with one record key"},
		{id + "," + kafka + "," + topic + ", tables: {}", "pipelines.p.tables: it is empty: write at least one table"},
		{id + "," + kafka + "," + topic + ", filter: value.x, tables: { c: { topic: c } }", "pipelines.p.tables.c: by is missing"},
		{id + "," + kafka + "," + topic + ", tables: { c: { topic: c, by: .c } }", "pipelines.p.tables: no expression uses it: write filter or map"},
		{id + "," + kafka + "," + topic + ", filter: tables.d.x, tables: { c: { topic: c, by: .c } }", "column 1: there is no table d: the tables are c"},
		{id + "," + kafka + "," + topic + ", filter: value.x, tables: { c-d: { topic: c, by: .c } }", "pipelines.p.tables.c-d: an expression cannot name it"},
		{id + "," + kafka + "," + topic + ", filter: tables.c.x, tables: { c: { topic: c, by: .c, history: 1h } }", "pipelines.p.tables.c.history: it needs as_of: record"},
		{id + "," + kafka + "," + topic + ", filter: tables.c.x, tables: { c: { topic: t, by: .c }, d: { topic: t, by: .d, read: local } }", "c and d have one topic, so read, as_of and history must be the same"},
		{id + "," + kafka + "," + topic + ", filter: tables.c.x, tables: { c: { topic: in, by: .c } }", "pipelines.p.tables.c.topic: in is already the topic that the pipeline reads"},
		{id + ", source: { kafka: { brokers: ['h:1'], topics: [in], group: g, repartition: true } }, " + topic + ", filter: tables.c.x, tables: { c: { topic: c, by: .c, read: local } }", "read: local is not possible with repartition: true"},
		{id + "," + file + "," + stdout + ", store: keys, filter: tables.c.x, tables: { c: { topic: c, by: .c } }", "pipelines.p.tables: it is only for Kafka to Kafka without a store"},
		{id + "," + kafka + "," + topic + ", steps: []", "pipelines.p.steps is not possible: "},
		{id + "," + kafka + "," + topic + ", steps: []", "Write its output to a topic, and read that with another pipeline"},
		{id + "," + kafka + "," + topic + ", retractions: true", "pipelines.p.retractions is not possible: "},
		{id + "," + kafka + "," + topic + ", retractions: true", "outputs are only appended"},
		{id + "," + kafka + "," + topic + ", windows: 1m", "pipelines.p.windows is not possible: "},
		{id + "," + kafka + "," + topic + ", windows: 1m", "windows are part of aggregate"},
		{id + "," + kafka + "," + topic + ", suppress: true", "pipelines.p.suppress is not possible: "},
		{id + "," + kafka + "," + topic + ", suppress: true", "there is nothing to suppress"},
		{id + "," + kafka + "," + topic + ", " + windows("count") + ", trigger: x }", "a result is written once, when its window closes"},
		{id + "," + kafka + "," + topic + ", " + windows("count") + ", emit: x }", "With early: 10s"},
		{id + "," + kafka + "," + topic + ", " + windows("count") + ", emit_on_change: x }", "with correct: 1h again"},
		{id + "," + kafka + "," + topic + ", " + windows("count") + ", suppress: x }", "Nothing is written early because memory is full"},
		{id + "," + kafka + "," + topic + ", " + windows("count") + ", retractions: x }", "readers keep the greatest"},
		{id + "," + kafka + "," + topic + ", " + windows("count") + ", watermark: x }", "Set grace and idle"},
		{id + "," + kafka + "," + topic + ", " + windows("count") + ", time_unit: s }", "pipelines.p.aggregate.time_unit: it is only for time, whose rule finds a time"},
		{id + "," + kafka + "," + topic + ", " + windows("count") + ", time: .t, time_unit: m }", "pipelines.p.aggregate.time_unit: \"m\": "},
		{keep("{ last: { tumbling: 1m }, time_unit: s }") + "," + kafka + "," + topic, "pipelines.p.key.keep.time_unit: it is the unit of the time that first or time finds: leave it out, or write time"},
		{keep("{ newest: .v, time_unit: s }") + "," + kafka + "," + topic, "pipelines.p.key.keep.time_unit: it is the unit of the time that first or time finds"},
		{keep("{ first: .t, time: .t }") + "," + kafka + "," + topic, "pipelines.p.key.keep.time: it is only for last: first has the rule of a time itself"},
		{keep("{ newest: .v, time: .t }") + "," + kafka + "," + topic, "pipelines.p.key.keep.time: it is only for last"},
		{keep("{ last: { tumbling: 1m }, time: t }") + "," + kafka + "," + topic, "pipelines.p.key.keep.time: \"t\": there is no such rule: did you mean .t?"},
		{keep("{ newest: .v, max_behind: 1d }") + "," + kafka + "," + topic, "pipelines.p.key.keep.max_behind: newest holds no records"},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { tumbling: 1h, zone: Europe/Vienna }, values: { n: count } }", "pipelines.p.aggregate.over.zone: it is only for windows of whole days, as in tumbling: 1d"},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { hopping: 2d, every: 1d, zone: Europe/Vienna }, values: { n: count } }", "pipelines.p.aggregate.over.zone: it is only for tumbling"},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { tumbling: 1d, zone: Europe/Wien }, values: { n: count } }", `pipelines.p.aggregate.over.zone: "Europe/Wien" is no time zone: write its name in the IANA database`},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { tumbling: 1d, zone: Local }, values: { n: count } }", `pipelines.p.aggregate.over.zone: "Local" is no time zone`},
		{id + "," + kafka + "," + topic + ", " + windows("count") + ", store: x }", "open windows are in the topic GROUP-state"},
		{id + "," + file + "," + stdout + ", store: keys, " + windows("count") + " }", "pipelines.p.aggregate: it is only for Kafka to Kafka without a store"},
		{id + ", source: { kafka: { brokers: ['h:1'], topics: [in], group: g, repartition: true } }, " + topic + ", " + windows("count") + " }, filter: tables.c.x, tables: { c: { topic: c, by: .c } }", "pipelines.p.tables: a pipeline with aggregate and repartition: true has no tables"},
		{id + "," + kafka + "," + topic + ", " + windows("median .x") + " }", "pipelines.p.aggregate.values.n: expected count, or sum, min, max, avg, first or last and a path, as in sum .cents"},
		{id + "," + kafka + "," + topic + ", " + windows("sum a..b") + " }", "pipelines.p.aggregate.values.n: "},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { tumbling: 1m }, values: {} }", "pipelines.p.aggregate.values: expected a value, as in { n: count }"},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { sliding: 1h }, values: { n: count } }", "unknown field pipelines.p.aggregate.over.sliding: write one of tumbling, hopping, every, session, max, zone"},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { hopping: 1h }, values: { n: count } }", "pipelines.p.aggregate.over.hopping: it needs every"},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { tumbling: 1h, max: 2h }, values: { n: count } }", "pipelines.p.aggregate.over.max: it is only for session"},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { tumbling: 1h, session: 1h, max: 2h }, values: { n: count } }", "pipelines.p.aggregate.over.session: tumbling and session exclude each other"},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { session: 1h, max: 2m }, values: { n: count } }", "pipelines.p.aggregate.over: the greatest length of a session, 2m0s, is less than the gap of 1h0m0s"},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { hopping: 1h, every: 1s }, values: { n: count } }", "pipelines.p.aggregate.over: windows of 1h0m0s every 1s have 3600 slices each, and at most 1000 are allowed"},
		{id + "," + kafka + "," + topic + ", aggregate: { by: .g, over: { session: 1h, max: 2h }, correct: 1h, values: { n: count } }", "pipelines.p.aggregate.correct: sessions cannot be corrected"},
		{id + "," + kafka + "," + topic + ", " + windows("count") + ", late: correct }", `pipelines.p.aggregate.late: "correct": write one of park, drop, stop`},
		{id + "," + kafka + ", sink: { kafka: { brokers: ['h:1'], topic: g-state } }, " + windows("count") + " }", "pipelines.p.aggregate: g-state is already the topic that the sink writes, so windows would look like messages"},
		{id + "," + kafka + ", sink: { kafka: { brokers: ['h:1'], topic: in } }", "pipelines.p.sink.kafka.topic: in is already the topic that the pipeline reads, so the pipeline would read its own output: write another topic"},
		{id + "," + kafka + ", sink: { kafka: { brokers: ['h:1'], topic: { from: source, allow: [out] } } }", "store is missing: each message names its topic, and a Kafka transaction writes to one"},
		{id + "," + kafka + ", store: keys, sink: { kafka: { brokers: ['h:1'], topic: { from: source, allow: [out, 'i*'] } } }", "pipelines.p.sink.kafka.topic: in is already the topic that the pipeline reads"},
		{id + "," + kafka + "," + topic + ", observe: true", "pipelines.p.observe: a Kafka transaction cannot observe"},
		{id + "," + kafka + "," + topic + ", parked: { path: x }", "pipelines.p.parked: a Kafka transaction parks messages in a topic: write parked: { topic: NAME }"},
		{id + "," + kafka + "," + topic + ", on_store_error: pass", "pipelines.p.on_store_error: pass is not possible, because the effect is written with the store (one transaction in Kafka): write stop"},
		{id + "," + file + ", store: keys, sink: stdout", "pipelines.p.sink: expected fields, got a text: write { stdout: {} } with its settings between the inner braces"},
		{id + "," + file + ", store: keys, sink: nothing", "pipelines.p.sink: expected fields, got a text: write the kind of the sink and its settings, as in { stdout: {} }"},
		{id + "," + file + ", store: keys, sink: { pulsar: {} }", "unknown field pipelines.p.sink.pulsar: write one of file, stdout, webhook, postgres, kafka"},
		{id + ", source: { pulsar: {} }, store: keys, " + stdout, "unknown field pipelines.p.source.pulsar: write one of file, http, kafka"},
		{id + ", source: { postgres: { table: outbox } }, store: keys, " + stdout, "unknown field pipelines.p.source.postgres: write one of file, http, kafka"},
		{id + ", source: { kafak: {} }, store: keys, " + stdout, "unknown field pipelines.p.source.kafak: did you mean kafka?"},
		{id + ", source: { kafka: { brokers: ['h:1'], topics: [a], group: g, sasl: { mechanism: GSSAPI, username: a, password: b } } }, store: keys, " + stdout, `sasl.mechanism: "GSSAPI": write one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512`},
		{"key: { id: id }," + file + "," + stdout + ", store: keys", `pipelines.p.key.id: "id": there is no such rule: did you mean .id?`},
		{"key: { id: [.a, b] }," + file + "," + stdout + ", store: keys", `pipelines.p.key.id[1]: "b": there is no such rule`},
		{"key: { id: [.a, [.b]] }," + file + "," + stdout + ", store: keys", `pipelines.p.key.id[1]: a list cannot contain a list: write { all: […] } for a composite`},
		{"key: { id: [] }," + file + "," + stdout + ", store: keys", `pipelines.p.key.id: the list is empty`},
		{"key: { id: { all: [.a, x] } }," + file + "," + stdout + ", store: keys", `pipelines.p.key.id.all[1]: "x": there is no such rule`},
		{"key: { id: 'hash(a)' }," + file + "," + stdout + ", store: keys", `pipelines.p.key.id: "hash(a)": `},
		{"key: { id: { template: 'a{b}' } }," + file + "," + stdout + ", store: keys", `pipelines.p.key.id.template: "a{b}": `},
		{"key: { id: { template: 'a{.a}', all: [.a] } }," + file + "," + stdout + ", store: keys", `template and all exclude each other: keep one`},
		{"key: { id: { cel: 'a + b' } }," + file + "," + stdout + ", store: keys", `unknown field pipelines.p.key.id.cel`},
		{"key: { id: 7 }," + file + "," + stdout + ", store: keys", `pipelines.p.key.id: "7": there is no such rule`},
		{"key: { id: .a, on_missing: skip }," + file + "," + stdout + ", store: keys", `pipelines.p.key.on_missing: "skip": write one of fail, park, pass, hash, drop`},
		{id + "," + file + "," + stdout + ", store: keys }\nadmin: { listen: nowhere", "admin.listen: not an address to listen on"},
		{id + "," + file + "," + stdout + ", store: keys }\nadmin: { public_url: semel.example.com", "admin.public_url: not the URL of a server: write it like https://semel.example.com"},
		{id + "," + file + ", store: keys, sink: { kafka: { brokers: ['h:1'], topic: t } }, parked: { topic: p, max_age: 1d }", "pipelines.p.parked.max_age: messages in a topic are deleted by its retention: leave max_age out, and set retention.ms of the topic"},
		{id + "," + file + "," + stdout + ", store: keys }\nadmin: { auth: { username: a }", "admin.auth: username and password belong together: write both"},
		{id + "," + file + "," + stdout + ", store: keys }\nadmin: { auth: {}", "admin.auth: it is empty: write username and password, or token"},
		{id + "," + file + "," + stdout + ", store: keys }\nlog: { level: loud", `log.level: "loud": write one of debug, info, warn, error`},
		{id + "," + kafka + "," + topic + " }\n  q: { " + id + "," + kafka + ", sink: { kafka: { brokers: ['h:1'], topic: out2 } }", "c.yaml:9:3: pipelines.q: its keys are in the topic of pipeline p, g-keys (line 8), so each would drop messages that the other delivered: use another group or transaction.changelog"},
		{id + "," + kafka + "," + topic + ", transaction: { changelog: k } }\n  q: { " + id + ", source: { kafka: { brokers: ['h:1'], topics: [b], group: h } }, sink: { kafka: { brokers: ['h:1'], topic: out2 } }, transaction: { changelog: k }", "pipelines.q.transaction.changelog: its keys are in the topic of pipeline p, k (line 8)"},
		{id + "," + file + ", store: keys, sink: { file: { path: out } } }\n  q: { " + id + "," + file + ", store: keys, sink: { file: { path: ./out } }", "c.yaml:9:3: pipelines.q: its sink writes the same file as p (line 8): give each pipeline its own"},
	} {
		_, err := kind.All().Parse("c.yaml", []byte(someStores+"pipelines:\n  p: { "+c.parts+" }\n"), noEnv)
		var wrong *schema.Error
		if !errors.As(err, &wrong) || !strings.Contains(wrong.Error(), c.want) || len(wrong.Problems) != 1+strings.Count(c.want, "\n") {
			t.Errorf("%s\ngot:\n%v\nwant one problem with:\n%s", c.parts, err, c.want)
		}
	}
}

// TestAnEnvelopeBringsTheKeyIfThePipelineHasNone also has a source that knows a key: that is of the
// message that was read.
func TestAnEnvelopeBringsTheKeyIfThePipelineHasNone(t *testing.T) {
	t.Parallel()
	const file, verified = "store: keys, sink: { stdout: }, source: { file: { paths: [in] } }", "store: keys, sink: { stdout: }, source: { http: { listen: '127.0.0.1:1', verify: { sns: {} } } }"
	const transaction = "source: { kafka: { brokers: ['h:1'], topics: [in], group: g } }, sink: { kafka: { brokers: ['h:1'], topic: out } }"
	for parts, want := range map[string]string{
		file + ", unwrap: sns":                        "header:sns-message-id",
		file + ", unwrap: [sns, s3]":                  "header:s3-id",
		file + ", unwrap: [sns], key: { id: .order }": ".order",
		transaction + ", unwrap: debezium":            "header:debezium-id",
		verified:                                      ".MessageId",
		verified + ", unwrap: sns":                    "header:sns-message-id",
	} {
		f := kindtest.Parse(t, someStores+"pipelines:\n  p: { "+parts+" }\n")
		if got := f.Pipelines[0].Key.Rule.String(); got != want {
			t.Errorf("%s: the key is %s, want %s", parts, got, want)
		}
		for _, finding := range f.Lint() {
			if strings.Contains(finding.Found, "can never match") {
				t.Errorf("%s: %+v", parts, finding)
			}
		}
	}
}

func TestPipelinesMayShareAnAnchor(t *testing.T) {
	t.Parallel()
	f := kindtest.Parse(t, someStores+`x-all: &all { store: keys, window: 3d, on_failure: &f { attempts: 2 }, key: { id: .id } }
pipelines:
  p: { <<: *all, source: { file: { paths: [a] } }, sink: { stdout: {} } }
  q: { <<: *all, window: 1d, source: { file: { paths: [b] } }, sink: { stdout: {} }, on_failure: { <<: *f, then: stop } }
`)
	p, q := f.Pipelines[0], f.Pipelines[1]
	if p.Window != 72*time.Hour || p.OnFailure.Attempts != 2 || p.OnFailure.Then != pipeline.Park || p.Key.Scope != "p" ||
		q.Window != 24*time.Hour || q.OnFailure.Attempts != 2 || q.OnFailure.Then != pipeline.Stop || q.Key.Scope != "q" || q.Key.Rule.String() != ".id" {
		t.Errorf("%+v\n%+v", p, q)
	}
}

// TestSecretsOfPipelinesAreHidden puts the canary into every field that may hold
// a secret. It looks for the canary in all output about the file, both valid and
// broken.
func TestSecretsOfPipelinesAreHidden(t *testing.T) {
	t.Parallel()
	const whole = someStores + `pipelines:
  a: { source: { http: { listen: ":80", token: "` + canary + `" } }, key: { id: .id }, store: keys, sink: { webhook: { url: "https://u:` + canary + `@h.example/x?token=` + canary + `", headers: { Authorization: "Bearer ` + canary + `", x: "${env:SECRET}" } } } }
  b: { source: { kafka: { brokers: ["h:1"], topics: [t], group: g, sasl: { mechanism: PLAIN, username: u, password: ` + canary + ` } } }, key: { id: .id }, store: keys, sink: { postgres: { dsn: "postgres://u:` + canary + `@h/d", statement: x } } }
admin: { listen: ":90", auth: { username: u, password: "${env:SECRET}", token: ` + canary + ` } }
`
	env := func(name string) string { return map[string]string{"SECRET": canary}[name] }
	f, err := kind.All().Parse("c.yaml", []byte(whole), env)
	if err != nil {
		t.Fatal(err)
	}
	shown := fmt.Sprintf("%+v %+v", f.Lint(), f.Admin.Auth)
	for _, p := range f.Pipelines {
		shown += fmt.Sprintf("%+v %+v %#v", p.Source, p.Sink, p.Sink)
		if k, ok := p.Source.(*kafka.Source); ok {
			shown += fmt.Sprintf("%+v", k.SASL)
		}
	}
	if strings.Contains(shown, canary) {
		t.Errorf("the secret is in %s", shown)
	}
	if said := f.Redact("401 for Bearer " + canary + " at https://u:" + canary + "@h.example"); strings.Contains(said, canary) {
		t.Errorf("the secret is in %s", said)
	}
	for i := strings.Index(whole, "pipelines"); i < len(whole); i++ {
		for _, broken := range []string{whole[:i], whole[:i] + "'" + whole[i+1:], whole[:i] + ":" + whole[i+1:]} {
			if _, err := kind.All().Parse("c.yaml", []byte(broken), env); err != nil && strings.Contains(err.Error(), canary) {
				t.Fatalf("the secret is in the error:\n%v\nof:\n%s", err, broken)
			}
		}
	}
}
