package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/semel-dev/semel/bench/internal/result"
)

// area is a part of the table on the performance page.
type area struct {
	title string
	rows  []row
}

// row is a result on the performance page, with the words for its work and its peer.
type row struct {
	name, work, peer string
}

// areas are the table, in order. They have the comparisons that users make most often,
// also those in which Semel is slower. All other results are in the tables alone.
var areas = []area{
	{"`semel dedup` on 5 M JSON lines", []row{
		{name: "dedup-polars", work: "time, keys in memory", peer: "Polars"},
		{name: "dedup-polars-memory", work: "memory of `semel dedup`", peer: "Polars"},
		{name: "dedup-duckdb", work: "time, keys in memory", peer: "DuckDB"},
		{name: "dedup-duckdb-memory", work: "memory of `semel dedup`", peer: "DuckDB"},
		{name: "dedup-chdb", work: "time, keys in memory", peer: "chDB, one thread"},
		{name: "dedup-orjson", work: "time, keys in memory", peer: "Python with orjson"},
		{name: "dedup-bare", work: "time, keys in memory", peer: "Go loop, no JSON checks"},
		{name: "dedup-store-polars", work: "time, keys on disk", peer: "Polars, keeps no keys"},
	}},
	{"Other file work", []row{
		{name: "dedup-csv-duckdb", work: "1.5 M CSV records", peer: "DuckDB"},
		{name: "dedup-again-new", work: "5 M lines, 80 % known", peer: "80 % new"},
		{name: "dedup-again-duckdb", work: "5 M lines, 80 % known", peer: "DuckDB"},
		{name: "dedup-again-polars", work: "5 M lines, 80 % known", peer: "Polars"},
		{name: "dedup-beyond-memory-duckdb", work: "200 M lines beyond 1 GiB", peer: "DuckDB, 4 GiB"},
		{name: "once", work: "`semel once`, beside flock", peer: "limit"},
	}},
	{"Kafka to Kafka in transactions, 100 ms commits", []row{
		{name: "kafka-100ms-streams-tuned", work: "deduplication", peer: "Kafka Streams, tuned"},
		{name: "kafka-100ms-streams-tuned-memory", work: "memory, Kafka to Kafka", peer: "Kafka Streams, tuned"},
		{name: "kafka-100ms-copy", work: "deduplication", peer: "franz-go copy"},
		{name: "kafka-windows-streams", work: "count per minute", peer: "Kafka Streams, suppress"},
		{name: "kafka-windows-streams-tuned", work: "count per minute", peer: "Kafka Streams, tuned"},
		{name: "kafka-windows-streams-memory", work: "memory of windows", peer: "Kafka Streams, suppress"},
		{name: "kafka-join-streams", work: "join with 1 M rows", peer: "Kafka Streams, GlobalKTable"},
		{name: "kafka-join-streams-memory", work: "memory of the join", peer: "Kafka Streams, GlobalKTable"},
		{name: "kafka-restart", work: "restart after SIGKILL, 1 M keys", peer: "Kafka Streams"},
	}},
	{"Kafka, other modes", []row{
		{name: "kafka-at-least-once-copy", work: "at least once", peer: "franz-go copy"},
		{name: "kafka-postgres", work: "rows and keys into PostgreSQL", peer: "the same without keys"},
		{name: "kafka-postgres-many", work: "rows and keys into PostgreSQL", peer: "many rows per statement"},
	}},
	{"Stores", []row{
		{name: "memstore-claim", work: "in memory, one core", peer: "Watermill"},
		{name: "memstore-batch", work: "in memory, batches, one core", peer: "Go map with mutex"},
		{name: "memstore-memory-per-id", work: "memory per key", peer: "Watermill"},
		{name: "logstore-64-callers", work: "embedded, 64 callers, durable", peer: "Pebble"},
		{name: "logstore-one-caller", work: "embedded, one caller, durable", peer: "raw write and sync"},
		{name: "redis-64-callers-go-redis", work: "Redis, 64 callers", peer: "go-redis `SET NX EX`"},
		{name: "redis-batch", work: "Redis, batches", peer: "redis-benchmark"},
		{name: "tiered-duplicates", work: "cache above PostgreSQL, 90 % duplicates", peer: "PostgreSQL alone"},
	}},
	{"PostgreSQL", []row{
		{name: "postgres-batch-single", work: "PostgreSQL keys in batches", peer: "`INSERT` row by row"},
		{name: "postgres-batch-copy", work: "PostgreSQL keys in batches", peer: "`COPY`"},
		{name: "postgres-transaction-1", work: "key and row, one per transaction", peer: "the row alone"},
		{name: "postgres-transaction-100", work: "key and row, 100 per transaction", peer: "the rows alone"},
		{name: "postgres-disk-per-id", work: "disk per key", peer: "`text PRIMARY KEY`"},
	}},
	{"HTTP", []row{
		{name: "http-proxy-keyed", work: "proxy, new keys, fsync each", peer: "ReverseProxy without keys"},
		{name: "http-proxy-postgres", work: "proxy, keys in PostgreSQL", peer: "ReverseProxy without keys"},
		{name: "http-proxy-postgres-own", work: "proxy, keys in PostgreSQL", peer: "the service's own keys"},
		{name: "http-proxy-plain", work: "proxy, no keys", peer: "ReverseProxy"},
		{name: "http-middleware", work: "middleware in memory", peer: "the handler alone"},
		{name: "http-middleware-idemlease", work: "middleware in memory", peer: "idemlease"},
		{name: "serve-claim", work: "`semel serve`, durable", peer: "redis-benchmark"},
		{name: "serve-claim-http", work: "`semel serve`, durable", peer: "net/http, keeps nothing"},
		{name: "serve-batch", work: "`semel serve`, batches of 100", peer: "redis-benchmark"},
		{name: "once-python", work: "Python client", peer: "redis-py"},
		{name: "once-node", work: "Node client", peer: "ioredis"},
	}},
	{"Consumers; to a sink that only counts if none is named", []row{
		{name: "nats-embedded", work: "NATS, embedded store", peer: "the same without keys"},
		{name: "nats-redis", work: "NATS, Redis store", peer: "the same without keys"},
		{name: "nats-webhook", work: "NATS to webhook, embedded store", peer: "the same without keys"},
		{name: "rabbitmq-redis", work: "RabbitMQ, Redis store", peer: "the same without keys"},
		{name: "rabbitmq-watermill", work: "RabbitMQ, keys in memory", peer: "Watermill"},
		{name: "rabbitmq-postgres", work: "RabbitMQ to PostgreSQL", peer: "the same without keys"},
		{name: "sqs-embedded", work: "SQS (ElasticMQ), embedded store", peer: "the same without keys"},
		{name: "sqs-postgres", work: "SQS to PostgreSQL", peer: "the same without keys"},
	}},
	{"Outbox, PostgreSQL to Kafka", []row{
		{name: "outbox-kafka", work: "relay to Kafka", peer: "Watermill forwarder"},
		{name: "outbox-kafka-open", work: "relay to Kafka", peer: "open-outbox, unordered"},
		{name: "outbox-latency-open-p99", work: "commit to consumer, p99", peer: "open-outbox, unordered"},
	}},
}

// charts are the charts of the performance page. The results of a chart have one unit.
var charts = []chart{
	{"files", "semel dedup, 5 M JSON lines", []string{"dedup-polars", "dedup-chdb", "dedup-duckdb", "dedup-orjson", "dedup-bare", "dedup-store-polars"}},
	{"kafka", "Kafka to Kafka", []string{"kafka-100ms-streams-tuned", "kafka-100ms-copy", "kafka-at-least-once-copy", "kafka-windows-streams-tuned", "kafka-join-streams"}},
	{"stores", "Stores", []string{"logstore-64-callers", "logstore-one-caller", "redis-64-callers-go-redis", "redis-batch", "tiered-duplicates"}},
	{"messages", "PostgreSQL, brokers and outbox", []string{"postgres-batch-single", "postgres-batch-copy", "postgres-transaction-100", "nats-embedded", "rabbitmq-redis", "rabbitmq-watermill", "outbox-kafka"}},
	{"memory", "Peak resident memory", []string{"dedup-polars-memory", "dedup-duckdb-memory", "kafka-100ms-streams-tuned-memory", "kafka-windows-streams-memory", "kafka-join-streams-memory"}},
}

// tables is the path from the performance page to the tables of all results.
const tables = "../bench/results/README.md"

// WriteSummary writes the performance page: its charts, one table of chosen results, and the
// tables of growth and costs. It returns the charts by their path, which is relative to the
// page.
func WriteSummary(w io.Writer, all Measurements) (map[string]string, error) {
	s := summary{page: page{w: w}, results: all.Results}
	files, err := s.write(areas, charts)
	if err != nil {
		return nil, err
	}
	if err := s.bounds(bounds); err != nil {
		return nil, err
	}
	if len(all.Growth) > 0 {
		s.growth(all.Growth, files)
	}
	if len(all.Costs) > 0 {
		s.costs(all.Costs)
	}
	return files, s.err
}

// bound says what limits a figure. Each %s of the text is the ratio of one of the results.
type bound struct {
	title, text string
	names       []string
}

var bounds = []bound{
	{"Redis", "A message needs two scripted writes, and Redis executes scripts on one core: the target is 0.6. Instead, use an embedded store (NATS %s, RabbitMQ %s), or PostgreSQL if messages become rows.", []string{"nats-embedded", "rabbitmq-embedded"}},
	{"Memory", "A claim hashes the key with a secret, compares 120 bits and records a window. The Go map does none of it, so the target is 0.9.", nil},
	{"Key and row", "The key is a second row with an index entry, half of the work of the first, so the target of Kafka to PostgreSQL is 0.65. With one message in each transaction, the target is 0.6. The origins of keys lengthen each row by 8 bytes, so the target of its size is 1.3.", nil},
	{"Kafka at least once", "Claims and completions take most of the processor time, and the origins of keys 15 %%. The target is 0.55. A Kafka transaction needs no claims (%s).", []string{"kafka-1s-copy"}},
	{"Memory of transactions", "Keys take 44 %%, records and buffers the rest: the target beside tuned Kafka Streams is 2.5.", nil},
	{"Count per minute", "Brokers and reader need 30 %% of the processor time. Of Semel's share, 45 %% decides records and 31 %% commits. The targets beside tuned Kafka Streams are 4, 5.5 and 2.2.", nil},
	{"Keys of the proxy in PostgreSQL", "A request needs two transactions more, on cores that it shares with the database: the target is 0.5. A service that keeps the keys itself pays the same (%s).", []string{"http-proxy-postgres-own"}},
	{"NATS to webhook", "A batch of messages needs two syncs of the disk, and without keys none: the target is 0.6.", nil},
	{"`semel serve`", "About half of the time of a claim is Go's HTTP server: beside one that keeps nothing, the ratio is %s. The target beside Redis is 0.35, and 5 times its p99.", []string{"serve-claim-http"}},
	{"Polars", "The ratio depends on the machine: an AMD EPYC had 2.03, with keys on disk 1.76. The targets are 1.7 and 1.3.", nil},
	{"Known lines", "A known line is compared with its entry in the store. Those in the order of the day before share a read; each of the others needs one: the target is 0.7.", nil},
	{"Node client", "A call writes and reads more text than one of ioredis, with scope, lease, token and result, in one thread: the target is 0.65.", nil},
}

// bounds writes what limits some figures.
func (s *summary) bounds(list []bound) error {
	s.print("\n## What limits some figures\n\n")
	for _, b := range list {
		ratios := make([]any, len(b.names))
		for i, name := range b.names {
			r, err := s.result(name)
			if err != nil {
				return err
			}
			ratios[i] = digits(r.Ratio)
		}
		s.print("- **%s.** %s\n", b.title, fmt.Sprintf(b.text, ratios...))
	}
	return s.err
}

type summary struct {
	page
	results []result.Result
}

func (s *summary) write(areas []area, charts []chart) (map[string]string, error) {
	s.print("%s", "# Performance\n\n"+made)
	s.measured()
	s.print("Semel and each peer ran in turn, in new processes; a figure is a median. "+
		"A ratio above 1 means that Semel is better, also for times. "+
		"Compare ratios: absolute figures depend on machine and disk. "+
		"[The tables](%s) have every figure, its rounds, the peer's version and its command.\n", tables)
	s.print("\nRemember:\n\n" +
		"- Clients and servers share two cores. PostgreSQL has fsync on; Redis syncs its log every second.\n" +
		"- A fifth of the lines of files and a tenth of the messages are duplicates.\n" +
		"- Kafka Streams has exactly_once_v2, a heap of 1 GiB and no cache in front of its store for keys. Tuned means two threads and large batches.\n" +
		"- A peer without keys, such as the franz-go copy, shows the price of the promise.\n")
	files := map[string]string{}
	for _, c := range charts {
		bars, err := s.bars(c, areas)
		if err != nil {
			return nil, err
		}
		path := "charts/" + c.file + ".svg"
		files[path] = c.svg(bars)
		s.print("\n![%s. Figures below.](%s)\n", c.heading(bars), path)
	}
	s.print("\n|measured|Semel|peer|ratio|\n|---|--:|---|--:|\n")
	for _, a := range areas {
		s.print("|**%s**||||\n", a.title)
		for _, row := range a.rows {
			r, err := s.result(row.name)
			if err != nil {
				return nil, err
			}
			s.print("|[%s](%s#%s)|%s %s|%s: %s|**%s**|\n",
				row.work, tables, r.Name, number(r.Ours), r.Unit, cell(row.peer), number(r.Peer), digits(r.Ratio))
		}
	}
	s.shortfalls(s.results, tables)
	return files, s.err
}

func (s *summary) result(name string) (result.Result, error) {
	at := slices.IndexFunc(s.results, func(r result.Result) bool { return r.Name == name })
	if at < 0 {
		return result.Result{}, fmt.Errorf("the performance page shows %s, which has no result", name)
	}
	return s.results[at], nil
}

// measured says when and on which processors the results were measured. The tables name
// the operating systems as well.
func (s *summary) measured() {
	var days, machines []string
	for _, r := range s.results {
		day, _, _ := strings.Cut(r.Date, "T")
		days = append(days, day)
		parts := strings.Split(r.Machine, ", ")
		processor, _, _ := strings.Cut(strings.ReplaceAll(parts[0], "(R)", ""), " Processor")
		machine := processor
		for _, part := range parts[1:] {
			if !strings.HasPrefix(part, "Linux ") {
				machine += ", " + part
			}
		}
		if !slices.Contains(machines, machine) {
			machines = append(machines, machine)
		}
	}
	s.print("Measured from %s to %s on Linux: %s.\n\n", slices.Min(days), slices.Max(days), strings.Join(machines, "; "))
}

// bars returns the results of a chart. They have one unit.
func (s *summary) bars(c chart, areas []area) ([]bar, error) {
	var bars []bar
	for _, name := range c.names {
		r, err := s.result(name)
		if err != nil {
			return nil, err
		}
		b := bar{result: r}
		for _, a := range areas {
			for _, row := range a.rows {
				if row.name == name {
					b.row = row
				}
			}
		}
		if b.name == "" {
			return nil, fmt.Errorf("the chart %s shows %s, which is not in the table", c.file, name)
		}
		bars = append(bars, b)
		if first := bars[0].result; r.Unit != first.Unit || lessIsBetter(r) != lessIsBetter(first) {
			return nil, fmt.Errorf("the chart %s has results with different units: %s and %s", c.file, first.Name, name)
		}
	}
	return bars, nil
}

func lessIsBetter(r result.Result) bool { return r.Ratio == r.Peer/r.Ours }
