package kafkatxn

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestAZombieCannotCommitWithoutRecords has a member that lost its partition write an
// output in a transaction that has read nothing.
func TestAZombieCannotCommitWithoutRecords(t *testing.T) {
	t.Parallel()
	t.Run("fake", func(t *testing.T) {
		t.Parallel()
		inRealTime(t, 1, func(b *bubble) { zombies(b.T, b.Reach(), "in", "out") })
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		in, out := servicestest.Topic(), servicestest.Topic()
		reach := append(kafkatest.Quick(servers.Kafka(t)), kgo.UnknownTopicRetries(-1))
		client, err := kgo.NewClient(reach...)
		kafkatest.Must(t, err)
		defer client.Close()
		answers, err := kadm.NewClient(client).CreateTopics(t.Context(), 1, 1, nil, in, out)
		kafkatest.Must(t, err)
		kafkatest.Must(t, answers.Error())
		zombies(t, reach, in, out)
	})
}

func zombies(t *testing.T, reach []kgo.Opt, in, out string) {
	t.Helper()
	for _, c := range []struct {
		name, other string // other is the name of the later member
		again       bool   // the zombie commits its offset again
		commits     bool
	}{
		{"expelled", "other", true, false},
		{"replaced", "zombie", true, false},
		{"without offsets", "other", false, true}, // why offsets are committed again
	} {
		t.Run(c.name, func(t *testing.T) {
			group := in + " " + c.name
			heard := make(heartbeats, 1)
			zombie := joinGroup(t, append([]kgo.Opt{kgo.WithHooks(heard)}, reach...), in, group, "zombie", 4*time.Minute)
			heard.wait(t) // the client sends one half a second after it has joined
			id := cluster.Partition{Topic: in}
			kafkatest.Must(t, zombie.Begin())
			write(t, zombie, out, group)
			present := map[cluster.Partition]kgo.EpochOffset{id: {Offset: 0, Epoch: -1}}
			commits(t, zombie, cluster.Committing(t.Context(), present, nil, nil), true)

			kafkatest.Must(t, zombie.Begin())
			write(t, zombie, out, group)
			if c.other != "zombie" {
				expel(t, zombie.Client(), group)
			}
			joinGroup(t, reach, in, group, c.other, time.Second) // returns when it has the partition
			if !c.again {
				present = nil
			}
			commits(t, zombie, cluster.Committing(t.Context(), present, nil, nil), c.commits)
			want := 1
			if c.commits {
				want = 2
			}
			if got := outputsOf(t, reach, out, group); got != want {
				t.Errorf("%d outputs, want %d", got, want)
			}
		})
	}
}

// heartbeats tells that a member has sent a heartbeat and has its answer.
type heartbeats chan struct{}

func (h heartbeats) OnBrokerE2E(_ kgo.BrokerMetadata, request int16, e2e kgo.BrokerE2E) {
	if request == kmsg.Heartbeat.Int16() && e2e.Err() == nil {
		select {
		case h <- struct{}{}:
		default:
		}
	}
}

func (h heartbeats) wait(t *testing.T) {
	t.Helper()
	select {
	case <-h:
	case <-time.After(time.Minute):
		t.Fatal("the member has sent no heartbeat for a minute")
	}
}

// expel removes the member zombie from its group, as a broker does when a session ends.
func expel(t *testing.T, client *kgo.Client, group string) {
	t.Helper()
	answers, err := kadm.NewClient(client).LeaveGroup(t.Context(), kadm.LeaveGroup(group).InstanceIDs("zombie"))
	kafkatest.Must(t, err)
	kafkatest.Must(t, answers.Error())
}

// joinGroup joins a group and waits for the partition. A member whose next heartbeat is
// far away does not notice that it was expelled.
func joinGroup(t *testing.T, reach []kgo.Opt, topic, group, name string, beats time.Duration) *kgo.GroupTransactSession {
	t.Helper()
	given := make(chan struct{}, 10)
	client, err := kgo.NewGroupTransactSession(append(append([]kgo.Opt{}, reach...),
		kgo.ConsumerGroup(group), kgo.InstanceID(name), kgo.TransactionalID(group+beats.String()), kgo.ConsumeTopics(topic),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.SessionTimeout(max(6*time.Second, beats)), kgo.HeartbeatInterval(beats),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
			if len(parts) > 0 {
				given <- struct{}{}
			}
		}))...)
	kafkatest.Must(t, err)
	t.Cleanup(client.Close)
	<-given
	return client
}

func write(t *testing.T, s *kgo.GroupTransactSession, topic, value string) {
	t.Helper()
	kafkatest.Must(t, s.Client().ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr())
}

func commits(t *testing.T, s *kgo.GroupTransactSession, ctx context.Context, want bool) {
	t.Helper()
	if committed, err := s.End(ctx, kgo.TryCommit); committed != want {
		t.Errorf("committed is %t (%v), want %t", committed, err, want)
	}
}

// outputsOf counts the committed records with a value.
func outputsOf(t *testing.T, reach []kgo.Opt, topic, value string) (n int) {
	t.Helper()
	client, err := kgo.NewClient(append(append([]kgo.Opt{}, reach...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
	kafkatest.Must(t, err)
	defer client.Close()
	kafkatest.Must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("end of " + value)}).FirstErr())
	for {
		fetches := client.PollFetches(t.Context())
		kafkatest.Must(t, fetches.Err())
		for _, r := range fetches.Records() {
			switch string(r.Value) {
			case value:
				n++
			case "end of " + value:
				return n
			}
		}
	}
}
