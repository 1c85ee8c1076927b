package pending

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/test/kafkatest"
)

// inBubble runs fn in a synctest bubble with a broker, whose topic in has five records.
func inBubble(t *testing.T, fn func(b *kafkatest.Rig, adm *kadm.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		kafkatest.Virtual(t, 1, func(b *kafkatest.Rig) {
			for i := range 5 {
				b.Write(kafkatest.Record(0, fmt.Sprint(i), ""))
			}
			fn(b, kadm.NewClient(b.Client))
		})
	})
}

// commit commits an offset of group g with metadata.
func commit(b *kafkatest.Rig, adm *kadm.Client, at int64, metadata string) {
	b.Helper()
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: "in", At: at, LeaderEpoch: -1, Metadata: metadata})
	kafkatest.Must(b.T, adm.CommitAllOffsets(b.Context(), "g", offsets))
}

// restore fills a queue, and returns the offsets of its records and the reports of lost ones.
func restore(b *kafkatest.Rig, adm *kadm.Client, group string, may bool) (offsets []int64, gone string, err error) {
	id := cluster.Partition{Topic: "in"}
	queues := map[cluster.Partition]*Queue{id: {}}
	queues[id].Add(Record{}) // what it had is dropped
	err = Restore(b.Context(), adm, b.Reach(), group, may, queues, func() { b.Error("it waits for a transaction") }, func(n int, why error) { gone += fmt.Sprintf("%d: %v", n, why) })
	_ = queues[id].Each(func(x *Record) error {
		offsets = append(offsets, x.Offset)
		if x.Since != -1 || string(x.Key) != fmt.Sprint(x.Offset) {
			b.Errorf("the record at %d has key %s and is since reading %d", x.Offset, x.Key, x.Since)
		}
		return nil
	})
	return offsets, gone, err
}

func TestRecordsThatWaitedAreReadAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *kafkatest.Rig, adm *kadm.Client) {
		for metadata, want := range map[string][]int64{Note([]int64{1, 3}): {1, 3}, Note([]int64{2}) + End + "marks": {2}, "g-member-1": nil, "": nil} {
			commit(b, adm, 4, metadata)
			if got, gone, err := restore(b, adm, "g", true); err != nil || gone != "" || !slices.Equal(got, want) {
				b.Errorf("%q: records at %v, gone %q, %v; want %v", metadata, got, gone, err, want)
			}
		}
		if got, gone, err := restore(b, adm, "none", true); err != nil || gone != "" || got != nil {
			b.Errorf("a group that does not exist: %v, %q, %v", got, gone, err)
		}
	})
}

func TestRecordsThatWaitAreRefusedWhereNoneMayWait(t *testing.T) {
	t.Parallel()
	const want = "kafka: group g: 2 records of in/0 wait for rows, and these options let none wait: run the former options and group, with MissingWait (missing: wait), until none waits"
	inBubble(t, func(b *kafkatest.Rig, adm *kadm.Client) {
		commit(b, adm, 4, Note([]int64{1, 3}))
		if _, _, err := restore(b, adm, "g", false); !errors.Is(err, semel.ErrInvalidRequest) || !strings.HasPrefix(err.Error(), want) {
			b.Errorf("%v", err)
		}
		committed, err := Offsets(b.Context(), adm, "g", []string{"in", "other"})
		kafkatest.Must(b.T, err)
		if err := Refuse("g", committed, []string{"other"}); err != nil {
			b.Errorf("records of a topic that is not read: %v", err)
		}
		if err := Refuse("g", committed, []string{"other", "in"}); err == nil || !strings.HasPrefix(err.Error(), want) {
			b.Errorf("%v", err)
		}
		commit(b, adm, 4, "")
		if _, _, err := restore(b, adm, "g", false); err != nil {
			b.Errorf("none waits: %v", err)
		}
	})
}

func TestADamagedNoteIsNotGuessed(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *kafkatest.Rig, adm *kadm.Client) {
		commit(b, adm, 4, Prefix+"1,x")
		const want = `the metadata "waiting for rows: 1,x" of its offset of in/0 is not what Semel writes`
		if _, _, err := restore(b, adm, "g", true); !errors.Is(err, semel.ErrCorrupt) || !strings.Contains(err.Error(), want) {
			b.Errorf("%v", err)
		}
		committed, err := Offsets(b.Context(), adm, "g", []string{"in"})
		kafkatest.Must(b.T, err)
		if err := Refuse("g", committed, []string{"in"}); !errors.Is(err, semel.ErrCorrupt) {
			b.Errorf("%v", err)
		}
	})
}

// TestRecordsThatAreLostAreReported has records that were deleted before the start of their
// topic, and records that compaction removed.
func TestRecordsThatAreLostAreReported(t *testing.T) {
	t.Parallel()
	inBubble(t, func(b *kafkatest.Rig, adm *kadm.Client) {
		commit(b, adm, 4, Note([]int64{1, 3}))
		upTo := kadm.Offsets{}
		upTo.AddOffset("in", 0, 2, -1)
		_, err := adm.DeleteRecords(b.Context(), upTo)
		kafkatest.Must(b.T, err)
		if _, _, err := restore(b, adm, "g", true); !errors.Is(err, cluster.ErrOutOfRange) || !strings.Contains(err.Error(), "records of [in] that waited for rows were deleted before they were joined") {
			b.Errorf("%v", err)
		}
	})
	inBubble(t, func(b *kafkatest.Rig, adm *kadm.Client) {
		_, err := adm.AlterTopicConfigs(b.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "cleanup.policy", Value: kadm.StringPtr("compact")}}, "in")
		kafkatest.Must(b.T, err)
		commit(b, adm, 4, Note([]int64{1, 3}))
		b.Write(kafkatest.Record(0, "1", "newer"))
		b.Write(kafkatest.Record(0, "end", "")) // compaction leaves the last batch out
		b.Cluster.Compact()
		got, gone, err := restore(b, adm, "g", true)
		if err != nil || !slices.Equal(got, []int64{3}) || !strings.HasPrefix(gone, "1: kafka: the records of in/0 at [1] waited for rows, and the broker has them no longer, so they have no effect.") {
			b.Errorf("records at %v, %v: %s", got, err, gone)
		}
	})
}

func TestANoteThatBrokersDoNotTakeIsExplained(t *testing.T) {
	t.Parallel()
	if err := TooLong(io.EOF); err != io.EOF {
		t.Errorf("%v", err)
	}
	if err := TooLong(kerr.OffsetMetadataTooLarge); !errors.Is(err, semel.ErrInvalidRequest) || !errors.Is(err, kerr.OffsetMetadataTooLarge) ||
		!strings.HasPrefix(err.Error(), "the brokers do not take what Semel writes as metadata of the group's offset: set their offset.metadata.max.bytes to 4096") {
		t.Errorf("%v", err)
	}
}

// TestAReadingIsRepeatedUntilItSucceeds has readings that succeed the first time, that fail twice,
// and that are stopped.
func TestAReadingIsRepeatedUntilItSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r Readings
		if r.Begun() != 0 || r.Ended() != 0 {
			t.Errorf("begun %d, ended %d", r.Begun(), r.Ended())
		}
		var tries, stuck, then atomic.Int64
		begin := func(fails int64) {
			tries.Store(0)
			stuck.Store(0)
			then.Store(0)
			r.Begin(t.Context(), func(ctx context.Context) error {
				if tries.Add(1) <= fails {
					<-ctx.Done() // it is patient
					return ctx.Err()
				}
				return nil
			}, func(error) { stuck.Add(1) }, func() { then.Add(1) })
		}
		begin(0)
		synctest.Wait()
		if r.Begun() != 1 || r.Ended() != 1 || tries.Load() != 1 || stuck.Load() != 0 || then.Load() != 1 {
			t.Errorf("begun %d, ended %d after %d tries, stuck %d times, then %d times", r.Begun(), r.Ended(), tries.Load(), stuck.Load(), then.Load())
		}
		begin(2)
		synctest.Wait()
		if r.Begun() != 2 || r.Ended() != 1 || then.Load() != 0 {
			t.Errorf("begun %d, ended %d", r.Begun(), r.Ended())
		}
		time.Sleep(2*Patience + time.Second)
		if r.Ended() != 2 || tries.Load() != 3 || stuck.Load() != 1 || then.Load() != 1 {
			t.Errorf("ended %d after %d tries, stuck %d times, then %d times", r.Ended(), tries.Load(), stuck.Load(), then.Load())
		}
		begin(100)
		time.Sleep(Patience / 2)
		r.Stop()
		synctest.Wait()
		if r.Begun() != 3 || then.Load() != 1 || stuck.Load() != 0 {
			t.Errorf("begun %d, stuck %d times, then %d times", r.Begun(), stuck.Load(), then.Load())
		}
		r.Stop() // nothing runs
	})
}
