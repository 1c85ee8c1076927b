package windows

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/stream"
)

// State holds the open windows of one partition. Changes belong to an open transaction
// until Commit or Drop ends it. All times are in milliseconds since the Unix epoch. One
// goroutine uses it at a time.
//
// The watermark never falls. A window is closed once the watermark has reached its end:
// no message can change it. Closed windows are emitted in the order of their ends, and
// those of equal ends in the order of their group keys.
type State struct {
	agg  *stream.Aggregate
	size int64 // of a window

	committed, present progress
	// open are the accumulators by window start and group key. changed are those of the
	// open transaction, which replace them.
	open, changed map[int64]map[string][]byte
	// left are the group keys of the oldest window whose results must still be emitted, in
	// order. It is nil if they are not known.
	left []string
	// count is the number of accumulators in open.
	count int
	acc   []byte // memory for an accumulator
}

// progress is how far a partition has come.
type progress struct {
	watermark int64
	// emitted is the end of the last window whose results are all emitted.
	emitted int64
	// partly is the end of the window that is partly emitted, up to the group key
	// cursor; or 0.
	partly int64
	cursor string
}

// New returns a state without windows. The aggregate is valid and has its defaults.
func New(agg *stream.Aggregate) *State {
	s := &State{agg: agg, size: agg.Over.Size().Milliseconds(), open: map[int64]map[string][]byte{}}
	s.changed = map[int64]map[string][]byte{}
	return s
}

// Watermark returns the watermark, or 0 before the first message.
func (s *State) Watermark() int64 { return s.present.watermark }

// Open returns the number of open windows of all group keys, without those that the
// open transaction adds.
func (s *State) Open() int { return s.count }

// Verdict says what became of a message.
type Verdict uint8

const (
	// Added: the message is part of its window.
	Added Verdict = iota
	// Late: its window is closed.
	Late
	// Ahead: its time is too far ahead of the clock.
	Ahead
)

// See notes the time of any message that was read, and reports false if that is too far
// ahead of the clock. Such a message does not move the watermark.
func (s *State) See(when, clock int64) bool {
	if when > clock+s.agg.MaxAhead.Milliseconds() {
		return false
	}
	s.advance(when - s.agg.Grace.Milliseconds())
	return true
}

func (s *State) advance(watermark int64) {
	s.present.watermark = max(s.present.watermark, watermark)
}

// Add adds a message to the window of a group key. See was called before. After an error
// nothing has changed.
func (s *State) Add(m *semel.Message, key string, when, clock int64) (Verdict, error) {
	if when > clock+s.agg.MaxAhead.Milliseconds() {
		return Ahead, nil
	}
	start := s.start(when)
	if start+s.size <= s.present.watermark {
		return Late, nil
	}
	of := s.changed[start]
	was, ok := of[key]
	if !ok {
		was = s.open[start][key]
	}
	acc, err := s.agg.Func.Add(append(s.acc[:0], was...), m)
	if err != nil {
		return Added, err
	}
	if n := len(acc); n == 0 || n > stream.MaxAccumulator {
		return Added, semel.Permanent(fmt.Errorf("aggregate: an accumulator of %d bytes: it has at least 1 and at most %d", n, stream.MaxAccumulator))
	}
	s.acc = acc
	if of == nil {
		of = map[string][]byte{}
		s.changed[start] = of
	}
	if ok {
		of[key] = append(was[:0], acc...)
	} else {
		of[key] = slices.Clone(acc)
	}
	return Added, nil
}

// start returns the start of the window of a time.
func (s *State) start(when int64) int64 {
	start := when - when%s.size
	if when%s.size < 0 {
		start -= s.size
	}
	return start
}

// Quiet moves the watermark of a partition that has no new messages. All messages before
// a time have been read. It reports whether that closed a window; if not, it changed
// nothing.
func (s *State) Quiet(read int64) bool {
	watermark := read - (s.agg.Grace + stream.ClockMargin).Milliseconds()
	for _, windows := range []map[int64]map[string][]byte{s.open, s.changed} {
		for start := range windows {
			if end := start + s.size; end > s.present.watermark && end <= watermark {
				s.advance(watermark)
				return true
			}
		}
	}
	return false
}

// Due reports whether results of closed windows must be emitted.
func (s *State) Due() bool {
	_, due := s.oldest()
	return due
}

// oldest returns the start of the oldest window that is not emitted, and whether it is
// closed.
func (s *State) oldest() (start int64, closed bool) {
	found := false
	for _, windows := range []map[int64]map[string][]byte{s.open, s.changed} {
		for at := range windows {
			if at+s.size > s.present.emitted && (!found || at < start) {
				start, found = at, true
			}
		}
	}
	return start, found && start+s.size <= s.present.watermark
}

// Emit passes at most a number of results of closed windows to fn, and returns how many.
// After an error of fn, the transaction must be dropped.
func (s *State) Emit(most int, fn func(*stream.Closed) error) (n int, err error) {
	for n < most {
		start, closed := s.oldest()
		if !closed {
			return n, nil
		}
		p := &s.present
		if p.partly != start+s.size {
			p.partly, p.cursor, s.left = start+s.size, "", nil
		}
		if s.left == nil {
			s.left = s.keysAfter(start, p.cursor)
		}
		for len(s.left) > 0 && n < most {
			key := s.left[0]
			if err := fn(s.closed(start, key)); err != nil {
				return n, err
			}
			s.left, p.cursor = s.left[1:], key
			n++
		}
		if len(s.left) == 0 {
			p.emitted, p.partly, p.cursor, s.left = start+s.size, 0, "", nil
		}
	}
	return n, nil
}

// keysAfter returns the group keys of a window that are greater than a cursor, in order.
func (s *State) keysAfter(start int64, cursor string) []string {
	list := []string{}
	for key := range s.open[start] {
		if key > cursor || cursor == "" {
			list = append(list, key)
		}
	}
	for key := range s.changed[start] {
		if _, ok := s.open[start][key]; !ok && (key > cursor || cursor == "") {
			list = append(list, key)
		}
	}
	slices.Sort(list)
	return list
}

func (s *State) closed(start int64, key string) *stream.Closed {
	acc, ok := s.changed[start][key]
	if !ok {
		acc = s.open[start][key]
	}
	return &stream.Closed{Key: key, Start: time.UnixMilli(start).UTC(), End: time.UnixMilli(start + s.size).UTC(), Acc: slices.Clone(acc)}
}

// done reports whether the result of a window and group key is emitted.
func (p *progress) done(end int64, key string) bool {
	return end <= p.emitted || end == p.partly && key <= p.cursor && p.cursor != ""
}

// Changed reports whether the open transaction has changes.
func (s *State) Changed() bool { return s.present != s.committed || len(s.changed) > 0 }

// Drop discards the open transaction.
func (s *State) Drop() {
	s.present, s.left = s.committed, nil
	clear(s.changed)
}

// Commit ends the open transaction. The records of Changes are stored.
func (s *State) Commit() {
	for start, windows := range s.changed {
		for key, acc := range windows {
			s.set(start, key, acc)
		}
	}
	clear(s.changed)
	s.settle(s.present)
}

// set sets an accumulator.
func (s *State) set(start int64, key string, acc []byte) {
	of := s.open[start]
	if of == nil {
		of = map[string][]byte{}
		s.open[start] = of
	}
	if _, ok := of[key]; !ok {
		s.count++
	}
	of[key] = acc
}

// settle makes a progress the committed one, and removes what is emitted.
func (s *State) settle(to progress) {
	from := s.committed
	s.committed, s.present = to, to
	for start, of := range s.open {
		switch end := start + s.size; {
		case end <= to.emitted:
			s.count -= len(of)
			delete(s.open, start)
		case end == to.partly && (from.partly != to.partly || from.cursor != to.cursor):
			before := len(of)
			maps.DeleteFunc(of, func(key string, _ []byte) bool { return to.done(end, key) })
			s.count -= before - len(of)
		}
	}
}
