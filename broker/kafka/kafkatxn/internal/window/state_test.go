package window

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
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

func TestEventTimeMayBeAheadUpToTheLimit(t *testing.T) {
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

func TestCorrectedResultsHaveGrowingRevisions(t *testing.T) {
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

// TestLateMessageOpensAWindowBeforeAPartlyEmittedOne has a late message for a window that had no
// messages when a later one was emitted.
func TestLateMessageOpensAWindowBeforeAPartlyEmittedOne(t *testing.T) {
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

// TestEarlyResultsAreEmittedForChangedWindowsOnly drops and commits transactions in between.
func TestEarlyResultsAreEmittedForChangedWindowsOnly(t *testing.T) {
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
