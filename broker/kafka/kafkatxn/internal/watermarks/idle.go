package watermarks

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
)

// IdleFinder finds sources without new records. One goroutine uses it at a time.
type IdleFinder struct {
	seen map[cluster.Partition]seen
}

// seen is the end of a source, and the time since which it has not changed.
type seen struct{ end, since int64 }

// Idle returns the sources that are copied to their ends at a time, and have had no new
// records for an idle time before it. copied has the ends of the sources that are copied to
// their ends. The caller calls Idle repeatedly, because it compares copied with the call
// before.
func (c *IdleFinder) Idle(copied map[cluster.Partition]int64, idle, at int64) (list []cluster.Partition) {
	before := c.seen
	c.seen = make(map[cluster.Partition]seen, len(copied))
	for id, end := range copied {
		s, ok := before[id]
		if !ok || s.end != end {
			s = seen{end, at}
		}
		if c.seen[id] = s; at-s.since >= idle {
			list = append(list, id)
		}
	}
	return list
}

// Copied returns the ends of those partitions of inputs whose records a group has copied
// completely, and how many partitions the inputs have. It leaves out ends of partitions of
// which brokers report an error. fromEnd says that the group does not copy the records from
// before its start. Records of open transactions are before the end.
func Copied(ctx context.Context, adm *kadm.Client, inputs []string, group string, fromEnd bool) (copied map[cluster.Partition]int64, sizes map[string]int32, err error) {
	ends, err := adm.ListEndOffsets(ctx, inputs...)
	if err != nil {
		return nil, nil, err
	}
	committed, err := adm.FetchOffsets(ctx, group)
	if err != nil {
		return nil, nil, err
	}
	starts, err := adm.ListStartOffsets(ctx, inputs...)
	if err != nil {
		return nil, nil, err
	}
	copied, sizes = map[cluster.Partition]int64{}, map[string]int32{}
	ends.Each(func(end kadm.ListedOffset) {
		sizes[end.Topic] = max(sizes[end.Topic], end.Partition+1)
		start, known := starts.Lookup(end.Topic, end.Partition)
		from, ok := committed.Lookup(end.Topic, end.Partition)
		if end.Err != nil || !known || start.Err != nil || from.Err != nil {
			return
		}
		at := start.Offset // what expired before it was copied is not waited for
		switch {
		case ok && from.At >= 0:
			at = max(at, from.At)
		case fromEnd:
			at = end.Offset
		}
		if at >= end.Offset {
			copied[cluster.Partition{Topic: end.Topic, Number: end.Partition}] = end.Offset
		}
	})
	return copied, sizes, nil
}

// IdleSources lists the sources that were idle at a time. It counts for a partition once the
// partition is read up to an end that was asked for later: then the partition has all copies
// of their records.
type IdleSources struct {
	At   int64
	Idle []cluster.Partition
	End  int64
}

// Move notes that the idle sources have come to the time of q, minus the idle time and a
// margin.
func (q *IdleSources) Move(t *Times, idle, margin int64) {
	for _, id := range q.Idle {
		t.See(id, q.At-idle-margin)
	}
}
