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

// preparer finds the keys and groups of one source's messages. It is for one
// goroutine.
type preparer struct {
	r      *Runner
	feed   *feed
	reader *key.Reader
	id     []byte
	ids    strings.Builder // of items
	seed   maphash.Seed
	ahead  Ahead // nil if the session is none
}

func newPreparer(r *Runner, f *feed) *preparer {
	return &preparer{
		r: r, feed: f,
		reader: r.opts.Key.Reader(&key.FinderOptions{Content: r.opts.Fingerprint}),
		seed:   r.seed,
		ahead:  r.ahead,
	}
}

// prepare readies items for the scheduler.
func (p *preparer) prepare(items []*Item) []*Item {
	now := time.Now()
	var bytes int64
	for _, it := range items {
		it.source, it.read = p.feed, now
		bytes += int64(len(it.Message.Body))
		if it.Redrive == 0 || it.Call.Key.ID == "" {
			p.find(it)
		}
		it.Call.Window = p.r.opts.Window
		if p.r.opts.EventTime && it.Redrive == 0 {
			it.Call.Time = it.Message.Time
		}
		it.group = p.group(it)
		if it.Redrive == 0 && p.r.known.has(p.r.opts.Name, it) {
			it.reason = alreadyParked
		}
	}
	if p.ahead != nil {
		p.ahead.Prepare(items)
	}
	p.r.observe(Event{Kind: EventRead, Count: len(items), Bytes: bytes})
	return items
}

// find sets the key of an item, or says why it has none.
func (p *preparer) find(it *Item) {
	id, err := p.reader.AppendID(p.id[:0], &it.Message)
	if errors.Is(err, key.ErrMissing) || errors.Is(err, key.ErrSyntax) || errors.Is(err, key.ErrNotScalar) {
		switch p.r.opts.OnMissing {
		case MissingPass:
			id, err = appendOrigin(p.id[:0], &it.Message), nil
		case MissingHash:
			if id, err = key.AppendContent(p.id[:0], it.Message.Body); err != nil {
				id, err = key.AppendBytes(p.id[:0], it.Message.Body), nil
			}
		}
	}
	p.id = id[:0]
	if err != nil {
		it.Err, it.reason = err, "key-missing"
		if !errors.Is(err, key.ErrMissing) {
			it.reason = "key-invalid"
		}
		return
	}
	it.Call.Key = semel.Key{Scope: p.r.opts.Scope, ID: p.text(id)}
	if err := it.Call.Key.Validate(); err != nil {
		it.Err, it.reason = fmt.Errorf("key: %w", err), "key-invalid"
		return
	}
	if p.r.opts.Fingerprint {
		print := p.reader.Print()
		binary.LittleEndian.PutUint64(it.Call.Fingerprint[:8], print)
		binary.LittleEndian.PutUint64(it.Call.Fingerprint[8:], mix(print))
	}
}

// idRoom is how much memory ids share. It is little, because who keeps one of them
// keeps all.
const idRoom = 1 << 10

// text returns an id as a string. It shares its memory with those of other items, so
// that many cost one allocation.
func (p *preparer) text(id []byte) string {
	if len(id) > idRoom/8 {
		return string(id)
	}
	if p.ids.Len()+len(id) > p.ids.Cap() {
		p.ids.Reset()
		p.ids.Grow(idRoom)
	}
	at := p.ids.Len()
	p.ids.Write(id)
	return p.ids.String()[at:]
}

// appendOrigin appends an id that a redelivery of the same message has too.
func appendOrigin(dst []byte, m *semel.Message) []byte {
	o := m.Origin
	return key.AppendComposite(dst, "origin", key.Composite(fmt.Sprintf("%s/%d/%d", o.Source, o.Partition, o.Offset), "id:"+m.ID))
}

// mix is the finalizer of SplitMix64: a bijection that spreads every bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// group tells which messages must be delivered in order.
func (p *preparer) group(it *Item) uint64 {
	lane := it.Lane.number(p.r)
	group := lane
	switch {
	case p.r.opts.Order == OrderLane && !p.feed.parked:
	case it.Message.RecordKey != nil:
		group = mix(lane) ^ maphash.Bytes(p.seed, it.Message.RecordKey)
	case it.Call.Key.ID != "":
		group = mix(lane) ^ maphash.String(p.seed, it.Call.Key.ID)
	default:
		group = mix(lane) ^ mix(p.r.lanes.Add(1)) // no key, no order
	}
	return group | 1
}
