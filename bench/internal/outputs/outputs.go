// Package outputs reads the committed records that a program writes to a Kafka topic.
//
// A Counter counts them while the program is measured. It looks at the headers of batches
// only, because its processor time would be taken from the program. A Reader decodes them.
package outputs

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/bench/internal/records"
)

// poll is the pause between two looks at what a Reader has read.
const poll = 40 * time.Millisecond

// Output is what a topic has.
type Output struct {
	// Bodies are the values of the committed records.
	Bodies [][]byte
	// Longest is the longest time from the first record of a transaction in a partition to
	// its end there. It needs a topic whose broker sets the times.
	Longest time.Duration
}

// Read reads the committed records of a topic to its end. Without closing, it leaves out
// the results of groups that only close windows.
func Read(ctx context.Context, addrs []string, topic string, closing bool) (*Output, error) {
	r, err := NewReader(ctx, addrs, topic, closing)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return r.Finish(ctx)
}

// Reader reads the committed records of a topic while a program writes them.
type Reader struct {
	topic   string
	closing bool
	// until are offsets of partitions; counted is the number of bodies below them.
	until   map[int32]int64
	counted int64
	client  *kgo.Client
	cancel  context.CancelFunc
	ended   chan struct{}

	mu     sync.Mutex // guards the rest, and counted
	out    Output
	next   map[int32]int64 // offset after the last record or marker
	err    error
	opened map[int32]time.Time // the time of the first record of the open transaction
}

// NewReader starts to read a topic. Without closing, it leaves out the results of groups
// that only close windows.
func NewReader(ctx context.Context, addrs []string, topic string, closing bool) (*Reader, error) {
	return newReader(ctx, addrs, topic, closing, nil)
}

func newReader(ctx context.Context, addrs []string, topic string, closing bool, until map[int32]int64) (*Reader, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addrs...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords()) // the last record of a partition may be one
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &Reader{
		topic: topic, closing: closing, until: until, client: client, cancel: cancel, ended: make(chan struct{}),
		next: map[int32]int64{}, opened: map[int32]time.Time{},
	}
	go r.run(ctx)
	return r, nil
}

func (r *Reader) run(ctx context.Context) {
	defer close(r.ended)
	for ctx.Err() == nil {
		fetches := r.client.PollFetches(ctx)
		r.mu.Lock()
		if err := fetches.Err(); err != nil && ctx.Err() == nil {
			r.err = err
		}
		for record := range fetches.RecordsAll() {
			if !record.Attrs.IsControl() && (r.closing || !bytes.HasPrefix(record.Key, []byte(records.Closing))) {
				r.out.Bodies = append(r.out.Bodies, record.Value)
				if record.Offset < r.until[record.Partition] {
					r.counted++
				}
			}
			r.next[record.Partition] = record.Offset + 1
			switch from, open := r.opened[record.Partition]; {
			case open && record.Attrs.IsControl():
				r.out.Longest = max(r.out.Longest, record.Timestamp.Sub(from))
				delete(r.opened, record.Partition)
			case !open && !record.Attrs.IsControl():
				r.opened[record.Partition] = record.Timestamp
			}
		}
		r.mu.Unlock()
	}
}

// Bodies returns what has been read until now.
func (r *Reader) Bodies() ([][]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Bodies, r.err
}

// Finish reads to the end that the topic has now.
func (r *Reader) Finish(ctx context.Context) (*Output, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	ends, err := kadm.NewClient(r.client).ListCommittedOffsets(ctx, r.topic)
	if err != nil {
		return nil, err
	}
	for {
		r.mu.Lock()
		all, out, err := true, r.out, r.err
		ends.Each(func(o kadm.ListedOffset) { all = all && r.next[o.Partition] >= o.Offset })
		r.mu.Unlock()
		if all || err != nil {
			return &out, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("outputs: read %s to its end: %w", r.topic, ctx.Err())
		}
	}
}

// Close ends the reader.
func (r *Reader) Close() {
	r.cancel()
	<-r.ended
	r.client.Close()
}

// Finish stops counting, and reads the topic from its beginning to its end. It returns an
// error if the counter has counted anything else than the records that are there.
func (c *Counter) Finish(ctx context.Context) (*Output, error) {
	c.stop()
	if _, err := c.Count(); err != nil {
		return nil, err
	}
	r, err := newReader(ctx, c.addrs, c.topic, false, maps.Clone(c.next))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	out, err := r.Finish(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counted != c.count.Load() {
		return nil, fmt.Errorf("outputs: %d results of %s were counted, but it has %d up to there", c.count.Load(), c.topic, r.counted)
	}
	return out, nil
}
