package outputs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/bench/internal/records"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

const topic, partitions = "out", 3

// Programs with transactions that overlap write to the same partitions. Some transactions
// are aborted, and some records are results of groups that only close windows.
func TestCommittedResultsAreCountedAndRead(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	addrs := []string{servicestest.StartKafka(t, &services.KafkaOptions{HeapMiB: 512}).Addr()}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	admin, err := kgo.NewClient(kgo.SeedBrokers(addrs...))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if made, err := kadm.NewClient(admin).CreateTopics(ctx, partitions, 1, nil, topic); err != nil || made.Error() != nil {
		t.Fatal(err, made.Error())
	}
	counter, err := Count(ctx, addrs, topic)
	if err != nil {
		t.Fatal(err)
	}
	defer counter.Close()
	var programs []*program
	for i := range 3 {
		programs = append(programs, newProgram(t, addrs, strconv.Itoa(i)))
	}
	committed, closing, aborted := 0, 0, 0
	for range 100 {
		p := programs[random.IntN(len(programs))]
		switch {
		case p.results+p.closing == 0:
			if err := p.client.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
			fallthrough
		case random.IntN(3) > 0:
			p.write(ctx, t, random)
		case random.IntN(2) > 0:
			committed, closing = committed+p.results, closing+p.closing
			p.end(ctx, t, kgo.TryCommit)
		default:
			aborted += p.results + p.closing
			p.end(ctx, t, kgo.TryAbort)
		}
	}
	for _, p := range programs {
		if p.results+p.closing > 0 {
			aborted += p.results + p.closing
			p.end(ctx, t, kgo.TryAbort)
		}
	}
	t.Logf("%d results, %d of closing groups, %d aborted", committed, closing, aborted)
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for n := 0; n < committed; {
		if n, err = counter.Count(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("the counter has %d results, want %d", n, committed)
		}
	}
	out, err := counter.Finish(ctx)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, body := range out.Bodies {
		seen[string(body)] = true
	}
	if n, err := counter.Count(); n != committed || len(out.Bodies) != committed || len(seen) != committed || err != nil {
		t.Errorf("counted %d and read %d, %d of them different, want %d: %v", n, len(out.Bodies), len(seen), committed, err)
	}
	if all, err := Read(ctx, addrs, topic, true); err != nil || len(all.Bodies) != committed+closing {
		t.Errorf("read %d with closing groups, want %d: %v", len(all.Bodies), committed+closing, err)
	}
	counter.count.Add(1)
	if _, err := counter.Finish(ctx); err == nil || !strings.Contains(err.Error(), "were counted") {
		t.Errorf("a wrong count ended with %v", err)
	}
}

// program writes results in transactions.
type program struct {
	client  *kgo.Client
	id      string
	written int
	// results and closing are the records of the open transaction.
	results, closing int
}

func newProgram(t *testing.T, addrs []string, id string) *program {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.TransactionalID(id), kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &program{client: client, id: id}
}

// write writes some records, each of a group of its own.
func (p *program) write(ctx context.Context, t *testing.T, random *rand.Rand) {
	t.Helper()
	var list []*kgo.Record
	for range 1 + random.IntN(20) {
		p.written++
		group := "customer-"
		if random.IntN(5) == 0 {
			group = records.Closing
			p.closing++
		} else {
			p.results++
		}
		group += p.id + "-" + strconv.Itoa(p.written)
		list = append(list, &kgo.Record{Key: []byte(group), Value: fmt.Appendf(nil, `{"key":%q,"values":{"n":1}}`, group), Partition: random.Int32N(partitions)})
	}
	if err := p.client.ProduceSync(ctx, list...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func (p *program) end(ctx context.Context, t *testing.T, how kgo.TransactionEndTry) {
	t.Helper()
	if err := p.client.EndTransaction(ctx, how); err != nil {
		t.Fatal(err)
	}
	p.results, p.closing = 0, 0
}

// Responses may end within a batch, and begin within one that was counted before.
func TestBatchesOfAResponseAreCountedOnce(t *testing.T) {
	t.Parallel()
	batch := func(first int64, n int32, attributes int16) []byte {
		b := kmsg.RecordBatch{FirstOffset: first, LastOffsetDelta: n - 1, NumRecords: n, Attributes: attributes, ProducerID: 7, Magic: 2}
		b.Length = int32(len(b.AppendTo(nil)) - batchPrefix)
		return b.AppendTo(nil)
	}
	join := func(list ...[]byte) (all []byte) {
		for _, b := range list {
			all = append(all, b...)
		}
		return all
	}
	abort := kmsg.FetchResponseTopicPartitionAbortedTransaction{ProducerID: 7, FirstOffset: 5}
	for name, c := range map[string]struct {
		raw     []byte
		aborted bool
		n, next int64
		failed  bool
	}{
		"nothing":           {nil, false, 0, 5, false},
		"two":               {join(batch(5, 3, transactional), batch(8, 2, transactional)), false, 5, 10, false},
		"counted before":    {join(batch(2, 3, transactional), batch(5, 3, transactional)), false, 3, 8, false},
		"the end is cut":    {join(batch(5, 3, transactional), batch(8, 2, transactional)[:30]), false, 3, 8, false},
		"aborted":           {join(batch(5, 3, transactional), batch(8, 1, transactional|control), batch(9, 4, transactional)), true, 4, 13, false},
		"without":           {join(batch(5, 3, 0), batch(8, 1, transactional|control)), true, 3, 9, false},
		"compressed":        {batch(5, 3, transactional|1), false, 0, 0, true},
		"aborted, the rest": {batch(5, 3, transactional), true, 0, 8, false},
	} {
		p := kmsg.FetchResponseTopicPartition{RecordBatches: c.raw}
		if c.aborted {
			p.AbortedTransactions = append(p.AbortedTransactions, abort)
		}
		if n, next, err := countBatches(&p, 5); n != c.n || next != c.next || (err != nil) != c.failed {
			t.Errorf("%s: %d records up to %d, %v; want %d up to %d", name, n, next, err, c.n, c.next)
		}
	}
}
