package record

import (
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Pool lends the client memory for the records of a batch until all of them are
// recycled.
type Pool struct {
	mu   sync.Mutex
	idle [][]kgo.Record
	room int // records that idle has memory for
}

// idleRecords bounds the idle memory, in records: about as many as a fetch returns.
const idleRecords = 32 << 10

var _ kgo.PoolRecords = (*Pool)(nil)

// GetRecords implements kgo.PoolRecords.
func (p *Pool) GetRecords(n int) []kgo.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	for i := last; i >= max(last-8, 0); i-- { // most have the same size
		if room := p.idle[i]; cap(room) >= n {
			p.idle[i], p.idle[last] = p.idle[last], nil
			p.idle = p.idle[:last]
			p.room -= cap(room)
			return room // the client extends it
		}
	}
	return nil
}

// PutRecords implements kgo.PoolRecords.
func (p *Pool) PutRecords(room []kgo.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) > 0 && p.room+cap(room) > idleRecords { // the last one may have a size that is never requested
		last := len(p.idle) - 1
		p.room -= cap(p.idle[last])
		p.idle = p.idle[:last]
	}
	if p.room+cap(room) <= idleRecords {
		p.idle = append(p.idle, room)
		p.room += cap(room)
	}
}
