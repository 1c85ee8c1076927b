package kafkatxn

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/test/kafkatest"
)

// begun runs a program until it has settled a record, and returns its options.
func (b *bubble) begun(opts TransactorOptions) TransactorOptions {
	b.Helper()
	opts.Timeouts.Transaction = 10 * time.Second
	p := b.start(opts)
	b.Write(kafkatest.Record(0, "a", "v"))
	p.Wait(1, kafkatest.Settled)
	p.Stop()
	return opts
}

func TestAPartitionHeldUpByAnOpenTransactionIsReported(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		topic, state string
		after        time.Duration
	}{
		"of the input, that its coordinator ended":  {"in", "CompleteCommit", 5 * time.Second},
		"of the input, that no coordinator shows":   {"in", "", 15 * time.Minute},
		"of the keys, that no coordinator shows":    {"g-keys", "", 5 * time.Second},
		"of the keys, that its coordinator aborted": {"g-keys", "CompleteAbort", 5 * time.Second},
		"of the windows, that no coordinator shows": {"g-state", "", 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				if c.topic == "g-state" {
					opts = b.counting(time.Minute, 0, time.Minute)
				}
				opts = b.begun(opts)
				other := b.Other("other", c.topic, time.Hour)
				defer other.Close()
				b.Forget(other, c.state)
				b.Write(kafkatest.Record(0, "b", "v"))
				p := b.start(opts)
				time.Sleep(c.after - time.Second)
				if err := p.ready(); err != nil || paused(p.Events) != 0 {
					b.Errorf("too early: %v, %d pauses", err, paused(p.Events))
				}
				begun := time.Now()
				p.Wait(1, paused)
				if took := time.Since(begun); took > 6*time.Second { // after 5 s it may take two looks
					b.Errorf("named %v after the earliest time", took)
				}
				time.Sleep(time.Minute)
				start := b.Cluster.PartitionInfo(c.topic, 0).LastStableOffset
				p.unready("in/0 has more records and has not been read for ")
				p.unready(fmt.Sprintf("no coordinator will end it: semel kafka txn abort --topic %s --partition 0 --offset %d --brokers %s", c.topic, start, b.Cluster.ListenAddrs()[0]))
				if n := paused(p.Events); n != 1 || resumed(p.Events) != 0 {
					b.Errorf("%d pauses and %d ends, want one that lasts", n, resumed(p.Events))
				}
				admin, err := kafka.OpenAdmin(b.Context(), b.Reach())
				kafkatest.Must(b.T, err)
				defer admin.Close()
				kafkatest.Must(b.T, admin.AbortHanging(b.Context(), c.topic, 0, start))
				p.Wait(1, kafkatest.Settled)
				p.Wait(1, resumed)
				p.becomesReady()
				p.Stop()
				if paused(p.Events) != 1 || resumed(p.Events) != 1 {
					b.Errorf("%d pauses and %d ends, want one of each", paused(p.Events), resumed(p.Events))
				}
			}, kafkatest.LongTransactions)
		})
	}
}

// TestStallsOfSeveralPartitionsAreCounted has two partitions held up, and one that is
// not.
func TestStallsOfSeveralPartitionsAreCounted(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(b *bubble) {
		opts := b.begun(b.options())
		other := b.Other("other", "in", time.Hour)
		defer other.Close()
		kafkatest.Must(b.T, other.ProduceSync(b.Context(), &kgo.Record{Topic: "in", Partition: 1}).FirstErr())
		b.Forget(other, "CompleteCommit")
		p := b.start(opts)
		p.Wait(1, paused)
		p.unready("in/0 has more records")
		p.unready("; and 1 more partitions: semel kafka txn ls --topic in --brokers ")
		b.Write(kafkatest.Record(2, "b", "v"))
		p.Wait(1, kafkatest.Settled)
		p.unready("in/0 has more records")
		p.Stop()
	}, kafkatest.LongTransactions)
}

// TestATransactionThatItsCoordinatorEndsIsNoStall has a transaction that is open for
// long, and ends by its time-out, and then others that are open one after the other. The
// first is named soon.
func TestATransactionThatItsCoordinatorEndsIsNoStall(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.begun(b.options())
		other := b.Other("other", "in", 40*time.Minute)
		defer other.Close()
		b.Write(kafkatest.Record(0, "b", "v"))
		p := b.start(opts)
		time.Sleep(20 * time.Second)
		said := p.Events.Stalls()
		for _, want := range []string{"in/0 has more records, and a transaction of producer ", " is open in in/0 since offset 1 as other: it began at 2000-", "its coordinator aborts it at about 2000-01-01T00:40:", "semel kafka txn describe other --brokers "} {
			if !strings.Contains(said, want) {
				b.Errorf("it says %q, want %q", said, want)
			}
		}
		time.Sleep(39*time.Minute - 20*time.Second)
		if err := p.ready(); err != nil {
			b.Errorf("while the transaction is open: %v", err)
		}
		p.Wait(1, kafkatest.Settled)
		for i := range 10 {
			next := b.Other(fmt.Sprint("other-", i), "in", 40*time.Second)
			b.Write(kafkatest.Record(0, fmt.Sprint("c", i), "v"))
			p.Wait(2+i, kafkatest.Settled) // after the time-out
			next.Close()
		}
		if err := p.ready(); err != nil || paused(p.Events) != 0 {
			b.Errorf("afterwards: %v, %d pauses", err, paused(p.Events))
		}
		p.Stop()
	}, kafkatest.LongTransactions)
}

// TestOffsetsThatStayUndecidedAreReported has a transaction with offsets of the group. The
// broker in process has no topic of offsets in which it could be looked for.
func TestOffsetsThatStayUndecidedAreReported(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.begun(b.options())
		other := b.Other("other", "out", 30*time.Minute)
		defer other.Close()
		id, epoch, err := other.ProducerID(b.Context())
		kafkatest.Must(b.T, err)
		req := kmsg.NewPtrTxnOffsetCommitRequest()
		req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = "other", "g", id, epoch, -1
		partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		partition.Offset = 1
		req.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "in", TopicID: b.Cluster.TopicInfo("in").TopicID, Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{partition}}}
		answer, err := req.RequestWith(b.Context(), other)
		kafkatest.Must(b.T, err)
		if code := answer.Topics[0].Partitions[0].ErrorCode; code != 0 {
			b.Fatalf("the offsets were refused: %d", code)
		}
		b.Write(kafkatest.Record(0, "b", "v"))
		p := b.start(opts)
		time.Sleep(14 * time.Minute)
		if err := p.ready(); err != nil {
			b.Errorf("while a transaction may be open: %v", err)
		}
		p.Wait(1, paused)
		p.unready("the brokers do not show which: semel kafka txn ls --topic __consumer_offsets --brokers ")
		time.Sleep(15 * time.Minute) // its coordinator ends it
		p.Wait(1, kafkatest.Settled)
		p.Wait(1, resumed)
		p.becomesReady()
		p.Stop()
	}, kafkatest.LongTransactions)
}
