package windows

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/locallog"
	"github.com/semel-dev/semel/stream"
)

// edge is a state whose messages have the value 1. A message is read at its own time.
type edge struct {
	*State
	t *testing.T
}

func newEdge(t *testing.T, over stream.Window, correct time.Duration) edge {
	return edge{New(testAggregate(t, over, correct)), t}
}

// add adds a message and returns what became of it.
func (e edge) add(key string, when int64) Verdict {
	e.t.Helper()
	clock := max(when, e.Watermark()+testGrace)
	e.See(when, clock)
	v, err := e.Add(&semel.Message{Body: []byte("1")}, []byte(key), when, clock)
	if err != nil {
		e.t.Fatal(err)
	}
	return v
}

// emit returns the results of at most a number of windows.
func (e edge) emit(most int) string {
	e.t.Helper()
	var list []string
	if _, err := e.Emit(most, func(c *stream.Closed) error {
		list = append(list, fmt.Sprintf("%s %d-%d %s r=%d", c.Key, c.Start.UnixMilli(), c.End.UnixMilli(), c.Acc, c.Revision))
		return nil
	}); err != nil {
		e.t.Fatal(err)
	}
	return strings.Join(list, ", ")
}

func TestTheLastMomentAheadIsAllowed(t *testing.T) {
	t.Parallel()
	e := newEdge(t, testTumbling, 0)
	m := &semel.Message{Body: []byte("1")}
	for when, want := range map[int64]Verdict{1000 + testAhead: Added, 1001 + testAhead: Ahead} {
		if got, err := e.Add(m, []byte("k"), when, 1000); err != nil || got != want {
			t.Errorf("%d: %d, %v", when, got, err)
		}
		if e.See(when, 1000) != (want == Added) {
			t.Errorf("%d: See disagrees", when)
		}
	}
}

func TestSessionsEndAfterTheirGap(t *testing.T) {
	t.Parallel()
	e := newEdge(t, stream.Session(time.Second, 10*time.Second), 0)
	e.add("a", 10_000)
	e.add("a", 11_000) // the gap
	e.add("a", 12_001) // more
	e.add("a", 12_001+testGrace)
	if got := e.emit(9); got != "a 10000-11000 n=2 s=2 r=0" {
		t.Error(got)
	}
	if v := e.add("a", 11_000); v != Late { // its session would end at the watermark
		t.Errorf("%d", v)
	}
	if v := e.add("a", 11_001); v != Added {
		t.Errorf("%d", v)
	}
	e.add("b", 20_000)
	if got := e.emit(9); got != "a 11001-12001 n=2 s=2 r=0, a 15001-15001 n=1 s=1 r=0" {
		t.Error(got)
	}
}

func TestASessionThatJoinsMayHaveItsGreatestLength(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		last int64
		want string
	}{
		{14_000, "a 10000-14000 n=3 s=3 r=0"},
		{14_001, "a 10000-12000 n=2 s=2 r=0, a 14001-14001 n=1 s=1 r=0"}, // it would be too long
	} {
		e := newEdge(t, stream.Session(3*time.Second, 4*time.Second), 0)
		for _, when := range []int64{10_000, c.last, 12_000} {
			e.add("a", when)
		}
		e.add("b", 30_000) // closes them
		if got := e.emit(9); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
}

func TestRevisionsGrow(t *testing.T) {
	t.Parallel()
	e := newEdge(t, testTumbling, time.Minute)
	e.add("a", 5000)
	e.add("a", 10_000+testGrace)
	for i, want := range []string{"a 0-10000 n=1 s=1 r=0", "a 0-10000 n=2 s=2 r=1", "a 0-10000 n=3 s=3 r=2"} {
		if got := e.emit(9); got != want {
			t.Errorf("%d: %s", i, got)
		}
		e.Commit(0, nil)
		e.add("a", 6000)
	}
	e.Drop() // with the revision
	if got := e.emit(9); got != "" {
		t.Errorf("%s after a drop", got)
	}
}

// TestAWindowBelowAPartlyEmittedOneIsEmitted has a late message for a window that had no
// messages when a later one was emitted.
func TestAWindowBelowAPartlyEmittedOneIsEmitted(t *testing.T) {
	t.Parallel()
	e := newEdge(t, testTumbling, time.Minute)
	e.add("a", 15_000)
	e.add("b", 15_000)
	e.add("a", 20_000+testGrace)
	if got := e.emit(1); got != "a 10000-20000 n=1 s=1 r=0" {
		t.Error(got)
	}
	e.Commit(0, nil)
	e.add("c", 5000)
	if got := e.emit(9); got != "c 0-10000 n=1 s=1 r=1, b 10000-20000 n=1 s=1 r=0" {
		t.Error(got)
	}
}

// TestASliceHasOnePaneAtATime has messages of a slice before and after the result of one of its
// windows.
func TestASliceHasOnePaneAtATime(t *testing.T) {
	t.Parallel()
	e := newEdge(t, stream.Hopping(10*time.Second, 2*time.Second), 0)
	e.add("a", 5000)
	e.add("b", 8000+testGrace) // closes two of its five windows
	if got := e.emit(9); got != "a -4000-6000 n=1 s=1 r=0, a -2000-8000 n=1 s=1 r=0" {
		t.Error(got)
	}
	e.add("a", 5000)
	e.Commit(0, nil)
	if e.Open() != 2 {
		t.Errorf("%d panes of two slices", e.Open())
	}
	e.add("b", 14_000+testGrace)
	e.emit(2)
	if got := e.emit(9); !strings.HasSuffix(got, "a 4000-14000 n=2 s=2 r=0, b 4000-14000 n=1 s=1 r=0") {
		t.Error(got)
	}
}

func TestARecordHasChangedPanesAlone(t *testing.T) {
	t.Parallel()
	e := newEdge(t, testTumbling, 0)
	e.add("a", 5000)
	e.add("a", 11_000)
	e.Commit(0, nil)
	e.add("a", 12_000)
	r, err := e.Parse(changesOf(t, e.State, 1<<20)[0])
	if err != nil || r.Len() != 1 {
		t.Errorf("%d entries, %v", r.Len(), err)
	}
	e.add("b", 12_000)
	if n := len(changesOf(t, e.State, 1)); n != 2 {
		t.Errorf("%d records, want one for each entry", n)
	}
}

// TestEarlyResultsAreThoseThatHaveChanged drops and commits transactions in between.
func TestEarlyResultsAreThoseThatHaveChanged(t *testing.T) {
	t.Parallel()
	for _, over := range []stream.Window{testTumbling, stream.Session(9*time.Second, time.Minute)} {
		e := newEdge(t, over, 0)
		e.agg.Early = time.Second
		preview := func(want string) {
			t.Helper()
			var list []string
			if _, err := e.Preview(9, func(c *stream.Closed) error {
				list = append(list, c.Key+" "+string(c.Acc))
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(list, ", "); got != want {
				t.Errorf("%s: %s, want %s", over, got, want)
			}
		}
		e.add("a", 5000)
		e.add("b", 5000)
		preview("a n=1 s=1, b n=1 s=1")
		e.Drop()
		preview("")
		e.Commit(0, nil)
		e.add("a", 5000)
		e.add("b", 5000)
		e.Commit(0, nil)
		preview("a n=1 s=1, b n=1 s=1")
		e.Drop()
		e.Commit(0, nil) // one without early results
		preview("a n=1 s=1, b n=1 s=1")
		e.Commit(0, nil)
		preview("")
		e.Commit(0, nil)
		e.add("b", 5000)
		e.Commit(0, nil)
		preview("b n=2 s=2")
	}
}

// TestAClosedSessionIsNotReplaced has an open session that begins when a closed one does,
// whose result is not written yet.
func TestAClosedSessionIsNotReplaced(t *testing.T) {
	t.Parallel()
	agg := testAggregate(t, stream.Session(time.Second, time.Minute), 0)
	e := edge{New(agg), t}
	var records [][]byte
	commit := func() {
		records = append(records, changesOf(t, e.State, 1<<20)...)
		e.Commit(0, nil)
	}
	e.add("a", 10_000)
	commit()
	e.add("b", 11_001+testGrace) // closes it
	e.add("a", 10_900)
	commit()
	e.add("a", 10_000) // is late alone, and joins the open session
	commit()
	restored := edge{New(agg), t}
	for _, value := range records {
		r, err := restored.Parse(value)
		if err != nil {
			t.Fatal(err)
		}
		restored.Apply(&r, 0, locallog.Place{})
	}
	for name, s := range map[string]edge{"live": e, "restored": restored} {
		s.See(30_000, 30_000)
		if got, want := s.emit(9), "a 10000-10000 n=1 s=1 r=0, a 10000-10900 n=2 s=2 r=0, b 14001-14001 n=1 s=1 r=0"; got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		s.Commit(0, nil)
		if s.Open() != 0 {
			t.Errorf("%s: %d are open", name, s.Open())
		}
	}
}
