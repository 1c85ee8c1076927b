package pending

import (
	"math"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/marks"
)

// The note of as many records as may wait, with the greatest offsets, fits into the 4,096
// bytes that brokers take by default.
func TestTheLongestNoteFits(t *testing.T) {
	t.Parallel()
	var q Queue
	var offsets []int64
	for i := range int64(Most) {
		if q.Full() {
			t.Fatalf("no more records than %d may wait", i)
		}
		offsets = append(offsets, math.MaxInt64-Most+i)
		q.Add(Record{Record: &kgo.Record{Offset: math.MaxInt64 - Most + i}})
	}
	if !q.Full() {
		t.Error("more records may wait")
	}
	note, commits := q.Note()
	most := marks.Extent{Low: math.MaxInt64, End: math.MaxInt64, Times: slices.Repeat([]marks.Time{{Offset: math.MaxInt64, At: 253402300800000}}, marks.MostTimes)}
	other := marks.Note{Keys: most, State: marks.Extent{Topic: marks.ID{1}, Low: math.MaxInt64, End: math.MaxInt64}}
	if len(note)+len(End)+len(other.String()) > 4096 || !commits {
		t.Errorf("a note has %d bytes", len(note))
	}
	if got, err := ParseNote(note); err != nil || !slices.Equal(got, offsets) {
		t.Errorf("%v was noted as %q and read as %v: %v", offsets, note, got, err)
	}
}

func TestForeignMetadataIsNoNote(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "g-member-1", "waiting"} {
		if got, err := ParseNote(text); err != nil || got != nil {
			t.Errorf("%q was read as %v: %v", text, got, err)
		}
	}
	if got, err := ParseNote(Prefix + "1,x"); err == nil {
		t.Errorf("a damaged note was read as %v", got)
	}
}

// A reading is due only for records that came before it began.
func TestRecordsThatCameLaterAreNotDue(t *testing.T) {
	t.Parallel()
	var q Queue
	for _, since := range []int{-1, 0, 0, 1} {
		q.Add(Record{Record: &kgo.Record{}, Since: since})
	}
	for ended, want := range []int{1, 3, 4} {
		if got := q.Due(ended); got != want {
			t.Errorf("after reading %d, %d records are due, want %d", ended, got, want)
		}
	}
	if !q.Lacks(1) || q.Lacks(2) {
		t.Error("the last record lacks reading 2, and no more")
	}
}

// The open transaction adds and takes records, and is aborted or committed.
func TestTransactions(t *testing.T) {
	t.Parallel()
	var q Queue
	add := func(offset int64) { q.Add(Record{Record: &kgo.Record{Offset: offset}}) }
	want := func(note string, commits bool) {
		t.Helper()
		if got, also := q.Note(); got != note || also != commits {
			t.Errorf("the note is %q and commits %t, want %q and %t", got, also, note, commits)
		}
	}
	want("", false)
	add(1)
	add(2)
	if more := q.Commit(); more != 2 {
		t.Errorf("%d more records wait, want 2", more)
	}
	q.Take()
	add(3)
	want(Prefix+"2,3", true)
	q.Drop()
	want(Prefix+"1,2", true)
	add(4)
	want(Prefix+"1,2,4", true)
	q.Drop()
	q.Take()
	q.Take()
	want("", true) // the note of the last transaction must go
	if more := q.Commit(); more != -2 {
		t.Errorf("%d more records wait, want -2", more)
	}
	want("", false)
}

func TestARecordWaitsBehindRecordsWithItsIDOrKey(t *testing.T) {
	t.Parallel()
	record := func(key string, id byte) Record {
		x := Record{Record: &kgo.Record{}, HasID: id > 0, ID: semel.Digest{id}}
		if key != "" {
			x.Key = []byte(key)
		}
		return x
	}
	var q Queue
	q.Add(record("a", 1))
	q.Add(record("", 0))
	for _, c := range []struct {
		x    Record
		want bool
	}{{record("a", 2), true}, {record("b", 1), true}, {record("b", 2), false}, {record("", 0), false}, {record("", 2), false}} {
		if got := q.Holds(c.x); got != c.want {
			t.Errorf("a record with key %q and id %v stays behind: %t", c.x.Key, c.x.ID, got)
		}
	}
}
