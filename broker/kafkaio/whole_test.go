package kafkaio

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// lostHalf balances a group as it is after the first half of a cooperative
// rebalance: the last of four partitions is nobody's. That ends when it is told
// so.
type lostHalf struct {
	kgo.GroupBalancer
	over *atomic.Bool
}

func (h lostHalf) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer, map[string]struct{}, error) {
	if h.over.Load() {
		return h.GroupBalancer.MemberBalancer(members)
	}
	b, err := kgo.NewConsumerBalancer(h, members)
	return b, b.MemberTopics(), err
}

func (lostHalf) Balance(b *kgo.ConsumerBalancer, _ map[string]int32) kgo.IntoSyncAssignment {
	plan := b.NewPlan()
	b.EachMember(func(m *kmsg.JoinGroupResponseMember, _ *kmsg.ConsumerMemberMetadata) {
		if *m.InstanceID == "leader" {
			plan.AddPartitions(m, "in", []int32{0, 1})
		} else {
			plan.AddPartition(m, "in", 2)
		}
	})
	return plan
}

// lostHalf leaves a group in which a partition is nobody's: of a leader that
// goes on, and of a static member that has ended.
func (b *bubble) lostHalf(group, instance string) {
	b.Helper()
	balancer := lostHalf{kgo.CooperativeStickyBalancer(), &atomic.Bool{}}
	join := func(instance string) *kgo.Client {
		given := make(chan struct{}, 10)
		client, err := kgo.NewClient(append(b.reach(),
			kgo.ConsumerGroup(group), kgo.ConsumeTopics("in"), kgo.InstanceID(instance), kgo.Balancers(balancer),
			kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, parts map[string][]int32) {
				if len(parts) > 0 {
					given <- struct{}{}
				}
			}))...)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(client.Close)
		<-given
		return client
	}
	join("leader")
	join(instance).Close() // a static member does not leave
	balancer.over.Store(true)
	if !within(wholeEvery, func() bool { return !b.whole(group) }) { // when it is settled
		b.Fatal("nothing was left to nobody")
	}
}

func (b *bubble) whole(group string) bool {
	whole, err := isWhole(b.Context(), kadm.NewClient(b.client), group, []string{"in"})
	if err != nil {
		b.Error(err)
	}
	return whole
}

func TestATransactorTakesUpWhatARebalanceLeftToNobody(t *testing.T) {
	t.Parallel()
	inBubble(t, 4, func(b *bubble) {
		opts := b.options()
		opts.Instance = "one"
		b.lostHalf("g", "one-0")
		p := b.start(opts)
		if !within(4*wholeEvery, func() bool { return b.whole("g") }) {
			b.Error("a partition is nobody's")
		}
		p.stop()
	})
}

func TestASourceTakesUpWhatARebalanceLeftToNobody(t *testing.T) {
	t.Parallel()
	inBubble(t, 4, func(b *bubble) {
		b.lostHalf("g", "one")
		m := b.join(func(o *SourceOptions) { o.Instance = "one" })
		ctx, cancel := context.WithCancel(b.Context())
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = m.Read(ctx) // until ctx ends: there is nothing
		}()
		if !within(4*wholeEvery, func() bool { return b.whole("g") }) {
			b.Error("a partition is nobody's")
		}
		cancel()
		<-read
		m.leave()
	})
}
