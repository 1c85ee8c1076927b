package httpsrc

import (
	"sync"

	"github.com/semel-dev/semel"
)

// request is a request whose handler waits for its answer.
type request struct {
	message semel.Message // of the whole request
	events  events        // that were not read; used by Read and Close
	divided bool          // the answer has counts
	answer  chan answer
	held    hold

	mu     sync.Mutex // guards the fields below
	open   int        // messages that are not settled
	counts counts
}

// settle notes the answer of a message. After the last one it answers the request, whose
// messages take no memory from now on.
func (r *request) settle(a answer) {
	r.mu.Lock()
	r.open--
	r.counts.add(&a)
	done := r.open == 0
	if done && r.divided {
		a = r.counts.answer()
	}
	r.mu.Unlock()
	if done {
		r.held.release()
		r.answer <- a
	}
}
