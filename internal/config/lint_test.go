package config_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/kindtest"
)

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
		if list := strings.Join(kindtest.Findings(f), "\n"); strings.Contains(list, "drops a message with the same id") != c.lost {
			t.Errorf("%s with a window of %s: %s", c.sink, c.window, list)
		}
	}
}

// TestASecondProcessCanRunAPipelineOnSharedParts has each part that one process keeps to itself.
func TestASecondProcessCanRunAPipelineOnSharedParts(t *testing.T) {
	t.Parallel()
	const queue, lines, webhook = "rabbitmq: { servers: ['h:5672'], queue: q }", "file: { paths: [a] }", "{ webhook: { url: 'https://a.example' } }"
	for _, c := range []struct {
		source, store, sink string
		want                bool
	}{
		{queue, "db", webhook, true}, {queue, "stack", webhook, true},
		{lines, "db", webhook, false}, {queue, "dir", webhook, false}, {queue, "mem", webhook, false}, {queue, "db", "{ file: { path: out } }", false},
	} {
		text := "stores: { dir: { embedded: { path: k } }, mem: { memory: {} }, seen: { memory: {} }, db: { postgres: { dsn: 'postgres://h/d' } }, stack: { tiered: [seen, db] } }\n" +
			"pipelines: { p: { key: { id: .a }, store: " + c.store + ", source: { " + c.source + " }, sink: " + c.sink + ", parked: { path: parked } } }"
		f, err := kind.All().Parse("c.yaml", []byte(text), noEnv)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Shareable(f.Pipelines[0]); got != c.want {
			t.Errorf("%s, %s, %s: a second process can run it: %t", c.source, c.store, c.sink, got)
		}
	}
}

// TestLintWarnsOfSettingsThatWeakenThePromise makes one change to a valid pipeline in each
// case, and expects exactly one finding apart from notices.
func TestLintWarnsOfSettingsThatWeakenThePromise(t *testing.T) {
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
		{kafka + id + keys + "    sink: { kafka: { brokers: ['h:1'], topic: out } }\n", "warning repeat pipelines.p.store: a store, from Kafka to Kafka"},
		{kafka + id + keys + "    sink: { kafka: { brokers: ['i:1'], topic: out } }\n", ""},
		{file + id + "    store: both\n    sink: { postgres: { store: db, statement: x } }\n", "warning repeat pipelines.p.store: both, a stack above db"},
		{file + id + "    store: db\n    sink: { postgres: { dsn: 'host=h dbname=d', statement: x } }\n", "warning repeat pipelines.p.sink.postgres.dsn: the database of store db"},
		{file + id + "    store: db\n    sink: { postgres: { store: db, statement: x } }\n", ""},
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
		for _, line := range kindtest.Findings(f) {
			if !strings.Contains(line, " notice ") {
				serious = append(serious, line)
			}
		}
		if c.want == "" && serious != nil || c.want != "" && (len(serious) != 1 || !strings.HasSuffix(serious[0], c.want)) {
			t.Errorf("%s\ngot  %q\nwant %q", c.parts, serious, c.want)
		}
		for _, x := range f.Lint() {
			if x.Cost == "" || x.Remedy == "" || x.Place.File != "c.yaml" || x.Severity == doctor.Fine {
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
				f := kindtest.Parse(t, someStores+"pipelines:\n  p:\n    source: { kafka: { brokers: ['h:1'], topics: [in], group: g, retention: "+retention+" } }\n    key: { id: .id }\n    store: keys\n"+
					"    sink: { webhook: { url: 'https://example.com', timeout: "+timeout+" } }\n"+settings)
				for _, x := range f.Lint() {
					if found := proposed.FindStringSubmatch(x.Remedy); found != nil && x.Severity == doctor.Warning {
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
	f := kindtest.Parse(t, someStores+`pipelines:
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

func TestValidPipelinesGetNoticesAndNoWarnings(t *testing.T) {
	t.Parallel()
	const start = someStores + "pipelines:\n  p: { source: { kafka: { brokers: ['h:1'], topics: [in], group: g } }, "
	for _, c := range []struct{ text, want string }{
		{start + "key: { id: .id }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.source.kafka.retention: not stated"},
		{start + "key: { id: .id }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.store: keys is embedded"},
		{start + "key: { id: .id }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.sink.stdout: standard output"},
		{start + "key: { id: record-key }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.key.id: record-key"},
		{start + "key: { id: hash(.) }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.key.id: hash(.)"},
		{start + "key: { id: 'lower(trim(.mail))' }, store: keys, sink: { stdout: {} } }", "notice  pipelines.p.key.id: lower(trim(.mail)) ignores upper and lower case, and white space at the ends"},
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
		lines := strings.Join(kindtest.Findings(kindtest.Parse(t, c.text+"\n")), "\n")
		if !strings.Contains(lines, c.want) || strings.Contains(lines, "warning") || strings.Contains(lines, "broken") {
			t.Errorf("%s\ngot:\n%s\nwant %s", c.text, lines, c.want)
		}
	}
}

// TestLintNotesAParkedDirectoryThatInstancesDoNotShare has each source with
// each store, and each place for parked messages.
func TestLintNotesAParkedDirectoryThatInstancesDoNotShare(t *testing.T) {
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
				f := kindtest.Parse(t, someStores+"  mem: { memory: {} }\n  own: { redis: { url: redis://own } }\n  shared: { filter: { rate: 0.01, expect: 1, window: 7d, redis: cache } }\n"+
					"pipelines:\n  p:\n    source: { "+source+" }\n    key: { id: .id }\n    store: "+store+"\n    sink: { webhook: { url: 'https://example.com' } }\n"+lossy+place)
				found := strings.Contains(strings.Join(kindtest.Findings(f), "\n"), "notice  pipelines.p.parked: the directory ")
				if want := sharedSource && sharedStore && directory; found != want {
					t.Errorf("%s, store %s, %q: told %v, want %v", source, store, place, found, want)
				}
			}
		}
	}
}
