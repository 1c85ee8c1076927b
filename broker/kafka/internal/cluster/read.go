package cluster

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// EndQuiet is how long partitions that have not reached their ends may be silent until
// their leaders are asked whether there is more. If their last offsets belong to aborted
// transactions, while another one has been open since, no record shows that the end is
// reached.
const EndQuiet = 30 * time.Second

// ErrOutOfRange says that a topic lacks the records at an offset.
var ErrOutOfRange = errors.New("no offset to begin at")

// FetchError returns the error of a fetch that ends the client, or nil.
func FetchError(fetches kgo.Fetches) error {
	var found error
	fetches.EachError(func(topic string, number int32, err error) {
		switch {
		case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), found != nil:
		case errors.Is(err, kerr.OffsetOutOfRange):
			found = fmt.Errorf("kafka: %s/%d: %w: %w", topic, number, ErrOutOfRange, err)
		default:
			found = fmt.Errorf("kafka: read %s/%d: %w", topic, number, err)
		}
	})
	return found
}

// Extent says which offsets of partitions must be read.
type Extent map[Partition]span

// span has the next offset that must be read, and the offset after the last one.
type span struct{ at, end int64 }

// CommittedOffsets returns where the committed records of topics start and end. It
// retries while brokers may not know new topics.
func CommittedOffsets(ctx context.Context, adm *kadm.Client, topics ...string) (first, last kadm.ListedOffsets, err error) {
	began := time.Now()
	for tries := 1; ; tries++ {
		first, err = adm.ListStartOffsets(ctx, topics...)
		var err2 error
		last, err2 = adm.ListCommittedOffsets(ctx, topics...)
		if err = errors.Join(err, err2, first.Error(), last.Error()); err == nil || !AsksAgain(ctx, began, tries, err) {
			return first, last, err
		}
	}
}

func ReadOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()), kgo.KeepControlRecords(),
		kgo.FetchMaxBytes(16 << 20), kgo.FetchMaxPartitionBytes(4 << 20),
	}
}

// Add adds a partition that is read from an offset to its end.
func (e Extent) Add(from map[string]map[int32]kgo.Offset, end kadm.ListedOffset, at int64) {
	if from[end.Topic] == nil {
		from[end.Topic] = map[int32]kgo.Offset{}
	}
	from[end.Topic][end.Partition] = kgo.NewOffset().At(at)
	e[Partition{end.Topic, end.Partition}] = span{at, end.Offset}
}

// Read passes records to fn until all ends are reached, or fn returns false or an
// error.
func (e Extent) Read(ctx context.Context, client *kgo.Client, fn func(*kgo.Record) (bool, error)) error {
	for len(e) > 0 {
		patient, cancel := context.WithTimeout(ctx, EndQuiet)
		fetches := client.PollFetches(patient)
		quiet := patient.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if quiet && fetches.NumRecords() == 0 {
			if err := e.ended(ctx, client); err != nil {
				return fmt.Errorf("nothing came for %v: %w", EndQuiet, err)
			}
			continue
		}
		for _, failed := range fetches.Errors() {
			if !errors.Is(failed.Err, context.DeadlineExceeded) && !errors.Is(failed.Err, context.Canceled) {
				return fmt.Errorf("kafka: read %s/%d: %w", failed.Topic, failed.Partition, failed.Err)
			}
		}
		for records := fetches.RecordIter(); !records.Done(); {
			r := records.Next()
			id := Partition{r.Topic, r.Partition}
			left, ok := e[id]
			switch {
			case !ok: // it was written after the call
				continue
			case r.Offset >= left.end-1:
				delete(e, id)
				client.PauseFetchPartitions(map[string][]int32{r.Topic: {r.Partition}}) // its records say nothing about the other partitions
			}
			if r.Attrs.IsControl() || r.Offset >= left.end {
				continue
			}
			if more, err := fn(r); err != nil || !more {
				return err
			}
		}
		fetches.EachPartition(func(f kgo.FetchTopicPartition) {
			id := Partition{f.Topic, f.Partition}
			if left, ok := e[id]; ok && len(f.Records) > 0 {
				e[id] = span{f.Records[len(f.Records)-1].Offset + 1, left.end}
			}
		})
	}
	return nil
}

// ended removes partitions of which nothing is left to read.
func (e Extent) ended(ctx context.Context, client *kgo.Client) error {
	for id, left := range e {
		ended, err := Ended(ctx, client, id, left.at, left.end)
		if err != nil {
			return err
		}
		if ended {
			delete(e, id)
		}
	}
	return nil
}

// ReadFrom passes the committed records between offsets and ends to fn.
func (e Extent) ReadFrom(ctx context.Context, opts []kgo.Opt, from map[string]map[int32]kgo.Offset, fn func(*kgo.Record)) error {
	c, err := kgo.NewClient(append(opts[:len(opts):len(opts)], ReadOptions()...)...)
	if err != nil {
		return fmt.Errorf("kafka: %w: %w", semel.ErrInvalidRequest, err)
	}
	defer c.Close()
	c.AddConsumePartitions(from)
	return e.Read(ctx, c, func(r *kgo.Record) (bool, error) {
		fn(r)
		return true, nil
	})
}

// Each calls fn for all items of a list, for as many together as there are processors. It
// returns all errors.
func Each[T any](list []T, fn func(T) error) error {
	errs := make([]error, len(list))
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	var calls sync.WaitGroup
	for i, item := range list {
		places <- struct{}{}
		calls.Go(func() {
			defer func() { <-places }()
			errs[i] = fn(item)
		})
	}
	calls.Wait()
	return errors.Join(errs...)
}
