package serve

import (
	"crypto/sha256"
	"net/http"
	"sync"
)

// requestHeader has the id of a request that changes something, new for each. If it is sent
// again, because its answer was lost, it gets the answer of the first, while the process
// remembers that. Without it, a repetition is decided by the store: it does no harm, but a
// release that another claim followed is then stale.
const requestHeader = "Semel-Request"

// The limits of the answers that are kept.
const (
	mostReplies    = 4096
	mostReplyBytes = 16 << 20
	longestReply   = 1 << 20
)

// replies keeps the last answers to requests with an id.
type replies struct {
	mu    sync.Mutex // guards the fields below, and the data of each reply
	all   map[[16]byte]*reply
	order [][16]byte // the oldest first
	bytes int
}

// reply is the answer to one request.
type reply struct {
	done     chan struct{} // closed when the request was answered
	data     []byte        // nil if it is not kept
	decision string
}

// replyKey identifies a request. Its body is in it, so that an id that is used for two
// requests does no harm.
func replyKey(caller, path, id string, body []byte) (key [16]byte) {
	h := sha256.New()
	for _, text := range []string{caller, path, id} {
		_, _ = h.Write([]byte(text)) // a hash takes all
		_, _ = h.Write([]byte{0})
	}
	_, _ = h.Write(body)
	copy(key[:], h.Sum(nil))
	return key
}

// begin returns the reply to a request, and whether the caller must make it.
func (l *replies) begin(key [16]byte) (r *reply, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r = l.all[key]; r != nil {
		return r, false
	}
	if l.all == nil {
		l.all = map[[16]byte]*reply{}
	}
	r = &reply{done: make(chan struct{})}
	l.all[key] = r
	return r, true
}

// end keeps the answer to a request, unless it is nil or too long.
func (l *replies) end(key [16]byte, r *reply, data []byte, h http.Header) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(r.done)
	if data == nil || len(data) > longestReply {
		delete(l.all, key)
		return
	}
	r.data, r.decision = data, h.Get("Semel-Decision")
	l.order, l.bytes = append(l.order, key), l.bytes+len(data)
	for len(l.order) > mostReplies || l.bytes > mostReplyBytes {
		oldest := l.order[0]
		l.bytes -= len(l.all[oldest].data)
		delete(l.all, oldest)
		l.order = l.order[1:]
	}
}
