package kafkaio

import (
	"slices"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/pipeline"
)

// maker makes the records of one delivery, in a few pieces of memory. It is used
// again when all of them are answered.
type maker struct {
	sink     *Sink
	records  []kgo.Record
	promises []*promise // of the records; behind them those of earlier deliveries
	headers  []kgo.RecordHeader
	text     []byte
	scope    string // whose bytes are kept for the next record
	scoped   []byte
}

// makers are those that wait to be used again: as many as there were deliveries at
// once.
type makers struct {
	mu   sync.Mutex
	idle []*maker
}

func (l *makers) take() *maker {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.idle) - 1
	if last < 0 {
		return &maker{}
	}
	m := l.idle[last]
	l.idle = l.idle[:last]
	return m
}

func (l *makers) put(m *maker) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = append(l.idle, m)
}

// ownHeaders is how many headers a record gets from us at most, and ownNumbers
// about how many digits are in them.
const ownHeaders, ownNumbers = 6, 8

// maker returns one with room for the records of items.
func (s *Sink) maker(items []*pipeline.Item) *maker {
	headers, text := 0, 0
	for _, it := range items {
		headers += len(it.Message.Headers) + ownHeaders
		text += len(it.Call.Key.ID) + ownNumbers
	}
	m := s.makers.take()
	m.sink = s
	m.records = slices.Grow(m.records, len(items))
	m.headers = slices.Grow(m.headers, headers)
	m.text = slices.Grow(m.text, text)
	return m
}

// free lets others use the room of one whose records have all been answered. What
// is larger than most need goes.
func (s *Sink) free(m *maker) {
	clear(m.records)
	clear(m.headers)
	for _, p := range m.promises {
		p.d = nil
	}
	m.records, m.promises, m.headers, m.text, m.scope, m.scoped = m.records[:0], m.promises[:0], m.headers[:0], m.text[:0], "", nil
	if cap(m.headers) <= 64<<10 && cap(m.text) <= 1<<20 {
		s.makers.put(m)
	}
}

// promise returns one for record i of a delivery.
func (m *maker) promise(d *delivery, i int, group uint64) func(*kgo.Record, error) {
	n := len(m.promises)
	if n == cap(m.promises) {
		m.promises = slices.Grow(m.promises, 1)
	}
	m.promises = m.promises[:n+1]
	p := m.promises[n]
	if p == nil {
		p = &promise{}
		p.keep = p.kept
		m.promises[n] = p
	}
	p.d, p.i, p.group = d, i, group
	return p.keep
}

// record makes the record of an item. They share their bytes.
func (m *maker) record(it *pipeline.Item) *kgo.Record {
	from := len(m.headers)
	for i := range it.Message.Headers {
		name := it.Message.Headers[i].Name
		if isKeyHeader(name) || name == pipeline.RedriveHeader || it.Redrive > 0 && isParking(name) {
			continue
		}
		m.header(name, it.Message.Headers[i].Value)
	}
	if !m.sink.opts.NoKeyHeaders {
		m.nameKey(it)
	}
	if it.Redrive > 0 {
		m.number(pipeline.RedriveHeader, uint64(it.Redrive))
	}
	m.records = append(m.records, kgo.Record{
		Topic: m.sink.opts.Topic, Key: it.Message.RecordKey, Value: it.Message.Body,
		Headers:   m.headers[from:len(m.headers):len(m.headers)],
		Timestamp: it.Message.Time, Partition: it.Message.Origin.Partition,
	})
	return &m.records[len(m.records)-1]
}

// nameKey adds the headers that name the key of an item, and its attempt.
func (m *maker) nameKey(it *pipeline.Item) {
	key := it.Call.Key
	name, id := keyHeader(key.ID)
	at := len(m.text)
	m.text = append(m.text, id...)
	m.header(name, m.text[at:len(m.text):len(m.text)])
	if key.Scope != m.sink.opts.Name { // otherwise the next one says it
		if key.Scope != m.scope || m.scoped == nil {
			m.scope, m.scoped = key.Scope, []byte(key.Scope)
		}
		m.header(headerScope, m.scoped)
	}
	if len(m.sink.name) > 0 {
		m.header(headerPipeline, m.sink.name)
	}
	if it.Attempt > 1 {
		m.number(headerAttempt, uint64(it.Attempt))
	}
	if it.Token > 0 {
		m.number(headerToken, uint64(it.Token))
	}
}

func (m *maker) header(name string, value []byte) {
	m.headers = append(m.headers, kgo.RecordHeader{Key: name, Value: value})
}

func (m *maker) number(name string, n uint64) {
	at := len(m.text)
	m.text = strconv.AppendUint(m.text, n, 10)
	m.header(name, m.text[at:len(m.text):len(m.text)])
}
