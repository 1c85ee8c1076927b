package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// TestCommonMistakesGetOneLineWithTheRemedy makes the mistakes that people make. Each
// gets one line that says what is wrong and what to write instead.
func TestCommonMistakesGetOneLineWithTheRemedy(t *testing.T) {

	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{
		"events.jsonl": "{\"event_id\":\"1\",\"user\":\"a\"}\n{\"event_id\":\"2\",\"user\":\"a\"}\n",
		"semi.csv":     "id;name\n1;a\n",
		"array.json":   "[{\"id\":1}]\n",
		"good.yaml":    pipelineYAML("source: { file: { paths: [events.jsonl] } }, key: { id: .event_id }, store: keys, sink: { file: { path: out } }"),
	} {
		programtest.WriteFile(t, name, text)
	}
	if err := os.Mkdir("folder", 0o700); err != nil {
		t.Fatal(err)
	}
	const (
		source = "source: { file: { paths: [events.jsonl] } }"
		key    = "key: { id: .event_id }"
		sink   = "sink: { file: { path: out } }"
		store  = "store: keys"
	)
	pipe := func(parts ...string) string { return pipelineYAML(strings.Join(parts, ", ")) }
	for _, c := range []struct{ mistake, args, config, want string }{
		// the command line
		{"verb", "dedupe x", "", `unknown verb "dedupe": did you mean dedup?`},
		{"short verb", "lnt good.yaml", "", `unknown verb "lnt": did you mean lint?`},
		{"file without a verb", "events.jsonl", "", `unknown verb "events.jsonl": did you mean semel dedup events.jsonl?`},
		{"configuration without a verb", "good.yaml --check", "", `unknown verb "good.yaml": did you mean semel run good.yaml?`},
		{"flag", "dedup --kee .event_id events.jsonl", "", "unknown flag --kee: did you mean --key?"},
		{"flag of another verb", "migrate up --dsn postgres://h/d", "", "unknown flag --dsn: did you mean --dsn-env?"},
		{"mistyped flag of migrate", "migrate up --confg good.yaml", "", "unknown flag --confg: did you mean --config?"},
		{"migrate without a file", "migrate up", "", "--config FILE is missing: name the configuration, and the store with --store-name NAME"},
		{"migrate of an embedded store", "migrate up --config good.yaml --store-name keys", "", "--store-name keys has no schema: only a store of the kind postgres has one"},
		{"key without a dot", "dedup --key event_id events.jsonl", "", `--key "event_id": did you mean .event_id?`},
		{"JSONPath", "dedup --key $.event_id events.jsonl", "", `--key "$.event_id": write .event_id`},
		{"names in a hash", "dedup --key hash(event_id,$.user) events.jsonl", "", `--key "hash(event_id,$.user)", column 6: a path begins with '.': write hash(.event_id,.user)`},
		{"mistyped key", "dedup --key .evnt_id events.jsonl", "", "events.jsonl:1: .evnt_id is missing: it has event_id, user: did you mean .event_id?"},
		{"missing input", "dedup --key .event_id absent.jsonl", "", "absent.jsonl: there is no such file"},
		{"directory as input", "dedup --key .event_id folder", "", "folder: this is a directory; name the files in it"},
		{"output is an input", "dedup --key .event_id -o events.jsonl events.jsonl", "", "--output events.jsonl is also an input; write to another file"},
		{"output in no directory", "dedup --key .event_id -o new/out.jsonl events.jsonl", "", "--output new/out.jsonl: there is no directory new: mkdir -p new"},
		{"duration in words", "dedup --key .event_id --window 7days events.jsonl", "", `--window "7days": not a duration: write it like 90s, 36h, 7d or 2w, or forever`},
		{"choice", "dedup --key .event_id --on-missing ignore events.jsonl", "", `--on-missing "ignore": write one of fail, reject, pass, hash`},
		{"other delimiter", "dedup --key .id semi.csv", "", "add --delimiter ';'"},
		{"JSON array", "dedup --key .id array.json", "", "add --format json, which reads its elements"},
		{"no store", "keys ls", "", "--store DIR is missing: name the directory of the store, or --config FILE and --store-name NAME"},
		{"store that is not there", "keys ls --store nowhere", "", "--store nowhere: there is no store in this directory"},
		{"store on a server", "keys ls --store postgres://app:canary@db/shop", "", "--store names a directory, and this is an address (postgres://): for a server, use --config FILE --store-name NAME"},
		{"change without a reason", "keys rm 1 --config good.yaml", "", "--reason TEXT is missing: say why, for the audit log"},
		{"init without a scenario", "init -o none/c.yaml", "", "--scenario NAME is missing: semel init lists the scenarios"},
		{"scenario", "init kafka-to-postgre", "", "--scenario kafka-to-postgre: did you mean kafka-to-postgres?"},
		{"part of a scenario", "init kafka", "", "--scenario kafka: did you mean one of kafka-to-kafka, kafka-to-postgres, kafka-to-api?"},
		{"init in no directory", "init quickstart -o new/a.yaml", "", "--output new/a.yaml: there is no directory new: mkdir -p new"},
		{"init over a file", "init quickstart -o good.yaml", "", "--output good.yaml: the file exists: name another file, or remove it"},
		{"run without a file", "run", "", "FILE is missing: name the configuration"},
		{"pipeline", "run good.yaml coyp", "", "coyp: good.yaml has no such pipeline: did you mean copy?"},
		{"level", "run good.yaml --log-level verbose", "", "--log-level verbose: write debug, info, warn or error"},
		{"port alone", "run good.yaml --admin 4195", "", "admin address 4195: write 127.0.0.1:4195, or off"},
		{"migrate with a file alone", "migrate up good.yaml", "", "unexpected argument \"good.yaml\": write --config good.yaml"},
		{"open admin server", "run good.yaml --admin 0.0.0.0:4195", "", "admin.auth is missing: write admin.auth, listen on 127.0.0.1, or pass --insecure-no-auth"},
		{"broker without a port", "kafka txn ls --brokers kafka1", "", "--brokers kafka1: write HOST:PORT"},
		{"doctor of nothing", "doctor good.yaml keis", "", "keis: good.yaml has no such store or pipeline: did you mean keys?"},

		// the configuration
		{"indentation", "", "pipelines:\n  a:\n    source: { stdin: {} }\n     key: { id: .id }\n", "bad.yaml:4:6: not valid YAML: this line is indented by 5 spaces, and no field before it is: expected 4, as in the lines before it"},
		{"tab", "", "stores:\n\tkeys: { memory: {} }\n", "bad.yaml:2:1: not valid YAML: a tab before a field: indent with spaces"},
		{"open brace", "", "stores:\n  keys: { embedded: { path: keys }\npipelines: {}\n", "not valid YAML: expected ',' or '}' before this: a bracket of an earlier line is not closed"},
		{"open quote", "", "stores: { keys: { embedded: { path: \"keys } } }\n", "not valid YAML: the quote that begins here is not closed"},
		{"two fields in a line", "", "pipelines:\n  a:\n    source: file: { paths: [in] }\n", "bad.yaml:3:13: not valid YAML: a second field in one line: write it in a line of its own, or in braces"},
		{"pipeline that is not indented", "", "stores: { keys: { embedded: { path: keys } } }\npipelines:\n  a:\n  source: { file: { paths: [in] } }\n", "pipelines.source: source is a field of a pipeline, and stands where a name of a pipeline is expected: indent it by two more spaces"},
		{"no space after a colon", "", "stores: { keys: { embedded: { path: keys } } }\npipelines:\n  a:\n    key:\n      id:.id\n", "pipelines.a.key: expected fields, got a text: write a space after the colon of id:"},
		{"field", "", pipe(source, key, store, sink, "windw: 1d"), "unknown field pipelines.copy.windw: did you mean window?"},
		{"kind", "", pipe(source, key, store, "sink: { postgress: {} }"), "unknown field pipelines.copy.sink.postgress: did you mean postgres?"},
		{"rule instead of a key", "", pipe(source, "key: .event_id", store, sink), "pipelines.copy.key: expected fields, got a text: write key: { id: .event_id }"},
		{"path instead of a source", "", pipe("source: { file: events.jsonl }", key, store, sink), "pipelines.copy.source.file: expected fields, got a text: write file: { paths: [events.jsonl] }"},
		{"pattern instead of a source", "", pipe("source: { file: 'day-*.jsonl' }", key, store, sink), `write file: { paths: ["day-*.jsonl"] }`},
		{"address instead of a sink", "", pipe(source, key, store, "sink: { webhook: 'https://u:canary@h/' }"), "pipelines.copy.sink.webhook: expected fields, got a text: write webhook: { url: … }"},
		{"name instead of a rule", "", pipe(source, "key: { id: event_id }", store, sink), `pipelines.copy.key.id: "event_id": there is no such rule: did you mean .event_id? Otherwise use a path that begins with '.', line, `},
		{"name in a hash", "", pipe(source, "key: { id: hash(event_id) }", store, sink), "a path begins with '.': write hash(.event_id)"},
		{"reference", "", pipe(source, key, "store: kees", sink), `pipelines.copy.store: there is no store "kees": did you mean keys?`},
		{"JSONPath in a file", "", pipe(source, "key: { id: $.event_id }", store, sink), `pipelines.copy.key.id: "$.event_id": a path begins with '.': write .event_id`},
		{"unstable key", "run bad.yaml", pipe(source, "key: { id: offset }", store, sink), "offset is not stable"},
		{"variable", "", pipe(source, key, store, "sink: { webhook: { url: '${env:API_URL}' } }"), "pipelines.copy.sink.webhook.url: the environment variable API_URL is not set, or empty: set it, name a file that has it with --env-file FILE, or write ${env:API_URL:-default}"},
		{"Kafka broker without a port", "", pipe("source: { kafka: { brokers: [kafka1], topics: [orders], group: g } }", key, store, sink), "pipelines.copy.source.kafka.brokers[0]: write it like kafka1:9092"},
		{"other database", "", "stores: { db: { postgres: { dsn: \"mysql://h/d\" } } }\n", "stores.db.postgres.dsn: not an address of a PostgreSQL server: write postgres://user:password@host:5432/database"},
		{"@ in a password", "", "stores: { db: { postgres: { dsn: \"postgres://u:p@ss@h/d\" } } }\n", "in the password of a URL write %2F for /, %3F for ?, %23 for # and %40 for @"},
		{"Redis address", "", "stores: { cache: { redis: { url: \"http://h\" } } }\n", "stores.cache.redis.url: not an address of a Redis server: write redis://user:password@host:6379/0"},
		{"table with an open quote", "", pipe(source, key, store, "sink: { postgres: { dsn: 'host=h', table: '\"Orders', columns: { id: .id } } }"), "a quote is not closed"},
		{"private webhook", "run bad.yaml", pipe(source, key, store, "sink: { webhook: { url: 'http://10.0.0.1/' } }"), "write allow_private: [10.0.0.1/32]"},
	} {
		args := strings.Fields(c.args)
		if c.config != "" {
			programtest.WriteFile(t, filepath.Join(dir, "bad.yaml"), c.config)
		}
		if c.args == "" {
			args = []string{"lint", "bad.yaml"}
		}
		got := programtest.Run(t, "", args...)
		if !strings.Contains(got.Stderr, c.want) || got.Status != term.ExitUsage && got.Status != term.ExitFailed {
			t.Errorf("%s: semel %s: status %d\n%swant %s", c.mistake, strings.Join(args, " "), got.Status, got.Stderr, c.want)
		}
	}
}

// pipelineYAML is a configuration with one pipeline.
func pipelineYAML(fields string) string {
	return "stores: { keys: { embedded: { path: keys } } }\npipelines:\n  copy: { " + fields + " }\n"
}
