package serve

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/storeapi"
)

// requestHeader has the id of a request that changes something, new for each. If it is sent
// again, because its answer was lost, it gets the answer of the first, while the process
// remembers that. Without it, a repetition is decided by the store: it does no harm, but a
// release that another claim followed is then stale.
//
// An answer that grants a claim without a claim_id is not kept: another call with the same id
// of a request would get the token.
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
	done chan struct{} // closed when the request was answered
	data []byte        // nil if it is not kept
	at   time.Time     // when the request came
}

// now returns the answer with the time that is left of its leases.
func (r *reply) now() []byte {
	const member = "lease_ms"
	var all storeapi.Items
	if !bytes.Contains(r.data, []byte(`"`+member+`":`)) || json.Unmarshal(r.data, &all) != nil {
		return r.data
	}
	passed := time.Since(r.at).Milliseconds()
	for i, text := range all.Items {
		var item map[string]json.RawMessage
		var ms int64
		if json.Unmarshal(text, &item) == nil && item[member] != nil && json.Unmarshal(item[member], &ms) == nil {
			item[member] = encode(max(ms-passed, 0))
			all.Items[i] = encode(item)
		}
	}
	return encode(&all)
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
	r = &reply{done: make(chan struct{}), at: time.Now()}
	l.all[key] = r
	return r, true
}

// end keeps the answer to a request, unless it is nil or too long.
func (l *replies) end(key [16]byte, r *reply, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(r.done)
	if data == nil || len(data) > longestReply {
		delete(l.all, key)
		return
	}
	r.data = data
	l.order, l.bytes = append(l.order, key), l.bytes+len(data)
	for len(l.order) > mostReplies || l.bytes > mostReplyBytes {
		oldest := l.order[0]
		l.bytes -= len(l.all[oldest].data)
		delete(l.all, oldest)
		l.order = l.order[1:]
	}
}
