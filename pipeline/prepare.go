package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

// preparer finds the keys and groups of one source's messages. One goroutine uses it.
type preparer struct {
	r       *Runner
	feed    *feed
	reader  *key.Reader
	id      []byte          // reused for each id
	ids     strings.Builder // the ids and origins of items share its memory
	process string          // host and process id, for origins
	entries []*entry        // reused for each result of prepare
}

func (r *Runner) preparer(f *feed) *preparer {
	return &preparer{r: r, feed: f, reader: r.opts.Key.Reader(&key.FinderOptions{Content: r.opts.Fingerprint}), process: process()}
}

// prepare returns entries for the scheduler. The slice is valid until the next call.
func (p *preparer) prepare(items []*Item) []*entry {
	p.entries = p.r.sched.entries(p.entries[:0], items, p.feed, time.Now())
	var bytes int64
	for _, e := range p.entries {
		bytes += int64(len(e.Message.Body))
		if !p.open(e) {
			// it has no key, and is not processed
		} else if e.Redrive == 0 || e.Call.Key.ID == "" {
			p.find(e)
		}
		e.Call.Window = p.r.opts.Window
		if p.r.opts.KeepOrigin {
			e.Call.Origin = p.origin(e.Item)
		}
		if p.r.opts.EventTime && e.Redrive == 0 {
			e.Call.Time = e.Message.Time
		}
		e.Group = p.group(e.Item)
		if e.Redrive == 0 && p.r.known.has(p.r.opts.Name, e) {
			e.unprocessed = ReasonParkedBefore
		}
	}
	if p.r.pipelined != nil {
		p.r.pipelined.Prepare(items)
	}
	p.r.observe(Event{Kind: EventRead, Count: len(items), Bytes: bytes})
	return p.entries
}

// origin returns where a message comes from, and which process claims its key.
func (p *preparer) origin(it *Item) string {
	text := it.AppendPlace(p.id[:0])
	text = append(append(text, " by "...), p.process...)
	p.id = text[:0]
	return p.text(text[max(0, len(text)-semel.MaxOriginBytes):])
}

// open unwraps the message of an item, and reports whether the item can be read.
func (p *preparer) open(e *entry) bool {
	if e.Err == nil {
		e.Err = p.r.unwrap(e.Item)
	}
	if e.Err != nil {
		e.unprocessed = ReasonUnreadable
		return false
	}
	return true
}

// unwrap makes Message of an item the message inside it.
func (r *Runner) unwrap(it *Item) error {
	if r.opts.Unwrap == nil {
		return nil
	}
	inner, err := r.opts.Unwrap.Unwrap(it.Message)
	if err != nil {
		return err
	}
	read := it.Message
	it.wrapped, it.Message = &read, inner
	return nil
}

// find sets the key of an item, or the reason why it has no key.
func (p *preparer) find(e *entry) {
	id, err := p.reader.AppendID(p.id[:0], &e.Message)
	if errors.Is(err, key.ErrMissing) || errors.Is(err, key.ErrSyntax) || errors.Is(err, key.ErrNotScalar) {
		switch p.r.opts.OnMissing {
		case MissingPass:
			if at, none := key.AppendPosition(p.id[:0], &e.Message); none == nil {
				id, err = at, nil // otherwise err says what the message lacks
			}
		case MissingHash:
			if id, err = key.AppendContent(p.id[:0], e.Message.Body); err != nil {
				id, err = key.AppendBytes(p.id[:0], e.Message.Body), nil
			}
		}
	}
	p.id = id[:0]
	if err != nil {
		e.Err, e.unprocessed = err, ReasonKeyMissing
		if !errors.Is(err, key.ErrMissing) {
			e.unprocessed = ReasonKeyInvalid
		}
		return
	}
	e.Call.Key = semel.Key{Scope: p.r.opts.Scope, ID: p.text(id)}
	if err := e.Call.Key.Validate(); err != nil {
		e.Err, e.unprocessed = fmt.Errorf("key: %w", err), ReasonKeyInvalid
		return
	}
	if p.r.opts.Fingerprint {
		print := p.reader.Print()
		binary.LittleEndian.PutUint64(e.Call.Fingerprint[:8], print)
		binary.LittleEndian.PutUint64(e.Call.Fingerprint[8:], mix(print))
	}
}

// idsSize is the size of the memory that ids share. It is small, because a single id in use keeps
// all of it.
const idsSize = 1 << 10

// text returns an id as a string. Several ids share their memory, to save allocations.
func (p *preparer) text(id []byte) string {
	if len(id) > idsSize/8 {
		return string(id)
	}
	if p.ids.Len()+len(id) > p.ids.Cap() {
		p.ids.Reset()
		p.ids.Grow(idsSize)
	}
	at := p.ids.Len()
	p.ids.Write(id)
	return p.ids.String()[at:]
}

// mix is the finalizer of SplitMix64: a bijection that spreads every bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// group returns a number that is equal for messages that must be delivered in order.
func (p *preparer) group(it *Item) uint64 {
	partition := it.Partition.number(p.r)
	group := partition
	switch {
	case p.r.opts.Order == OrderPartition && !p.feed.parked:
	case it.Message.RecordKey != nil:
		group = mix(partition) ^ maphash.Bytes(p.r.seed, it.Message.RecordKey)
	case it.Call.Key.ID != "":
		group = mix(partition) ^ maphash.String(p.r.seed, it.Call.Key.ID)
	default:
		group = mix(partition) ^ mix(p.r.partitions.Add(1)) // without a key there is no order
	}
	return group | 1
}
