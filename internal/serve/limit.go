package serve

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// memory limits the bytes of bodies and answers in progress, so that slow clients cost
// connections. Bodies and answers of at most small bytes may take as much again, so that they do
// not wait for clients that read a lot slowly.
type memory struct {
	most int64
	used atomic.Int64
}

const small = 16 << 10

// take reserves bytes of a body or an answer that then has size bytes. It returns false if
// there is no room for them.
func (m *memory) take(n, size int64) bool {
	if used := m.used.Add(n); used > m.most && (size > small || used > 2*max(m.most, small)) {
		m.used.Add(-n)
		return false
	}
	return true
}

func (m *memory) give(n int64) { m.used.Add(-n) }

var (
	errTooLarge = errors.New("body too large")
	errNoMemory = errors.New("no memory")
)

// readBody reads the body of a request, which has at most most bytes and must be there
// within the timeout. The memory is taken as the bytes come, so a client that announces
// much and sends little holds little. The caller gives back what was taken.
func (m *memory) readBody(w http.ResponseWriter, r *http.Request, most int64, timeout time.Duration) (data []byte, taken int64, err error) {
	defer func() {
		if err != nil { // otherwise net/http waits for the rest of the body before it answers
			w.Header().Set("Connection", "close")
		}
	}()
	if r.ContentLength > most {
		return nil, 0, errTooLarge
	}
	control := http.NewResponseController(w)
	if control.SetReadDeadline(time.Now().Add(timeout)) == nil {
		defer func() {
			if err == nil { // otherwise the deadline would end a request that waits
				_ = control.SetReadDeadline(time.Time{})
			}
		}()
	}
	size := int64(512)
	if 0 < r.ContentLength && r.ContentLength <= 16<<10 {
		size = r.ContentLength + 1
	}
	for data = []byte(nil); ; size = min(2*size, most+1) {
		if !m.take(size-taken, size) {
			return nil, taken, errNoMemory
		}
		taken = size
		grown := make([]byte, len(data), size)
		copy(grown, data)
		n, err := io.ReadFull(r.Body, grown[len(data):size])
		data = grown[:len(data)+n]
		switch {
		case err == io.EOF, err == io.ErrUnexpectedEOF:
			return data, taken, nil
		case err != nil:
			return nil, taken, err
		case int64(len(data)) > most:
			return nil, taken, errTooLarge
		}
	}
}

// maxAnswer limits the results in one answer. A result that does not fit is asked for
// again, with fewer items.
const maxAnswer = 16 << 20

// room limits the results that a request holds: those of one question to the store, and
// those that its answer has.
type room struct {
	memory *memory
	chunk  int // keys in one question, so that their results take a quarter of the memory at most
	size   int
}

func (s *Server) room() *room {
	return &room{memory: &s.memory, chunk: max(1, int(min(s.memory.most/4/s.opts.MaxResult, 1<<20)))}
}

// fit drops the results for which the answer or the memory has no room. The first one always
// fits, so that a request for one item is answered.
func (r *room) fit(list []*operation) {
	for _, o := range list {
		n := len(o.claimed.Result.Data) + len(o.record.Result.Data)
		switch {
		case n == 0 || o.full:
			continue
		case r.size > 0 && (r.size+n > maxAnswer || !r.memory.take(int64(n), int64(r.size+n))):
			o.full, o.claimed.Result.Data, o.record.Result.Data = true, nil, nil
			continue
		case r.size == 0:
			r.memory.used.Add(int64(n))
		}
		r.size += n
	}
}

// end gives the memory of the results back.
func (r *room) end() { r.memory.give(int64(r.size)) }

// quota counts the new keys of callers in an hour.
type quota struct {
	most int // 0 means no limit

	mu   sync.Mutex // guards the fields below
	hour time.Time
	used map[string]int
}

// reserve counts up to n new keys of a caller. It returns how many it may still have, and how
// long it is until it may have more.
func (q *quota) reserve(caller string, n int, now time.Time) (int, time.Duration) {
	if q.most == 0 {
		return n, 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.begin(now)
	n = max(min(n, q.most-q.used[caller]), 0)
	q.used[caller] += n
	return n, q.hour.Add(time.Hour).Sub(now)
}

// give gives reserved keys back that were not used.
func (q *quota) give(caller string, n int, now time.Time) {
	if q.most == 0 || n == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.begin(now)
	q.used[caller] = max(q.used[caller]-n, 0)
}

// begin starts another hour. The caller holds q.mu.
func (q *quota) begin(now time.Time) {
	if q.used == nil || now.Sub(q.hour) >= time.Hour || now.Before(q.hour) {
		q.hour, q.used = now, map[string]int{}
	}
}

// failures counts wrong credentials of addresses, so that no client guesses tokens fast.
type failures struct {
	mu     sync.Mutex // guards the fields below
	minute time.Time
	by     map[string]int
}

// The limits of failures in a minute. Further addresses share what the last one has.
const (
	maxFailures  = 20
	maxAddresses = 4096
)

// add counts a failure, and returns whether the address had too many.
func (f *failures) add(address string, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil || now.Sub(f.minute) >= time.Minute || now.Before(f.minute) {
		f.minute, f.by = now, map[string]int{}
	}
	if _, known := f.by[address]; !known && len(f.by) >= maxAddresses {
		address = ""
	}
	f.by[address]++
	return f.by[address] > maxFailures
}

// limited is a listener that refuses connections above a limit: it closes them immediately.
type limited struct {
	net.Listener
	most int64
	open *atomic.Int64
}

// Accept implements net.Listener.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			return &counted{Conn: conn, open: l.open}, nil
		}
		l.open.Add(-1)
		_ = conn.Close() // nothing was sent
	}
}

// counted is a connection that gives its place back when it closes.
type counted struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}
