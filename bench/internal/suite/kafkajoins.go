package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/bench/internal/outputs"
	"github.com/semel-dev/semel/bench/internal/records"
)

const (
	// sideTopic has the rows of a join.
	sideTopic = "side"
	// tableHistory is how long old rows stay, in milliseconds: 30 days.
	tableHistory = "2592000000"
)

// kafkaJoins join records with rows of a table that each program reads whole, with the
// newest row or with the row of the record's time.
func kafkaJoins(e Env) []Benchmark {
	in := records.Events{Seed: inputSeed, Records: e.size(1_000_000, 20_000), Groups: e.size(1_000_000, 2000), Span: 5 * time.Minute, Base: time.Now().Add(-time.Hour)}
	var list []Benchmark
	for _, j := range []struct {
		name, row, fields, as string
		args                  []string
		target                float64
		load                  bool // has a limit
	}{
		{"kafka-join", "the newest row", "", "a GlobalKTable, the only one of its tables that is read before the first join", []string{"--cache", "10485760"}, 4, true},
		{"kafka-join-as-of", "the row of the record's time", ", as_of: record, history: 30d", "a versioned KTable", []string{"--history", tableHistory, "--cache", "10485760"}, 3, false},
	} {
		s := streams{class: "Joins", commit: 100 * time.Millisecond, args: append([]string{"--side", sideTopic}, j.args...)}
		b := Benchmark{
			Name: j.name,
			Work: fmt.Sprintf("from Kafka to Kafka in transactions, a commit every 100 ms: %s records of %d bytes are joined with %s rows of about 130 bytes, which are read before. Each gets %s. Records a second from the first one written until a reader of committed records has all outputs and all records are committed, processor time in that span, and peak memory of the program. The load is the time from the start of the program until the first output is written. Ours also remembers the id of each record for 1 h, and drops duplicates. ",
				count(in.Records), records.ValueBytes, count(in.Groups), j.row),
			prepare: e.prepareKafka(e.buildSemel, e.buildStreams),
			ours: func(ctx context.Context) (map[string]float64, error) {
				return e.moveJoin(ctx, j.name, in, e.semelJoin(kafkaOut, kafkaGroup, "read: local"+j.fields))
			},
			rivals: []rival{{
				work:        "Peer: Kafka Streams with " + j.as + ", exactly_once_v2, its defaults",
				peerVersion: func() (string, error) { return streamsVersion, nil },
				peer: func(ctx context.Context) (map[string]float64, error) {
					return e.moveJoin(ctx, j.name, in, e.streams(s))
				},
				figures: append(kafkaFigures(j.name, s.suffix(), j.target, 0, 0), figure{name: j.name + s.suffix() + "-load", value: j.name + "-load", unit: "s", lessIsBetter: true}),
			}},
		}
		if j.load {
			b.rivals = append(b.rivals, rival{
				work: "The peer is a limit", peerVersion: noPeer,
				figures: []figure{{name: j.name + "-load", unit: "s", lessIsBetter: true, limit: 2, target: 1}},
			})
		}
		list = append(list, b)
	}
	return list
}

// moveJoin measures a program that joins the input, and checks its outputs.
func (e *Env) moveJoin(ctx context.Context, name string, in records.Events, program kafkaProgram) (_ map[string]float64, err error) {
	dir, err := e.fresh("kafka")
	if err != nil {
		return nil, err
	}
	c, err := startKafka(ctx, 1, kafkaPartitions)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := errors.Join(fillSide(ctx, c, in.Groups, in.Base.Add(-time.Minute)), in.Fill(ctx, c.addrs, kafkaIn, kafkaPartitions, 0, in.Records)); err != nil {
		return nil, err
	}
	results, err := outputs.Count(ctx, c.addrs, kafkaOut)
	if err != nil {
		return nil, err
	}
	defer results.Close()
	var loaded time.Time
	began := func(ctx context.Context) (int, bool, error) {
		n, some, err := c.written(ctx)
		if some {
			loaded = time.Now()
		}
		return n, some, err
	}
	start := time.Now()
	values, err := c.measure(ctx, name, in.Records, program, dir, began, func(ctx context.Context) (bool, error) {
		if n, err := results.Count(); err != nil || n < in.Records {
			return false, err
		}
		return c.done(kafkaGroup)(ctx)
	})
	if err != nil {
		return nil, err
	}
	values[name+"-load"] = loaded.Sub(start).Seconds()
	got, err := results.Finish(ctx)
	if err != nil {
		return nil, err
	}
	for _, body := range got.Bodies {
		if !bytes.Contains(body, []byte(`"right":{"tier":`)) {
			return nil, fmt.Errorf("%s has no row", body)
		}
	}
	return values, distinct(got.Bodies, in.Records)
}

// makeSide makes the topic of rows, which keeps old ones.
func makeSide(ctx context.Context, c *kafkaCluster) error {
	history := tableHistory
	_, err := c.client.CreateTopic(ctx, kafkaPartitions, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact"), "min.compaction.lag.ms": &history, "delete.retention.ms": &history}, sideTopic)
	return err
}

// fillSide writes a row of a time for each group of events.
func fillSide(ctx context.Context, c *kafkaCluster, groups int, at time.Time) error {
	if err := makeSide(ctx, c); err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.DefaultProduceTopic(sideTopic), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxBufferedRecords(50_000))
	if err != nil {
		return err
	}
	defer client.Close()
	var failed error // the client calls one function at a time
	note := strings.Repeat("x", 100)
	for n := range groups {
		client.Produce(ctx, &kgo.Record{Key: []byte(records.Group(n)), Partition: int32(n % kafkaPartitions), Timestamp: at, Value: fmt.Appendf(nil, `{"tier":%d,"note":%q}`, n, note)}, func(_ *kgo.Record, err error) {
			failed = errors.Join(failed, err)
		})
	}
	return errors.Join(client.Flush(ctx), failed)
}

// semelJoin returns the program that joins records with the rows of their record keys.
// fields are those of the table.
func (e *Env) semelJoin(out, group, fields string) kafkaProgram {
	return func(ctx context.Context, addrs []string, dir string) (*exec.Cmd, error) {
		brokers := `"` + strings.Join(addrs, `", "`) + `"`
		config := fmt.Sprintf(`pipelines:
  join:
    source: { kafka: { brokers: [%[1]s], topics: [%[2]s], group: %[7]s } }
    key: { id: .event_id, on_missing: fail }
    window: 1h
    tables: { side: { topic: %[4]s, by: record-key, %[5]s, missing: drop } }
    map: '{"left": value, "right": tables.side}'
    sink: { kafka: { brokers: [%[1]s], topic: %[3]s, compression: none, key_headers: false } }
    transaction: { interval: 100ms, state: %[6]s }
    parked: { topic: parked }
`, brokers, kafkaIn, out, sideTopic, fields, filepath.Join(dir, "state"), group)
		file := filepath.Join(dir, "semel.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return nil, err
		}
		return e.semelRun(ctx, file), nil
	}
}
