package keys

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/internal/table"
	"github.com/semel-dev/semel/vfs"
)

// Windowing is how long keys are remembered, and by which time.
type Windowing struct {
	Window, Grace time.Duration
	EventTime     bool // or by the clock, without a grace
	scale         table.Scale
}

// NewWindowing returns a windowing by event time, with a grace, or by the clock.
func NewWindowing(window time.Duration, eventTime bool, grace time.Duration) (Windowing, error) {
	w := Windowing{Window: window, Grace: grace, EventTime: eventTime}
	var err error
	w.scale, err = table.NewScale(0, w.Retention())
	return w, err
}

// Retention is how long an entry is kept.
func (w *Windowing) Retention() time.Duration {
	if w.Window >= semel.Forever-w.Grace {
		return semel.Forever
	}
	return w.Window + w.Grace
}

// Present returns the time by which entries expire, in milliseconds: that up to which the partition
// has come, or that of the clock.
func (w *Windowing) Present(reached, clock int64) int64 {
	if w.EventTime {
		return reached
	}
	return clock
}

// expiry returns when an entry of a time, in milliseconds, expires.
func (w *Windowing) expiry(time int64) table.Tick {
	return w.scale.Expiry(nanos(time), w.Retention())
}

func (w *Windowing) tick(time int64) table.Tick { return w.scale.Tick(nanos(time)) }

func nanos(milliseconds int64) int64 {
	return milliseconds * int64(time.Millisecond)
}

// Verdict is the decision about a record.
type Verdict uint8

const (
	// Fresh: the key is new, and becomes part of the open transaction.
	Fresh Verdict = iota
	// Duplicate: an earlier record of this key was delivered.
	Duplicate
	// Late: the record is too old for a decision.
	Late
	// Again: the key's entry belongs to this record. It is read again because the
	// group's offsets were set back; its output was committed with the entry.
	Again
)

// State holds the keys of one partition. Committed keys are in the table, or have left it for
// files. Those of the open transaction are in the overlay. One goroutine uses it at a time.
type State struct {
	opts *Options
	made Maker
	// secret is that of the changelog's records. Before one is written or read, it is the
	// secret that this process would write.
	secret  digest.Secret
	written bool
	scoped  digest.Scoped

	committed *table.Table[uint64]
	count     int64 // of entries that were added to the table
	ahead     ahead
	spilled   spilled
	overlay   overlay
	read      Record // the last one
	// Most is how many entries a changelog record has at most.
	Most int
	// StreamTime is the greatest time of a record in the partition, in milliseconds.
	// Without event time it is the last time of the clock.
	StreamTime, CommittedTime int64
	cuts                      Cuts
	// newest is the greatest time of a committed entry, or CommittedTime, and spillTime what it was
	// when keys last left the table.
	newest, spillTime int64
}

var _ state.Spiller = (*State)(nil)

// Options are the options of New.
type Options struct {
	*Windowing
	// Topic is the input, of which the keys are.
	Topic state.ID
	// Rule finds the keys of a scope. Same says that other rules found the same ones.
	Rule, Scope string
	Same        bool
	// Inputs is the start of HeaderOrigins, or nil if records are not copies.
	Inputs []byte
	// Now returns the time in milliseconds.
	Now func() int64
	// Spill is the least number of keys that leave memory together. Defaults to a million.
	Spill int64
}

// New returns a state without keys.
func New(o *Options) *State {
	return &State{opts: o, made: MakerOf(o.Rule, o.Scope), committed: table.New[uint64](0), Most: MaxEntries, cuts: o.cuts()}
}

func (s *State) Expect(bytes int64) { s.committed = table.New[uint64](bytes / EntrySize) }

// Detach implements state.State. Keys that have left memory are only in files next to the copy.
func (s *State) Detach() bool { return len(s.spilled.runs) == 0 }

// Load implements state.Spiller.
func (s *State) Load(files vfs.FS, dir string, changelog state.ID) (state.Spilled, error) {
	s.spilled.keep = s.opts.Retention()
	if err := s.spilled.load(files, dir, changelog); err != nil || len(s.spilled.runs) == 0 {
		return state.Spilled{}, err
	}
	for _, r := range s.spilled.runs {
		s.newest = max(s.newest, r.ended)
		s.cuts.Note(r.of.Next, s.newest, 0)
		s.spillTime = s.newest
	}
	of := s.spilled.runs[len(s.spilled.runs)-1].of
	of.Extent = s.spilled.extent()
	return of, nil
}

// Spill implements state.Spiller.
func (s *State) Spill(all state.Extent, last uint32, before int64) (state.Extent, error) {
	p, now := &s.spilled, s.opts.tick(s.opts.Present(s.CommittedTime, s.opts.Now()))
	least := cmp.Or(s.opts.Spill, spillKeys)
	if p.writing != nil && s.count >= mostBehind*least {
		<-p.writing.done
	}
	if err := p.collect(now, s.cuts.keep); err != nil {
		return state.Extent{}, err
	}
	p.expire(before)
	if all.Last > 0 && s.count >= least && p.leaving == nil && len(s.ahead.keys) == 0 {
		r := &keyRun{of: state.Spilled{Extent: all, Oldest: all.First, Sum: last}, begun: s.spillTime, ended: s.newest}
		if before := p.extent(); before.Last > 0 {
			r.of.First, r.of.From = before.Last+1, before.Next
		}
		r.of.Record = Encode(&Header{Kind: KindEntries, Made: s.made, Secret: s.secret, Topic: s.opts.Topic, StreamTime: s.CommittedTime})
		p.leave(s.committed, s.count, now, r)
		s.committed, s.count, s.spillTime = table.New[uint64](s.count), 0, s.newest
	}
	return p.extent(), nil
}

// Tidy implements state.Spiller.
func (s *State) Tidy() error { return s.spilled.tidy() }

// Discard implements state.Spiller.
func (s *State) Discard() error { return s.spilled.discard() }

// Close implements state.Spiller.
func (s *State) Close() { s.spilled.close() }

// Begin makes a secret, unless the changelog has one.
func (s *State) Begin() {
	if !s.written {
		s.secure(digest.NewSecret())
	}
}

// secure sets the secret of the digests.
func (s *State) secure(secret digest.Secret) {
	s.secret = secret
	s.scoped = digest.New(secret).Scope(s.opts.Scope)
}

// mark is the table's value for a digest: the lower 48 bits of the record's offset and
// 16 bits of its topic id.
func mark(topic *state.ID, offset int64) uint64 {
	tag := binary.LittleEndian.Uint64(topic[:8]) ^ binary.LittleEndian.Uint64(topic[8:])
	tag ^= tag >> 32
	tag ^= tag >> 16
	return uint64(offset)&(1<<48-1) | tag<<48
}

// Decide decides the record at an offset by its key's digest and its time in
// milliseconds. A fresh record must be learned when it is delivered.
func (s *State) Decide(d *semel.Digest, reached, when, offset int64) Verdict {
	s.StreamTime = max(s.StreamTime, reached)
	now := s.opts.tick(s.StreamTime)
	if time, ok := s.overlay.find(d); ok {
		if expiry := s.opts.expiry(time); now < expiry && s.within(when, expiry) {
			return Duplicate
		}
	} else if v, expiry, ok := s.find(d, now); ok && s.within(when, expiry) {
		if v == mark(&s.opts.Topic, offset) {
			return Again
		}
		return Duplicate
	}
	if s.opts.EventTime && when < s.StreamTime-s.opts.Grace.Milliseconds() {
		return Late
	}
	return Fresh
}

// find returns the mark and the expiry of a committed key that has not expired.
func (s *State) find(d *semel.Digest, now table.Tick) (mark uint64, expiry table.Tick, ok bool) {
	if k, ok := s.ahead.keys[*d]; ok {
		return k.mark, k.expiry, now < k.expiry
	}
	if mark, expiry, ok = s.committed.Find(d, now); ok {
		return mark, expiry, ok
	}
	return s.spilled.find(d, now)
}

// within reports whether a record's time is inside the window of an entry that expires
// at expiry.
func (s *State) within(when int64, expiry table.Tick) bool {
	return expiry == table.Forever || nanos(when) < s.opts.scale.Time(expiry)-int64(s.opts.Grace)
}

// Learn adds a fresh record to the open transaction.
func (s *State) Learn(d *semel.Digest, when, offset int64) {
	s.overlay.add(&Entry{*d, when, offset}, s.Most)
}

// From notes the origin of the last record that was learned. Either each has one, or none
// has.
func (s *State) From(input int, partition int32, offset int64) {
	s.overlay.from(input, partition, offset)
}

// Prefetch prepares the decision on a key.
func (s *State) Prefetch(d *semel.Digest) {
	s.committed.Prefetch(d)
	if t := s.spilled.leaving; t != nil {
		t.Prefetch(d)
	}
}

// Digest returns the digest of a key.
func (s *State) Digest(id []byte) semel.Digest { return s.scoped.Bytes(id) }

// Changes implements state.State. Most bounds the records, not the size.
func (s *State) Changes(int) (records []*kgo.Record, err error) {
	if s.spilled.err != nil { // then a known key may have been taken for a new one
		return nil, s.spilled.err
	}
	h := Header{Kind: KindEntries, Made: s.made, Secret: s.secret, Topic: s.opts.Topic, StreamTime: s.StreamTime}
	for i := range s.overlay.records {
		of := &s.overlay.records[i]
		r := &kgo.Record{Value: of.finish(&h)}
		if len(of.origins) > 0 {
			r.Headers = []kgo.RecordHeader{{Key: HeaderOrigins, Value: slices.Concat(s.opts.Inputs, of.origins)}}
		}
		records = append(records, r)
	}
	if len(records) == 0 && s.opts.EventTime && s.StreamTime > s.CommittedTime {
		records = append(records, &kgo.Record{Value: Encode(&h)})
	}
	return records, nil
}

// Drop implements state.State. It does not reuse the memory of the entries: the client may
// still be writing the records of a failed transaction.
func (s *State) Drop() {
	s.overlay = overlay{}
	s.StreamTime = s.CommittedTime
}

// Commit implements state.State: it adds the entries of the open transaction to the table.
func (s *State) Commit(int64, []state.Place) {
	now := s.opts.tick(s.StreamTime)
	h := Header{Topic: s.opts.Topic}
	for i := range s.overlay.records {
		c := s.overlay.records[i].record(&h)
		s.remember(&c, now)
	}
	s.overlay.reset()
	s.CommittedTime = s.StreamTime
}

func (s *State) Stored(at int64, _ int) (ends bool) {
	s.written = true
	s.newest = max(s.newest, s.CommittedTime)
	s.spillTime = cmp.Or(s.spillTime, s.newest)
	return s.cuts.Note(at+1, s.newest, s.CommittedTime)
}

func (s *State) Cut() (at int64, ok bool) { return s.cuts.Take(s.CommittedTime) }

func (s *State) Barrier(nonce state.ID) []byte {
	return Encode(&Header{Kind: KindBarrier, Secret: nonce, Topic: s.opts.Topic})
}

func (s *State) Read(value []byte) (h state.Header, err error) {
	if s.read, err = Parse(value); err != nil {
		return h, err
	}
	c := &s.read
	h = state.Header{Topic: c.Topic, Len: c.Len()}
	switch {
	case c.Kind == KindBarrier:
		h.Barrier, h.Nonce = true, c.Secret
	case c.Made.Conflicts(s.made) && !s.opts.Same:
		err = &semel.ScopeError{Scope: s.opts.Scope, Owner: semel.ScopeOwner{Rule: s.opts.Rule}}
	case s.written && s.secret != c.Secret:
		err = fmt.Errorf("it has another secret than the records before it, so another pipeline writes to its topic too, and keys of one are not found by the other: use a new group and another changelog (transaction.changelog): %w", semel.ErrInvalidRequest)
	}
	return h, err
}

// prefetchAhead is how many digests ahead a slot is prefetched.
const prefetchAhead = 16

// Apply implements state.State. It leaves out entries that have expired.
func (s *State) Apply(int64, state.Place) {
	if !s.written { // its secret, if it has one, was never written
		s.secure(s.read.Secret)
	}
	s.CommittedTime = max(s.CommittedTime, s.read.StreamTime)
	s.StreamTime = s.CommittedTime
	s.remember(&s.read, s.opts.tick(s.opts.Present(s.CommittedTime, s.opts.Now())))
	s.read = Record{} // its bytes are of a file or a fetch
}

// remember adds the entries of a record to the table.
func (s *State) remember(c *Record, now table.Tick) {
	s.ahead.take(now, func(d *semel.Digest, mark uint64, expiry table.Tick) {
		if expiry > now {
			s.committed.Set(d, mark, now, expiry)
		}
	})
	var e Entry
	for i := range c.Len() {
		if i+prefetchAhead < c.Len() {
			s.committed.Prefetch(digestOf(c.entry(i + prefetchAhead)))
		}
		c.At(i, &e)
		s.newest = max(s.newest, e.Time)
		switch expiry := s.opts.expiry(e.Time); {
		case isAhead(now, expiry):
			s.ahead.set(&e.Digest, mark(&c.Topic, e.Offset), expiry)
			s.count++
		case expiry > now:
			s.committed.Set(&e.Digest, mark(&c.Topic, e.Offset), now, expiry)
			s.count++
		}
	}
}

// overlay holds the entries that the open transaction adds to a partition's state. It
// is dropped when the transaction aborts. The zero overlay is empty.
//
// The entries are stored as changelog records. They are written to the brokers, to the
// log and to the table from there, without a second copy.
type overlay struct {
	records []overlayRecord
	count   int // number of entries
	// slots holds entry numbers plus one, in as many low bits as they need. The high
	// bits hold bits of the digest, which distinguish nearly all entries without a look
	// at them; 0 is an empty slot. The length is a power of two, and at most three
	// quarters are used.
	slots []uint32
}

type overlayRecord struct {
	draft
	first int // the number of its first entry
	// origins is the value of HeaderOrigins for the entries, if they are copies.
	origins []byte
}

const firstOverlaySlots = 1 << 10

// find returns the time of the last entry of a digest.
func (o *overlay) find(d *semel.Digest) (time int64, ok bool) {
	if o.count == 0 {
		return 0, false
	}
	if i := o.slot(d); o.slots[i] != 0 {
		r, e := o.at(o.slots[i]&o.mask() - 1)
		return r.time(e), true
	}
	return 0, false
}

// slot returns the slot of a digest, or the empty slot for it.
func (o *overlay) slot(d *semel.Digest) uint32 {
	mask, tag := o.mask(), tagOf(d)
	for i := home(d) & mask; ; i = (i + 1) & mask {
		s := o.slots[i]
		if s == 0 {
			return i
		}
		if (s^tag)&^mask != 0 {
			continue
		}
		if _, e := o.at(s&mask - 1); *digestOf(e) == *d {
			return i
		}
	}
}

func (o *overlay) mask() uint32 { return uint32(len(o.slots) - 1) }

// at returns an entry by number, and its record.
func (o *overlay) at(number uint32) (*overlayRecord, []byte) {
	n := int(number)
	after := sort.Search(len(o.records), func(i int) bool { return o.records[i].first > n })
	r := &o.records[after-1]
	return r, r.entry(n - r.first)
}

// add appends an entry, which replaces one with the same digest. A record gets at most
// most entries.
func (o *overlay) add(e *Entry, most int) {
	if 4*(o.count+1) > 3*len(o.slots) {
		o.grow()
	}
	if n := len(o.records); n == 0 || o.records[n-1].len() >= most || !o.records[n-1].add(e) {
		o.begin().add(e)
	}
	o.place(&e.Digest, o.count)
	o.count++
}

// begin starts a record. It expects the size of the previous one.
func (o *overlay) begin() *overlayRecord {
	n, room := len(o.records), 0
	if n > 0 {
		room = len(o.records[n-1].value)
	}
	if n < cap(o.records) {
		o.records = o.records[:n+1] // with its memory
	} else {
		o.records = append(o.records, overlayRecord{})
	}
	r := &o.records[n]
	r.first, r.origins = o.count, r.origins[:0]
	r.begin(room)
	return r
}

// from notes the origin of the last entry. Either each entry has one, or none has.
func (o *overlay) from(input int, partition int32, offset int64) {
	r := &o.records[len(o.records)-1]
	r.origins = AppendOrigin(r.origins, input, partition, offset)
}

// place makes an entry the last one of its digest.
func (o *overlay) place(d *semel.Digest, number int) {
	o.slots[o.slot(d)] = tagOf(d)&^o.mask() | uint32(number+1)
}

func (o *overlay) grow() {
	o.slots = make([]uint32, max(firstOverlaySlots, 2*len(o.slots)))
	for i := range o.records {
		r := &o.records[i]
		for j := range r.len() {
			o.place(digestOf(r.entry(j)), r.first+j)
		}
	}
}

// reset empties the overlay. It keeps the memory, unless that is far more than was
// used.
func (o *overlay) reset() {
	if len(o.slots) > firstOverlaySlots && o.count < len(o.slots)/32 {
		*o = overlay{}
		return
	}
	o.records, o.count = o.records[:0], 0
	clear(o.slots)
}

// home and tagOf return bits of digests, which are uniform.
func home(d *semel.Digest) uint32 { return binary.LittleEndian.Uint32(d[:4]) }

func tagOf(d *semel.Digest) uint32 { return binary.LittleEndian.Uint32(d[4:8]) }
