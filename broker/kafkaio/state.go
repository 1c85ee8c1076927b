package kafkaio

import (
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/internal/table"
)

// partitionID names a partition of an input topic.
type partitionID struct {
	topic  string
	number int32
}

// windowing says how long keys are remembered and by which time.
type windowing struct {
	window, grace time.Duration
	eventTime     bool
	scale         table.Scale
}

func newWindowing(window, grace time.Duration, eventTime bool) (windowing, error) {
	w := windowing{window: window, grace: grace, eventTime: eventTime}
	if !eventTime {
		w.grace = 0
	}
	var err error
	w.scale, err = table.NewScale(0, w.retention())
	return w, err
}

// retention is how long an entry is kept.
func (w *windowing) retention() time.Duration {
	if w.window >= semel.Forever-w.grace {
		return semel.Forever
	}
	return w.window + w.grace
}

// expiry returns when an entry of a time, in milliseconds, is forgotten.
func (w *windowing) expiry(time int64) table.Tick {
	return w.scale.Expiry(nanos(time), w.retention())
}

func (w *windowing) tick(time int64) table.Tick { return w.scale.Tick(nanos(time)) }

func nanos(milliseconds int64) int64 {
	return milliseconds * int64(time.Millisecond)
}

// verdict is what a state says of a record.
type verdict uint8

const (
	// fresh: the key was not seen, and is now part of the open transaction.
	fresh verdict = iota
	// duplicate: an earlier record of this key has its output.
	duplicate
	// late: the record is older than what the state can answer for.
	late
	// again: the key's entry is this record's own. It is read again, because the
	// group's offsets went back; its output was committed with the entry.
	again
)

// state is what one partition of the input remembers. What was committed is in
// the table, what the open transaction adds in the overlay. One goroutine uses
// it at a time.
type state struct {
	id      partitionID
	windows *windowing
	topic   topicID
	secret  digest.Secret
	secured bool // the secret is known or made
	scoped  digest.Scoped

	committed *table.Table[uint64]
	overlay   overlay
	most      int // entries in a record of the changelog
	// streamTime is the greatest time of a record in the partition, in
	// milliseconds. Without event time it is the newest time that was used.
	streamTime, committedTime int64
	// position is the offset of the changelog up to which all is applied. The
	// record before it has the checksum last.
	position int64
	last     uint32
	// cuts is where the changelog can be cut off.
	cuts cuts
	// log keeps the same on disk; nil without a directory.
	log *stateLog
}

func newState(id partitionID, topic topicID, w *windowing) (*state, error) {
	t, err := table.New[uint64](&table.Options{SingleOwner: true})
	if err != nil {
		return nil, err
	}
	return &state{id: id, windows: w, topic: topic, committed: t, most: maxChangelogEntries, cuts: newCuts(w)}, nil
}

// expect takes memory for a number of keys. The state is empty.
func (s *state) expect(keys int64) (err error) {
	s.committed, err = table.New[uint64](&table.Options{SingleOwner: true, Expect: keys})
	return err
}

// secure sets the secret of the digests, and the scope of the keys.
func (s *state) secure(secret digest.Secret, scope string) {
	s.secret, s.secured = secret, true
	s.scoped = digest.New(secret).Scope(scope)
}

// mark is what the table keeps beside a digest: the lower 48 bits of the
// record's offset and 16 bits of its topic's id.
func mark(topic *topicID, offset int64) uint64 {
	tag := binary.LittleEndian.Uint64(topic[:8]) ^ binary.LittleEndian.Uint64(topic[8:])
	tag ^= tag >> 32
	tag ^= tag >> 16
	return uint64(offset)&(1<<48-1) | tag<<48
}

// decide decides the record at an offset by its key's digest and its time in
// milliseconds. What is fresh must be learned when it is delivered.
func (s *state) decide(d *semel.Digest, when, offset int64) verdict {
	s.streamTime = max(s.streamTime, when)
	now := s.windows.tick(s.streamTime)
	if time, ok := s.overlay.find(d); ok {
		if expiry := s.windows.expiry(time); now < expiry && s.within(when, expiry) {
			return duplicate
		}
	} else if v, expiry, ok := s.committed.Find(d, now); ok && s.within(when, expiry) {
		if v == mark(&s.topic, offset) {
			return again
		}
		return duplicate
	}
	if s.windows.eventTime && when < s.streamTime-s.windows.grace.Milliseconds() {
		return late
	}
	return fresh
}

// within reports whether a record's time is inside the window of an entry that
// is kept until expiry.
func (s *state) within(when int64, expiry table.Tick) bool {
	return expiry == table.Forever || nanos(when) < s.windows.scale.Time(expiry)-int64(s.windows.grace)
}

// learn makes a record that was decided fresh part of the open transaction.
func (s *state) learn(d *semel.Digest, when, offset int64) {
	s.overlay.add(&entry{*d, when, offset}, s.most)
}

// records returns the records of the changelog that say what the open transaction
// adds. They are valid until it ends.
func (s *state) records() (values [][]byte) {
	h := changelogHeader{kind: kindEntries, secret: s.secret, topic: s.topic, streamTime: s.streamTime}
	for i := range s.overlay.records {
		values = append(values, s.overlay.records[i].finish(&h))
	}
	if len(values) == 0 && s.windows.eventTime && s.streamTime > s.committedTime {
		values = append(values, withoutEntries(&h))
	}
	return values
}

// drop forgets what the open transaction added. Its memory is not used again: the
// client may still be writing the records of a transaction that failed.
func (s *state) drop() {
	s.overlay = overlay{}
	s.streamTime = s.committedTime
}

// commit makes what the open transaction added part of the state.
func (s *state) commit() {
	now := s.windows.tick(s.streamTime)
	h := changelogHeader{topic: s.topic}
	for i := range s.overlay.records {
		c := s.overlay.records[i].record(&h)
		s.remember(&c, now)
	}
	s.overlay.reset()
	s.committedTime = s.streamTime
}

// passed notes that a record of the changelog is applied, or will be when the
// open transaction is.
func (s *state) passed(value []byte, position int64) {
	s.cuts.note(position, s.streamTime)
	s.position, s.last = position, crc32.Checksum(value, castagnoli)
}

// prefetchAhead is how many digests ahead of its use a slot is asked for.
const prefetchAhead = 16

// apply adds the entries of a record of the changelog, which are committed. The
// time in milliseconds is what entries that have expired are left out by.
func (s *state) apply(c *changelogRecord, time int64) {
	s.committedTime = max(s.committedTime, c.streamTime)
	s.streamTime = s.committedTime
	if s.windows.eventTime {
		time = s.committedTime
	}
	s.remember(c, s.windows.tick(time))
}

// remember puts the entries of a record into the table.
func (s *state) remember(c *changelogRecord, now table.Tick) {
	var e entry
	for i := range c.len() {
		if i+prefetchAhead < c.len() {
			s.committed.Prefetch(digestOf(c.entry(i + prefetchAhead)))
		}
		c.at(i, &e)
		if expiry := s.windows.expiry(e.time); expiry > now {
			s.committed.Set(&e.digest, mark(&c.topic, e.offset), now, expiry)
		}
	}
}
