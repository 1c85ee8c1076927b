package records

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"
)

func TestGeneratedEventsAreValidRecords(t *testing.T) {
	t.Parallel()
	in := Events{Seed: 1, Records: 10_000, Groups: 100, Base: time.UnixMilli(60_000), Span: 5 * time.Minute, Jitter: 10 * time.Second}
	ids := map[string]bool{}
	for i := range in.Records {
		e := in.At(i)
		newest := in.Base.Add(in.Jitter + in.Span*time.Duration(i)/time.Duration(in.Records))
		if age := newest.Sub(e.Time); age < 0 || age > in.Jitter+time.Millisecond || e.Group >= in.Groups {
			t.Fatalf("record %d is %+v, %v old", i, e, age)
		}
		value := in.appendValue(nil, i, &e)
		var parsed struct {
			ID    string `json:"event_id"`
			Cents int64
		}
		if err := json.Unmarshal(value, &parsed); err != nil || len(value) != ValueBytes || parsed.Cents != e.Cents || ids[parsed.ID] {
			t.Fatalf("record %d is %s: %v", i, value, err)
		}
		ids[parsed.ID] = true
		if again := in.appendValue(nil, i, &e); !bytes.Equal(value, again) {
			t.Fatalf("record %d differs: %s and %s", i, value, again)
		}
	}
}

// TestExpectedWindowResultsCountEachEvent counts each event once in tumbling windows and sessions, and in each
// of its hopping windows.
func TestExpectedWindowResultsCountEachEvent(t *testing.T) {
	t.Parallel()
	in := Events{Seed: 1, Records: 1000, Groups: 60, Base: time.UnixMilli(60_000), Span: 10 * time.Minute, Jitter: 10 * time.Second}
	var want Totals
	for i := range in.Records {
		e := in.At(i)
		want = want.plus(&e)
	}
	for name, c := range map[string]struct {
		results map[Result]Totals
		times   int64
	}{
		"tumbling": {in.Windows(time.Minute, time.Minute), 1},
		"hopping":  {in.Windows(time.Minute, 10*time.Second), 6},
		"sessions": {in.Sessions(30 * time.Second), 1},
	} {
		var got Totals
		for r, totals := range c.results {
			got.Count, got.Cents = got.Count+totals.Count, got.Cents+totals.Cents
			if r.Start > r.End || name != "sessions" && r.End-r.Start != 60_000 {
				t.Fatalf("%s: %+v", name, r)
			}
			for other := range c.results {
				if name == "sessions" && other.Group == r.Group && other.Start > r.Start && other.Start-r.End <= 30_000 {
					t.Fatalf("two sessions: %+v, %+v", r, other)
				}
			}
		}
		if got.Count != c.times*want.Count || got.Cents != c.times*want.Cents {
			t.Errorf("%s: %+v, want %d times %+v", name, got, c.times, want)
		}
	}
}
