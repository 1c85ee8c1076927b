package kept

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/semel-dev/semel/internal/changes"
	"github.com/semel-dev/semel/internal/days"
	"github.com/semel-dev/semel/internal/liveset"
	"github.com/semel-dev/semel/internal/localcopy"
)

// Rule says which record of a key is kept. All times are in milliseconds. One of First,
// Size, Gap and Window is set. A State uses its Rule alone.
type Rule struct {
	// First keeps the record with the smallest time. A record that is later than a held one by
	// Apart or more is not superseded.
	First bool
	Apart int64
	// Size keeps the last record of each window of this size, or of each of Days.
	Size int64
	Days *days.Days
	// Gap keeps the last record before a longer time without records. The first and the last
	// record of such a session are at most Most apart.
	Gap, Most int64
	// Window remembers the newest version for this time. Forever is math.MaxInt64.
	Window int64
	// Grace is how much older than the newest record a record may be. MaxAhead is how far
	// it may be ahead of the clock.
	Grace, MaxAhead int64
}

// window returns the start and the end of the window that has a time.
func (r *Rule) window(when int64) (start, end int64) {
	if r.Days != nil {
		return r.Days.Bounds(when)
	}
	start = when - when%r.Size
	return start, start + r.Size
}

// State holds the records of one partition, or the versions. Changes belong to an open
// transaction until Commit or Drop ends it. One goroutine uses it at a time.
//
// The watermark never falls. A record is due when the watermark has reached its deadline:
// no later record can replace it. A version is forgotten then.
type State struct {
	rule                Rule
	progress, committed changes.Progress
	// open are the entries by id. changed are those of the open transaction, which
	// replace them; an empty list means that none exist. A list is in the order of
	// first, because the order decides which sessions a record joins.
	open, changed map[string][]entry
	// count is the number of entries in open, and bytes their size in the changelog.
	count int
	bytes int64
	// queue has each entry at its deadline or earlier, and entries that are gone. So a new
	// deadline that is later costs nothing. popped are those that the open transaction has
	// taken from it.
	queue  queue
	popped []timer
	// log has the ids with entries. written are those in the records of the open
	// transaction.
	log     liveset.Set[string]
	written []string
	// Values leaves long values in the copy of the changelog on disk. spots are where the
	// values of the entries of written are.
	localcopy.Values
	spots []changes.Spot
	// writer has the records of the open transaction, and coded the memory of an entry.
	writer changes.Writer
	coded  []byte
}

// entry is a record that is held, or a version.
type entry struct {
	// first and last are the times of the first and the last record of a session. first is
	// the start of a window, with First the time of the record, and for a version 0. Of several entries of an id with the same
	// first, all but one are due: a record may begin a session at the time at which another
	// one began that is closed.
	first, last int64
	deadline    int64
	// queued is a deadline of it in the queue, which is not after the present one.
	queued       int64
	when, offset int64 // of the record
	value        []byte
	ref          localcopy.Ref // where the copy has the value, which is then not in memory
	at           int64         // where the changelog has it
}

// stored reports whether the value is on disk only.
func (e *entry) stored() bool { return e.ref.Size() > 0 }

func (e *entry) size() int { return len(e.value) + e.ref.Size() }

// mostInline is the length of values that stay in memory, because a place on disk would
// take about as much.
const mostInline = 48

// New returns an empty state.
func New(rule Rule) *State {
	s := &State{rule: rule, open: map[string][]entry{}, changed: map[string][]entry{}}
	s.Inline = mostInline
	s.log.Slack, s.log.Live = liveset.DefaultSlack, s.isAt
	return s
}

// isAt reports whether the changelog has the entries of an id at an offset, and the open
// transaction does not change them.
func (s *State) isAt(id string, at int64) bool {
	list := s.open[id]
	_, changed := s.changed[id]
	return len(list) > 0 && list[0].at == at && !changed
}

// SetSlack sets how long the changelog may be without being rewritten.
func (s *State) SetSlack(bytes int64) { s.log.Slack = bytes }

// Stored notes that a record of a committed transaction is at an offset of the changelog.
func (s *State) Stored(at int64, size int) { s.log.Stored(at, size) }

// Cut returns the offset before which the changelog can be deleted, and whether that has
// changed. No transaction is open.
func (s *State) Cut() (at int64, ok bool) { return s.log.Cut() }

// Bytes returns the size of the entries in the changelog, without those of the open
// transaction.
func (s *State) Bytes() int64 { return s.bytes }

// Watermark returns the watermark, or 0 before the first record.
func (s *State) Watermark() int64 { return s.progress.Watermark }

// Open returns the number of entries, without those that the open transaction adds.
func (s *State) Open() int { return s.count }

// See notes the time of a record, and reports false if that is too far ahead of the clock.
// Such a record does not move the watermark.
func (s *State) See(when, clock int64) bool {
	if when > clock+s.rule.MaxAhead {
		return false
	}
	s.progress.Watermark = max(s.progress.Watermark, when-s.rule.Grace)
	return true
}

// SetOrigins stores a text with the open transaction. It says how far each partition has
// come whose records are mixed in this one.
func (s *State) SetOrigins(text string) { s.progress.Origins = text }

// Origins returns the text of SetOrigins.
func (s *State) Origins() string { return s.progress.Origins }

// Verdict says what became of a record.
type Verdict uint8

const (
	// Held: the record takes effect when it is due, unless another replaces it.
	Held Verdict = iota
	// Superseded: another record of the key is held, and takes effect instead.
	Superseded
	// Late: it could have replaced a record that may have taken effect.
	Late
)

// Add decides a record after See. Records come in the order of their offsets. replaced is
// the number of held records that are superseded by it.
func (s *State) Add(id string, when, offset int64, value []byte) (v Verdict, replaced int) {
	e := entry{when: when, offset: offset, value: value}
	switch {
	case s.rule.First:
		return s.addFirst(id, e)
	case s.rule.Size > 0:
		return s.addLast(id, e)
	}
	return s.addToSession(id, e)
}

func (s *State) addFirst(id string, e entry) (v Verdict, replaced int) {
	if e.when < s.progress.Watermark {
		return Late, 0
	}
	list := s.touch(id)
	if slices.ContainsFunc(list, func(o entry) bool { return o.when <= e.when && e.when-o.when < s.rule.Apart }) {
		return Superseded, 0
	}
	others := slices.DeleteFunc(list, func(o entry) bool { return o.when > e.when && o.when-e.when < s.rule.Apart })
	replaced = len(list) - len(others)
	e.first, e.deadline, e.value = e.when, e.when+1, slices.Clone(e.value)
	s.put(id, others, e)
	return Held, replaced
}

func (s *State) addLast(id string, e entry) (v Verdict, replaced int) {
	if e.first, e.deadline = s.rule.window(e.when); e.deadline <= s.progress.Watermark {
		return Late, 0
	}
	list := s.touch(id)
	if at := slices.IndexFunc(list, func(o entry) bool { return o.first == e.first }); at >= 0 {
		if list[at].when > e.when {
			return Superseded, 0
		}
		list, replaced = slices.Delete(list, at, at+1), 1
	}
	e.value = slices.Clone(e.value)
	s.put(id, list, e)
	return Held, replaced
}

// addToSession joins the sessions that are at most a gap away. One that would become too
// long stays as it is.
func (s *State) addToSession(id string, e entry) (v Verdict, replaced int) {
	when, offset := e.when, e.offset
	e.first, e.last = when, when
	var others []entry
	for _, o := range s.list(id) {
		first, last := min(o.first, e.first), max(o.last, e.last)
		if o.deadline <= s.progress.Watermark || o.first > when+s.rule.Gap || o.last < when-s.rule.Gap || last-first > s.rule.Most {
			others = append(others, o)
			continue
		}
		replaced++
		if e.first, e.last = first, last; o.when > e.when || o.when == e.when && o.offset > e.offset {
			e.when, e.offset, e.value, e.ref = o.when, o.offset, o.value, o.ref
		}
	}
	if e.deadline = e.last + s.rule.Gap + 1; e.deadline <= s.progress.Watermark {
		return Late, 0
	}
	if e.offset == offset {
		e.value, v = slices.Clone(e.value), Held
	} else {
		v, replaced = Superseded, replaced-1
	}
	s.put(id, others, e)
	return v, replaced
}

// Version returns the newest version of an id, or nothing.
func (s *State) Version(id string) []byte {
	if list := s.list(id); len(list) > 0 && list[0].deadline > s.progress.Watermark {
		return list[0].value
	}
	return nil
}

// SetVersion sets the newest version of an id, which was seen at a time.
func (s *State) SetVersion(id string, version []byte, when int64) {
	deadline := int64(math.MaxInt64)
	if s.rule.Window < math.MaxInt64-when {
		deadline = when + s.rule.Window
	}
	s.put(id, nil, entry{deadline: deadline, when: when, value: slices.Clone(version)})
}

// list returns the entries of an id.
func (s *State) list(id string) []entry {
	if list, ok := s.changed[id]; ok {
		return list
	}
	return s.open[id]
}

// touch returns the entries of an id, which may be changed and given to put.
func (s *State) touch(id string) []entry {
	list, ok := s.changed[id]
	if !ok {
		list = slices.Clone(s.open[id])
	}
	return list
}

// put sets the entries of an id to others and one more.
func (s *State) put(id string, others []entry, e entry) {
	s.enqueue(id, &e, others)
	at, _ := slices.BinarySearchFunc(others, e.first, func(o entry, first int64) int { return cmp.Compare(o.first, first) })
	s.changed[id] = slices.Insert(others, at, e)
}

// enqueue puts an entry into the queue, unless it replaces one that is there. others are
// those that it does not replace.
func (s *State) enqueue(id string, e *entry, others []entry) {
	for _, o := range s.list(id) {
		stays := slices.ContainsFunc(others, func(other entry) bool { return other.first == o.first && other.last == o.last })
		if o.first == e.first && o.queued <= e.deadline && !stays {
			e.queued = o.queued
		}
	}
	if e.queued == 0 {
		s.push(id, e)
	}
}

func (s *State) push(id string, e *entry) {
	heap.Push(&s.queue, timer{e.deadline, e.first, id})
	e.queued = e.deadline
}

// next returns the first entry whose deadline is not after a time.
func (s *State) next(until int64) (timer, *entry) {
	for len(s.queue) > 0 && s.queue[0].deadline <= until {
		t := s.queue[0]
		list := s.list(t.id)
		if at := slices.IndexFunc(list, t.is); at >= 0 {
			return t, &list[at]
		}
		s.pop()
		for i := range list { // its deadline is later now
			if e := &list[i]; e.first == t.first && e.queued == t.deadline {
				s.push(t.id, e)
			}
		}
	}
	return timer{}, nil
}

func (s *State) pop() { s.popped = append(s.popped, heap.Pop(&s.queue).(timer)) }

// Due reports whether a record must take effect.
func (s *State) Due() bool {
	if s.rule.Window > 0 {
		return false
	}
	_, e := s.next(s.progress.Watermark)
	return e != nil
}

// Emit passes at most a number of due records to fn, in the order of their deadlines, and
// returns how many. After an error, the transaction must be dropped.
func (s *State) Emit(most int, fn func(id string, when int64, value []byte) error) (n int, err error) {
	for ; n < most && s.rule.Window == 0; n++ {
		t, e := s.next(s.progress.Watermark)
		if e == nil {
			break
		}
		s.pop()
		if err := s.emit(t, e, fn); err != nil {
			return n, err
		}
	}
	return n, nil
}

// EmitOf passes the due records of one id to fn, ahead of all others. So the next record of
// the id is decided by what took effect, whatever else the transaction has. It is for First.
// After an error, the transaction must be dropped.
func (s *State) EmitOf(id string, fn func(id string, when int64, value []byte) error) error {
	for {
		list := s.list(id)
		at := slices.IndexFunc(list, func(e entry) bool { return e.deadline <= s.progress.Watermark })
		if at < 0 {
			return nil
		}
		e := &list[at]
		if err := s.emit(timer{e.deadline, e.first, id}, e, fn); err != nil {
			return err
		}
	}
}

// emit removes an entry and passes its record to fn.
func (s *State) emit(t timer, e *entry, fn func(id string, when int64, value []byte) error) (err error) {
	when, value := e.when, e.value
	if e.stored() {
		if value, err = s.Read(nil, e.ref); err != nil {
			return err
		}
	}
	s.changed[t.id] = slices.DeleteFunc(s.touch(t.id), t.is)
	return fn(t.id, when, value)
}

// Quiet moves the watermark of a partition that has no new records. All records before a
// time have been read; margin is how much clocks may differ. It reports whether records
// are due now; if not, it changed nothing.
func (s *State) Quiet(read, margin int64) bool {
	watermark := read - s.rule.Grace - margin
	if s.rule.Window > 0 || watermark <= s.progress.Watermark {
		return false
	}
	t, e := s.next(watermark)
	if e == nil || t.deadline <= s.progress.Watermark {
		return false
	}
	s.progress.Watermark = watermark
	return true
}

// Drop discards the open transaction.
func (s *State) Drop() {
	s.progress = s.committed
	clear(s.changed)
	s.written, s.spots = s.written[:0], s.spots[:0]
	for _, t := range s.popped {
		heap.Push(&s.queue, t)
	}
	s.popped = nil
}

// Commit ends the open transaction. The records of Changes are stored, the first of them
// at an offset of the changelog. If there is a copy on disk, it has them at places.
func (s *State) Commit(at int64, places []localcopy.Place) {
	for id, list := range s.changed {
		s.set(id, list)
	}
	clear(s.changed)
	spots := s.spots
	for _, id := range s.written {
		list := s.open[id]
		for i := range list {
			e, at := &list[i], spots[i]
			switch {
			case e.stored():
				e.ref = e.ref.Again(places[at.Record], at.At)
			case s.Leaves(e.value):
				e.ref, e.value = s.Leave(places[at.Record], at.At, e.value), nil
			}
		}
		spots = spots[len(list):]
		s.stored(id, at)
	}
	s.written, s.spots = s.written[:0], s.spots[:0]
	s.settle(s.progress)
}

// stored notes where the changelog has the entries of an id.
func (s *State) stored(id string, at int64) {
	list := s.open[id]
	for i := range list {
		list[i].at = at
	}
	if len(list) > 0 {
		s.log.Put(id, at)
	}
}

func (s *State) set(id string, list []entry) {
	s.count += len(list) - len(s.open[id])
	s.bytes += weigh(id, list) - weigh(id, s.open[id])
	if len(list) == 0 {
		delete(s.open, id)
		return
	}
	s.open[id] = list
}

// settle makes a progress the committed one, and forgets versions.
func (s *State) settle(p changes.Progress) {
	s.committed, s.progress = p, p
	for s.rule.Window > 0 {
		t, e := s.next(p.Watermark)
		if e == nil {
			break
		}
		s.pop()
		s.set(t.id, nil)
	}
	s.popped = nil
}

// timer is an entry in the queue.
type timer struct {
	deadline, first int64
	id              string
}

// is reports whether an entry of its id is the one that is due.
func (t *timer) is(e entry) bool { return e.first == t.first && e.deadline == t.deadline }

// queue is a heap of timers.
type queue []timer

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q queue) Less(i, j int) bool {
	a, b := &q[i], &q[j]
	if a.deadline != b.deadline {
		return a.deadline < b.deadline
	}
	if a.id != b.id {
		return a.id < b.id
	}
	return a.first < b.first
}

// Push implements heap.Interface.
func (q *queue) Push(x any) { *q = append(*q, x.(timer)) }

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = timer{}
	*q = (*q)[:last]
	return t
}
