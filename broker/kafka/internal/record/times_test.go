package record

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// TestTimestampMinusOneMeansNoTime: a message has no time then. A copy of such a record has a time that
// brokers accept, as has the copy of one from the future or from before 1970.
func TestTimestampMinusOneMeansNoTime(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Millisecond)
	for _, c := range []struct {
		timestamp int64
		none, now bool
	}{{-1, true, true}, {-2, false, true}, {0, false, false}, {now.UnixMilli(), false, false}, {now.UnixMilli() + 3_600_000, false, true}} {
		r := &kgo.Record{Topic: "t", Timestamp: time.UnixMilli(c.timestamp)}
		var m semel.Message
		if Fill(&m, r); m.Time.IsZero() != c.none || !c.none && m.Time.UnixMilli() != c.timestamp {
			t.Errorf("a record with the timestamp %d has the time %s", c.timestamp, m.Time)
		}
		out := Parked(r, "aside", "g", pipeline.ReasonPermanent, 1, nil)
		if ago := time.Since(out.Timestamp); c.now && (ago < 0 || ago > time.Minute) || !c.now && out.Timestamp.UnixMilli() != c.timestamp {
			t.Errorf("the copy of a record with the timestamp %d has the time %s", c.timestamp, out.Timestamp)
		}
	}
}
