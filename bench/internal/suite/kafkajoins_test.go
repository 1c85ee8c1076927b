package suite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/bench/internal/outputs"
)

// joins are the joins that are compared.
var joins = []struct {
	name, fields string
	args         []string
}{
	{"global", "read: global", nil},
	{"of the time", "read: local, as_of: record, history: 30d", []string{"--history", tableHistory, "--idle", "10000"}},
}

// TestJoinsAgreeWithKafkaStreams runs Semel and Kafka Streams on the same records and rows,
// on one broker, and compares every output. The rows are there before the records. With
// the newest row Kafka Streams has a GlobalKTable, the only one of its tables that is read
// before the first join. With the row of the time it has a versioned KTable, and waits for
// records of both topics.
func TestJoinsAgreeWithKafkaStreams(t *testing.T) {
	t.Parallel()
	e := besideStreams(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, err := startKafka(ctx, 1, kafkaPartitions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	seed := rand.Uint64()
	t.Logf("the seed is %d", seed)
	fillJoin(ctx, t, c, rand.New(rand.NewPCG(seed, 0)))
	for i, j := range joins {
		ours, theirs := fmt.Sprint("ours-", i), fmt.Sprint("theirs-", i)
		for _, topic := range []string{ours, theirs} {
			if _, err := c.client.CreateTopic(ctx, kafkaPartitions, 1, nil, topic); err != nil {
				t.Fatal(err)
			}
		}
		s := streams{class: "Joins", commit: 100 * time.Millisecond, args: append([]string{"--side", sideTopic, "--out", theirs, "--group", theirs}, j.args...)}
		got, want := e.joined(ctx, t, c, ours, e.semelJoin(ours, ours, j.fields)), e.joined(ctx, t, c, theirs, e.streams(s))
		if len(got) < 500 {
			t.Errorf("%s: only %d outputs", j.name, len(got))
		}
		wrong := 0
		for k := range min(len(got), len(want)) {
			if got[k] != want[k] && wrong < 5 {
				wrong++
				t.Errorf("%s: %s, Kafka Streams has %s", j.name, got[k], want[k])
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d outputs, Kafka Streams has %d", j.name, len(got), len(want))
		}
		t.Logf("%s: %d outputs", j.name, len(got))
	}
}

// fillJoin writes rows that change and are deleted, and records between their times, some
// of them late. The last record of each partition is behind all.
func fillJoin(ctx context.Context, t *testing.T, c *kafkaCluster, random *rand.Rand) {
	t.Helper()
	if err := makeSide(ctx, c); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	base := time.Now().Add(-time.Hour).Truncate(time.Second)
	at := func(ms int) time.Time { return base.Add(time.Duration(ms) * time.Millisecond) }
	var list []*kgo.Record
	for p := range int32(kafkaPartitions) {
		group := func(n int) []byte { return fmt.Appendf(nil, "group-%d-%d", p, n) }
		for i := range 500 { // odd times, and the records have even ones
			row := &kgo.Record{Topic: sideTopic, Partition: p, Key: group(random.IntN(20)), Timestamp: at(2000*i + 1)}
			if random.IntN(4) > 0 {
				row.Value = fmt.Appendf(nil, `{"n":%d}`, i)
			}
			list = append(list, row)
		}
		list = append(list, &kgo.Record{Topic: sideTopic, Partition: p, Key: group(99), Value: []byte("0"), Timestamp: at(1)})
		for i := range 500 {
			late := 0
			if random.IntN(5) == 0 {
				late = 2 * random.IntN(30_000)
			}
			list = append(list, &kgo.Record{Topic: kafkaIn, Partition: p, Key: group(random.IntN(25)), Value: fmt.Appendf(nil, `{"event_id":"%d-%d"}`, p, i), Timestamp: at(max(0, 2000*i-late))})
		}
		list = append(list, &kgo.Record{Topic: kafkaIn, Partition: p, Key: group(99), Value: fmt.Appendf(nil, `{"event_id":"%d-last"}`, p), Timestamp: at(2_000_000)})
	}
	if err := client.ProduceSync(ctx, list...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// joined runs a program until it has written the last records, and returns all outputs in
// the order of their texts.
func (e *Env) joined(ctx context.Context, t *testing.T, c *kafkaCluster, out string, program kafkaProgram) (list []string) {
	t.Helper()
	reader, err := outputs.NewReader(ctx, c.addrs, out, true)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	r, err := startProgram(ctx, c, program, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer r.kill()
	if err := r.until(ctx, "the last records", func(context.Context) (bool, error) {
		bodies, err := reader.Bodies()
		last := 0
		for _, body := range bodies {
			if strings.Contains(string(body), "-last") {
				last++
			}
		}
		return last == kafkaPartitions, err
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	got, err := reader.Finish(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range got.Bodies {
		list = append(list, string(body))
	}
	slices.Sort(list)
	return list
}
