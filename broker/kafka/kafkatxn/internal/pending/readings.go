package pending

import (
	"context"
	"time"

	"github.com/semel-dev/semel/internal/retry"
)

// Patience is how long a reading of the tables takes until it is reported.
const Patience = 5 * time.Second

// Readings reads tables to their end, in a goroutine, one reading after the other. The zero
// value is ready. Only one goroutine may use it.
type Readings struct {
	begun int
	last  *reading
}

type reading struct {
	cancel context.CancelFunc
	done   chan struct{}
	ended  bool // as it should; set before done is closed
}

// Begun returns how many readings have begun.
func (r *Readings) Begun() int { return r.begun }

// Ended returns the number of the last reading that has ended.
func (r *Readings) Ended() int {
	if r.last == nil {
		return r.begun
	}
	select {
	case <-r.last.done:
		if r.last.ended {
			return r.begun
		}
	default:
	}
	return r.begun - 1
}

// Begin begins a reading, which repeats read until it succeeds. stuck is called once if that
// takes long. then is called when Ended reports the end, maybe after Stop has returned. The
// last reading must have ended.
func (r *Readings) Begin(ctx context.Context, read func(context.Context) error, stuck func(error), then func()) {
	ctx, cancel := context.WithCancel(ctx)
	reads := &reading{cancel: cancel, done: make(chan struct{})}
	r.begun++
	r.last = reads
	go func() {
		defer then()
		defer close(reads.done)
		for told := false; ctx.Err() == nil; {
			patient, cancel := context.WithTimeout(ctx, Patience)
			err := read(patient)
			cancel()
			switch {
			case err == nil:
				reads.ended = true
				return
			case !told && ctx.Err() == nil:
				told = true
				stuck(err)
			}
			_ = retry.Sleep(ctx, 100*time.Millisecond)
		}
	}()
}

// Stop cancels the reading and waits until nothing is read any more.
func (r *Readings) Stop() {
	if r.last != nil {
		r.last.cancel()
		<-r.last.done
		r.last = nil
	}
}
