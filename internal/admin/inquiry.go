package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// silentFor is how long a part of a process may take for its answer, until its silence is the
// answer. It is shorter than probeFor, which limits a question.
const silentFor = 2 * time.Second

// SilentFor is that of an Inquiry that asks another process for its status, which may take silentFor.
const SilentFor = 2 * silentFor

// Inquiry asks a part of a process whether it is ready, for many people: one question is under way
// at a time. People who do not wait for its end get the last answer. The zero value is ready to use,
// and its methods are safe for concurrent use.
type Inquiry struct {
	// SilentFor is how long the part may take for its answer. Defaults to 2 s.
	SilentFor time.Duration

	mu    sync.Mutex    // guards the fields below
	err   error         // the last answer, or the error of a later question that got none
	at    time.Time     // when the part answered last; zero: it never has
	since time.Time     // when the part was asked first that has not answered since; zero: it has
	ended chan struct{} // is closed at the end of the question under way; nil: no question is
}

// Answer is what is known of a part.
type Answer struct {
	// Err says why the part is not ready, or is nil.
	Err error
	// At is when the part answered last, or zero if it answered now.
	At time.Time
}

// Ask asks a question, unless one is under way. It blocks until that is answered, until ctx ends, or
// until the part has been silent for long. question runs in the background and ends with its context.
func (q *Inquiry) Ask(ctx context.Context, in *Questions, question func(context.Context) error) Answer {
	asked := time.Now()
	q.mu.Lock()
	ended, isNew := q.ended, q.ended == nil
	if isNew {
		ended = make(chan struct{})
		q.ended = ended
		if q.since.IsZero() {
			q.since = asked
		}
	}
	most := cmp.Or(q.SilentFor, silentFor)
	patience := most - time.Since(q.since)
	q.mu.Unlock()
	if isNew && !in.ask(ctx, func(ctx context.Context) { q.settle(question(ctx), ctx.Err() == nil) }) {
		q.settle(errors.New("the process is ending"), true)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	silent := time.Since(q.since)
	switch {
	case !q.at.Before(asked):
		return Answer{Err: q.err}
	case q.err != nil || !q.at.IsZero() && silent < most:
		return Answer{q.err, q.at}
	case silent >= most:
		return Answer{fmt.Errorf("no answer for %.0f s", silent.Seconds()), q.at}
	}
	return Answer{Err: errors.New("no answer yet")}
}

// settle notes the end of the question under way. inTime: the part has answered before its time was over.
// A part that finds its connections busy until then calls itself ready, which shows nothing.
func (q *Inquiry) settle(err error, inTime bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case inTime:
		q.err, q.at, q.since = err, time.Now(), time.Time{}
	case err != nil:
		q.err = err
	}
	close(q.ended)
	q.ended = nil
}

// Heard notes what a part said without a question of this Inquiry.
func (q *Inquiry) Heard(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.err, q.at = err, time.Now()
	if q.since = (time.Time{}); q.ended != nil { // that question may be stuck alone
		q.since = q.at
	}
}

// Questions run in the background, because the people who asked them may not wait. The zero value is
// ready to use, and its methods are safe for concurrent use.
type Questions struct {
	mu      sync.Mutex // guards the fields below
	ctx     context.Context
	cancel  context.CancelFunc // nil: none was asked
	closed  bool
	running sync.WaitGroup
}

// ask starts a question, unless the Questions are closed.
func (b *Questions) ask(ctx context.Context, question func(context.Context)) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	if b.cancel == nil {
		b.ctx, b.cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	limited, cancel := context.WithTimeout(b.ctx, probeFor)
	b.running.Go(func() {
		defer cancel()
		question(limited)
	})
	return true
}

// Close ends all questions and waits for them. No further ones are asked.
func (b *Questions) Close() {
	b.mu.Lock()
	b.closed = true
	if b.cancel != nil {
		b.cancel()
	}
	b.mu.Unlock()
	b.running.Wait()
}
