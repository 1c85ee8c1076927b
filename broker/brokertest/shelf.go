package brokertest

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// shelf is a place in memory, as a queue has it: what is not acknowledged comes
// again when a source is opened.
type shelf struct {
	mu    sync.Mutex
	list  []Numbered
	gone  map[place]bool
	ended bool // nothing more is produced
	lanes int
	more  chan struct{} // closed when something was produced
}

func newShelf(lanes int) *shelf {
	return &shelf{gone: map[place]bool{}, lanes: lanes, more: make(chan struct{})}
}

func (s *shelf) produce(_ context.Context, list []Numbered) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, list...)
	close(s.more)
	s.more = make(chan struct{})
	return nil
}

func (s *shelf) open() *shelfSource {
	source := &shelfSource{shelf: s}
	for range s.lanes {
		source.lanes = append(source.lanes, pipeline.NewLane("shelf"))
	}
	return source
}

// shelfSource reads from a shelf.
type shelfSource struct {
	shelf *shelf
	lanes []*pipeline.Lane
	next  int
	back  []*pipeline.Item // guarded by shelf.mu
}

// Traits implements pipeline.Source.
func (s *shelfSource) Traits() pipeline.SourceTraits { return pipeline.SourceTraits{CanReturn: true} }

// Read implements pipeline.Source.
func (s *shelfSource) Read(ctx context.Context) ([]*pipeline.Item, error) {
	for {
		s.shelf.mu.Lock()
		items, more, ended := s.take(20), s.shelf.more, s.shelf.ended
		s.shelf.mu.Unlock()
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

func (s *shelfSource) take(most int) []*pipeline.Item {
	items := s.back
	s.back = nil
	for ; s.next < len(s.shelf.list) && len(items) < most; s.next++ {
		m := s.shelf.list[s.next]
		if s.shelf.gone[place{m.Lane, m.Place}] {
			continue
		}
		it := &pipeline.Item{Lane: s.lanes[m.Lane], Ref: m}
		it.Message.Body = m.Body
		it.Message.Origin = semel.Origin{Source: "shelf", Partition: int32(m.Lane), Offset: int64(m.Place)}
		items = append(items, it)
	}
	return items
}

// Ack implements pipeline.Source.
func (s *shelfSource) Ack(_ context.Context, items []*pipeline.Item) error {
	s.shelf.mu.Lock()
	defer s.shelf.mu.Unlock()
	for _, it := range items {
		m := it.Ref.(Numbered)
		s.shelf.gone[place{m.Lane, m.Place}] = true
	}
	return nil
}

// Return implements pipeline.Source. It does not wait for the delay.
func (s *shelfSource) Return(_ context.Context, items []*pipeline.Item, _ time.Duration) error {
	s.shelf.mu.Lock()
	defer s.shelf.mu.Unlock()
	for _, it := range items {
		s.back = append(s.back, &pipeline.Item{Lane: it.Lane, Ref: it.Ref, Message: it.Message})
	}
	close(s.shelf.more)
	s.shelf.more = make(chan struct{})
	return nil
}

// Close implements pipeline.Source.
func (s *shelfSource) Close(context.Context) error { return nil }
