package cluster

import (
	"maps"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/kafkatest"
)

// TestTransactionCommitsOffsetsOfPartitionsThatItDidNotRead ends a transaction that read one of two
// partitions, with notes and an undecided rest.
func TestTransactionCommitsOffsetsOfPartitionsThatItDidNotRead(t *testing.T) {
	t.Parallel()
	kafkatest.Real(t, 2, func(b *kafkatest.Rig) {
		b.Write(kafkatest.Record(0, "a", "1"), kafkatest.Record(0, "b", "2"), kafkatest.Record(0, "c", "3"))
		session, err := kgo.NewGroupTransactSession(append(b.Reach(), kgo.ConsumeTopics("in"), kgo.ConsumerGroup("g"), kgo.TransactionalID("g-1"),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
		kafkatest.Must(b.T, err)
		defer session.Close()
		for read := 0; read < 3; {
			fetches := session.PollFetches(b.Context())
			kafkatest.Must(b.T, fetches.Err())
			read += fetches.NumRecords()
		}
		kafkatest.Must(b.T, session.Begin())
		rest := Leave(nil, Partition{"in", 0}, 2, -1)
		rest = Leave(rest, Partition{"in", 0}, 3, -1) // the rest begins earlier
		ctx := Committing(b.Context(), map[Partition]kgo.EpochOffset{{"in", 1}: {Offset: 0, Epoch: -1}}, map[Partition]string{{"in", 0}: "a note"}, rest)
		committed, err := session.End(ctx, kgo.TryCommit)
		if err != nil || !committed {
			b.Fatalf("committed: %v, %v", committed, err)
		}
		offsets, err := kadm.NewClient(b.Client).FetchOffsets(b.Context(), "g")
		kafkatest.Must(b.T, err)
		got, notes := map[int32]int64{}, map[int32]string{}
		for number, at := range offsets["in"] {
			got[number], notes[number] = at.At, at.Metadata
		}
		if !maps.Equal(got, map[int32]int64{0: 2, 1: 0}) || notes[0] != "a note" || notes[1] == "a note" {
			b.Errorf("offsets %v, notes %q", got, notes)
		}
		ReadAgain(session.Client(), rest)
		fetches := session.PollFetches(b.Context())
		kafkatest.Must(b.T, fetches.Err())
		if records := fetches.Records(); len(records) != 1 || string(records[0].Key) != "c" {
			b.Errorf("read again: %v", kafkatest.KeysOf(records))
		}
	})
	if ctx := t.Context(); Committing(ctx, nil, nil, nil) != ctx {
		t.Error("a context without offsets is another one")
	}
}
