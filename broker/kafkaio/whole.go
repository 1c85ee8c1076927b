package kafkaio

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// wholeEvery is how often a static member looks whether its group works on all
// partitions.
const wholeEvery = 3 * time.Second

// keepWhole has a static member join its group again when partitions are
// nobody's, until ctx ends. It is needed because a cooperative rebalance has two
// halves: in the first, partitions are taken from members, and in the second,
// which those members begin by joining again, they are given to others. A static
// member that ends between the two and comes back gets what it had after the
// first, without a rebalance, and the second half never comes.
func keepWhole(ctx context.Context, client *kgo.Client, group string) {
	admin := kadm.NewClient(client)
	tick := time.NewTicker(wholeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if whole, err := isWhole(ctx, admin, group, client.GetConsumeTopics()); err == nil && !whole {
			client.ForceRebalance()
		}
	}
}

// isWhole reports whether all partitions of topics are somebody's, as far as that
// is settled.
func isWhole(ctx context.Context, admin *kadm.Client, group string, topics []string) (bool, error) {
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
