package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
)

// ReadAll passes the committed records of topics to fn, until fn returns false or all
// records that existed at the call are read. Records of a partition are in order.
// ReadAll joins no group and commits no offset. It blocks until ctx ends at most.
func ReadAll(ctx context.Context, client []kgo.Opt, topics []string, fn func(*kgo.Record) bool) error {
	_, err := ReadNewest(ctx, client, topics, time.Time{}, 0, fn)
	return err
}

// Identities returns the identities of topics, by name, as Source gives them to their
// messages: see semel.Origin. It blocks until a broker has answered, or ctx ends.
func Identities(ctx context.Context, client []kgo.Opt, topics ...string) (map[string]string, error) {
	c, err := cluster.Dial(ctx, client...)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return cluster.Identities(ctx, c, topics...)
}

// ReadNewest is [ReadAll] for the records since a time, and at most a number of the
// newest ones of each partition. The zero time and 0 are no limits. left reports whether
// the number left records out that were written since.
func ReadNewest(ctx context.Context, client []kgo.Opt, topics []string, since time.Time, most int64, fn func(*kgo.Record) bool) (left bool, err error) {
	c, err := cluster.Dial(ctx, append(client[:len(client):len(client)], cluster.ReadOptions()...)...)
	if err != nil {
		return false, err
	}
	defer c.Close()
	adm := kadm.NewClient(c)
	first, last, err := cluster.CommittedOffsets(ctx, adm, topics...)
	if err == nil && !since.IsZero() {
		first, err = adm.ListOffsetsAfterMilli(ctx, since.UnixMilli(), topics...)
		err = errors.Join(err, first.Error())
	}
	if err != nil {
		return false, fmt.Errorf("kafka: offsets of %s: %w", strings.Join(topics, ", "), err)
	}
	ends, from := cluster.Extent{}, map[string]map[int32]kgo.Offset{}
	last.Each(func(end kadm.ListedOffset) {
		start, _ := first.Lookup(end.Topic, end.Partition)
		at := start.Offset
		if most > 0 && at < end.Offset-most {
			at, left = end.Offset-most, true
		}
		if at >= 0 && at < end.Offset {
			ends.Add(from, end, at)
		}
	})
	c.AddConsumePartitions(from)
	return left, ends.Read(ctx, c, func(r *kgo.Record) (bool, error) { return fn(r), nil })
}
