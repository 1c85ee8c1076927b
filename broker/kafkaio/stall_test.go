package kafkaio

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// longTransactions lets transactions be open for an hour.
var longTransactions = kfake.BrokerConfigs(map[string]string{"transaction.max.timeout.ms": "3600000"})

// other begins a transaction of another program, which writes a record and stays open
// until its time-out.
func (b *bubble) other(id, topic string, timeout time.Duration) *kgo.Client {
	b.Helper()
	client, err := kgo.NewClient(append(b.reach(), kgo.TransactionalID(id), kgo.TransactionTimeout(timeout), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	must(b.T, err)
	must(b.T, client.BeginTransaction())
	must(b.T, client.ProduceSync(b.Context(), &kgo.Record{Topic: topic, Value: []byte("open")}).FirstErr())
	return client
}

// forget has coordinators know the transaction of a producer only in a state that it is
// not in, or not at all.
func (b *bubble) forget(producer *kgo.Client, state string) {
	b.Helper()
	id, _, err := producer.ProducerID(b.Context())
	must(b.T, err)
	b.cluster.ControlKey(int16(kmsg.ListTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		answer := req.ResponseKind().(*kmsg.ListTransactionsResponse)
		if state != "" {
			answer.TransactionStates = []kmsg.ListTransactionsResponseTransactionState{{TransactionalID: "other", ProducerID: id, TransactionState: state}}
		}
		return answer, nil, true
	})
}

// begun runs a program until it has settled a record, and returns its options.
func (b *bubble) begun() TransactorOptions {
	b.Helper()
	opts := b.options()
	opts.TransactionTimeout = 10 * time.Second
	p := b.start(opts)
	b.write(record(0, "a", "v"))
	p.wait(1, settled)
	p.stop()
	return opts
}

func TestAPartitionThatATransactionHoldsUpIsToldOf(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		topic, state string
		after        time.Duration
	}{
		"of the input, that its coordinator ended":  {"in", "CompleteCommit", 10 * time.Second},
		"of the input, that no coordinator shows":   {"in", "", 15 * time.Minute},
		"of the keys, that no coordinator shows":    {"g-keys", "", 10 * time.Second},
		"of the keys, that its coordinator aborted": {"g-keys", "CompleteAbort", 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.begun()
				other := b.other("other", c.topic, time.Hour)
				defer other.Close()
				b.forget(other, c.state)
				b.write(record(0, "b", "v"))
				p := b.start(opts)
				time.Sleep(c.after - time.Second)
				if err := p.ready(); err != nil || paused(p.events) != 0 {
					b.Errorf("too early: %v, %d pauses", err, paused(p.events))
				}
				p.wait(1, paused)
				time.Sleep(time.Minute)
				start := b.cluster.PartitionInfo(c.topic, 0).LastStableOffset
				p.unready("in/0 has more records and has not been read for ")
				p.unready(fmt.Sprintf("no coordinator will end it: semel kafka txn abort --topic %s --partition 0 --offset %d --brokers %s", c.topic, start, b.cluster.ListenAddrs()[0]))
				if n := paused(p.events); n != 1 || resumed(p.events) != 0 {
					b.Errorf("%d pauses and %d ends, want one that lasts", n, resumed(p.events))
				}
				admin, err := OpenAdmin(b.Context(), b.reach())
				must(b.T, err)
				defer admin.Close()
				must(b.T, admin.AbortHanging(b.Context(), c.topic, 0, start))
				p.wait(1, settled)
				p.wait(1, resumed)
				p.becomesReady()
				p.stop()
				if paused(p.events) != 1 || resumed(p.events) != 1 {
					b.Errorf("%d pauses and %d ends, want one of each", paused(p.events), resumed(p.events))
				}
			}, longTransactions)
		})
	}
}

// TestStallsOfSeveralPartitionsAreCounted has two partitions held up, and one that is
// not.
func TestStallsOfSeveralPartitionsAreCounted(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(b *bubble) {
		opts := b.begun()
		other := b.other("other", "in", time.Hour)
		defer other.Close()
		must(b.T, other.ProduceSync(b.Context(), &kgo.Record{Topic: "in", Partition: 1}).FirstErr())
		b.forget(other, "CompleteCommit")
		p := b.start(opts)
		p.wait(1, paused)
		p.unready("in/0 has more records")
		p.unready("; and 1 more partitions: semel kafka txn ls --topic in --brokers ")
		b.write(record(2, "b", "v"))
		p.wait(1, settled)
		p.unready("in/0 has more records")
		p.stop()
	}, longTransactions)
}

// TestATransactionThatItsCoordinatorEndsIsNoStall has a transaction that is open for
// long, and ends by its time-out, and then others that are open one after the other.
func TestATransactionThatItsCoordinatorEndsIsNoStall(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.begun()
		other := b.other("other", "in", 40*time.Minute)
		defer other.Close()
		b.write(record(0, "b", "v"))
		p := b.start(opts)
		time.Sleep(39 * time.Minute)
		if err := p.ready(); err != nil {
			b.Errorf("while the transaction is open: %v", err)
		}
		p.wait(1, settled)
		for i := range 10 {
			next := b.other(fmt.Sprint("other-", i), "in", 40*time.Second)
			b.write(record(0, fmt.Sprint("c", i), "v"))
			p.wait(2+i, settled) // after the time-out
			next.Close()
		}
		if err := p.ready(); err != nil || paused(p.events) != 0 {
			b.Errorf("afterwards: %v, %d pauses", err, paused(p.events))
		}
		p.stop()
	}, longTransactions)
}

// TestOffsetsThatStayUndecidedAreToldOf has a transaction with offsets of the group. The
// broker in process has no topic of offsets in which it could be looked for.
func TestOffsetsThatStayUndecidedAreToldOf(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.begun()
		other := b.other("other", "out", 30*time.Minute)
		defer other.Close()
		id, epoch, err := other.ProducerID(b.Context())
		must(b.T, err)
		req := kmsg.NewPtrTxnOffsetCommitRequest()
		req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = "other", "g", id, epoch, -1
		partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		partition.Offset = 1
		req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "in", TopicID: b.cluster.TopicInfo("in").TopicID, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{partition}}}
		answer, err := req.RequestWith(b.Context(), other)
		must(b.T, err)
		if code := answer.Topics[0].Partitions[0].ErrorCode; code != 0 {
			b.Fatalf("the offsets were refused: %d", code)
		}
		b.write(record(0, "b", "v"))
		p := b.start(opts)
		time.Sleep(14 * time.Minute)
		if err := p.ready(); err != nil {
			b.Errorf("while a transaction may be open: %v", err)
		}
		p.wait(1, paused)
		p.unready("the brokers do not show which: semel kafka txn ls --topic __consumer_offsets --brokers ")
		time.Sleep(15 * time.Minute) // its coordinator ends it
		p.wait(1, settled)
		p.wait(1, resumed)
		p.becomesReady()
		p.stop()
	}, longTransactions)
}

// TestOffsetsAreLookedForWhereBrokersKeepThem compares with the hashes that Java has.
func TestOffsetsAreLookedForWhereBrokersKeepThem(t *testing.T) {
	t.Parallel()
	for group, hash := range map[string]int64{
		"": 0, "g": 103, "once": 3415681, "polygenelubricants": 0, // of which the hash is the least number
		"\U0001D11E": 1772394, // two units of UTF-16
	} {
		for _, n := range []int{1, 4, 50} {
			if got := offsetsPartition(group, n); int64(got) != hash%int64(n) {
				t.Errorf("%q of %d: %d, want %d", group, n, got, hash%int64(n))
			}
		}
	}
}
