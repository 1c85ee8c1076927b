package window

import (
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestWindowSliceHasOnePaneAtATime has messages of a slice before and after the result of one of its
// windows.
func TestWindowSliceHasOnePaneAtATime(t *testing.T) {
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

func TestChangelogRecordHasOnlyChangedPanes(t *testing.T) {
	t.Parallel()
	e := newEdge(t, testTumbling, 0)
	e.add("a", 5000)
	e.add("a", 11_000)
	e.Commit(0, nil)
	e.add("a", 12_000)
	records, err := e.Changes(1 << 20)
	kafkatest.Must(t, err)
	if h, err := e.Read(records[0].Value); err != nil || h.Len != 1 {
		t.Errorf("%d entries, %v", h.Len, err)
	}
	e.add("b", 12_000)
	if records, err = e.Changes(1); err != nil || len(records) != 2 {
		t.Errorf("%d records, want one for each entry: %v", len(records), err)
	}
}
