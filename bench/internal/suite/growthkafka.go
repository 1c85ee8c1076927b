package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// grownKafka is semel run from Kafka to Kafka in transactions.
type grownKafka struct {
	e       *Env
	cluster *kafkaCluster
	dir     string
	run     *running
}

func (e *Env) growKafka(ctx context.Context) (_ growing, err error) {
	if err := e.prepareKafka(e.buildSemel)(ctx); err != nil {
		return nil, err
	}
	g := &grownKafka{e: e}
	if g.dir, err = e.fresh("growth-kafka"); err != nil {
		return nil, err
	}
	if g.cluster, err = startKafka(ctx, 1, kafkaPartitions); err != nil {
		return nil, err
	}
	return g, nil
}

// start starts the program.
func (g *grownKafka) start(ctx context.Context) (err error) {
	g.run, err = startProgram(ctx, g.cluster, g.e.semelKafka(semelKafka{eos: true, commit: 100 * time.Millisecond, static: true, window: grownWindow}), g.dir)
	return err
}

// stop kills the program, if it runs.
func (g *grownKafka) stop() error {
	if g.run == nil {
		return nil
	}
	err := g.run.kill()
	g.run = nil
	return err
}

// fill writes the input while the program does not run. Otherwise the rate would be that of
// its writer.
func (g *grownKafka) fill(ctx context.Context, from, to, last int) (rate float64, err error) {
	if err := g.stop(); err != nil {
		return 0, err
	}
	if err := g.send(ctx, to-from, func(i int) int { return from + i }); err != nil {
		return 0, err
	}
	if err := g.start(ctx); err != nil {
		return 0, err
	}
	ends, err := g.cluster.client.ListEndOffsets(ctx, kafkaIn)
	if err != nil {
		return 0, err
	}
	// The rate counts from the last look at which fewer were committed than all but the last.
	var end, begun int64
	ends.Each(func(o kadm.ListedOffset) { end += o.Offset })
	start := time.Now()
	if err := g.run.until(ctx, "the end of its input", func(ctx context.Context) (bool, error) {
		sum, err := g.committed(ctx)
		if err == nil && sum < end-int64(last) {
			start, begun = time.Now(), sum
		}
		return sum >= end, err
	}); err != nil {
		return 0, err
	}
	return float64(end-begun) / time.Since(start).Seconds(), nil
}

// committed returns the number of records of the input that the group has committed.
func (g *grownKafka) committed(ctx context.Context) (sum int64, err error) {
	offsets, err := g.cluster.client.FetchOffsetsForTopics(ctx, kafkaGroup, kafkaIn)
	if err != nil {
		return 0, err
	}
	offsets.Each(func(o kadm.OffsetResponse) { sum += max(o.At, 0) })
	return sum, nil
}

// send writes records with the keys of these numbers.
func (g *grownKafka) send(ctx context.Context, n int, number func(i int) int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(g.cluster.addrs...), kgo.DefaultProduceTopic(kafkaIn),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return err
	}
	defer client.Close()
	var failed atomic.Pointer[error]
	promise := func(_ *kgo.Record, err error) {
		if err != nil {
			failed.CompareAndSwap(nil, &err)
		}
	}
	for i := 0; i < n && failed.Load() == nil; i++ {
		client.Produce(ctx, &kgo.Record{Key: grownID(make([]byte, 0, 16), number(i)), Value: grownValue}, promise)
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// grownValue is the value of each record.
var grownValue = []byte("{}")

// late sends new records at a steady rate, and waits for each at a reader of committed ones.
func (g *grownKafka) late(ctx context.Context, keys int) (time.Duration, error) {
	const rate = 200
	n := g.e.size(grownSingle, 200)
	reader, err := g.reader(ctx)
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	writer, err := kgo.NewClient(kgo.SeedBrokers(g.cluster.addrs...), kgo.DefaultProduceTopic(kafkaIn))
	if err != nil {
		return 0, err
	}
	defer writer.Close()
	sent := make([]atomic.Int64, n)
	writing := make(chan error, 1)
	go func() {
		writing <- paced(n, rate, func(i int) error {
			sent[i].Store(time.Now().UnixNano())
			record := &kgo.Record{Key: grownID(nil, grownNew(keys)+i), Value: strconv.AppendInt(nil, int64(i), 10)}
			return writer.ProduceSync(ctx, record).FirstErr()
		})
	}()
	var took []time.Duration
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for len(took) < n {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return 0, fmt.Errorf("after %d of %d records: %w", len(took), n, err)
		}
		now := time.Now().UnixNano()
		for r := range fetches.RecordsAll() {
			i, err := strconv.Atoi(string(r.Value))
			if err != nil || i < 0 || i >= n {
				return 0, fmt.Errorf("the output has %q", r.Value)
			}
			took = append(took, time.Duration(now-sent[i].Load()))
		}
	}
	if err := <-writing; err != nil {
		return 0, err
	}
	slices.Sort(took)
	return took[n*99/100], nil
}

// reader returns a reader of the committed records that come from now on.
func (g *grownKafka) reader(ctx context.Context, opts ...kgo.Opt) (*kgo.Client, error) {
	ends, err := g.cluster.client.ListEndOffsets(ctx, kafkaOut)
	if err != nil {
		return nil, err
	}
	return kgo.NewClient(append(opts, kgo.SeedBrokers(g.cluster.addrs...), kgo.ConsumePartitions(ends.KOffsets()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond))...)
}

func (g *grownKafka) sizes(ctx context.Context) (memory, disk float64, err error) {
	if memory, err = peakMiB(g.run.cmd.Process.Pid); err != nil {
		return 0, 0, err
	}
	state, err := blocks(filepath.Join(g.dir, "state"))
	if err != nil {
		return 0, 0, err
	}
	topic := kafkaGroup + "-keys"
	var dirs kadm.TopicsSet
	dirs.Add(topic)
	for p := range int32(kafkaPartitions) {
		dirs.Add(topic, p)
	}
	logs, err := g.cluster.client.DescribeAllLogDirs(ctx, dirs)
	if err != nil {
		return 0, 0, err
	}
	logs.Each(func(d kadm.DescribedLogDir) { state += d.Size() })
	return memory, float64(state) / (1 << 20), nil
}

// restart sends known records and a new one. Only the new one may come out.
func (g *grownKafka) restart(ctx context.Context, keys int, cold bool) (time.Duration, error) {
	if err := g.stop(); err != nil {
		return 0, err
	}
	fresh := grownNew(keys) + grownSingle
	if cold {
		fresh++
		if err := os.RemoveAll(filepath.Join(g.dir, "state")); err != nil {
			return 0, err
		}
	}
	reader, err := g.reader(ctx)
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	if err := g.send(ctx, grownKnown+1, func(i int) int {
		if i == grownKnown {
			return fresh
		}
		return (i*2 + 1) * (keys / (2 * grownKnown))
	}); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := g.start(ctx); err != nil {
		return 0, err
	}
	if err := g.run.until(ctx, "the records after its restart", g.cluster.done(kafkaGroup)); err != nil {
		return 0, err
	}
	took := time.Since(start)
	// What is committed is there for the reader, which may not have asked for it yet.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var came []string
	for ctx.Err() == nil {
		for r := range reader.PollFetches(ctx).RecordsAll() {
			came = append(came, string(r.Key))
		}
	}
	if want := string(grownID(nil, fresh)); len(came) != 1 || came[0] != want {
		return 0, fmt.Errorf("suite: after the restart %d records came out, want the new one alone: the keys of others were forgotten", len(came))
	}
	return took, nil
}

func (g *grownKafka) close() error { return errors.Join(g.stop(), g.cluster.close()) }
