package record

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
)

func TestAnOutputKeepsTheOriginThatItsMessageAlreadyHas(t *testing.T) {
	t.Parallel()
	seen := time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.FixedZone("", 3600))
	at := semel.Origin{Source: "in", Partition: 2, Offset: 7}
	before := []semel.Header{{Name: header.FirstSeen, Value: []byte("then")}, {Name: header.Origin, Value: []byte("queue q")}}
	for name, c := range map[string]struct {
		output []kgo.RecordHeader
		input  []semel.Header
		want   string
	}{
		"the first pipeline":            {nil, nil, "[{semel-first-seen 2026-01-02T02:04:05.006Z} {semel-origin in 2/7}]"},
		"an output without its headers": {nil, before, "[{semel-first-seen then} {semel-origin queue q}]"},
		"an output with its headers":    {[]kgo.RecordHeader{{Key: header.Origin, Value: []byte("queue q")}}, before, "[{semel-origin queue q}]"},
		"only the place is known":       {nil, before[1:], "[{semel-origin queue q}]"},
	} {
		got := AppendOrigin(c.output, &semel.Message{Headers: c.input, Origin: at}, seen)
		if text := fmt.Sprintf("%s", got); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}

// TestAParkedRecordGetsATimeThatBrokersAccept has records whose times brokers refuse, and one whose
// time they accept.
func TestAParkedRecordGetsATimeThatBrokersAccept(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, at := range []time.Time{now.Add(-time.Hour), now.Add(2 * time.Hour), time.UnixMilli(now.UnixMicro())} {
		r := &kgo.Record{Topic: "in", Timestamp: time.UnixMilli(at.UnixMilli())}
		got := Parked(r, "aside", "g", "permanent", 1, nil)
		if got.Timestamp.After(time.Now()) || at.Before(now) && !got.Timestamp.Equal(r.Timestamp) {
			t.Errorf("a record of %v is parked with the time %v", r.Timestamp, got.Timestamp)
		}
		var m semel.Message
		Fill(&m, got)
		if in := Header(&m, SpringTime); len(in) != 8 || int64(binary.BigEndian.Uint64([]byte(in))) != r.Timestamp.UnixMilli() {
			t.Errorf("a record of %v: the header %s has %x", r.Timestamp, SpringTime, in)
		}
	}
}
