// Package output has what a transaction writes besides its state: results of windows, events
// about records that failed, and topics that refuse outputs.
package output

import (
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
)

// Headers of results.
const (
	HeaderFinal    = "semel-final"    // "false" in early results
	HeaderWindow   = "semel-window"   // its start and end, with a slash between them
	HeaderRevision = "semel-revision" // with corrections: greater in each further result
)

// Results makes the records of results. Many results are of one window, and then share their headers.
type Results struct {
	records state.Slab[kgo.Record]
	keys    state.ByteSlab
	key     []byte // memory
	headers []kgo.RecordHeader
	// last is what the headers say.
	last  stream.Closed
	final bool
}

// New returns the record of a result, without a topic.
func (n *Results) New(agg *stream.Aggregate, c *stream.Closed, body []byte, final bool) *kgo.Record {
	r := n.records.New()
	n.key = key.AppendText(n.key[:0], []byte(c.Key))
	r.Key, r.Value, r.Headers, r.Timestamp = n.keys.Clone(n.key), body, n.headersOf(agg, c, final), c.End
	if agg.Over.Gap() == 0 {
		r.Timestamp = c.End.Add(-time.Millisecond)
	}
	return r
}

func (n *Results) headersOf(agg *stream.Aggregate, c *stream.Closed, final bool) []kgo.RecordHeader {
	last := &n.last
	if n.headers != nil && n.final == final && last.Revision == c.Revision && last.Start.Equal(c.Start) && last.End.Equal(c.End) {
		return n.headers
	}
	n.last, n.final = stream.Closed{Start: c.Start, End: c.End, Revision: c.Revision}, final
	n.headers = []kgo.RecordHeader{
		{Key: HeaderFinal, Value: strconv.AppendBool(nil, final)},
		{Key: HeaderWindow, Value: []byte(c.Start.Format(time.RFC3339Nano) + "/" + c.End.Format(time.RFC3339Nano))},
	}
	if agg.Correct > 0 && final {
		n.headers = append(n.headers, kgo.RecordHeader{Key: HeaderRevision, Value: strconv.AppendUint(nil, c.Revision, 10)})
	}
	n.headers = slices.Clip(n.headers) // so that an append to those of a record changes no others
	return n.headers
}
