package kafka

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/test/kafkatest"
)

// readAll returns the keys that ReadAll finds in topics.
func (b *bubble) readAll(topics ...string) []string {
	b.Helper()
	var keys []string
	kafkatest.Must(b.T, ReadAll(b.Context(), b.Reach(), topics, func(r *kgo.Record) bool {
		keys = append(keys, string(r.Key))
		return true
	}))
	slices.Sort(keys)
	return keys
}

func TestReadAllReadsANewTopic(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 20, 3)...)
		b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "in", Err: kerr.UnknownTopicOrPartition, Count: 6})
		if got := len(b.readAll("in")); got != 20 {
			b.Errorf("%d records were read, want 20", got)
		}
	})
}

// TestReadAllReadsEverythingFromASlowBroker holds back each request for records.
func TestReadAllReadsEverythingFromASlowBroker(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 20, 3)...)
		slow := b.NewLine()
		slow.On(func(kind kmsg.Key) bool {
			if kind == kmsg.Fetch {
				time.Sleep(8 * time.Second) // in a bubble
			}
			return false
		}, nil)
		b.Dial = slow.Dial
		if got := len(b.readAll("in")); got != 20 {
			b.Errorf("%d records were read, want 20", got)
		}
	})
}

// TestReadAllEndsAfterAbortedRecordsAtTheEnd ends a partition with a transaction that
// was aborted while an earlier one has been open.
func TestReadAllEndsAfterAbortedRecordsAtTheEnd(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		producer := func(id string) *kgo.Client {
			client, err := kgo.NewClient(append(b.Reach(), kgo.TransactionalID(id))...)
			kafkatest.Must(b.T, err)
			kafkatest.Must(b.T, client.BeginTransaction())
			return client
		}
		send := func(client *kgo.Client, key string) {
			kafkatest.Must(b.T, client.ProduceSync(b.Context(), kafkatest.Record(0, key, "")).FirstErr())
		}
		b.Write(kafkatest.Record(0, "committed", ""))
		aborted, open := producer("aborted"), producer("open")
		defer aborted.Close()
		defer open.Close()
		send(aborted, "aborted")
		send(open, "open")
		kafkatest.Must(b.T, aborted.EndTransaction(b.Context(), kgo.TryAbort))
		b.Write(kafkatest.Record(0, "behind", ""))
		// Another topic is written to all the while.
		ctx, cancel := context.WithCancel(b.Context())
		busy := make(chan struct{})
		b.Write(&kgo.Record{Topic: "out", Key: []byte("first")})
		go func() {
			defer close(busy)
			for retry.Sleep(ctx, time.Second) == nil {
				b.Client.ProduceSync(ctx, &kgo.Record{Topic: "out", Key: []byte("more")})
			}
		}()
		began := time.Now()
		if got := b.readAll("in", "out"); !slices.Equal(got, []string{"committed", "first"}) {
			b.Errorf("read %v, want what is committed", got)
		}
		if took := time.Since(began); took > 2*cluster.EndQuiet {
			b.Errorf("it took %v", took)
		}
		cancel()
		<-busy
		kafkatest.Must(b.T, open.EndTransaction(b.Context(), kgo.TryCommit))
		if got := b.readAll("in"); !slices.Equal(got, []string{"behind", "committed", "open"}) {
			b.Errorf("read %v, want all but what was aborted", got)
		}
	})
}

// Fetches that return nothing do not show that the end is reached.
func TestReadingContinuesWhileFetchesAreEmpty(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.Write(kafkatest.Record(0, "a", ""), kafkatest.Record(0, "b", ""))
		began := time.Now()
		b.Cluster.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			req := r.(*kmsg.FetchRequest)
			wait := time.Duration(req.MaxWaitMillis) * time.Millisecond
			if wait == 0 || time.Since(began) > 5*cluster.EndQuiet {
				return nil, nil, false
			}
			b.Sleep(wait)
			return req.ResponseKind(), nil, true
		})
		if got := b.readAll("in"); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("read %v, want all that is there", got)
		}
	})
}

// TestReadingEndsAtTheGivenOffset stops in the middle, and at what came later.
func TestReadingEndsAtTheGivenOffset(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 10, 1)...)
		var read []string
		kafkatest.Must(b.T, ReadAll(b.Context(), b.Reach(), []string{"in"}, func(r *kgo.Record) bool {
			if len(read) == 0 {
				b.Write(kafkatest.Record(0, "later", ""))
			}
			read = append(read, string(r.Key))
			return string(r.Key) != "4"
		}))
		if want := []string{"0", "1", "2", "3", "4"}; !slices.Equal(read, want) {
			b.Errorf("read %v, want %v", read, want)
		}
		read = nil
		kafkatest.Must(b.T, ReadAll(b.Context(), b.Reach(), []string{"in", "out"}, func(r *kgo.Record) bool {
			b.Write(kafkatest.Record(0, "later "+strconv.Itoa(len(read)), ""))
			read = append(read, string(r.Key))
			return true
		}))
		if len(read) != 11 {
			b.Errorf("read %v, want the 11 that were there", read)
		}
	})
}

func TestReadingSaysThatAPartitionDoesNotAnswer(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.Write(kafkatest.Record(0, "a", ""), kafkatest.Record(0, "b", ""))
		gone := b.NewLine()
		gone.On(func(kind kmsg.Key) bool { return kind == kmsg.Fetch }, nil) // which cuts it permanently
		b.Dial = gone.Dial
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
		defer cancel()
		if err := ReadAll(ctx, b.Reach(), []string{"in"}, func(*kgo.Record) bool { return true }); err == nil {
			b.Error("it says that it read all")
		}
	})
}
