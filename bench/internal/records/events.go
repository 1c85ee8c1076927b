package records

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Events is the input of the benchmarks of windows: JSON records of ValueBytes, each with
// an id of its own, whose record key is a group. Apart from Base it depends only on its
// seed.
type Events struct {
	Seed uint64
	// Records is the number of records, and Groups the largest number of groups.
	Records, Groups int
	// Base is the time of the oldest possible record. The times of the records grow by
	// Span, and each is older than that by a random part of Jitter.
	Base         time.Time
	Span, Jitter time.Duration
}

// Event is what counts of a record.
type Event struct {
	Group int
	Time  time.Time
	Cents int64
}

// At returns event i.
func (e Events) At(i int) Event {
	random := rand.NewPCG(e.Seed, uint64(i))
	when := e.Jitter + time.Duration(float64(e.Span)*float64(i)/float64(e.Records)) - time.Duration(random.Uint64()%uint64(e.Jitter+1))
	return Event{
		Group: int(random.Uint64() % uint64(e.Groups)),
		Time:  e.Base.Add(when).Truncate(time.Millisecond),
		Cents: int64(random.Uint64() % 100_000),
	}
}

// Group returns the record key of a group.
func Group(n int) string { return fmt.Sprintf("customer-%07d", n) }

func (e Events) appendValue(value []byte, i int, event *Event) []byte {
	from := len(value)
	value = append(value, `{"event_id":"`...)
	value = Input{Seed: e.Seed}.appendID(value, i)
	value = append(value, `","cents":`...)
	value = strconv.AppendInt(value, event.Cents, 10)
	value = append(value, `,"type":"order.created","note":"`...)
	random := rand.NewPCG(^e.Seed, uint64(i))
	const end = `"}`
	for len(value)-from < ValueBytes-len(end) {
		value = append(value, byte('a'+random.Uint64()%26))
	}
	return append(value, end...)
}

// Closing is the start of the groups that only close the windows of others.
const Closing = "closing-"

// Fill writes the records with the numbers from and above, and below to, to a topic,
// without compression. The records of a group are in one partition, in order.
func (e Events) Fill(ctx context.Context, addrs []string, topic string, partitions, from, to int) error {
	return e.write(ctx, addrs, topic, func(produce func(key string, partition, i int, event *Event) bool) {
		for i := from; i < to; i++ {
			event := e.At(i)
			if !produce(Group(event.Group), event.Group%partitions, i, &event) {
				return
			}
		}
	})
}

// Close writes records of groups that begin with Closing to each partition. Their times
// grow up to end, in steps of 10 s: when time jumps further than the retention of its
// store, Kafka Streams 4.3 loses windows that it would emit on close.
func (e Events) Close(ctx context.Context, addrs []string, topic string, partitions int, end time.Time) error {
	return e.write(ctx, addrs, topic, func(produce func(key string, partition, i int, event *Event) bool) {
		i := e.Records
		for at := e.Base.Add(e.Jitter + e.Span); at.Before(end); {
			at = at.Add(min(10*time.Second, end.Sub(at)))
			for p := range partitions {
				produce(Closing+strconv.Itoa(i), p, i, &Event{Time: at})
				i++
			}
		}
	})
}

// write writes what a function produces. Produce reports false after an error.
func (e Events) write(ctx context.Context, addrs []string, topic string, all func(produce func(key string, partition, i int, event *Event) bool)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.MaxBufferedRecords(50_000))
	if err != nil {
		return err
	}
	defer client.Close()
	var failed atomic.Pointer[error]
	all(func(key string, partition, i int, event *Event) bool {
		client.Produce(ctx, &kgo.Record{
			Key: []byte(key), Value: e.appendValue(make([]byte, 0, ValueBytes), i, event), Timestamp: event.Time, Partition: int32(partition),
		}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
		return failed.Load() == nil
	})
	if err := client.Flush(ctx); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return fmt.Errorf("records: fill %s: %w", topic, *err)
	}
	return nil
}

// Result identifies the result of a group and window.
type Result struct {
	Group      string
	Start, End int64 // milliseconds
}

// Totals are the right results of windows.
type Totals struct{ Count, Cents int64 }

// Windows returns the right results of windows of a size that start at the multiples of
// every.
func (e Events) Windows(size, every time.Duration) map[Result]Totals {
	all := map[Result]Totals{}
	names := map[int]string{}
	for i := range e.Records {
		event := e.At(i)
		name, ok := names[event.Group]
		if !ok {
			name = Group(event.Group)
			names[event.Group] = name
		}
		when := event.Time.UnixMilli()
		for start := when - when%every.Milliseconds(); start+size.Milliseconds() > when; start -= every.Milliseconds() {
			r := Result{name, start, start + size.Milliseconds()}
			all[r] = all[r].plus(&event)
		}
	}
	return all
}

// Sessions returns the right results of sessions. Events of a group belong to one session
// if no pause between them is longer than gap. Its end is the time of its last event.
func (e Events) Sessions(gap time.Duration) map[Result]Totals {
	groups := map[int][]Event{}
	for i := range e.Records {
		event := e.At(i)
		groups[event.Group] = append(groups[event.Group], event)
	}
	all := map[Result]Totals{}
	for group, events := range groups {
		slices.SortFunc(events, func(a, b Event) int { return a.Time.Compare(b.Time) })
		name, from := Group(group), 0
		for i := range events {
			if i+1 < len(events) && events[i+1].Time.Sub(events[i].Time) <= gap {
				continue
			}
			var sum Totals
			for _, event := range events[from : i+1] {
				sum = sum.plus(&event)
			}
			all[Result{name, events[from].Time.UnixMilli(), events[i].Time.UnixMilli()}] = sum
			from = i + 1
		}
	}
	return all
}

func (t Totals) plus(e *Event) Totals { return Totals{t.Count + 1, t.Cents + e.Cents} }

// ParseResult reads a result as Semel writes it, with the one value n.
func ParseResult(body []byte) (r Result, n int64, err error) {
	var parsed struct {
		Key        string
		Start, End time.Time
		Values     struct{ N *int64 }
	}
	if err := json.Unmarshal(body, &parsed); err != nil {
		return r, 0, fmt.Errorf("records: result %q: %w", body, err)
	}
	if parsed.Values.N == nil {
		return r, 0, fmt.Errorf("records: result %q has no value n", body)
	}
	return Result{parsed.Key, parsed.Start.UnixMilli(), parsed.End.UnixMilli()}, *parsed.Values.N, nil
}
