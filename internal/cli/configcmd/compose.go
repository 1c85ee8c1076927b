package configcmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/schema"
)

// part is a source, a sink or a store of a composed configuration.
type part struct {
	kind, name string
	// lines are the part in the configuration. In those of a sink, {db} stands for the place of
	// its database.
	lines []string
	// key, missing and window belong to a source.
	key, missing, window string
}

// The parts from which a configuration can be composed.
var (
	composeSources = []part{
		{kind: "file", name: "files", key: ".event_id", missing: "park", window: "30d", lines: []string{
			`file: { paths: ["${env:INPUT:-events*.jsonl}"] }  # follow: true continues with added lines`,
		}},
		{kind: "http", name: "HTTP requests", key: `["header:Message-Id", .event_id]`, missing: "park", window: "30d", lines: []string{
			`http:`,
			`  listen: "${env:LISTEN:-127.0.0.1:8080}"`,
			`  path: /events`,
			`  # token: "${env:SEMEL_TOKEN}"               # bearer token that senders must show`,
		}},
		{kind: "kafka", name: "Kafka", key: `["header:event-id", .event_id]`, missing: "park", window: "8d", lines: []string{
			`kafka:`,
			`  brokers: ["${env:KAFKA_BROKERS:-127.0.0.1:9092}"]`,
			`  topics: [events]`,
			`  group: events-once`,
			`  retention: 7d                               # what the topic has; compared with window`,
		}},
		{kind: "nats", name: "NATS JetStream", key: `[.event_id, "header:Nats-Msg-Id"]`, missing: "park", window: "8d", lines: []string{
			`nats:`,
			`  servers: ["${env:NATS_SERVERS:-127.0.0.1:4222}"]`,
			`  stream: EVENTS`,
			`  consumer: events-once`,
			`  create: true                                # makes the consumer; several processes share it`,
		}},
		{kind: "outbox", name: "an outbox in PostgreSQL", key: `["header:semel-key", "property:message-id"]`, lines: []string{
			`outbox: { store: db }`,
		}},
		{kind: "rabbitmq", name: "RabbitMQ", key: `[property:message-id, "header:event-id", .event_id]`, missing: "park", window: "8d", lines: append([]string{
			`rabbitmq:`,
			`  queue: events                               # a quorum queue`,
		}, rabbitMQ...)},
		{kind: "sqs", name: "Amazon SQS", key: ".event_id", missing: "park", window: "28d", lines: []string{
			`sqs:                                          # credentials as for the aws command`,
			`  queue: "${env:SQS_QUEUE_URL:-http://127.0.0.1:9324/000000000000/events}"`,
		}},
	}
	composeSinks = []part{
		{kind: "file", name: "a file", lines: []string{`file: { path: clean.jsonl }`}},
		{kind: "stdout", name: "standard output", lines: []string{`stdout: {}`}},
		{kind: "webhook", name: "an HTTP service", lines: []string{
			`webhook:`,
			`  url: "${env:API_URL:-https://api.example.com/events}"`,
			`  timeout: 10s`,
			`  allow_private: ["127.0.0.0/8"]              # for trying on this machine; leave it out else`,
		}},
		{kind: "postgres", name: "PostgreSQL rows", lines: []string{
			`postgres:`,
			`  {db}`,
			`  table: events`,
			`  columns: { event_id: .event_id, event: body }`,
		}},
		{kind: "kafka", name: "Kafka", lines: []string{
			`kafka:`,
			`  brokers: ["${env:KAFKA_BROKERS:-127.0.0.1:9092}"]`,
			`  topic: events-clean`,
		}},
		{kind: "nats", name: "NATS JetStream", lines: []string{
			`nats:`,
			`  servers: ["${env:NATS_SERVERS:-127.0.0.1:4222}"]`,
			`  subject: clean.events                       # of a stream other than that of the source`,
		}},
		{kind: "rabbitmq", name: "RabbitMQ", lines: append([]string{
			`rabbitmq:`,
			`  routing_key: events-clean                   # the name of a queue`,
		}, rabbitMQ...)},
		{kind: "sqs", name: "Amazon SQS", lines: []string{
			`sqs: { queue: "${env:SQS_TARGET_URL:-http://127.0.0.1:9324/000000000000/events-clean}" }`,
		}},
	}
	composeStores = []part{
		{kind: "embedded", name: "a directory", lines: []string{`keys: { embedded: { path: ./semel-data } }        # open in one process at a time`}},
		{kind: "postgres", name: "PostgreSQL", lines: []string{database}},
		{kind: "redis", name: "Redis", lines: []string{
			`keys:`,
			`  redis:`,
			`    url: "${env:REDIS_URL:-redis://127.0.0.1:6379/0}"`,
			`    persistence: synced                         # the server has appendfsync always`,
		}},
	}
)

const (
	databaseAddress = `"${env:DATABASE_URL:-postgres://127.0.0.1:5432/postgres}"`
	database        = `db: { postgres: { dsn: ` + databaseAddress + ` } }`
)

// rabbitMQ are the lines that source and sink share.
var rabbitMQ = []string{
	`  servers: ["${env:RABBITMQ_ADDR:-127.0.0.1:5672}"]`,
	`  username: "${env:RABBITMQ_USER:-guest}"`,
	`  password: "${env:RABBITMQ_PASSWORD:-guest}"`,
}

// composition are the kinds of a configuration to compose.
type composition struct{ from, to, store string }

// asked reports whether a configuration must be composed.
func (c *composition) asked() bool { return c.from != "" || c.to != "" || c.store != "" }

// kindsOf returns the names of parts.
func kindsOf(parts []part) (kinds []string) {
	for _, p := range parts {
		kinds = append(kinds, p.kind)
	}
	return kinds
}

// choose returns the part of a flag.
func choose(flag, kind string, parts []part, wrong *term.Problems) *part {
	if kind == "" {
		wrong.Addf("--%s KIND is missing: name one of %s", flag, strings.Join(kindsOf(parts), ", "))
		return nil
	}
	if kind = spelled(kind); flag == "to" {
		kind = asSink(kind)
	}
	if i := slices.IndexFunc(parts, func(p part) bool { return p.kind == kind }); i >= 0 {
		return &parts[i]
	}
	wrong.Addf("--%s %s: %s", flag, kind, schema.OneOf(kind, kindsOf(parts)))
	return nil
}

// spelled returns the name of a kind that people call differently.
func spelled(kind string) string {
	switch kind {
	case "pg", "postgresql", "psql":
		return "postgres"
	case "rabbit", "amqp", "rmq":
		return "rabbitmq"
	case "jetstream":
		return "nats"
	case "valkey":
		return "redis"
	}
	return kind
}

// asSink returns the name of a sink that people call as a source is called.
func asSink(kind string) string {
	if kind == "http" || kind == "api" {
		return "webhook"
	}
	return kind
}

// compose returns a commented configuration.
func (c *composition) compose(wrong *term.Problems) []byte {
	from, to := choose("from", c.from, composeSources, wrong), choose("to", c.to, composeSinks, wrong)
	if from == nil || to == nil {
		return nil
	}
	transaction := from.kind == "kafka" && to.kind == "kafka" && c.store == ""
	relay := from.kind == "outbox"
	var store *part // of the keys; nil for none
	switch {
	case relay && c.store != "" && spelled(c.store) != "postgres":
		wrong.Addf("--store %s: an outbox is in PostgreSQL, and its relay needs no other store: leave --store out", c.store)
		return nil
	case relay, transaction:
	case c.store == "" && to.kind == "postgres":
		store = choose("store", "postgres", composeStores, wrong)
	case c.store == "":
		store = choose("store", "embedded", composeStores, wrong)
	default:
		store = choose("store", c.store, composeStores, wrong)
	}
	if len(*wrong) > 0 {
		return nil
	}
	var text strings.Builder
	add := func(indent int, lines ...string) {
		for _, line := range lines {
			text.WriteString(strings.Repeat(" ", indent) + line + "\n")
		}
	}
	inDatabase := relay || store != nil && store.kind == "postgres"
	where := ""
	switch {
	case transaction:
		where = ": outputs, keys and offsets are one transaction"
	case relay:
		where = ": a row leaves the outbox when the sink has it"
	case store != nil:
		where = ", with the keys in " + store.name
	}
	add(0, fmt.Sprintf("# From %s to %s%s.", from.name, to.name, where))
	if inDatabase {
		add(0, "#   semel migrate up --config semel.yaml            # makes the tables of the keys")
	}
	add(0, "#   semel run semel.yaml --check", "#   semel run semel.yaml")
	if from.kind == "kafka" && to.kind == "kafka" && !transaction {
		add(0, "# Without --store, outputs, keys and offsets are one transaction.")
	}
	if to.kind == "postgres" {
		add(0, "# The target: CREATE TABLE events (event_id text, event jsonb);")
	}
	switch {
	case relay:
		add(0, "stores:")
		add(2, database)
	case store != nil:
		add(0, "stores:")
		add(2, store.lines...)
	}
	if relay || store != nil {
		add(0, "")
	}
	add(0, "pipelines:")
	add(2, "events:")
	add(4, "source:")
	add(6, from.lines...)
	if from.missing == "" {
		add(4, "key: { id: "+from.key+" }")
	} else {
		add(4, "key:", "  id: "+from.key, "  on_missing: "+from.missing)
	}
	if from.window != "" {
		add(4, fmt.Sprintf("%-47s # longer than a message can come again", "window: "+from.window))
	}
	if store != nil {
		name, _, _ := strings.Cut(store.lines[0], ":")
		add(4, "store: "+name)
	}
	add(4, "sink:")
	for _, line := range to.lines {
		db := "dsn: " + databaseAddress
		if inDatabase {
			db = fmt.Sprintf("%-43s # row and key are one transaction", "store: db")
		}
		if relay {
			db = "store: db"
		}
		add(6, strings.ReplaceAll(line, "{db}", db))
	}
	if transaction {
		text.WriteString("        partition: same\n")
	}
	if to.kind == "webhook" {
		add(4, "on_failure: { attempts: 8, backoff: 30s, then: park }")
	}
	switch {
	case transaction:
		add(4, "parked: { topic: events-parked }", "transaction: { interval: 100ms, state: ./semel-state }  # a local copy of the keys, for fast restarts")
	case inDatabase:
		add(4, "parked: { store: db }")
	}
	return []byte(text.String())
}
