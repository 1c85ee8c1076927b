package pending

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/internal/retry"
)

// Restore fills queues with the records that waited when the last transaction of a group
// was committed. It reads them again, or refuses them if none may wait. The client of adm is
// configured by opts. It waits while a transaction may change the offsets of the group, and
// calls waiting. It calls gone with the number of records that the brokers have no longer,
// and why, but ends with an error if their topic begins behind such a record. A later record
// then has the record key, so that its decision replaces the note.
func Restore(ctx context.Context, adm *kadm.Client, opts []kgo.Opt, group string, may bool, queues map[cluster.Partition]*Queue, waiting func(), gone func(int, error)) error {
	var topics []string
	for id := range queues {
		topics = append(topics, id.Topic)
	}
	topics = slices.Compact(slices.Sorted(slices.Values(topics)))
	committed, err := Stable(ctx, adm, group, topics, waiting)
	if err != nil {
		return err
	}
	noted, from, ends := map[cluster.Partition][]int64{}, map[string]map[int32]kgo.Offset{}, cluster.Extent{}
	for id, q := range queues {
		*q = Queue{}
		at, _ := committed.Lookup(id.Topic, id.Number)
		list, err := parse(group, at)
		if len(list) > 0 && !may {
			err = refused(group, id.Topic, id.Number, len(list))
		}
		if err != nil {
			return err
		}
		if len(list) > 0 {
			noted[id] = list
			ends.Add(from, kadm.ListedOffset{Topic: id.Topic, Partition: id.Number, Offset: list[len(list)-1] + 1}, list[0])
		}
	}
	if len(noted) == 0 {
		return nil
	}
	err = ends.ReadFrom(ctx, opts, from, func(r *kgo.Record) {
		id := cluster.Partition{Topic: r.Topic, Number: r.Partition}
		if _, ok := slices.BinarySearch(noted[id], r.Offset); ok {
			queues[id].Add(Record{Record: r, Since: -1})
		}
	})
	if errors.Is(err, kerr.OffsetOutOfRange) {
		return fmt.Errorf("kafka: records of %v that waited for rows were deleted before they were joined: to go on without them, set the offsets of group %s to where they are (kafka-consumer-groups.sh --reset-offsets --to-current): %w: %w", topics, group, cluster.ErrOutOfRange, err)
	}
	if err != nil {
		return err
	}
	for id, list := range noted {
		q := queues[id]
		q.Commit()
		if missing := q.lacks(list); len(missing) > 0 {
			gone(len(missing), fmt.Errorf("kafka: the records of %s/%d at %v waited for rows, and the broker has them no longer, so they have no effect. A compacted topic keeps the newest record of each record key: set its min.compaction.lag.ms to more than the time for which records wait", id.Topic, id.Number, missing))
		}
	}
	return nil
}

// lacks returns the offsets of a note whose records do not wait.
func (q *Queue) lacks(noted []int64) (missing []int64) {
	for _, offset := range noted {
		if !slices.ContainsFunc(q.list, func(x Record) bool { return x.Offset == offset }) {
			missing = append(missing, offset)
		}
	}
	return missing
}

// Offsets returns the offsets of a group in some topics. The group may have offsets of other
// topics, which the user may not see. A group that does not exist has none.
func Offsets(ctx context.Context, adm *kadm.Client, group string, topics []string) (kadm.OffsetResponses, error) {
	all, err := adm.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return nil, nil
	}
	committed := kadm.OffsetResponses{}
	for _, topic := range topics {
		if of, ok := all[topic]; ok {
			committed[topic] = of
		}
	}
	if err = cmp.Or(err, committed.Error()); err != nil {
		return nil, fmt.Errorf("kafka: offsets of group %s: %w", group, err)
	}
	return committed, nil
}

// Stable returns the offsets of a group. It waits while a transaction may change them, as
// the client of the group does before it reads.
func Stable(ctx context.Context, adm *kadm.Client, group string, topics []string, waiting func()) (kadm.OffsetResponses, error) {
	for {
		committed, err := Offsets(kadm.RequireStable(ctx), adm, group, topics)
		if !errors.Is(err, kerr.UnstableOffsetCommit) {
			return committed, err
		}
		waiting()
		if retry.Sleep(ctx, time.Second) != nil {
			return nil, ctx.Err()
		}
	}
}
