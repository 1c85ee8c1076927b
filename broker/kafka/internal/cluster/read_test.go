package cluster

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/kafkatest"
)

func TestEachRunsAllCallsAndJoinsTheirErrors(t *testing.T) {
	t.Parallel()
	var now, most, calls atomic.Int64
	odd := errors.New("odd")
	err := Each([]int{1, 2, 3, 4, 5, 6, 7, 8, 9}, func(n int) error {
		if running := now.Add(1); running > most.Load() {
			most.Store(running)
		}
		defer now.Add(-1)
		calls.Add(int64(n))
		runtime.Gosched()
		if n == 3 || n == 8 {
			return fmt.Errorf("%d: %w", n, odd)
		}
		return nil
	})
	if !errors.Is(err, odd) || err.Error() != "3: odd\n8: odd" || calls.Load() != 45 || now.Load() != 0 || most.Load() > int64(runtime.GOMAXPROCS(0)) {
		t.Errorf("%v, sum of calls %d, at most %d together", err, calls.Load(), most.Load())
	}
	if err := Each(nil, func(int) error { return odd }); err != nil {
		t.Error(err)
	}
}

// TestRecordsAreReadToTheEndsThatTheyHad reads a topic with open, aborted and committed
// transactions.
func TestRecordsAreReadToTheEndsThatTheyHad(t *testing.T) {
	t.Parallel()
	kafkatest.Real(t, 2, func(b *kafkatest.Rig) {
		adm := kadm.NewClient(b.Client)
		b.Write(kafkatest.Record(0, "a", ""), kafkatest.Record(1, "b", ""), kafkatest.Record(0, "c", ""))
		aborted := b.Other("aborted", "in", time.Minute)
		kafkatest.Must(b.T, aborted.ProduceSync(b.Context(), kafkatest.Record(1, "aborted", "")).FirstErr())
		kafkatest.Must(b.T, aborted.EndTransaction(b.Context(), kgo.TryAbort))
		b.Write(kafkatest.Record(1, "d", ""))
		first, last, err := CommittedOffsets(b.Context(), adm, "in")
		kafkatest.Must(b.T, err)
		b.Write(kafkatest.Record(0, "later", ""))
		read := func(from int64) (keys []string, err error) {
			extent, offsets := Extent{}, map[string]map[int32]kgo.Offset{}
			last.Each(func(end kadm.ListedOffset) {
				start, _ := first.Lookup(end.Topic, end.Partition)
				extent.Add(offsets, end, max(start.Offset, from))
			})
			err = extent.ReadFrom(b.Context(), b.Reach(), offsets, func(r *kgo.Record) { keys = append(keys, string(r.Key)) })
			slices.Sort(keys)
			return keys, err
		}
		if keys, err := read(0); err != nil || !slices.Equal(keys, []string{"a", "b", "c", "d"}) {
			b.Errorf("read %q, %v", keys, err)
		}
		if keys, err := read(1); err != nil || !slices.Equal(keys, []string{"c", "d"}) {
			b.Errorf("read %q from offset 1, %v", keys, err)
		}
		upTo := kadm.Offsets{}
		upTo.AddOffset("in", 0, 2, -1)
		_, err = adm.DeleteRecords(b.Context(), upTo)
		kafkatest.Must(b.T, err)
		if keys, err := read(0); !errors.Is(err, kerr.OffsetOutOfRange) {
			b.Errorf("records that were deleted: read %q, %v", keys, err)
		}
		ended, cancel := context.WithCancelCause(b.Context())
		cancel(context.Canceled)
		if err := (Extent{{"in", 0}: span{0, 1}}).ReadFrom(ended, b.Reach(), map[string]map[int32]kgo.Offset{}, nil); !errors.Is(err, context.Canceled) {
			b.Errorf("a context that ended: %v", err)
		}
	})
}

func TestReaderMayStopBeforeTheEndOfAPartition(t *testing.T) {
	t.Parallel()
	kafkatest.Real(t, 1, func(b *kafkatest.Rig) {
		b.Write(kafkatest.Numbered(0, 5, 1)...)
		client, err := kgo.NewClient(append(b.Reach(), ReadOptions()...)...)
		kafkatest.Must(b.T, err)
		defer client.Close()
		client.AddConsumePartitions(map[string]map[int32]kgo.Offset{"in": {0: kgo.NewOffset().At(0)}})
		read := 0
		err = Extent{{"in", 0}: span{0, 5}}.Read(b.Context(), client, func(*kgo.Record) (bool, error) {
			read++
			return read < 3, nil
		})
		if err != nil || read != 3 {
			b.Errorf("read %d records, %v", read, err)
		}
	})
}

func TestTheErrorOfAFetchNamesThePartition(t *testing.T) {
	t.Parallel()
	fetches := func(errs ...error) (f kgo.Fetches) {
		for i, err := range errs {
			f = append(f, kgo.Fetch{Topics: []kgo.FetchTopic{{Topic: "in", Partitions: []kgo.FetchPartition{{Partition: int32(i), Err: err}}}}})
		}
		return f
	}
	if err := FetchError(fetches(nil, context.DeadlineExceeded, context.Canceled)); err != nil {
		t.Errorf("nothing came: %v", err)
	}
	if err := FetchError(fetches(nil, kerr.OffsetOutOfRange, kerr.TopicAuthorizationFailed)); !errors.Is(err, ErrOutOfRange) || !strings.HasPrefix(err.Error(), "kafka: in/1: ") {
		t.Errorf("%v", err)
	}
	if err := FetchError(fetches(kerr.TopicAuthorizationFailed)); !errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, ErrOutOfRange) || !strings.HasPrefix(err.Error(), "kafka: read in/0: ") {
		t.Errorf("%v", err)
	}
}
