package keep

import (
	"cmp"
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/days"
	"github.com/semel-dev/semel/stream"
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

// RuleOf returns the rule of a Keep. Keys are remembered for a window. The rule is for one
// State.
func RuleOf(k *stream.Keep, window time.Duration) Rule {
	rule := Rule{Grace: k.Grace.Milliseconds(), MaxAhead: k.MaxAhead.Milliseconds()}
	switch {
	case k.First != nil:
		rule.First, rule.Apart = true, milliseconds(window)
	case k.Newest != nil:
		rule.Window = milliseconds(window)
	default:
		rule.Size, rule.Gap, rule.Most = k.Last.Size().Milliseconds(), k.Last.Gap().Milliseconds(), k.Last.Most().Milliseconds()
		if zone := k.Last.Zone(); zone != nil {
			rule.Days = days.New(zone, int64(k.Last.Size()/(24*time.Hour)))
		}
	}
	return rule
}

// milliseconds returns the length of a window, which may be forever.
func milliseconds(window time.Duration) int64 {
	if window >= semel.Forever {
		return math.MaxInt64
	}
	return max(window.Milliseconds(), 1)
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
	state.Base[string] // by ids
	rule               Rule
	// open are the entries by id. changed are those of the open transaction, which
	// replace them; an empty list means that none exist. A list is in the order of
	// first, because the order decides which sessions a record joins.
	open, changed map[string][]entry
	// queue has each entry at its deadline or earlier, and entries that are gone. So a new
	// deadline that is later costs nothing. popped are those that the open transaction has
	// taken from it.
	queue  queue
	popped []timer
	// written are the ids in the records of the open transaction, and spots are where the
	// values of their entries are.
	written []string
	spots   []state.Spot
	coded   []byte // memory of an entry
}

var _ state.State = (*State)(nil)

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
	ref          state.Ref // where the copy has the value, which is then not in memory
	at           int64     // where the changelog has it
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
	s.Init(state.Keep, splitEntries, s.isAt)
	return s
}

// isAt reports whether the changelog has the entries of an id at an offset, and the open
// transaction does not change them.
func (s *State) isAt(id string, at int64) bool {
	list := s.open[id]
	_, changed := s.changed[id]
	return len(list) > 0 && list[0].at == at && !changed
}

// See notes the time of a record, and reports false if that is too far ahead of the clock.
// Such a record does not move the watermark.
func (s *State) See(when, clock int64) bool {
	if when > clock+s.rule.MaxAhead {
		return false
	}
	s.Advance(when - s.rule.Grace)
	return true
}

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
	if e.when < s.Watermark() {
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
	if e.first, e.deadline = s.rule.window(e.when); e.deadline <= s.Watermark() {
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
		if o.deadline <= s.Watermark() || o.first > when+s.rule.Gap || o.last < when-s.rule.Gap || last-first > s.rule.Most {
			others = append(others, o)
			continue
		}
		replaced++
		if e.first, e.last = first, last; o.when > e.when || o.when == e.when && o.offset > e.offset {
			e.when, e.offset, e.value, e.ref = o.when, o.offset, o.value, o.ref
		}
	}
	if e.deadline = e.last + s.rule.Gap + 1; e.deadline <= s.Watermark() {
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
	if list := s.list(id); len(list) > 0 && list[0].deadline > s.Watermark() {
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
	_, e := s.next(s.Watermark())
	return e != nil
}

// Emit passes at most a number of due records to fn, in the order of their deadlines, and
// returns how many. After an error, the transaction must be dropped.
func (s *State) Emit(most int, fn func(id string, when int64, value []byte) error) (n int, err error) {
	for ; n < most && s.rule.Window == 0; n++ {
		t, e := s.next(s.Watermark())
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
		at := slices.IndexFunc(list, func(e entry) bool { return e.deadline <= s.Watermark() })
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
		if value, err = s.Load(nil, e.ref); err != nil {
			return err
		}
	}
	s.changed[t.id] = slices.DeleteFunc(s.touch(t.id), t.is)
	return fn(t.id, when, value)
}

// Quiet moves the watermark of a partition that has no new records. All records before a
// time have been read. It reports whether records are due now; if not, it changed nothing.
func (s *State) Quiet(read int64) bool {
	watermark := read - s.rule.Grace - stream.ClockMargin.Milliseconds()
	if s.rule.Window > 0 || watermark <= s.Watermark() {
		return false
	}
	t, e := s.next(watermark)
	if e == nil || t.deadline <= s.Watermark() {
		return false
	}
	s.Advance(watermark)
	return true
}

func (s *State) Drop() {
	s.Forget()
	clear(s.changed)
	s.written, s.spots = s.written[:0], s.spots[:0]
	for _, t := range s.popped {
		heap.Push(&s.queue, t)
	}
	s.popped = nil
}

func (s *State) Commit(at int64, places []state.Place) {
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
		s.putAt(id, at)
	}
	s.written, s.spots = s.written[:0], s.spots[:0]
	s.settle(s.Present)
}

// putAt notes where the changelog has the entries of an id.
func (s *State) putAt(id string, at int64) {
	list := s.open[id]
	for i := range list {
		list[i].at = at
	}
	if len(list) > 0 {
		s.Put(id, at)
	}
}

func (s *State) set(id string, list []entry) {
	s.Count += len(list) - len(s.open[id])
	s.Size += weigh(id, list) - weigh(id, s.open[id])
	if len(list) == 0 {
		delete(s.open, id)
		return
	}
	s.open[id] = list
}

// settle makes a progress the committed one, and forgets versions.
func (s *State) settle(p state.Progress) {
	s.Settle(p)
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

func (q *queue) Push(x any) { *q = append(*q, x.(timer)) }

func (q *queue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = timer{}
	*q = (*q)[:last]
	return t
}
