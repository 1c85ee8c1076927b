package brokertest

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"
)

// place is where a message stands in the ledger.
type place struct{ partition, place int }

// ledger holds what was produced and what became of it.
type ledger struct {
	tb       testing.TB
	patience time.Duration // how long the suite waits, for messages

	mu       sync.Mutex
	produced map[place]Numbered
	keys     map[string]bool
	acked    map[place]bool
	accepted map[string]int
	parked   map[string]string // key to reason
	order    map[int][]int     // of a partition, the places that had effects
	complete chan struct{}
	closed   bool // complete is closed
	goal     int  // how many acknowledged messages call atGoal
	atGoal   func()
	// commits: effects and keys are one, and are noted after both, so that
	// another delivery of the key may be acknowledged before.
	commits  bool
	expected int // messages; -1 while not known

	lastEvent  time.Time // of a message
	restarting int       // servers that are being restarted
}

func newLedger(tb testing.TB) *ledger {
	return &ledger{
		tb: tb, produced: map[place]Numbered{}, keys: map[string]bool{}, acked: map[place]bool{},
		accepted: map[string]int{}, parked: map[string]string{}, order: map[int][]int{},
		complete: make(chan struct{}),
	}
}

// expect notes messages that are going to be produced.
func (l *ledger) expect(list []Numbered) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range list {
		l.produced[place{m.Partition, m.Place}] = m
		l.keys[m.ID] = true
	}
	l.expected = len(l.produced)
	if l.closed {
		l.complete, l.closed = make(chan struct{}), false
	}
}

// knows reports whether a body is one that was produced, byte for byte.
func (l *ledger) knows(data []byte) (Numbered, bool) {
	m, err := parse(data)
	if err != nil {
		l.tb.Error(err)
		return m, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	was, ok := l.produced[place{m.Partition, m.Place}]
	if !ok || string(was.Body) != string(data) {
		l.tb.Errorf("the body %q was never produced", data)
		return m, false
	}
	return was, true
}

// accept notes an effect.
func (l *ledger) accept(m Numbered) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastEvent = time.Now()
	l.accepted[m.ID]++
	if n := l.accepted[m.ID]; n > 1 {
		l.tb.Errorf("key %s had its effect %d times", m.ID, n)
	}
	l.order[m.Partition] = append(l.order[m.Partition], m.Place)
}

// park notes that a message was parked.
func (l *ledger) park(m Numbered, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastEvent = time.Now()
	l.parked[m.ID] = reason
}

// hasParked reports whether a message was parked for a reason.
func (l *ledger) hasParked(reason string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, why := range l.parked {
		if why == reason {
			return true
		}
	}
	return false
}

// ack notes that a message was acknowledged to its source.
func (l *ledger) ack(m Numbered) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.accepted[m.ID] == 0 && l.parked[m.ID] == "" && !l.commits {
		l.tb.Errorf("message %d of partition %d was acknowledged before key %s had its effect", m.Place, m.Partition, m.ID)
	}
	l.lastEvent = time.Now()
	l.acked[place{m.Partition, m.Place}] = true
	if l.atGoal != nil && len(l.acked) >= l.goal {
		l.atGoal()
	}
	if len(l.acked) == l.expected && !l.closed {
		close(l.complete)
		l.closed = true
	}
}

// settled returns a channel that is closed when all is acknowledged.
func (l *ledger) settled() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.complete
}

// missing says what is not acknowledged.
func (l *ledger) missing() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []string
	for at, m := range l.produced {
		if !l.acked[at] {
			list = append(list, fmt.Sprintf("%d/%d (%s)", at.partition, at.place, m.ID))
		}
	}
	slices.Sort(list)
	return fmt.Sprintf("%d of %d: %v", len(list), len(l.produced), list[:min(len(list), 10)])
}

// check compares what became of the messages with the messages that were produced.
func (l *ledger) check(ordered bool) {
	l.tb.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(l.keys)) {
		n, reason := l.accepted[id], l.parked[id]
		switch {
		case n == 0 && reason == "":
			l.tb.Errorf("key %s is lost: it neither had its effect nor is it parked", id)
		case n > 0 && reason != "":
			l.tb.Errorf("key %s had its effect and is parked for %q", id, reason)
		}
	}
	if !ordered {
		return
	}
	for partition, places := range l.order {
		if !slices.IsSorted(places) {
			l.tb.Errorf("the effects of partition %d are out of order: %v", partition, firstBack(places))
		}
	}
}

// firstBack returns what stands around the first step back.
func firstBack(places []int) []int {
	for i := 1; i < len(places); i++ {
		if places[i] < places[i-1] {
			return places[max(0, i-3):min(len(places), i+3)]
		}
	}
	return nil
}
