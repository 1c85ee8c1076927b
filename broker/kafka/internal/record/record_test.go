package record

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/header"
)

func TestAnOutputKeepsTheFirstPlaceOfItsMessage(t *testing.T) {
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
