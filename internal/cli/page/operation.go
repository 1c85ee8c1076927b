package page

import (
	"crypto/rand"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// mostOperations limits the memory of changes.
	mostOperations = 100
	// followPause is how many times as long as a look at the messages that wait the pause after it is.
	followPause = 5
)

// operation is a change of several messages or keys, whose outcomes are shown as they become known.
type operation struct {
	do, by string
	at     time.Time

	mu    sync.Mutex // guards the fields below
	items []*settled
	// followed is when it was last found out what became of the messages that wait, and took how
	// long that took.
	followed time.Time
	took     time.Duration
}

// settled is a message or a key of an operation.
type settled struct {
	name, link, key string
	outcome, reason string
	failed          bool
	failure         string // the error of a message that was parked again

	// A message that was queued for its pipeline has these until its outcome is known.
	spec     *config.Pipeline
	before   pipeline.Parked
	auditEnd int64 // up to which the audit log was read
	fate     facts.Fate
	waits    bool
}

// operations are the latest changes.
type operations struct {
	mu    sync.Mutex // guards the fields below
	of    map[string]*operation
	order []string
}

func (o *operations) add(op *operation) (id string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of == nil {
		o.of = map[string]*operation{}
	}
	if len(o.order) == mostOperations {
		delete(o.of, o.order[0])
		o.order = o.order[1:]
	}
	id = rand.Text()
	o.of[id], o.order = op, append(o.order, id)
	return id
}

func (o *operations) named(id string) *operation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.of[id]
}
