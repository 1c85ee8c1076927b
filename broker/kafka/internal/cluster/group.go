package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/pipeline"
)

// WholeEvery is how often a static member checks whether all partitions of its group
// have owners.
const WholeEvery = 3 * time.Second

// KeepWhole makes a static member rejoin its group if partitions have no owner, until
// ctx ends. A cooperative rebalance has two halves. In the first, members give
// partitions up; then they rejoin, and in the second half the partitions are assigned.
// If a static member ends between the halves and returns, it gets its partitions of the
// first half without a rebalance, and the second half never starts.
func KeepWhole(ctx context.Context, client *kgo.Client, group string) {
	admin := kadm.NewClient(client)
	tick := time.NewTicker(WholeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if whole, err := IsWhole(ctx, admin, group, client.GetConsumeTopics()); err == nil && !whole {
			client.ForceRebalance()
		}
	}
}

// IsWhole reports whether all partitions of topics have owners, as far as the group is
// stable.
func IsWhole(ctx context.Context, admin *kadm.Client, group string, topics []string) (bool, error) {
	if len(topics) == 0 { // ListTopics would list all
		return true, nil
	}
	groups, err := admin.DescribeGroups(ctx, group)
	if err == nil {
		err = groups.Error()
	}
	if err != nil || groups[group].State != "Stable" {
		return true, err
	}
	there, err := admin.ListTopics(ctx, topics...)
	if err != nil {
		return true, err
	}
	described := groups[group]
	assigned := described.AssignedPartitions()
	for name, topic := range there {
		for id := range topic.Partitions {
			if !assigned.Lookup(name, id) {
				return false, nil
			}
		}
	}
	return true, nil
}

// NameTaken is the time during which the group has said that another member has this
// member's name.
type NameTaken struct{ From, to time.Time }

// Lasts notes that the group said so, and reports whether it has for two sessions. A
// broker that was killed during a rebalance may know an earlier id of this very member.
// That id ends with its session, and this member joins again.
func (f *NameTaken) Lasts(now time.Time, session time.Duration) bool {
	if now.Sub(f.to) > max(2*session, 30*time.Second) { // the client asks more often
		f.From = now
	}
	f.to = now
	return now.Sub(f.From) >= 2*session
}

// Lag returns how far a group is behind in some partitions. It leaves out partitions
// whose offsets are unknown. settled returns the offset below which this member has settled
// all records of a partition, or less if it knows none, and how many it has settled from there
// on. It may be nil.
func Lag(ctx context.Context, adm *kadm.Client, group string, fromEnd bool, held []Partition, settled func(Partition) (low, ahead int64)) ([]pipeline.Lag, error) {
	if len(held) == 0 {
		return nil, nil
	}
	var topics []string
	for _, id := range held {
		if !slices.Contains(topics, id.Topic) {
			topics = append(topics, id.Topic)
		}
	}
	committed, err := adm.FetchOffsetsForTopics(ctx, group, topics...)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: offsets of group %s: %w", group, err)
	}
	first, err := adm.ListStartOffsets(ctx, topics...)
	last, err2 := adm.ListEndOffsets(ctx, topics...)
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("kafka: offsets of %v: %w", topics, err)
	}
	var list []pipeline.Lag
	for _, id := range held {
		start, ok := first.Lookup(id.Topic, id.Number)
		end, ok2 := last.Lookup(id.Topic, id.Number)
		if !ok || !ok2 || start.Err != nil || end.Err != nil {
			continue
		}
		at := start.Offset
		if c, ok := committed.Lookup(id.Topic, id.Number); ok && c.At >= 0 {
			at = max(c.At, at) // deleted records are not lag
		} else if fromEnd {
			at = end.Offset
		}
		left := end.Offset - at
		if settled != nil {
			low, ahead := settled(id)
			left -= max(low-at, 0) + ahead
		}
		list = append(list, pipeline.Lag{Source: id.Topic, Partition: id.Number, Messages: max(left, 0), Bytes: pipeline.UnknownLag})
	}
	return list, nil
}

// RepartitionSuffix is the suffix of the first stage's group, producers and topic.
const RepartitionSuffix = "-repartition"
