package keep

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestTheLastRecordOfEachDayOfAZone has three days that begin at half past six in the evening in
// UTC, without and with restarts.
func TestTheLastRecordOfEachDayOfAZone(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("+05:30", 5*3600+1800)
	keep := &stream.Keep{Last: stream.Days(1, zone), Grace: time.Hour, MaxAhead: time.Hour}
	for _, restart := range []bool{false, true} {
		log := newChangelog(t, RuleOf(keep, 0), false, rand.New(rand.NewPCG(0, 0)))
		s := log.State
		var got []string
		add := func(day, hour, minute int, want Verdict) {
			t.Helper()
			at := time.Date(2026, 3, day, hour, minute, 0, 0, zone).UnixMilli()
			s.See(at, at)
			text := fmt.Sprintf("%d %d:%02d", day, hour, minute)
			if v, _ := s.Add("a", at, at, []byte(text)); v != want {
				t.Errorf("%s is %d, want %d", text, v, want)
			}
			first, last := s.rule.window(at)
			held := 0
			for _, e := range s.open["a"] {
				if e.first == first {
					held++
				}
			}
			if want != Late && (held > 1 || last-first != 24*3600*1000) {
				t.Errorf("%s is in a window of %s with %d records", text, time.Duration(last-first)*time.Millisecond, held)
			}
			_, err := s.Emit(10, func(_ string, _ int64, value []byte) error { got = append(got, string(value)); return nil })
			kafkatest.Must(t, err)
			if log.commit(log.Write(1000)); restart {
				s = log.restart()
			}
		}
		add(28, 23, 59, Held)
		add(29, 0, 0, Held)
		add(28, 23, 58, Superseded)
		add(29, 0, 59, Held)
		add(29, 1, 0, Held) // the watermark is midnight
		add(28, 23, 59, Late)
		add(29, 23, 59, Held)
		add(30, 0, 30, Held)
		add(31, 0, 0, Held)
		if want := []string{"28 23:59", "29 23:59"}; !slices.Equal(got, want) {
			t.Errorf("%q take effect, want %q", got, want)
		}
	}
}
