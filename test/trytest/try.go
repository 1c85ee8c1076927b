// Package trytest runs a function like a test and returns its failures. The suites
// of stores and brokers use it to test themselves, and storetest also to try shorter
// traces of a failure.
package trytest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// recorder is a testing.TB that records failures instead of failing a test.
type recorder struct {
	testing.TB // for names and directories

	mu       sync.Mutex // guards all fields below
	failures []string
	cleanups []func()
}

// Run runs f like a test, including its clean-up. It returns the failures, or
// nothing if f passed. A panic of f is a failure.
func Run(tb testing.TB, f func(tb testing.TB)) []string {
	r := &recorder{TB: tb}
	r.isolated(func() { f(r) })
	for {
		r.mu.Lock()
		if len(r.cleanups) == 0 {
			defer r.mu.Unlock()
			return r.failures
		}
		last := len(r.cleanups) - 1
		cleanup := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		r.mu.Unlock()
		r.isolated(cleanup)
	}
}

// isolated runs f in a goroutine, which FailNow can end.
func (r *recorder) isolated(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				stack := make([]byte, 4096)
				r.add(fmt.Sprintf("panic: %v\n%s", p, stack[:runtime.Stack(stack, false)]))
			}
		}()
		f()
	}()
	<-done
}

func (r *recorder) add(failure string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, strings.TrimSpace(failure))
}

// Helper implements testing.TB.
func (r *recorder) Helper() {}

// Error implements testing.TB.
func (r *recorder) Error(args ...any) { r.add(fmt.Sprintln(args...)) }

// Errorf implements testing.TB.
func (r *recorder) Errorf(format string, args ...any) { r.add(fmt.Sprintf(format, args...)) }

// Fail implements testing.TB.
func (r *recorder) Fail() { r.add("failed") }

// FailNow implements testing.TB.
func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

// Fatal implements testing.TB.
func (r *recorder) Fatal(args ...any) {
	r.Error(args...)
	runtime.Goexit()
}

// Fatalf implements testing.TB.
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// Failed implements testing.TB.
func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.failures) > 0
}

// Log implements testing.TB. It drops the message.
func (r *recorder) Log(...any) {}

// Logf implements testing.TB.
func (r *recorder) Logf(string, ...any) {}

// Cleanup implements testing.TB.
func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(slices.Clip(r.cleanups), f)
}

// Context implements testing.TB. It is not cancelled before the clean-up.
func (r *recorder) Context() context.Context { return context.Background() }
