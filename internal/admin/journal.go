package admin

import (
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// journalSize is how many entries the journal keeps: about 10 MB.
	journalSize = 200_000
	// blockSize is for how many entries it takes memory at a time. An array that grows would
	// be in memory twice while it is copied.
	blockSize = 8_000
	// journalNear is how far back an entry is looked for that a repeated one joins. A
	// message that waits for another holder of its key is decided again and again.
	journalNear = 256
)

// KeyJournal is what a process remembers of the deliveries of a key, oldest first.
type KeyJournal struct {
	// Since is how far back the journal reaches. Start: that is the start of the
	// process.
	Since   time.Time      `json:"since"`
	Start   bool           `json:"start"`
	Entries []JournalEntry `json:"entries"`
	// Now are the messages of the key that a pipeline has read and not settled.
	Now []UnderWay `json:"now,omitempty"`
}

// UnderWay is a message that a pipeline has read and not settled.
type UnderWay struct {
	Pipeline string `json:"pipeline"`
	// State is StateInFlight, StateRetrying or StateReadAhead.
	State string `json:"state"`
	// NextRetry is when the next try of a message that is retried is due, if it does not only
	// wait for its turn.
	NextRetry time.Time `json:"next_retry,omitzero"`
}

// The values of UnderWay.State.
const (
	StateInFlight  = "in flight"
	StateRetrying  = "to be tried again"
	StateReadAhead = "read ahead"
)

// JournalEntry is one thing that happened to a delivery of a key, if it was not plainly
// processed.
type JournalEntry struct {
	Time     time.Time `json:"time"`
	Pipeline string    `json:"pipeline"`
	// Event is what happened: the name of a decision, such as "duplicate", or of an
	// event, such as "parked".
	Event  string `json:"event"`
	Reason string `json:"reason,omitempty"`
	// Source is empty if the origin of the delivery is not known.
	Source    string `json:"source,omitempty"`
	Partition int32  `json:"partition,omitempty"`
	Offset    int64  `json:"offset,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	Token     uint64 `json:"token,omitempty"`
	// Times is how often it happened, if that is more than once. Time is the last time.
	Times int `json:"times,omitempty"`
}

// Journal remembers what happened to the latest messages that were not plainly
// processed. It keeps a hash of each key, not the key. Its methods are safe for concurrent
// use.
type Journal struct {
	// UnderWay returns the messages of some keys that pipelines have read and not settled. It is
	// nil if nothing is known of them. Set it before the first use.
	UnderWay func(keys []semel.Key) []UnderWay

	seed  maphash.Seed
	start time.Time

	mu     sync.Mutex // guards the fields below
	blocks [][]kept
	length int // how many entries there are
	next   int // the place of the next entry, once all places are taken
	// labels are the texts of the entries, each combination once.
	labels  []label
	numbers map[label]uint32
}

// kept is one event.
type kept struct {
	key                uint64
	at                 int64 // nanoseconds since the epoch
	offset             int64
	token              uint64
	label              uint32 // its place in Journal.labels
	partition, attempt int32
	times              uint32
}

// label is the text of an entry.
type label struct{ pipeline, event, reason, source string }

// NewJournal returns an empty journal.
func NewJournal() *Journal {
	return &Journal{seed: maphash.MakeSeed(), start: time.Now(), numbers: map[label]uint32{}}
}

// hash returns the hash of a key.
func (j *Journal) hash(k semel.Key) uint64 { return maphash.Comparable(j.seed, k) }

// entry returns an entry for an event, without its key. The caller holds mu.
func (j *Journal) entry(l label) kept {
	n, known := j.numbers[l]
	if !known {
		n = uint32(len(j.labels))
		j.numbers[l], j.labels = n, append(j.labels, l)
	}
	return kept{at: time.Now().UnixNano(), times: 1, label: n}
}

// addItems adds an event of some messages.
func (j *Journal) addItems(l label, repeats bool, items ...*pipeline.Item) {
	j.mu.Lock()
	defer j.mu.Unlock()
	var e kept
	for i, it := range items {
		o := &it.Message.Origin
		if i == 0 || o.Source != l.source {
			l.source = o.Source
			e = j.entry(l)
		}
		e.partition, e.offset = o.Partition, o.Offset
		e.attempt, e.token = int32(it.Attempt), uint64(it.Token)
		e.key = j.hash(it.Call.Key)
		if repeats {
			if last := j.near(&e); last != nil {
				last.at, last.times, last.attempt, last.token = e.at, last.times+1, e.attempt, e.token
				continue
			}
		}
		j.add(e)
	}
}

// add adds an entry. The caller holds mu.
func (j *Journal) add(e kept) {
	if j.length < journalSize {
		if j.length%blockSize == 0 {
			j.blocks = append(j.blocks, make([]kept, blockSize))
		}
		*j.place(j.length) = e
		j.length++
		return
	}
	*j.place(j.next) = e
	j.next = (j.next + 1) % journalSize
}

// place returns the entry at a place.
func (j *Journal) place(i int) *kept { return &j.blocks[i/blockSize][i%blockSize] }

// near returns a recent entry for the same event of the same delivery.
func (j *Journal) near(e *kept) *kept {
	for back := 1; back <= min(journalNear, j.length); back++ {
		o := j.place((j.next + j.length - back) % j.length)
		if o.key == e.key && o.label == e.label && o.partition == e.partition && o.offset == e.offset {
			return o
		}
	}
	return nil
}

// Of returns what happened to deliveries of some keys, the oldest first. It reads the journal once,
// because pipelines wait for it.
func (j *Journal) Of(keys ...semel.Key) KeyJournal {
	hashes := make(map[uint64]bool, len(keys))
	for _, k := range keys {
		hashes[j.hash(k)] = true
	}
	found := KeyJournal{Since: j.start.UTC(), Entries: []JournalEntry{}}
	if j.UnderWay != nil {
		found.Now = j.UnderWay(keys)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	found.Start = j.length < journalSize
	if !found.Start {
		found.Since = time.Unix(0, j.place(j.next).at).UTC()
	}
	for i := range j.length {
		e := j.place((j.next + i) % j.length)
		if !hashes[e.key] {
			continue
		}
		l := j.labels[e.label]
		entry := JournalEntry{
			Time: time.Unix(0, e.at).UTC(), Pipeline: l.pipeline, Event: l.event, Reason: l.reason,
			Source: l.source, Partition: e.partition, Offset: e.offset, Attempt: int(e.attempt), Token: e.token,
		}
		if e.times > 1 {
			entry.Times = int(e.times)
		}
		found.Entries = append(found.Entries, entry)
	}
	slices.SortStableFunc(found.Entries, func(a, b JournalEntry) int { return a.Time.Compare(b.Time) })
	return found
}

// Observer returns an observer that writes the events of one pipeline to the journal.
func (j *Journal) Observer(name string) pipeline.Observer { return journaled{j, name} }

// journaled writes the events of one pipeline to the journal.
type journaled struct {
	*Journal
	pipeline string
}

var _ pipeline.Observer = journaled{}

// Observe implements semel.Observer. Decisions come with their messages as events of the
// pipeline.
func (j journaled) Observe(e semel.Event) {
	switch e.Kind {
	case semel.EventLeaseLost, semel.EventCompletionRefused, semel.EventTookOver:
		j.mu.Lock()
		defer j.mu.Unlock()
		entry := j.entry(label{pipeline: j.pipeline, event: e.Kind.String()})
		entry.key, entry.attempt = j.hash(e.Key), int32(e.Attempt)
		j.add(entry)
	}
}

// ObservePipeline implements pipeline.Observer.
func (j journaled) ObservePipeline(e pipeline.Event) {
	switch e.Kind {
	case pipeline.EventDecided:
		if e.Decision != semel.Fresh {
			j.addItems(label{pipeline: j.pipeline, event: e.Decision.String(), reason: e.Reason}, e.Decision == semel.InFlight, e.Items...)
		}
	case pipeline.EventFiltered, pipeline.EventDiffering:
		j.addItems(label{pipeline: j.pipeline, event: e.Kind.String()}, false, e.Items...)
	case pipeline.EventRetried, pipeline.EventParked, pipeline.EventDropped:
		if e.Item != nil {
			j.addItems(label{pipeline: j.pipeline, event: e.Kind.String(), reason: e.Reason}, e.Kind == pipeline.EventRetried, e.Item)
		}
	}
}
