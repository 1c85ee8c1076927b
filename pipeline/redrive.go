package pipeline

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
)

// redriven is the source of the parked messages that an operator has queued for a
// redrive.
type redriven struct {
	letters   DeadLetterStore
	pipeline  string
	actor     string // names this process in the audit log
	once      bool   // Read ends when no message is queued
	partition *Partition
	expiry    *expiry // nil if messages stay parked for ever
	ended     chan struct{}

	mu  sync.Mutex          // guards out and gone
	out map[string]struct{} // the messages that were read and are not settled
	// gone are the messages that left out since the queue was asked last. What it answered
	// may be older, and a settled message must not be read again.
	gone map[string]struct{}
}

// NewRedriven returns the source of the messages of one pipeline that are queued in a
// dead-letter store. It ends when no message is queued. It does not close the store.
func NewRedriven(letters DeadLetterStore, pipeline string) Source {
	return newRedriven(letters, pipeline, true)
}

func newRedriven(letters DeadLetterStore, pipeline string, once bool) *redriven {
	return &redriven{
		letters: letters, pipeline: pipeline, actor: process(), once: once,
		partition: NewPartition("parked"), out: map[string]struct{}{}, gone: map[string]struct{}{}, ended: make(chan struct{}),
	}
}

// process names this process for people.
func process() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// mostQueued is how many queued messages Read asks for in one call.
const mostQueued = 100

// end tells Read that the pipeline's own source has ended. Read then returns the
// messages that are queued, and io.EOF after the last one. Call it once.
func (s *redriven) end() { close(s.ended) }

// Read implements Source. In a running pipeline it waits while the dead-letter store
// does not answer.
func (s *redriven) Read(ctx context.Context) ([]*Item, error) {
	for {
		var last bool
		select {
		case <-s.ended:
			last = true
		default:
		}
		s.expiry.run(ctx, s)
		s.mu.Lock()
		clear(s.gone)
		s.mu.Unlock()
		list, err := s.letters.Queued(ctx, s.pipeline, mostQueued)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil && s.once {
			return nil, fmt.Errorf("read the queued messages: %w", err)
		}
		items, idle := s.items(list)
		switch {
		case len(items) > 0:
			return items, nil
		case s.once && idle, last && (len(list) < mostQueued || idle):
			return nil, io.EOF
		}
		if err := s.pause(ctx, last); err != nil {
			return nil, err
		}
	}
}

// pause sleeps between two looks at the queue. Before the last look, the end of the
// pipeline's own source wakes it.
func (s *redriven) pause(ctx context.Context, last bool) error {
	ended := s.ended
	if last {
		ended = nil
	}
	return retry.SleepOrWake(ctx, time.Second, ended)
}

// items returns the items of messages that are not out yet. It reports whether no message is
// out, as far as the list can tell.
func (s *redriven) items(list []*Parked) (items []*Item, idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stale := false
	for _, p := range list {
		_, out := s.out[p.ID]
		_, gone := s.gone[p.ID]
		if stale = stale || gone; out || gone {
			continue
		}
		s.out[p.ID] = struct{}{}
		it := &Item{Partition: s.partition, Ref: p, Message: p.Message, Redrive: p.Redrives + 1, Seen: p.At}
		it.Call.Key = p.Key
		headers := slices.DeleteFunc(slices.Clone(p.Message.Headers), func(h semel.Header) bool { return h.Name == RedriveHeader })
		it.Message.Headers = append(headers, semel.Header{Name: RedriveHeader, Value: strconv.AppendInt(nil, int64(it.Redrive), 10)})
		items = append(items, it)
	}
	return items, len(s.out) == 0 && !stale
}

// Ack implements Source. Settled messages leave the dead-letter store. A message that
// was parked again has replaced its entry there.
func (s *redriven) Ack(ctx context.Context, items []*Item) error {
	for _, it := range items {
		p := it.Ref.(*Parked)
		if it.Parked == "" {
			how := Settlement{How: HowRedriven, Actor: s.actor, Reason: "the key was done already"}
			if it.delivered() {
				how.Delivered, how.Reason = true, "done"
			}
			err := s.letters.Settle(ctx, p, how)
			if err != nil && !errors.Is(err, ErrNotParked) { // ErrNotParked: an operator settled it
				return err
			}
		}
		s.forget(p.ID)
	}
	return nil
}

// Return implements Source. The messages stay queued.
func (s *redriven) Return(_ context.Context, items []*Item, _ time.Duration) error {
	for _, it := range items {
		s.forget(it.Ref.(*Parked).ID)
	}
	return nil
}

func (s *redriven) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.out, id)
	s.gone[id] = struct{}{}
}

// Traits implements Source. A parked message keeps the origin that it had, with its
// identity.
func (s *redriven) Traits() SourceTraits { return SourceTraits{Positions: true} }

// Close implements Source.
func (s *redriven) Close(context.Context) error { return nil }

// parkedPlaces are the places of the messages that a pipeline has parked, as far as
// this process knows. A message that the source delivers again after it was parked
// must not be processed: its parked copy may be redriven.
type parkedPlaces struct {
	letters DeadLetterStore // nil if parked messages cannot be looked up
	repeats bool            // the source has SourceTraits.Repeats
	any     atomic.Bool     // at is not empty
	mu      sync.Mutex      // guards at
	at      map[place]struct{}
}

// place is the position of a message in its source. If the source has Repeats, it has the id of
// the parked message alone.
type place struct {
	source, identity string
	partition        int32
	offset           int64
}

func placeOf(m *semel.Message) place {
	return place{m.Origin.Source, m.Origin.Identity, m.Origin.Partition, m.Origin.Offset}
}

func (k *parkedPlaces) of(p *Parked) place {
	if k.repeats {
		return place{source: p.ID}
	}
	return placeOf(&p.Message)
}

func (k *parkedPlaces) load(ctx context.Context, letters DeadLetterStore, pipeline string, repeats bool) error {
	k.letters, k.at, k.repeats = letters, map[place]struct{}{}, repeats
	if letters == nil {
		return nil
	}
	err := letters.List(ctx, pipeline, func(p *Parked) bool {
		k.at[k.of(p)] = struct{}{}
		k.any.Store(true)
		return true
	})
	if errors.Is(err, ErrUnreadable) {
		return nil // as in has, an unreadable entry does not count as parked
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
		k.at[k.of(&list[i])] = struct{}{}
		k.any.Store(true)
	}
}

// has reports whether this very message is parked. It asks the dead-letter store,
// because another message may now stand at the place of the parked one, and because an
// operator may have settled the parked one. While the store does not answer, no
// message counts as parked. A message with a key that its sender repeats does not: it is
// processed again, because the cause may be gone.
func (k *parkedPlaces) has(pipeline string, e *entry) bool {
	if !k.any.Load() || k.repeats && e.unprocessed == "" {
		return false
	}
	id, at := "", placeOf(&e.Message)
	if k.repeats {
		id = parkedID(pipeline, e)
		at = place{source: id}
	}
	k.mu.Lock()
	_, maybe := k.at[at]
	k.mu.Unlock()
	if !maybe {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := k.letters.Get(ctx, cmp.Or(id, parkedID(pipeline, e)))
	return err == nil
}

// parkedID returns the id of a message in a dead-letter store. It is made from the
// message's place and its content. The place is not enough: after a file was rotated,
// or a topic created again, another message stands there. If senders repeat messages, the
// place says nothing, and the content is what a key can be made of.
func parkedID(pipeline string, e *entry) string {
	if p, ok := e.Ref.(*Parked); ok && e.feed.parked {
		return p.ID
	}
	h := sha256.New()
	m := e.original()
	add := func(part string) { fmt.Fprintf(h, "%d:%s", len(part), part) }
	for _, part := range []string{pipeline, e.Call.Key.Scope, e.Call.Key.ID, m.Origin.Source, m.Origin.Identity, m.ID, string(m.RecordKey), string(m.Body)} {
		add(part)
	}
	switch {
	case !e.feed.traits.Repeats:
		fmt.Fprintf(h, "%d/%d", m.Origin.Partition, m.Origin.Offset)
	case e.Call.Key.ID == "":
		for i := range m.Headers {
			if of := e.feed.traits.OfAttempt; of != nil && of(strings.ToLower(m.Headers[i].Name)) {
				continue
			}
			add(m.Headers[i].Name)
			add(string(m.Headers[i].Value))
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}
