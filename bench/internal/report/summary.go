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
type row struct{ name, work, peer string }

// areas are the table, in order. They have the comparisons that users make most often,
// also those in which Semel is slower. All other results are in the tables alone.
var areas = []area{
	{"`semel dedup` on 5 M JSON lines", []row{
		{"dedup-polars", "time, keys in memory", "Polars"},
		{"dedup-polars-memory", "memory of `semel dedup`", "Polars"},
		{"dedup-duckdb", "time, keys in memory", "DuckDB"},
		{"dedup-duckdb-memory", "memory of `semel dedup`", "DuckDB"},
		{"dedup-chdb", "time, keys in memory", "chDB, one thread"},
		{"dedup-orjson", "time, keys in memory", "Python with orjson"},
		{"dedup-bare", "time, keys in memory", "Go loop, no JSON checks"},
		{"dedup-store-polars", "time, keys on disk", "Polars, keeps no keys"},
	}},
	{"Other file work", []row{
		{"dedup-csv-duckdb", "1.5 M CSV records", "DuckDB"},
	}},
	{"Kafka to Kafka in transactions, 100 ms commits", []row{
		{"kafka-100ms-streams-tuned", "deduplication", "Kafka Streams, tuned"},
		{"kafka-100ms-streams-tuned-memory", "memory, Kafka to Kafka", "Kafka Streams, tuned"},
		{"kafka-100ms-copy", "deduplication", "franz-go copy"},
		{"kafka-windows-streams", "count per minute", "Kafka Streams, suppress"},
		{"kafka-windows-streams-tuned", "count per minute", "Kafka Streams, tuned"},
		{"kafka-windows-streams-memory", "memory of windows", "Kafka Streams, suppress"},
		{"kafka-join-streams", "join with 1 M rows", "Kafka Streams, GlobalKTable"},
		{"kafka-join-streams-memory", "memory of the join", "Kafka Streams, GlobalKTable"},
		{"kafka-restart", "restart after SIGKILL, 1 M keys", "Kafka Streams"},
	}},
	{"Kafka, other modes", []row{
		{"kafka-at-least-once-copy", "at least once", "franz-go copy"},
		{"kafka-postgres", "rows and keys into PostgreSQL", "the same without keys"},
	}},
	{"Stores", []row{
		{"memstore-claim", "in memory, one core", "Watermill"},
		{"memstore-batch", "in memory, batches, one core", "Go map with mutex"},
		{"memstore-memory-per-id", "memory per key", "Watermill"},
		{"logstore-64-callers", "embedded, 64 callers, durable", "Pebble"},
		{"logstore-one-caller", "embedded, one caller, durable", "raw write and sync"},
		{"redis-64-callers-go-redis", "Redis, 64 callers", "go-redis `SET NX EX`"},
		{"redis-batch", "Redis, batches", "redis-benchmark"},
		{"tiered-duplicates", "cache above PostgreSQL, 90 % duplicates", "PostgreSQL alone"},
	}},
	{"PostgreSQL", []row{
		{"postgres-batch-single", "PostgreSQL keys in batches", "`INSERT` row by row"},
		{"postgres-batch-copy", "PostgreSQL keys in batches", "`COPY`"},
		{"postgres-transaction-1", "key and row, one per transaction", "the row alone"},
		{"postgres-transaction-100", "key and row, 100 per transaction", "the rows alone"},
		{"postgres-disk-per-id", "disk per key", "`text PRIMARY KEY`"},
	}},
	{"HTTP", []row{
		{"http-proxy-keyed", "proxy, new keys, fsync each", "ReverseProxy without keys"},
		{"http-proxy-plain", "proxy, no keys", "ReverseProxy"},
		{"http-middleware", "middleware in memory", "the handler alone"},
		{"http-middleware-idemlease", "middleware in memory", "idemlease"},
	}},
	{"Consumers, to a sink that only counts", []row{
		{"nats-embedded", "NATS, embedded store", "the same without keys"},
		{"nats-redis", "NATS, Redis store", "the same without keys"},
		{"rabbitmq-redis", "RabbitMQ, Redis store", "the same without keys"},
		{"rabbitmq-watermill", "RabbitMQ, keys in memory", "Watermill"},
		{"sqs-embedded", "SQS (ElasticMQ), embedded store", "the same without keys"},
	}},
	{"Outbox, PostgreSQL to Kafka", []row{
		{"outbox-kafka", "relay to Kafka", "Watermill forwarder"},
		{"outbox-kafka-open", "relay to Kafka", "open-outbox, unordered"},
		{"outbox-latency-open-p99", "commit to consumer, p99", "open-outbox, unordered"},
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

// WriteSummary writes the performance page: its charts and one table of chosen results. It
// returns the charts by their path, which is relative to the page.
func WriteSummary(w io.Writer, results []result.Result) (map[string]string, error) {
	s := summary{page: page{w: w}, results: results}
	files, err := s.write(areas, charts)
	if err != nil {
		return nil, err
	}
	return files, s.bounds(bounds)
}

// bound says what limits a figure. Each %s of the text is the ratio of one of the results.
type bound struct {
	title, text string
	names       []string
}

var bounds = []bound{
	{"Redis", "A message needs two scripted writes, and Redis executes scripts on one core: the target is 0.6. Instead, use an embedded store (NATS %s, RabbitMQ %s), or PostgreSQL if messages become rows.", []string{"nats-embedded", "rabbitmq-embedded"}},
	{"Memory", "A claim hashes the key with a secret, compares 120 bits and records a window. The Go map does none of it, so the target is 0.9.", nil},
	{"Key and row", "The key is a second row with an index entry, half of the work of the first. Batches raise the rate.", nil},
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
	s.print("Semel and each peer ran in turn, in new processes; a figure is the median of the rounds. "+
		"A ratio above 1 means that Semel is better, even where less is better. "+
		"Compare ratios, because absolute figures depend on the machine and its disk. "+
		"The page shows chosen comparisons. [The tables](%s) have every figure with its rounds, the peer's version, and the command that repeats it.\n", tables)
	s.print("\nRemember when you read the figures:\n\n" +
		"- Clients and servers share two cores. PostgreSQL has fsync on; Redis syncs its log every second.\n" +
		"- A fifth of the lines of files and a tenth of the messages are duplicates.\n" +
		"- Kafka Streams has exactly_once_v2, a heap of 1 GiB and no cache in front of its store for keys. Tuned means two threads and large batches.\n" +
		"- The `kafka-100ms` results are from a time when Semel added headers that name keys.\n" +
		"- A peer without keys, such as the franz-go copy, promises less than Semel does. It shows the price of the promise.\n")
	files := map[string]string{}
	for _, c := range charts {
		bars, err := s.bars(c, areas)
		if err != nil {
			return nil, err
		}
		path := "charts/" + c.file + ".svg"
		files[path] = c.svg(bars)
		s.print("\n![%s](%s)\n", c.alt(bars), path)
	}
	s.print("\n| measured | Semel | peer | ratio |\n|---|--:|---|--:|\n")
	for _, a := range areas {
		s.print("| **%s** | | | |\n", a.title)
		for _, row := range a.rows {
			r, err := s.result(row.name)
			if err != nil {
				return nil, err
			}
			s.print("| [%s](%s#%s) | %s %s | %s: %s | **%s** |\n",
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
