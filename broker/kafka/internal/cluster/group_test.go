package cluster

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestLagCountsFromTheCommittedOffset has partitions with a committed offset, without
// one, and with one whose record was deleted.
func TestLagCountsFromTheCommittedOffset(t *testing.T) {
	t.Parallel()
	kafkatest.Real(t, 3, func(b *kafkatest.Rig) {
		adm := kadm.NewClient(b.Client)
		b.Write(kafkatest.Numbered(0, 12, 3)...)
		offsets := kadm.Offsets{}
		offsets.AddOffset("in", 0, 1, -1)
		offsets.AddOffset("in", 2, 0, -1)
		kafkatest.Must(b.T, adm.CommitAllOffsets(b.Context(), "g", offsets))
		upTo := kadm.Offsets{}
		upTo.AddOffset("in", 2, 3, -1)
		_, err := adm.DeleteRecords(b.Context(), upTo)
		kafkatest.Must(b.T, err)
		held := []Partition{{"in", 0}, {"in", 1}, {"in", 2}, {"in", 9}}
		for fromEnd, want := range map[bool][]int64{false: {3, 4, 1}, true: {3, 0, 1}} {
			lag, err := Lag(b.Context(), adm, "g", fromEnd, held, nil)
			kafkatest.Must(b.T, err)
			if len(lag) != len(want) {
				b.Fatalf("%+v", lag)
			}
			for i, n := range want {
				if lag[i] != (pipeline.Lag{Source: "in", Partition: int32(i), Messages: n, Bytes: pipeline.UnknownLag}) {
					b.Errorf("from the end: %v: %+v, want %d", fromEnd, lag[i], n)
				}
			}
		}
		// Of partition 0, this member has settled record 1 since, and one behind record 2; of
		// partition 1, two records behind the first.
		lag, err := Lag(b.Context(), adm, "g", false, held[:3], func(p Partition) (low, ahead int64) { return 2 - 2*int64(p.Number), 1 + int64(p.Number)%2 })
		kafkatest.Must(b.T, err)
		for i, n := range []int64{1, 2, 0} {
			if lag[i].Messages != n {
				b.Errorf("partition %d, with records that are settled and not committed: %+v, want %d", i, lag[i], n)
			}
		}
		if lag, err := Lag(b.Context(), adm, "g", false, nil, nil); lag != nil || err != nil {
			b.Errorf("without partitions: %v, %v", lag, err)
		}
	})
}

// TestGroupIsCompleteWhenAllPartitionsHaveOwners has a member of a topic with partitions, and
// a topic that no member reads.
func TestGroupIsCompleteWhenAllPartitionsHaveOwners(t *testing.T) {
	t.Parallel()
	kafkatest.Real(t, 2, func(b *kafkatest.Rig) {
		adm := kadm.NewClient(b.Client)
		b.Write(kafkatest.Numbered(0, 2, 2)...)
		member, err := kgo.NewClient(append(b.Reach(), kgo.ConsumeTopics("in"), kgo.ConsumerGroup("g"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
		kafkatest.Must(b.T, err)
		defer member.Close()
		kafkatest.Must(b.T, member.PollFetches(b.Context()).Err())
		if !kafkatest.Within(time.Minute, func() bool {
			whole, err := IsWhole(b.Context(), adm, "g", []string{"in"})
			groups, err2 := adm.DescribeGroups(b.Context(), "g")
			return err == nil && err2 == nil && whole && groups["g"].State == "Stable"
		}) {
			b.Fatal("the group is not whole")
		}
		if whole, err := IsWhole(b.Context(), adm, "g", []string{"in", "out"}); whole || err != nil {
			b.Errorf("the partitions of out have no owner: %v, %v", whole, err)
		}
		if whole, err := IsWhole(b.Context(), adm, "g", nil); !whole || err != nil {
			b.Errorf("a pattern that nothing matches leaves no partition without an owner: %v, %v", whole, err)
		}
		if whole, err := IsWhole(b.Context(), adm, "none", []string{"in"}); !whole {
			b.Errorf("a group that is not stable cannot be judged: %v, %v", whole, err)
		}
	})
}

func TestMemberNameIsTakenAfterTwoSessionTimeouts(t *testing.T) {
	t.Parallel()
	const session = 20 * time.Second
	now := time.Now()
	for _, c := range []struct {
		after []time.Duration // when the group says so
		want  bool            // after the last of them
	}{
		{[]time.Duration{0}, false},
		{[]time.Duration{0, 10 * time.Second, 39 * time.Second}, false},
		{[]time.Duration{0, 10 * time.Second, 40 * time.Second}, true},
		{[]time.Duration{0, 10 * time.Second, 60 * time.Second}, false}, // it was silent for too long
		{[]time.Duration{0, 60 * time.Second, 100 * time.Second}, true},
	} {
		var taken NameTaken
		got := false
		for _, at := range c.after {
			got = taken.Lasts(now.Add(at), session)
		}
		if got != c.want {
			t.Errorf("after %v: %v, want %v", c.after, got, c.want)
		}
	}
}
