package kafka

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/test/kafkatest"
)

func TestOffsetsThatAreGoneAreReportedAndNothingIsSkipped(t *testing.T) {
	t.Parallel()
	for name, reset := range map[string]Reset{"start": ResetStart, "end": ResetEnd} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				b.Write(kafkatest.Numbered(0, 3, 1)...)
				m := b.join(nil)
				m.ack(m.get(3)...)
				m.leave()
				b.Write(kafkatest.Numbered(3, 7, 1)...)
				kafkatest.Must(t, b.Cluster.DeleteRecords("in", 0, 5))
				m = b.join(func(o *SourceOptions) { o.Reset = reset })
				items := m.get(5)
				if got := bodies(items); len(got) != 5 || got[0] != "value 5" {
					t.Errorf("%v came, want value 5 to 9", got)
				}
				if log := strings.Join(m.events.Log, "\n"); !strings.Contains(log, "in/0: offsets 3 to 4 were deleted before they were read") {
					t.Errorf("the loss was not reported:\n%s", log)
				}
				m.ack(items...)
				m.leave()
				b.becomes(0, 10)
			})
		})
	}
	t.Run("fail", func(t *testing.T) {
		t.Parallel()
		for _, committed := range []bool{true, false} {
			inBubble(t, 1, func(b *bubble) {
				b.Write(kafkatest.Numbered(0, 10, 1)...)
				if committed {
					m := b.join(nil)
					m.ack(m.get(10)[:2]...)
					m.leave()
					kafkatest.Must(t, b.Cluster.DeleteRecords("in", 0, 5))
				}
				m := b.join(func(o *SourceOptions) { o.Reset = ResetFail })
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				defer cancel()
				items, err := m.Read(ctx)
				if err == nil || ctx.Err() != nil {
					t.Errorf("committed %v: %d items came and the error %v, want one", committed, len(items), err)
				}
				m.leave()
			})
		}
	})
}

// TestARecreatedTopicIsReadFromItsBeginning deletes a topic while it is read.
func TestARecreatedTopicIsReadFromItsBeginning(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 10, 1)...)
		m := b.join(nil)
		m.ack(m.get(10)...)
		b.becomes(0, 10)
		kafkatest.Must(t, b.Cluster.DeleteTopic("in"))
		m.none(5 * time.Second)
		if n := len(m.events.Log); n > 50 {
			t.Errorf("%d events within 5 s of trying again", n)
		}
		kafkatest.Must(t, b.Cluster.CreateTopic("in", 1, nil))
		fresh, err := kgo.NewClient(append(b.Reach(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		kafkatest.Must(t, err)
		defer fresh.Close()
		kafkatest.Must(t, fresh.ProduceSync(b.Context(), kafkatest.Numbered(20, 4, 1)...).FirstErr())
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		if _, err := m.Read(ctx); !errors.Is(err, kerr.UnknownTopicID) {
			t.Errorf("the error is %v", err)
		}
		_ = m.Close(ctx)
		m = b.join(nil)
		again := m.get(4)
		if got := bodies(again); got[0] != "value 20" {
			t.Errorf("%v came", got)
		}
		m.ack(again[:2]...)
		b.becomes(0, 2)
		m.leave()
	})
}

func TestEarlierOfTwoMembersWithOneNameStops(t *testing.T) {
	t.Parallel()
	inRealTime(t, 1, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 5, 1)...)
		// A session that ends, because the machine stands still, gives the name back. The earlier
		// member has to be refused for two sessions.
		named := func(o *SourceOptions) { o.Instance, o.SessionTimeout = "one", 8*time.Second }
		first := b.join(named)
		first.get(5)
		second := b.join(named)
		ended := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(b.Context(), 3*time.Minute)
			defer cancel()
			var err error
			for err == nil {
				_, err = first.Read(ctx)
			}
			ended <- err
		}()
		items := second.get(5)
		if err := <-ended; !errors.Is(err, ErrFenced) {
			t.Errorf("the earlier one ended with %v", err)
		}
		second.ack(items...)
		second.leave()
		b.becomes(0, 5)
		_ = first.Close(b.Context()) // it has nothing to say any more
	})
}

// TestAStaticMemberIsNotFencedByItsEarlierId has a group know an earlier id of a member, as
// after a broker was killed while it divided the group. The group knows that id for a
// session, or longer where a broker answers to it.
func TestAStaticMemberIsNotFencedByItsEarlierId(t *testing.T) {
	t.Parallel()
	named := func(o *SourceOptions) { o.Instance, o.SessionTimeout = "one", 10*time.Second }
	fence := func(b *bubble, joins int) {
		b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, Err: kerr.FencedInstanceID, Count: joins})
		b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Heartbeat}, Err: kerr.UnknownServerError, Count: 1})
	}
	for _, every := range []time.Duration{25 * time.Second, time.Minute} { // 25 s: brokers that start again in turn
		inBubble(t, 1, func(b *bubble) {
			m := b.join(named)
			for n := range 4 {
				b.Write(kafkatest.Numbered(5*n, 5, 1)...)
				m.ack(m.get(5)...)
				b.becomes(0, int64(5*n+5))
				fence(b, 2)
				m.none(every)
			}
			m.leave()
		})
	}
	inBubble(t, 1, func(b *bubble) {
		m := b.join(named)
		b.Write(kafkatest.Numbered(0, 5, 1)...)
		m.ack(m.get(5)...)
		fence(b, 1000)
		ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
		defer cancel()
		var err error
		for err == nil {
			_, err = m.Read(ctx)
		}
		if !errors.Is(err, ErrFenced) {
			t.Errorf("a member whose name another has permanently: %v", err)
		}
		_ = m.Close(b.Context())
	})
}

func TestGroupMemberClosesWithoutBrokers(t *testing.T) {
	t.Parallel()
	inRealTime(t, 1, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 5, 1)...)
		m := b.join(patiently)
		items := m.get(5)
		m.line.Sever(true)
		m.ack(items...)
		ctx, cancel := context.WithTimeout(b.Context(), 2*time.Second)
		defer cancel()
		start := time.Now()
		_ = m.Close(ctx) // what was not committed comes again
		if took := time.Since(start); took > time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

func TestARefusedMemberReportsTheRefusal(t *testing.T) {
	t.Parallel()
	t.Run("by the group", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 1, func(b *bubble) {
			b.Write(kafkatest.Numbered(0, 3, 1)...)
			m := b.join(nil)
			m.ack(m.get(3)...)
			b.becomes(0, 3)
			for _, refusal := range []error{kerr.GroupAuthorizationFailed, kerr.InconsistentGroupProtocol} {
				fault := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup, kmsg.Heartbeat, kmsg.SyncGroup}, Err: refusal.(*kerr.Error), TopLevel: true, Count: -1})
				m.none(time.Minute)
				if err := m.Ready(b.Context()); !errors.Is(err, refusal) || !strings.Contains(err.Error(), "group g") {
					b.Errorf("Ready says %v, want %v", err, refusal)
				}
				if log := strings.Join(m.events.Log, "\n"); strings.Count(log, refusal.Error()) != 1 {
					b.Errorf("the refusal must be reported once:\n%s", log)
				}
				fault.Remove()
				b.Write(kafkatest.Numbered(3, 2, 1)...)
				m.ack(m.get(2)...)
				if err := m.Ready(b.Context()); err != nil {
					b.Errorf("Ready says %v after the group accepts the member", err)
				}
			}
			m.leave()
		})
	})
	t.Run("by the brokers", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 1, func(b *bubble) {
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			b.Cluster.ControlKey(int16(kmsg.SASLHandshake), func(req kmsg.Request) (kmsg.Response, error, bool) {
				b.Cluster.KeepControl() // the client connects again and must get the same answer
				resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
				resp.ErrorCode = kerr.UnsupportedSaslMechanism.Code
				return resp, nil, true
			})
			_, err := OpenSource(ctx, &SourceOptions{Client: append(b.Reach(), kgo.SASL(plain.Auth{User: "somebody", Pass: "else"}.AsMechanism())), Group: "g", Topics: []string{"in"}})
			if !errors.Is(err, semel.ErrInvalidRequest) || errors.Is(err, semel.ErrStoreUnavailable) {
				t.Errorf("the error is %v", err)
			}
		})
	})
}

// TestCloseEndsWithItsContextWhileBrokersHang: no request that was sent is
// answered, as of a broker that was stopped, and settled records cannot be
// committed.
func TestCloseEndsWithItsContextWhileBrokersHang(t *testing.T) {
	t.Parallel()
	for _, busy := range []bool{false, true} {
		inBubble(t, 2, func(b *bubble) {
			b.Write(kafkatest.Numbered(0, 10, 2)...)
			m := b.join(func(o *SourceOptions) { o.SessionTimeout = 30 * time.Second })
			items := m.get(10)
			if !busy {
				m.ack(items...)
				b.becomes(0, 5)
				b.becomes(1, 5)
			}
			var still atomic.Bool
			still.Store(true)
			b.Cluster.ControlKey(-1, func(kmsg.Request) (kmsg.Response, error, bool) {
				b.Cluster.KeepControl()
				return nil, nil, still.Load()
			})
			if busy {
				m.ack(items...)
			}
			ctx, cancel := context.WithTimeout(b.Context(), 3*time.Second)
			defer cancel()
			begun := time.Now()
			err := m.Close(ctx)
			if took := time.Since(begun); took > 4*time.Second {
				b.Errorf("busy %v: Close took %v with a context of 3 s", busy, took)
			}
			if busy && err == nil {
				b.Error("Close told nothing of offsets that are not committed")
			}
			still.Store(false)
		})
	}
}

func TestASourceClaimsPartitionsThatARebalanceLeftUnassigned(t *testing.T) {
	t.Parallel()
	inBubble(t, 4, func(b *bubble) {
		b.LostHalf("g", "one", func() bool { return b.whole("g") })
		m := b.join(func(o *SourceOptions) { o.Instance = "one" })
		ctx, cancel := context.WithCancel(b.Context())
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = m.Read(ctx) // until ctx ends: there is nothing
		}()
		if !kafkatest.Within(4*cluster.WholeEvery, func() bool { return b.whole("g") }) {
			b.Error("a partition is nobody's")
		}
		cancel()
		<-read
		m.leave()
	})
}

// TestOffsetsAreCommittedIfBrokersTakeNoMetadata with them, and that is said once.
func TestOffsetsAreCommittedIfBrokersTakeNoMetadata(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		b.Cluster.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			asked := req.(*kmsg.OffsetCommitRequest)
			answer, refused := asked.ResponseKind().(*kmsg.OffsetCommitResponse), false
			for _, of := range asked.Topics {
				topic := kmsg.NewOffsetCommitResponseTopic()
				topic.Topic, topic.TopicID = of.Topic, of.TopicID
				for _, p := range of.Partitions {
					partition := kmsg.NewOffsetCommitResponseTopicPartition()
					partition.Partition = p.Partition
					if p.Metadata != nil && *p.Metadata != "" {
						partition.ErrorCode, refused = kerr.OffsetMetadataTooLarge.Code, true
					}
					topic.Partitions = append(topic.Partitions, partition)
				}
				answer.Topics = append(answer.Topics, topic)
			}
			return answer, nil, refused
		})
		b.Write(kafkatest.Numbered(0, 4, 2)...)
		m := b.join(func(*SourceOptions) {})
		m.ack(m.get(4)...)
		_ = retry.Sleep(b.Context(), time.Minute) // as the bubble counts it
		b.Write(kafkatest.Numbered(4, 4, 2)...)
		m.ack(m.get(4)...)
		m.leave()
		for number := range int32(2) {
			if got := b.committed(number); got != 4 {
				t.Errorf("offset %d of partition %d is committed, want 4", got, number)
			}
		}
		if n := strings.Count(strings.Join(m.events.Log, "\n"), "without the id of their topic"); n != 1 {
			t.Errorf("it is said %d times:\n%s", n, strings.Join(m.events.Log, "\n"))
		}
	})
}
