package window

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	_ "time/tzdata" // the test does not depend on the host

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestWindowsAreTheDaysOfAZone adds messages out of order around changes of the clocks, and
// builds the state again from its records. Each day has the messages that were not late, as in
// a batch by date.
func TestWindowsAreTheDaysOfAZone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ zone, from string }{
		{"Europe/Vienna", "2026-03-20"}, {"Australia/Lord_Howe", "2026-09-25"}, {"Africa/Cairo", "2026-04-15"}, {"America/Havana", "2026-10-25"}, {"Asia/Kolkata", "2026-01-01"}, {"Pacific/Apia", "2011-12-20"},
	} {
		for _, correct := range []time.Duration{0, 12 * time.Hour} {
			t.Run(fmt.Sprintf("%s, corrected for %v", c.zone, correct), func(t *testing.T) {
				t.Parallel()
				zone, err := time.LoadLocation(c.zone)
				kafkatest.Must(t, err)
				agg := testAggregate(t, stream.Days(1, zone), correct)
				agg.Grace, agg.MaxAhead = 3*time.Hour, time.Hour
				checkDays(t, agg, zone, c.from)
			})
		}
	}
}

func checkDays(t *testing.T, agg *stream.Aggregate, zone *time.Location, from string) {
	t.Helper()
	random := rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0))
	now, err := time.Parse(time.DateOnly, from)
	kafkatest.Must(t, err)
	log := newChangelog(t, agg, random)
	s := log.State
	want, got := map[string]int{}, map[string]string{}
	lates := 0
	result := func(c *stream.Closed) error {
		date := c.Start.In(zone).Format(time.DateOnly)
		if c.End.In(zone).Add(-time.Millisecond).Format(time.DateOnly) != date || c.Start.Add(-time.Millisecond).In(zone).Format(time.DateOnly) == date {
			t.Errorf("a result is from %s to %s", c.Start.In(zone), c.End.In(zone))
		}
		if _, ok := got[c.Key+date]; ok && agg.Correct == 0 {
			t.Errorf("%s %s has a second result", c.Key, date)
		}
		got[c.Key+date] = string(c.Acc)
		return nil
	}
	commit := func() {
		_, err := s.Emit(random.IntN(5), result)
		kafkatest.Must(t, err)
		log.Write(1000)
		if log.Commit(); random.IntN(5) == 0 {
			s = log.Restart()
		}
	}
	for range 1500 {
		now = now.Add(time.Duration(random.Int64N(int64(20 * time.Minute))))
		when := now.Add(-time.Duration(random.Int64N(int64(16*time.Hour + agg.Correct)))).Truncate(time.Millisecond)
		s.See(now.UnixMilli(), now.UnixMilli()) // a message of another key
		key := string(rune('a' + random.IntN(2)))
		verdict, err := s.Add(&semel.Message{Body: []byte("1")}, []byte(key), when.UnixMilli(), now.UnixMilli())
		kafkatest.Must(t, err)
		date := when.In(zone).Format(time.DateOnly)
		closed := now.Add(-agg.Grace - agg.Correct).In(zone).Format(time.DateOnly)
		if late := date < closed; late != (verdict == Late) {
			t.Fatalf("the message of %s is %d at %s", when.In(zone), verdict, now.In(zone))
		} else if late {
			lates++
		} else {
			want[key+date]++
		}
		var p pane
		p.start, p.first = s.rule.sliceOf(when.UnixMilli())
		ends := slices.Collect(s.rule.ends(&p, p.start, never))
		if start := timeOf(p.start); len(ends) != 1 || start.In(zone).Format(time.DateOnly) != date || start.After(when) || !timeOf(ends[0]).After(when) {
			t.Fatalf("%s has the window from %s to %v", when.In(zone), start, ends)
		}
		if random.IntN(4) == 0 {
			commit()
		}
	}
	s.See(now.AddDate(0, 0, 3).UnixMilli(), now.AddDate(0, 0, 3).UnixMilli())
	for s.Due() {
		commit()
	}
	commit()
	if len(got) < 10 || len(got) != len(want) || lates < 20 || s.Open() > 0 && agg.Correct == 0 {
		t.Errorf("%d results of %d windows, %d late, %d open", len(got), len(want), lates, s.Open())
	}
	for window, n := range want {
		if got[window] != fmt.Sprintf("n=%d s=%d", n, n) {
			t.Errorf("%s has %s, want %d", window, got[window], n)
		}
	}
}

// TestStoredDaysOutliveTheDataOfTheirZone reads windows whose zone has other days now. Their
// results are written as they were begun, and none is lost.
func TestStoredDaysOutliveTheDataOfTheirZone(t *testing.T) {
	t.Parallel()
	day := func(hours int) *stream.Aggregate {
		return testAggregate(t, stream.Days(1, time.FixedZone("Somewhere", hours*3600)), 0)
	}
	base := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, hours := range []int{-3, 3} {
		agg := day(1)
		log := newChangelog(t, agg, rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0)))
		edge{log.State, t}.add("a", base.UnixMilli())
		log.Write(1000)
		log.Commit()
		*agg = *day(1 + hours)
		after := edge{log.Restart(), t}
		var ends []time.Time
		for n := range 3 {
			after.add("b", base.AddDate(0, 0, n).UnixMilli())
			_, err := after.Emit(100, func(c *stream.Closed) error {
				if c.Key == "a" {
					ends = append(ends, c.End)
				}
				return nil
			})
			kafkatest.Must(t, err)
			log.Write(1000)
			log.Commit()
		}
		if want := []time.Time{time.Date(2026, 3, 1, 23, 0, 0, 0, time.UTC)}; !slices.EqualFunc(ends, want, time.Time.Equal) || after.groups.get([]byte("a")) != nil {
			t.Errorf("the window of a ends at %v, want %v", ends, want)
		}
	}
}
