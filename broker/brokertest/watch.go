package brokertest

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel/pipeline"
)

// watched is the test of a case. If a call of the connector under test does not return
// although its context has ended, the case is given up, so that the suite fails instead
// of hanging.
type watched struct {
	testing.TB
	patience time.Duration
	stuck    chan string // says which call

	mu   sync.Mutex // guards over
	over bool       // the case was given up, and its test may have ended
}

// watch runs a case.
func watch(tb testing.TB, check func(w *watched)) {
	tb.Helper()
	w := &watched{TB: tb, patience: Patience, stuck: make(chan string, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer func() {
			if p := recover(); p != nil {
				w.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		check(w)
	}()
	select {
	case <-ended:
	case what := <-w.stuck:
		w.mu.Lock()
		w.over = true
		w.mu.Unlock()
		tb.Errorf("%s does not return, although its context ended more than %v ago: the case is given up", what, w.patience)
	}
}

// begin notes that a call begins. The returned function notes its end.
func (w *watched) begin(ctx context.Context, what string) (end func()) {
	var ended atomic.Bool
	timer := time.AfterFunc(10*w.patience, func() { // whose context does not end
		if ended.Load() {
			return
		}
		select {
		case w.stuck <- what:
		default: // another call is stuck, too
		}
	})
	stop := context.AfterFunc(ctx, func() {
		if !ended.Load() {
			timer.Reset(w.patience)
		}
	})
	return func() {
		ended.Store(true)
		stop()
		timer.Stop()
	}
}

// report reports something, unless the case was given up.
func (w *watched) report(report func()) {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		report()
	}
}

// Error implements testing.TB.
func (w *watched) Error(args ...any) {
	w.Helper()
	w.report(func() { w.Helper(); w.TB.Error(args...) })
}

// Errorf implements testing.TB.
func (w *watched) Errorf(format string, args ...any) {
	w.Helper()
	w.report(func() { w.Helper(); w.TB.Errorf(format, args...) })
}

// Log implements testing.TB.
func (w *watched) Log(args ...any) {
	w.Helper()
	w.report(func() { w.Helper(); w.TB.Log(args...) })
}

// Logf implements testing.TB.
func (w *watched) Logf(format string, args ...any) {
	w.Helper()
	w.report(func() { w.Helper(); w.TB.Logf(format, args...) })
}

// Fatal implements testing.TB.
func (w *watched) Fatal(args ...any) {
	w.Helper()
	w.Error(args...)
	runtime.Goexit()
}

// Fatalf implements testing.TB.
func (w *watched) Fatalf(format string, args ...any) {
	w.Helper()
	w.Errorf(format, args...)
	runtime.Goexit()
}

// FailNow implements testing.TB. The case has a goroutine of its own, which it ends.
func (w *watched) FailNow() {
	w.report(w.Fail)
	runtime.Goexit()
}

var errNothing = errors.New("Read returned no message and no error: it must block until there is a message, or its context ends")

// timed is a source whose calls are watched.
type timed struct {
	pipeline.Source
	w *watched
}

// Read implements pipeline.Source.
func (s timed) Read(ctx context.Context) ([]*pipeline.Item, error) {
	defer s.w.begin(ctx, "Read of the source")()
	items, err := s.Source.Read(ctx)
	if len(items) == 0 && err == nil {
		s.w.Error(errNothing)
		return nil, errNothing
	}
	return items, err
}

// Ack implements pipeline.Source.
func (s timed) Ack(ctx context.Context, items []*pipeline.Item) error {
	defer s.w.begin(ctx, "Ack of the source")()
	return s.Source.Ack(ctx, items)
}

// Return implements pipeline.Source.
func (s timed) Return(ctx context.Context, items []*pipeline.Item, delay time.Duration) error {
	defer s.w.begin(ctx, "Return of the source")()
	return s.Source.Return(ctx, items, delay)
}

// Close implements pipeline.Source.
func (s timed) Close(ctx context.Context) error {
	defer s.w.begin(ctx, "Close of the source")()
	return s.Source.Close(ctx)
}

// timedSink is a sink whose calls are watched.
type timedSink struct {
	pipeline.Sink
	w *watched
}

// Deliver implements pipeline.Sink.
func (s timedSink) Deliver(ctx context.Context, items []*pipeline.Item) {
	defer s.w.begin(ctx, "Deliver of the sink")()
	s.Sink.Deliver(ctx, items)
}

// Close implements pipeline.Sink.
func (s timedSink) Close(ctx context.Context) error {
	defer s.w.begin(ctx, "Close of the sink")()
	return s.Sink.Close(ctx)
}

// timedSession is a session whose calls are watched.
type timedSession struct {
	pipeline.Session
	w *watched
}

// Process implements pipeline.Session.
func (s timedSession) Process(ctx context.Context, items []*pipeline.Item) {
	defer s.w.begin(ctx, "Process of the session")()
	s.Session.Process(ctx, items)
}

// Abandon implements pipeline.Session.
func (s timedSession) Abandon(ctx context.Context, items []*pipeline.Item) {
	defer s.w.begin(ctx, "Abandon of the session")()
	s.Session.Abandon(ctx, items)
}

// Close implements pipeline.Session.
func (s timedSession) Close(ctx context.Context) error {
	defer s.w.begin(ctx, "Close of the session")()
	return s.Session.Close(ctx)
}
