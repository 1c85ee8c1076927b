package record

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestPooledRecordsAreReusedAndBounded(t *testing.T) {
	t.Parallel()
	var p Pool
	if room := p.GetRecords(10); room != nil {
		t.Fatalf("there is room for %d before any came back", cap(room))
	}
	some := make([]kgo.Record, 100)
	p.PutRecords(some)
	p.PutRecords(make([]kgo.Record, 10))
	if room := p.GetRecords(50); cap(room) != 100 || &room[:1][0] != &some[0] {
		t.Errorf("room for %d is lent for 50, want the one for 100", cap(room))
	}
	if room := p.GetRecords(50); room != nil {
		t.Errorf("room for %d is lent for 50", cap(room))
	}
	p.PutRecords(make([]kgo.Record, 2*idleRecords))
	if room := p.GetRecords(1); room != nil && cap(room) > idleRecords {
		t.Errorf("room for %d was kept", cap(room))
	}
	for range 100 {
		p.PutRecords(make([]kgo.Record, idleRecords/10))
	}
	total := 0
	for _, room := range p.idle {
		total += cap(room)
	}
	if total != p.room || total > idleRecords || total == 0 {
		t.Errorf("room for %d is kept and %d counted, want at most %d", total, p.room, idleRecords)
	}
}
