package brokertest

import (
	"context"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// queue is a place in memory, as a queue has it: what is not acknowledged comes
// again when a source is opened.
type memoryQueue struct {
	mu         sync.Mutex
	list       []Numbered
	gone       map[place]bool
	made       int  // how often the place was made again
	ended      bool // nothing more is produced
	partitions int
	more       chan struct{} // closed when something was produced
}

func newMemoryQueue(partitions int) *memoryQueue {
	return &memoryQueue{gone: map[place]bool{}, partitions: partitions, more: make(chan struct{})}
}

func (s *memoryQueue) produce(_ context.Context, list []Numbered) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, list...)
	close(s.more)
	s.more = make(chan struct{})
	return nil
}

// again makes an empty queue of the same name.
func (s *memoryQueue) again(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.gone = nil, map[place]bool{}
	s.made++
	return nil
}

func (s *memoryQueue) open() *queueSource {
	source := &queueSource{queue: s}
	for range s.partitions {
		source.partitions = append(source.partitions, pipeline.NewPartition("queue"))
	}
	return source
}

// queueSource reads from a queue.
type queueSource struct {
	queue      *memoryQueue
	partitions []*pipeline.Partition
	next       int
	back       []*pipeline.Item // guarded by queue.mu
}

// Traits implements pipeline.Source.
func (s *queueSource) Traits() pipeline.SourceTraits {
	return pipeline.SourceTraits{Positions: true, CanReturn: true}
}

// Read implements pipeline.Source.
func (s *queueSource) Read(ctx context.Context) ([]*pipeline.Item, error) {
	for {
		s.queue.mu.Lock()
		items, more, ended := s.take(20), s.queue.more, s.queue.ended
		s.queue.mu.Unlock()
		switch {
		case len(items) > 0:
			return items, nil
		case ended:
			return nil, io.EOF
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (s *queueSource) take(most int) []*pipeline.Item {
	items := s.back
	s.back = nil
	for ; s.next < len(s.queue.list) && len(items) < most; s.next++ {
		m := s.queue.list[s.next]
		if s.queue.gone[place{m.Partition, m.Place}] {
			continue
		}
		it := &pipeline.Item{Partition: s.partitions[m.Partition], Ref: m}
		it.Message.Body = m.Body
		it.Message.Origin = semel.Origin{Source: "queue", Identity: strconv.Itoa(s.queue.made), Partition: int32(m.Partition), Offset: int64(m.Place)}
		items = append(items, it)
	}
	return items
}

// Ack implements pipeline.Source.
func (s *queueSource) Ack(_ context.Context, items []*pipeline.Item) error {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	for _, it := range items {
		m := it.Ref.(Numbered)
		s.queue.gone[place{m.Partition, m.Place}] = true
	}
	return nil
}

// Return implements pipeline.Source. It does not wait for the delay.
func (s *queueSource) Return(_ context.Context, items []*pipeline.Item, _ time.Duration) error {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	for _, it := range items {
		s.back = append(s.back, &pipeline.Item{Partition: it.Partition, Ref: it.Ref, Message: it.Message, Returned: true})
	}
	close(s.queue.more)
	s.queue.more = make(chan struct{})
	return nil
}

// Close implements pipeline.Source.
func (s *queueSource) Close(context.Context) error { return nil }
