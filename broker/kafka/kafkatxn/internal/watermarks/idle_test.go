package watermarks

import (
	"slices"
	"testing"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
)

func TestAPartitionIsIdleWhenItsEndDoesNotMove(t *testing.T) {
	a, b := cluster.Partition{Topic: "in"}, cluster.Partition{Topic: "in", Number: 1}
	var c IdleFinder
	for _, step := range []struct {
		at     int64
		copied map[cluster.Partition]int64
		idle   []cluster.Partition
	}{
		{100, map[cluster.Partition]int64{a: 5, b: 0}, nil},
		{109, map[cluster.Partition]int64{a: 5, b: 0}, nil},
		{110, map[cluster.Partition]int64{a: 5, b: 0}, []cluster.Partition{a, b}},
		{111, map[cluster.Partition]int64{a: 6, b: 0}, []cluster.Partition{b}}, // a new record
		{120, map[cluster.Partition]int64{a: 6}, nil},                          // not copied to its end
		{121, map[cluster.Partition]int64{a: 6, b: 0}, []cluster.Partition{a}},
		{131, map[cluster.Partition]int64{a: 6, b: 0}, []cluster.Partition{a, b}},
	} {
		got := c.Idle(step.copied, 10, step.at)
		slices.SortFunc(got, func(a, b cluster.Partition) int { return int(a.Number - b.Number) })
		if !slices.Equal(got, step.idle) {
			t.Errorf("at %d idle are %v, want %v", step.at, got, step.idle)
		}
	}
}

func TestIdlePartitionsAdvanceToTheClockLessIdleTimeAndMargin(t *testing.T) {
	a, b := cluster.Partition{Topic: "in"}, cluster.Partition{Topic: "in", Number: 1}
	times := New(map[string]int32{"in": 2})
	times.See(b, 1000)
	(&IdleSources{At: 500, Idle: []cluster.Partition{a, b}}).Move(times, 100, 5)
	if low, ok := times.Low(); !ok || low != 395 {
		t.Errorf("they have come to %d, %t, want 395", low, ok)
	}
	times.See(a, 2000)
	if low, _ := times.Low(); low != 1000 {
		t.Errorf("an idle source has gone back to %d", low)
	}
}

func TestTimesThatWereNotStoredAreDropped(t *testing.T) {
	a, b := cluster.Partition{Topic: "in"}, cluster.Partition{Topic: "in", Number: 1}
	var state marked
	m := NewSources(&state, map[string]int32{"in": 2}, 0)
	m.open().See(a, 10)
	m.open().See(b, 20)
	state.stored = m.Text(state.stored)
	m.open().See(a, 30)
	if low, _ := m.open().Low(); low != 20 {
		t.Errorf("low is %d, want 20", low)
	}
	m.Forget() // the transaction is aborted
	if low, ok := m.open().Low(); !ok || low != 10 {
		t.Errorf("low is %d, %t, want 10", low, ok)
	}
	if m.MaxSize() < len(state.stored) {
		t.Errorf("%d bytes are stored, and at most %d", len(state.stored), m.MaxSize())
	}
	sizes := m.sizes
	m.Grow(map[string]int32{"in": 1, "other": 1})
	m.Grow(map[string]int32{"in": 3})
	m.Forget()
	if low, ok := m.open().Low(); ok || sizes["in"] != 2 {
		t.Errorf("low is %d although nothing is known of a new partition, and others have %v", low, sizes)
	}
	if c := (Single{}); c.MaxSize() != 0 || c.Reached(7) != 7 {
		t.Error("without several sources, a record does not count by its own time")
	}
}

// marked is a state that has stored what is known of sources.
type marked struct {
	Marked
	stored string
}

// StoredSources implements Marked.
func (m *marked) StoredSources() string { return m.stored }
