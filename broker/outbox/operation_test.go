package outbox

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// operation is a read or an acknowledgement in progress. It continues until its next pause
// when the history says so.
type operation struct {
	relay    int
	points   chan string // where it pauses
	resume   chan struct{}
	done     chan error
	at       string
	barriers atomic.Int32 // of its statements that wait in the server
	passed   int
	after    func(error)
	before   func() // called before it continues, if it waits for the server
}

// operationKey is the key of the operation in a context.
type operationKey struct{}

// begins starts an operation, which pauses before it does anything.
func (h *history) begins(r *modelRelay, do func(ctx context.Context) error) *operation {
	o := &operation{relay: r.number + 1, points: make(chan string), resume: make(chan struct{}), done: make(chan error, 1), at: "begin"}
	ctx := context.WithValue(h.Context(), operationKey{}, o)
	go func() {
		<-o.resume
		o.done <- do(ctx)
	}()
	return o
}

// advance starts an operation, or lets it continue until its next pause.
func (h *history) advance(r *modelRelay, of **operation, start func(*modelRelay) *operation) {
	if *of == nil {
		*of = start(r)
		if *of == nil {
			return
		}
	}
	o := *of
	h.say("relay %d goes on: %s", r.number, o.at)
	switch o.at {
	case barrier:
		o.passed++
		_, err := h.gate.Exec(h.Context(), "SELECT pg_advisory_unlock($1, $2)", o.relay, o.passed)
		h.must(err)
	case sends:
		if o.before != nil {
			o.before()
		}
		o.resume <- struct{}{}
	default:
		o.resume <- struct{}{}
	}
	for {
		select {
		case o.at = <-o.points:
			if o.at != batch {
				return
			}
			o.resume <- struct{}{} // the server makes it wait
		case err := <-o.done:
			*of = nil
			o.after(err)
			return
		case <-time.After(200 * time.Microsecond):
			if o.passed < int(o.barriers.Load()) {
				var waits bool
				h.must(h.gate.QueryRow(h.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = $1 AND objid = $2)", o.relay, o.passed+1).Scan(&waits))
				if waits {
					o.at = barrier
					return
				}
			}
		}
	}
}

// some advances an operation, by one pause or to its end.
func (h *history) some(r *modelRelay, of **operation, start func(*modelRelay) *operation) {
	h.advance(r, of, start)
	for whole := h.random.IntN(5) < 3; whole && *of != nil; {
		h.advance(r, of, start)
	}
}

// Where an operation pauses.
const (
	batch   = "before several statements"
	barrier = "between two statements"
	sends   = "before a statement"
	sent    = "after a statement"
)

// pauses makes operations pause. It is a tracer of pgx.
type pauses struct{}

func (o *operation) pause(at string) {
	o.points <- at
	<-o.resume
}

// TraceBatchStart puts a statement that waits in the server between any two.
func (pauses) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	o, ok := ctx.Value(operationKey{}).(*operation)
	if !ok {
		return ctx
	}
	o.pause(batch)
	var waits pgx.Batch
	var list []*pgx.QueuedQuery
	for i, q := range data.Batch.QueuedQueries {
		if i > 0 {
			list = append(list, waits.Queue("SELECT pg_advisory_xact_lock_shared($1, $2)", o.relay, i))
		}
		list = append(list, q)
	}
	o.barriers.Store(int32(len(data.Batch.QueuedQueries) - 1))
	data.Batch.QueuedQueries = list
	return ctx
}

func (pauses) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (pauses) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (pauses) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if o, ok := ctx.Value(operationKey{}).(*operation); ok {
		o.pause(sends)
	}
	return ctx
}

func (pauses) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if o, ok := ctx.Value(operationKey{}).(*operation); ok {
		o.pause(sent)
	}
}
