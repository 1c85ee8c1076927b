package pipeline

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
)

// RedrivenOptions are the options of NewRedriven. The zero value is valid.
type RedrivenOptions struct {
	// Once: the source ends when no message is queued any more. By default it waits
	// for more.
	Once bool
	// Every is how often the dead-letter store is looked at. Defaults to 1 s.
	Every time.Duration
	// Actor is who is named in the audit log. Defaults to host and process id.
	Actor string
}

// Redriven is the source of parked messages that are to be redriven.
type Redriven struct {
	letters   DeadLetterStore
	pipeline  string
	opts      RedrivenOptions
	partition *Partition

	mu  sync.Mutex
	out map[string]struct{} // what was read and is not settled
}

// NewRedriven returns the source of what is queued in a dead-letter store for one pipeline. It
// does not close the dead-letter store. Nil options are valid.
func NewRedriven(letters DeadLetterStore, pipeline string, opts *RedrivenOptions) *Redriven {
	s := &Redriven{letters: letters, pipeline: pipeline, partition: NewPartition("parked"), out: map[string]struct{}{}}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.Actor == "" {
		s.opts.Actor = thisProcess()
	}
	if s.opts.Every <= 0 {
		s.opts.Every = time.Second
	}
	return s
}

// Read implements Source. While the dead-letter store does not answer it waits.
func (s *Redriven) Read(ctx context.Context) ([]*Item, error) {
	for {
		list, err := s.letters.Queued(ctx, s.pipeline, 100)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil {
			items := s.items(list)
			if len(items) > 0 {
				return items, nil
			}
			if s.opts.Once && s.idle() {
				return nil, io.EOF
			}
		} else if s.opts.Once {
			return nil, fmt.Errorf("read what is parked: %w", err)
		}
		if err := sleep(ctx, s.opts.Every); err != nil {
			return nil, err
		}
	}
}

func (s *Redriven) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.out) == 0
}

func (s *Redriven) items(list []*Parked) []*Item {
	s.mu.Lock()
	defer s.mu.Unlock()
	var items []*Item
	for _, p := range list {
		if _, out := s.out[p.ID]; out {
			continue
		}
		s.out[p.ID] = struct{}{}
		it := &Item{Partition: s.partition, Ref: p, Message: p.Message, Redrive: p.Redrives + 1}
		it.Call.Key = p.Key
		it.Message.Headers = redriveHeaders(p.Message.Headers, it.Redrive)
		items = append(items, it)
	}
	return items
}

// redriveHeaders returns headers that say how often a message came back.
func redriveHeaders(headers []semel.Header, times int) []semel.Header {
	list := make([]semel.Header, 0, len(headers)+1)
	for _, h := range headers {
		if h.Name != RedriveHeader {
			list = append(list, h)
		}
	}
	return append(list, semel.Header{Name: RedriveHeader, Value: strconv.AppendInt(nil, int64(times), 10)})
}

// Ack implements Source: what was settled leaves the dead-letter store. A message that is parked
// again is in it as a new entry.
func (s *Redriven) Ack(ctx context.Context, items []*Item) error {
	for _, it := range items {
		p := it.Ref.(*Parked)
		if it.Parked == "" {
			how := Settlement{How: HowRedriven, Actor: s.opts.Actor, Reason: "the key was done already"}
			if it.delivered() {
				how.Delivered, how.Reason = true, "done"
			}
			err := s.letters.Settle(ctx, p, how)
			if err != nil && !errors.Is(err, ErrNotParked) { // an operator took it out
				return err
			}
		}
		s.forget(p.ID)
	}
	return nil
}

// Return implements Source: they stay queued.
func (s *Redriven) Return(_ context.Context, items []*Item, _ time.Duration) error {
	for _, it := range items {
		s.forget(it.Ref.(*Parked).ID)
	}
	return nil
}

func (s *Redriven) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.out, id)
}

// Traits implements Source.
func (s *Redriven) Traits() SourceTraits { return SourceTraits{} }

// Close implements Source.
func (s *Redriven) Close(context.Context) error { return nil }

// parkedPlaces are where messages stood that a pipeline has parked, as far as
// this process knows: one that comes again after it was parked must not be
// processed beside it.
type parkedPlaces struct {
	letters DeadLetterStore
	any     atomic.Bool // at is not empty
	mu      sync.Mutex  // guards at
	at      map[place]struct{}
}

// place is where a message stands in its source.
type place struct {
	source    string
	partition int32
	offset    int64
}

func placeOf(m *semel.Message) place {
	return place{m.Origin.Source, m.Origin.Partition, m.Origin.Offset}
}

func (k *parkedPlaces) load(ctx context.Context, letters DeadLetterStore, pipeline string) error {
	k.letters, k.at = letters, map[place]struct{}{}
	if letters == nil {
		return nil
	}
	err := letters.List(ctx, pipeline, func(p *Parked) bool {
		k.at[placeOf(&p.Message)] = struct{}{}
		k.any.Store(true)
		return true
	})
	if errors.Is(err, ErrUnreadable) {
		return nil // as with has: what cannot be read does not count as parked
	}
	return err
}

func (k *parkedPlaces) add(list []Parked) {
	if k.letters == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range list {
		k.at[placeOf(&list[i].Message)] = struct{}{}
		k.any.Store(true)
	}
}

// has reports whether this very message is parked. Another one may stand at the
// place of one that was, and an operator may have taken it out, so the dead-letter store is asked;
// while it does not answer, nothing counts as parked.
func (k *parkedPlaces) has(pipeline string, e *entry) bool {
	if !k.any.Load() {
		return false
	}
	k.mu.Lock()
	_, maybe := k.at[placeOf(&e.Message)]
	k.mu.Unlock()
	if !maybe {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := k.letters.Get(ctx, parkedID(pipeline, e))
	return err == nil
}

// parkedID names a delivery within a dead-letter store: by its place, and by what it says,
// because another message may stand at that place later, in a file that was
// rotated or a topic that was created again.
func parkedID(pipeline string, e *entry) string {
	if p, ok := e.Ref.(*Parked); ok && e.feed.parked {
		return p.ID
	}
	o := e.Message.Origin
	h := sha256.New()
	m := &e.Message
	for _, part := range []string{pipeline, e.Call.Key.Scope, e.Call.Key.ID, o.Source, m.ID, string(m.RecordKey), string(m.Body)} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	fmt.Fprintf(h, "%d/%d", o.Partition, o.Offset)
	return hex.EncodeToString(h.Sum(nil)[:12])
}
