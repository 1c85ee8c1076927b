package window

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

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

func TestMergedSessionMayReachTheMaximumLength(t *testing.T) {
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

// TestOpenSessionDoesNotReplaceTheResultOfAClosedOneWithTheSameStart has an open session that begins when a closed one does,
// whose result is not written yet.
func TestOpenSessionDoesNotReplaceTheResultOfAClosedOneWithTheSameStart(t *testing.T) {
	t.Parallel()
	log := newChangelog(t, testAggregate(t, stream.Session(time.Second, time.Minute), 0), rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0)))
	e := edge{log.State, t}
	commit := func() {
		log.Write(1 << 20)
		log.Commit()
	}
	e.add("a", 10_000)
	commit()
	e.add("b", 11_001+testGrace) // closes it
	e.add("a", 10_900)
	commit()
	e.add("a", 10_000) // is late alone, and joins the open session
	commit()
	for name, s := range map[string]edge{"live": e, "restored": {log.Restored(), t}} {
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
