package watermarks

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// clocked is a state that has only a watermark.
type clocked struct {
	watermark int64
}

func (m *clocked) See(when, _ int64) bool {
	m.watermark = max(m.watermark, when)
	return true
}

func (m *clocked) Quiet(int64) bool      { return false }
func (m *clocked) Watermark() int64      { return m.watermark }
func (m *clocked) StoredSources() string { return "" }

func TestTheSlowestSourceMovesTheWatermark(t *testing.T) {
	state := &clocked{}
	c := NewSources(state, map[string]int32{"in": 2}, 1000)
	for _, step := range []struct {
		partition       int32
		when, now       int64
		seen            bool
		watermark, past int64 // past is how far the partition has come with a record of time 300
	}{
		{0, 100, 100, true, 0, 0}, // nothing is known of the other source
		{1, 50, 100, true, 50, 50},
		{1, 400, 400, true, 100, 100},
		{0, 2000, 500, false, 100, 100}, // too far ahead of the clock
		{0, 500, 500, true, 400, 300},
		{1, 450, 500, true, 450, 300},
	} {
		if seen := c.See(&kgo.Record{Topic: "in", Partition: step.partition}, step.when, step.now); seen != step.seen {
			t.Errorf("a record of %d at %d: seen is %v", step.when, step.now, seen)
		}
		if past := c.Reached(300); state.watermark != step.watermark || past != step.past {
			t.Errorf("after a record of %d of partition %d, the watermark is %d and %d is reached, want %d and %d", step.when, step.partition, state.watermark, past, step.watermark, step.past)
		}
	}
}

func TestRecordsUpToTheNextProgressAreOfOneRun(t *testing.T) {
	records := []*kgo.Record{{Offset: 0}, {Offset: 1}, {Offset: 2}}
	is := func(r *kgo.Record) bool { return r.Offset == 2 }
	c := NewSources(&clocked{}, map[string]int32{"in": 1}, 0)
	if n := c.NextProgress(records, is); n != 2 {
		t.Errorf("%d records come before the progress, want 2", n)
	}
	if n := c.NextProgress(records[:2], is); n != 2 {
		t.Errorf("%d records come before the end, want 2", n)
	}
	if n := (Single{}).NextProgress(records, is); n != 3 {
		t.Errorf("%d records of one source come before the end, want 3", n)
	}
}

func TestADamagedProgressNamesItsPlaceAndTheRemedy(t *testing.T) {
	c := NewSources(&clocked{}, map[string]int32{"in": 1}, 0)
	err := c.Progress(&kgo.Record{Topic: "copies", Partition: 3, Offset: 7, Value: []byte{0xff}})
	if err == nil || !strings.Contains(err.Error(), "copies/3 at 7") || !strings.Contains(err.Error(), "kafka-delete-records.sh") {
		t.Errorf("%v", err)
	}
}
