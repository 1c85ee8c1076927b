package output

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/stream"
)

// Many results have the same headers, and a hook of the client may add some to one of them.
func TestResultsDoNotShareHeaders(t *testing.T) {
	t.Parallel()
	base := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	for _, agg := range []*stream.Aggregate{
		{Over: stream.Tumbling(time.Minute)},
		{Over: stream.Tumbling(time.Minute), Correct: time.Hour},
		{Over: stream.Session(time.Second, time.Hour)},
	} {
		var n Results
		var got []*kgo.Record
		var want []string
		for i := range 500 {
			c := &stream.Closed{Key: fmt.Sprint("key ", i), Start: base.Add(time.Duration(i/7) * time.Minute), Revision: uint64(i / 5 % 2)}
			c.End = c.Start.Add(time.Duration(1+i/3%2) * time.Minute)
			final := i%4 < 2
			got = append(got, n.New(agg, c, fmt.Append(nil, i), final))
			got[i].Headers = append(got[i].Headers, kgo.RecordHeader{Key: "hook", Value: fmt.Append(nil, i)})
			at, revision := c.End, ""
			if agg.Over.Gap() == 0 {
				at = at.Add(-time.Millisecond)
			}
			if agg.Correct > 0 && final {
				revision = fmt.Sprintf(" semel-revision=%d", c.Revision)
			}
			want = append(want, fmt.Sprintf("key %d: %d at %s semel-final=%t semel-window=%s/%s%s hook=%d", i, i, at.Format(time.RFC3339Nano), final,
				c.Start.Format(time.RFC3339Nano), c.End.Format(time.RFC3339Nano), revision, i))
		}
		var texts []string
		for _, r := range got {
			text := fmt.Sprintf("%s: %s at %s", r.Key, r.Value, r.Timestamp.Format(time.RFC3339Nano))
			for _, h := range r.Headers {
				text += fmt.Sprintf(" %s=%s", h.Key, h.Value)
			}
			texts = append(texts, text)
		}
		if !slices.Equal(texts, want) {
			for i := range want {
				if texts[i] != want[i] {
					t.Fatalf("%s, want %s", texts[i], want[i])
				}
			}
		}
	}
}

// TestResultsOfAWindowTakeFewAllocations: there may be millions.
func TestResultsOfAWindowTakeFewAllocations(t *testing.T) {
	agg := &stream.Aggregate{Over: stream.Tumbling(time.Minute)}
	c := &stream.Closed{Key: "customer-1234567", Start: time.Unix(0, 0), End: time.Unix(60, 0)}
	var n Results
	if each := testing.AllocsPerRun(1000, func() { n.New(agg, c, nil, true) }); each > 0 { // rounded down
		t.Errorf("%v allocations for each result", each)
	}
}
