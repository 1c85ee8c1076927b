package kind_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/schema"
)

// findings returns the findings of Lint, one line each: severity, risk, path,
// found.
func findings(f *config.File) []string {
	var lines []string
	for _, x := range f.Lint() {
		lines = append(lines, fmt.Sprintf("%d:%d %s %s %s: %s", x.Place.Line, x.Place.Column, x.Severity, x.Risk, x.Subject, x.Found))
	}
	return lines
}

func TestAPrivateTargetIsAllowedAsLintSaysIt(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"[::ffff:127.0.0.1]": "[127.0.0.1/32]", "localhost": "[127.0.0.1/32]", "10.1.2.3": "[10.1.2.3/32]", "[fd00::1]": "[fd00::1/128]",
	} {
		text := "stores: { a: { embedded: { path: k } } }\npipelines: { p: { key: { id: .a }, store: a, source: { file: { paths: [a] } }, sink: { webhook: { url: 'https://" + host + "/' } } } }"
		f, err := kind.All().Parse("c.yaml", []byte(text), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		remedies := ""
		for _, x := range f.Lint() {
			if strings.Contains(x.Found, "private address") {
				remedies += x.Remedy
			}
		}
		if remedies != "write allow_private: "+want {
			t.Errorf("%s: %s, want %s", host, remedies, want)
		}
	}
}

// TestLintNamesWhatWeakensThePromise makes one change to a valid pipeline in each
// case, and expects exactly one finding apart from notices.
// TestAWindowBelowThatOfTheServerLosesMessages has sinks whose servers drop a message
// with a known id and report success.
func TestAWindowBelowThatOfTheServerLosesMessages(t *testing.T) {
	t.Parallel()
	const fifo, nats = "{ sqs: { queue: 'https://sqs.eu-west-1.amazonaws.com/1/o.fifo' } }", "{ nats: { servers: ['h:4222'], subject: s } }"
	for _, c := range []struct {
		sink, window string
		lost         bool
	}{
		{nats, "1m", true}, {nats, "2m", false}, {fifo, "4m", true}, {fifo, "5m", false},
		{"{ sqs: { queue: 'https://sqs.eu-west-1.amazonaws.com/1/o' } }", "4m", false},
	} {
		text := "stores: { a: { embedded: { path: k } } }\npipelines: { p: { key: { id: .a }, window: " + c.window + ", store: a, source: { file: { paths: [a] } }, sink: " + c.sink + " } }"
		f, err := kind.All().Parse("c.yaml", []byte(text), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		if list := strings.Join(findings(f), "\n"); strings.Contains(list, "drops a message with the same id") != c.lost {
			t.Errorf("%s with a window of %s: %s", c.sink, c.window, list)
		}
	}
}

func TestLintNamesWhatWeakensThePromise(t *testing.T) {
	t.Parallel()
	const (
		stores = `stores:
  keys: { embedded: { path: a } }
  fast: { embedded: { path: b, fsync: interval } }
  mem: { memory: {} }
  cache: { redis: { url: "redis://h" } }
  logged: { redis: { url: "redis://l", persistence: logged } }
  synced: { redis: { url: "redis://s", persistence: synced } }
  db: { postgres: { dsn: "host=h dbname=d" } }
  other: { postgres: { dsn: "host=h dbname=other" } }
  seen: { filter: { rate: 0.01, expect: 10, window: 7d, redis: cache } }
  seen2: { filter: { rate: 0.01, expect: 10, window: 7d } }
  top: { memory: {} }
  both: { tiered: [top, db] }
  sole: { tiered: { layers: [seen2, third], sees_every_writer: true } }
  third: { postgres: { dsn: "host=h dbname=third" } }
pipelines:
  p:
`
		file     = "    source: { file: { paths: [in/*] } }\n"
		kafka    = "    source: { kafka: { brokers: ['h:1'], topics: [in], group: g, retention: 3d } }\n"
		rabbit   = "    source: { rabbitmq: { servers: ['h:5672'], queue: q } }\n"
		requests = "    source: { http: { listen: '127.0.0.1:8080' } }\n"
		id       = "    key: { id: .event_id }\n"
		keys     = "    store: keys\n"
		out      = "    sink: { kafka: { brokers: ['h:1'], topic: out } }\n"
		webhook  = "    sink: { webhook: { url: 'https://example.com/x' } }\n"
	)
	between := func(stage string) string {
		return strings.Replace(kafka, "retention: 3d", "retention: 3d, repartition: "+stage, 1)
	}
	for _, c := range []struct{ parts, want string }{
		{file + id + keys + webhook, ""},
		{kafka + id + keys + webhook, ""},
		{kafka + id + "    sink: { kafka: { brokers: ['h:1'], topic: out } }\n", ""},
		{kafka + id + keys + webhook + "    window: 2d\n", "22:13 warning repeat pipelines.p.window: 2d, but the topics keep records for 3d"},
		{strings.Replace(kafka, "3d", "forever", 1) + id + keys + webhook, "17:3 warning repeat pipelines.p.window: 7d, but the topics keep records for forever"},
		{file + id + keys + webhook + "    window: 10s\n", "22:13 warning repeat pipelines.p.window: 10s"},
		{strings.Replace(kafka, "group", "start: latest, group", 1) + id + keys + webhook, "warning loss pipelines.p.source.kafka.start: latest"},
		{strings.Replace(file, "paths", "from: end, paths", 1) + id + keys + webhook, "warning loss pipelines.p.source.file.from: end"},
		{file + "    key: { id: offset }\n" + keys + webhook, "19:16 broken repeat pipelines.p.key.id: offset is not stable"},
		{file + "    key: { id: timestamp }\n" + keys + webhook, "broken loss and repeat pipelines.p.key.id: timestamp is not stable"},
		{file + "    key: { id: [.a, delivery-id] }\n" + keys + webhook, "broken repeat pipelines.p.key.id: first of .a, delivery-id is not stable"},
		{file + "    key: { id: offset, unstable: true }\n" + keys + webhook, "warning repeat pipelines.p.key.id: offset is not stable"},
		{rabbit + "    key: { id: offset, unstable: true }\n" + keys + webhook, "19:16 broken loss pipelines.p.key.id: offset needs the position of a message, but a RabbitMQ queue has no positions"},
		{rabbit + "    key: { id: [.a, { all: [.b, delivery-id] }], unstable: true }\n" + keys + webhook, "19:16 broken loss pipelines.p.key.id: first of .a, all of .b, delivery-id needs the position of a message, but a RabbitMQ queue has no positions"},
		{rabbit + "    key: { id: .a, on_missing: pass }\n" + keys + webhook, "19:32 broken loss pipelines.p.key.on_missing: pass makes the key from the position of a message, but a RabbitMQ queue has no positions"},
		{rabbit + id + keys + webhook, ""},
		{requests + "    key: { id: .a, on_missing: pass }\n" + keys + webhook, "broken loss pipelines.p.key.on_missing: pass makes the key from the position of a message, but a request has no position"},
		{file + "    key: { id: .meta.created_at }\n" + keys + webhook, "warning loss and repeat pipelines.p.key.id: .meta.created_at looks like a time"},
		{file + "    key: { id: [.id, \"header:timestamp\"] }\n" + keys + webhook, "warning loss and repeat pipelines.p.key.id: header:timestamp looks like a time"},
		{file + "    key: { id: { all: [.id, .created_at] } }\n" + keys + webhook, ""},
		{file + "    key: { id: .a, on_missing: drop }\n" + keys + webhook, "warning loss pipelines.p.key.on_missing: drop"},
		{file + "    key: { id: .a, on_missing: pass }\n" + keys + webhook, "warning repeat pipelines.p.key.on_missing: pass"},
		{file + "    key: { id: .a }\n    on_mismatch: drop\n" + keys + webhook, "warning loss pipelines.p.on_mismatch: drop"},
		{file + id + keys + webhook + "    parked: { path: p, max_age: 90d }\n", "warning loss pipelines.p.parked.max_age: 90d"},
		{file + id + keys + webhook + "    on_late: drop\n", "warning loss pipelines.p.on_late: drop"},
		{file + id + keys + webhook + "    on_late: drop\n    observe: true\n", "warning  pipelines.p.on_late: drop"},
		{file + id + keys + webhook + "    on_failure: { then: drop }\n", "warning loss pipelines.p.on_failure.then: drop"},
		{file + id + keys + webhook + "    on_store_error: pass\n", "warning repeat pipelines.p.on_store_error: pass"},
		{file + id + "    store: mem\n" + webhook, "warning repeat pipelines.p.store: mem is memory"},
		{file + id + "    store: fast\n" + webhook, "warning repeat pipelines.p.store: fast has fsync: interval"},
		{file + id + "    store: cache\n" + webhook, "warning repeat pipelines.p.store: cache is Redis with persistence: volatile"},
		{file + id + "    store: logged\n" + webhook, "warning repeat pipelines.p.store: logged is Redis with persistence: logged"},
		{file + id + "    store: synced\n" + webhook, ""},
		{file + id + "    store: db\n" + webhook, ""},
		{file + id + "    store: third\n" + webhook, "broken repeat pipelines.p.store: third, which is below sole with sees_every_writer"},
		{file + id + "    store: seen\n" + webhook, "broken loss pipelines.p.store: seen is a filter with rate 0.01, and lossy is not set"},
		{file + id + "    store: seen\n    lossy: true\n" + webhook, "warning loss pipelines.p.store: seen is a filter with rate 0.01"},
		{file + id + keys + "    on_lease_expired: hold\n" + webhook, ""},
		{file + id + keys + "    sink: { webhook: { url: 'http://example.com/x' } }\n", "21:29 warning  pipelines.p.sink.webhook.url: http://"},
		{file + id + keys + "    sink: { webhook: { url: 'https://10.1.2.3/x' } }\n", "broken  pipelines.p.sink.webhook.url: 10.1.2.3 is a private address"},
		{file + id + keys + "    sink: { webhook: { url: 'https://10.1.2.3/x', allow_private: [10.0.0.0/8] } }\n", ""},
		{file + id + keys + "    sink: { webhook: { url: 'http://localhost:8080/x' } }\n", "broken  pipelines.p.sink.webhook.url: localhost is a private address"},
		{file + id + keys + "    sink: { webhook: { url: 'https://[::ffff:169.254.169.254]/' } }\n", "broken  pipelines.p.sink.webhook.url: ::ffff:169.254.169.254 is a private address"},
		{file + id + keys + "    sink: { webhook: { url: 'https://[::ffff:10.1.2.3]/', allow_private: ['::ffff:10.0.0.0/104'] } }\n", ""},
		{file + id + keys + "    sink: { webhook: { url: 'https://[::ffff:10.1.2.3]/', allow_private: ['10.1.2.3'] } }\n", ""},
		{file + id + keys + "    sink: { webhook: { url: 'http://127.0.0.1:9/x', allow_private: true } }\n", ""},
		{file + id + keys + "    sink: { webhook: { url: 'https://a.example', timeout: 31s } }\n    lease: 10s\nshutdown: 1m\n", "22:12 warning repeat pipelines.p.lease: 10s, but one request may take 31s"},
		{file + id + keys + "    sink: { webhook: { url: 'https://a.example', timeout: 30s } }\n", "21:59 warning repeat pipelines.p.sink.webhook.timeout: 30s, but shutdown is 25s"},
		{file + id + keys + "    sink: { kafka: { brokers: ['h:1'], topic: t, sasl: { mechanism: PLAIN, username: u, password: '${env:NONE:-p}' } } }\n", "warning  pipelines.p.sink.kafka.sasl.mechanism: PLAIN without tls"},
		{kafka + id + keys + "    sink: { kafka: { brokers: ['h:1'], topic: out } }\n", "warning repeat pipelines.p.store: a store, from Kafka to Kafka"},
		{kafka + id + keys + "    sink: { kafka: { brokers: ['i:1'], topic: out } }\n", ""},
		{file + id + keys + "    sink: { file: { path: in/out } }\n", "broken  pipelines.p.sink.file.path: in/out is one of the source's files"},
		{file + id + "    store: both\n    sink: { postgres: { store: db, statement: x } }\n", "warning repeat pipelines.p.store: both, a stack above db"},
		{file + id + "    store: db\n    sink: { postgres: { dsn: 'host=h dbname=d', statement: x } }\n", "warning repeat pipelines.p.sink.postgres.dsn: the database of store db"},
		{file + id + "    store: db\n    sink: { postgres: { store: db, statement: x } }\n", ""},
		{"    source: { http: { listen: ':80' } }\n" + id + keys + webhook, "18:31 warning  pipelines.p.source.http.listen: :80, which other machines can reach, without token"},
		{"    source: { http: { listen: '127.0.0.1:80' } }\n" + id + keys + webhook, ""},
		{"    source: { http: { listen: ':80', token: '${env:NONE:-abcd}' } }\n" + id + keys + webhook, "warning  pipelines.p.source.http.token: a token without tls"},
		{file + id + keys + webhook + "admin: { listen: ':4195' }\n", "22:18 broken  admin.listen: :4195, which other machines can reach, without auth"},
		{file + id + keys + webhook + "admin: { listen: ':4195', auth: { token: '${env:NONE:-t}' } }\n", "warning  admin.listen: :4195, which other machines can reach, without tls"},
		{file + id + keys + webhook + "admin: { listen: off }\n", ""},
		{file + strings.Replace(id, "key: {", "key: { scope: s,", 1) + keys + webhook + "  q:\n" + file + strings.Replace(id, "key: {", "key: { scope: s,", 1) + keys + webhook, "24:19 broken loss pipelines.q.key.scope: s in store keys, as in pipeline p"},
		{between("true") + id + out, ""},
		{between("true") + id + keys + webhook, "18:94 broken  pipelines.p.source.kafka.repartition: a stage for keys in Kafka, but the keys are in the store keys"},
		{between("true") + id + strings.Replace(out, "topic: out", "topic: g-repartition", 1), "broken  pipelines.p.source.kafka.repartition: g-repartition, which the pipeline also uses for something else"},
		{between("true") + id + out + "    transaction: { changelog: g-repartition }\n", "broken  pipelines.p.source.kafka.repartition: g-repartition, which the pipeline also uses for something else"},
		{between("true") + id + out + "    transaction: { time: event, grace: 5m }\n", "21:40 warning  pipelines.p.transaction.grace: 5m, with a repartition stage"},
		{file + "    key: { scope: s, id: .a }\n" + keys + webhook + "  q:\n" + file + "    key: { scope: s, id: .b }\n" + keys + webhook, "24:19 broken loss pipelines.q.key.scope: s in store keys, as in pipeline p, whose key rule is .a"},
		{file + "    key: { scope: s, id: .a }\n" + keys + webhook + "  q:\n" + file + "    key: { scope: s, same_scope: true, id: .b }\n" + keys + webhook, "24:19 warning loss pipelines.q.key.scope: s in store keys, as in pipeline p"},
		{between("true") + id + out + "  q:\n" + strings.Replace(between("true"), "topics: [in]", "topics: [more]", 1) + id + out + "    transaction: { changelog: other }\n", "broken repeat pipelines.q.source.kafka.repartition: g-repartition, as in pipeline p"},
		{kafka + id + keys + webhook + "  q:\n" + kafka + id + keys + strings.Replace(webhook, "example.com", "example.org", 1), "23:63 warning loss pipelines.q.source.kafka.group: g, which reads in in pipeline p too"},
	} {
		f, err := kind.All().Parse("c.yaml", []byte(stores+c.parts), noEnv)
		if err != nil {
			t.Errorf("%s%v", c.parts, err)
			continue
		}
		var serious []string
		for _, line := range findings(f) {
			if !strings.Contains(line, " notice ") {
				serious = append(serious, line)
			}
		}
		if c.want == "" && serious != nil || c.want != "" && (len(serious) != 1 || !strings.HasSuffix(serious[0], c.want)) {
			t.Errorf("%s\ngot  %q\nwant %q", c.parts, serious, c.want)
		}
		for _, x := range f.Lint() {
			if x.Cost == "" || x.Remedy == "" || x.Place.File != "c.yaml" || x.Severity == semel.Fine {
				t.Errorf("%s\nincomplete: %+v", c.parts, x)
			}
		}
	}
}

// TestAValueThatLintProposesRemovesTheFinding writes each value that a remedy
// names into the file. The file then no longer has that finding.
func TestAValueThatLintProposesRemovesTheFinding(t *testing.T) {
	t.Parallel()
	proposed := regexp.MustCompile(`^write (\w+): (forever|\S+ or more)`)
	for field, values := range map[string]map[string]string{ // maps the found value to the proposed value
		"retention": {"30d": "35d", "8d": "10d", "169h": "9d", "36500d": "41715d", "90000d": "102858d", "100000d": "forever", "forever": "forever", "8d1ns": "10d"},
		"timeout":   {"31s": "1m2s", "40s": "1m20s"},
	} {
		for value, want := range values {
			retention, timeout := "3d", "10s"
			if field == "retention" {
				retention = value
			} else {
				timeout = value
			}
			lint := func(settings string) (remedies map[string]string) {
				t.Helper()
				remedies = map[string]string{}
				f := parse(t, someStores+"pipelines:\n  p:\n    source: { kafka: { brokers: ['h:1'], topics: [in], group: g, retention: "+retention+" } }\n    key: { id: .id }\n    store: keys\n"+
					"    sink: { webhook: { url: 'https://example.com', timeout: "+timeout+" } }\n"+settings)
				for _, x := range f.Lint() {
					if found := proposed.FindStringSubmatch(x.Remedy); found != nil && x.Severity == semel.Warning {
						remedies[found[1]] = strings.TrimSuffix(found[2], " or more")
					}
				}
				return remedies
			}
			remedies := lint("    lease: 10s\n")
			settings := ""
			for field, remedy := range remedies {
				if field != "shutdown" { // which is a field outside of the pipelines
					settings += "    " + field + ": " + remedy + "\n"
				}
			}
			if shutdown, ok := remedies["shutdown"]; ok {
				settings += "shutdown: " + shutdown + "\n"
			}
			if remedies["window"] != want && remedies["lease"] != want {
				t.Errorf("%s %s: %v, want %s", field, value, remedies, want)
			}
			if left := lint(settings); len(left) != 0 {
				t.Errorf("%s %s: with %q it still says %v", field, value, settings, left)
			}
		}
	}
}

func TestBrokenPipelinesAreRefused(t *testing.T) {
	t.Parallel()
	f := parse(t, someStores+`pipelines:
  p: { source: { file: { paths: [in] } }, key: { id: random }, store: keys, sink: { stdout: {} }, on_failure: { then: drop } }
  q: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { stdout: {} }, on_failure: { then: drop } }
admin: { listen: ":1" }
`)
	const want = "dir/semel.yaml:8:54: pipelines.p.key.id: random is not stable: a value drawn on receipt differs on every delivery: use the id that"
	if got := f.Refused("p"); len(got) != 1 || !strings.HasPrefix(got[0].String(), want) {
		t.Errorf("%v", got)
	}
	if got := f.Refused("q"); got != nil {
		t.Errorf("%v", got)
	}
}

func TestNoticesDoNotDisturb(t *testing.T) {
	t.Parallel()
	const start = someStores + "pipelines:\n  p: { source: { kafka: { brokers: ['h:1'], topics: [in], group: g } }, "
	for _, c := range []struct{ text, want string }{
		{start + "key: { id: .id }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.source.kafka.retention: not stated"},
		{start + "key: { id: .id }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.store: keys is embedded"},
		{start + "key: { id: .id }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.sink.stdout: standard output"},
		{start + "key: { id: record-key }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.key.id: record-key"},
		{start + "key: { id: hash(.) }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.key.id: hash(.)"},
		{start + "key: { id: .id, on_missing: fail }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.key.on_missing: fail"},
		{start + "key: { id: .id }, observe: true, store: keys, sink: { stdout: {} } }", "notice repeat pipelines.p.observe: true"},
		{start + "key: { id: .id }, lease: 1m, sink: { kafka: { brokers: ['h:1'], topic: o } } }", "notice  pipelines.p.lease: it has no effect here"},
		{start + "key: { id: .id }, lease: 1m, store: keys, sink: { file: { path: o } } }", "notice  pipelines.p.lease: it has no effect here"},
		{someStores + "pipelines:\n  p: { source: { outbox: { store: db, mode: wal } }, key: { id: property:message-id }, lease: 1m, sink: { file: { path: o } } }", "notice  pipelines.p.lease: it has no effect here"},
		{someStores + "pipelines:\n  p: { source: { kafka: { brokers: ['h:1'], topics: [in], group: g, protocol: consumer } }, key: { id: .id }, sink: { kafka: { brokers: ['h:1'], topic: o } } }",
			"notice  pipelines.p.source.kafka.protocol: it has no effect here"},
		{someStores + "pipelines:\n  p: { source: { kafka: { brokers: ['h:1'], topics: [in], group: g, protocol: consumer, session_timeout: 5s } }, key: { id: .id }, store: keys, sink: { stdout: {} } }",
			"notice  pipelines.p.source.kafka.session_timeout: it has no effect here"},
		{start + "key: { id: .id }, store: keys, sink: { webhook: { url: 'https://pay.internal' } } }", "notice  pipelines.p.sink.webhook.url: pay.internal is the name of an internal service"},
	} {
		lines := strings.Join(findings(parse(t, c.text+"\n")), "\n")
		if !strings.Contains(lines, c.want) || strings.Contains(lines, "warning") || strings.Contains(lines, "broken") {
			t.Errorf("%s\ngot:\n%s\nwant %s", c.text, lines, c.want)
		}
	}
}

// TestLintTellsOfAParkedDirectoryThatInstancesDoNotShare has each source with
// each store, and each place for parked messages.
func TestLintTellsOfAParkedDirectoryThatInstancesDoNotShare(t *testing.T) {
	t.Parallel()
	sources := map[string]bool{ // maps a source to whether instances share it
		"kafka: { brokers: ['h:1'], topics: [in], group: g, retention: 3d }": true,
		"http: { listen: '127.0.0.1:80' }":                                   true,
		"file: { paths: [in] }":                                              false,
	}
	stores := map[string]bool{"keys": false, "db": true, "own": true, "both": true, "seen": false, "shared": true, "mem": false}
	places := map[string]bool{"": true, "    parked: { path: aside }\n": true, "    parked: { store: db }\n": false, "    parked: { topic: dead }\n": false}
	for source, sharedSource := range sources {
		for store, sharedStore := range stores {
			for place, directory := range places {
				if strings.Contains(place, "topic") && !strings.HasPrefix(source, "kafka") {
					continue // the pipeline has no Kafka cluster for it
				}
				lossy := ""
				if store == "seen" || store == "shared" {
					lossy = "    lossy: true\n"
				}
				f := parse(t, someStores+"  mem: { memory: {} }\n  own: { redis: { url: redis://own } }\n  shared: { filter: { rate: 0.01, expect: 1, window: 7d, redis: cache } }\n"+
					"pipelines:\n  p:\n    source: { "+source+" }\n    key: { id: .id }\n    store: "+store+"\n    sink: { webhook: { url: 'https://example.com' } }\n"+lossy+place)
				found := strings.Contains(strings.Join(findings(f), "\n"), "notice  pipelines.p.parked: the directory ")
				if want := sharedSource && sharedStore && directory; found != want {
					t.Errorf("%s, store %s, %q: told %v, want %v", source, store, place, found, want)
				}
			}
		}
	}
}

func TestDurationsAreWrittenAsTheyAreRead(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		semel.Forever: "forever", 0: "0s", 100 * time.Millisecond: "100ms", 90 * time.Second: "1m30s", time.Hour: "1h", 36 * time.Hour: "36h",
		24 * time.Hour: "1d", 7 * 24 * time.Hour: "7d", 8*24*time.Hour + time.Hour: "8d1h", 25 * time.Second: "25s", 10*time.Minute + time.Second/2: "10m500ms",
	} {
		got := schema.Duration(d)
		if back, err := schema.ParseWindow(got); got != want || d > 0 && (err != nil || back != d) {
			t.Errorf("%v: %s, want %s (back: %v %v)", d, got, want, back, err)
		}
	}
}

// TestRequestsOfTwoPipelinesToOneHostNeedKeysOfTheirOwn has two pipelines that send requests.
func TestRequestsOfTwoPipelinesToOneHostNeedKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	const sender = "  %s: { source: { file: { paths: [a] } }, key: { id: .id, scope: %s }, store: keys, sink: { webhook: { url: '%s' } } }\n"
	one := fmt.Sprintf(sender, "one", "orders", "https://example.com/a")
	for two, want := range map[string]bool{
		"": false,
		fmt.Sprintf(sender, "two", "orders", "https://example.com/a"):     false,
		fmt.Sprintf(sender, "two", "refunds", "https://example.com/a"):    true,
		fmt.Sprintf(sender, "two", "orders", "https://EXAMPLE.com/b"):     true,
		fmt.Sprintf(sender, "two", "orders", "https://example.com:444/b"): false,
		fmt.Sprintf(sender, "two", "refunds", "https://example.org/a"):    false,
	} {
		f := parse(t, "stores: { keys: { embedded: { path: keys } } }\npipelines:\n"+one+two)
		found := strings.Join(findings(f), "\n")
		if told := strings.Contains(found, "warning loss pipelines.one.sink.webhook.url: ") && strings.Contains(strings.ToLower(found), "example.com, to which two sends too"); told != want {
			t.Errorf("%s\ntold %v, want %v:\n%s", two, told, want, found)
		}
	}
}

// TestEventsOfTwoPipelinesNeedKeysOfTheirOwn has two pipelines that write to one outbox.
func TestEventsOfTwoPipelinesNeedKeysOfTheirOwn(t *testing.T) {
	t.Parallel()
	const (
		writer = "  %s: { source: { file: { paths: [a] } }, key: { id: .id }, store: db, sink: { postgres: { store: db, outbox: {} } } }\n"
		relay  = "  relay: { source: { outbox: { store: db } }, key: { id: [%s] }, sink: { file: { path: out } } }\n"
		told   = "warning loss pipelines.one.sink.postgres.outbox: the outbox of db, to which two writes too"
	)
	for _, c := range []struct {
		pipelines string
		want      bool
	}{
		{fmt.Sprintf(writer, "one") + fmt.Sprintf(relay, `"header:semel-key"`), false},
		{fmt.Sprintf(writer, "one") + fmt.Sprintf(writer, "two"), true},
		{fmt.Sprintf(writer, "one") + fmt.Sprintf(writer, "two") + fmt.Sprintf(relay, `"header:semel-key"`), true},
		{fmt.Sprintf(writer, "one") + fmt.Sprintf(writer, "two") + fmt.Sprintf(relay, `{ all: ["header:semel-pipeline", "header:semel-key"] }`), false},
	} {
		f, err := kind.All().Parse("c.yaml", []byte("stores: { db: { postgres: { dsn: 'host=h' } } }\npipelines:\n"+c.pipelines), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(findings(f), "\n"); strings.Contains(got, told) != c.want {
			t.Errorf("%s\nhas %s", c.pipelines, got)
		}
	}
}
