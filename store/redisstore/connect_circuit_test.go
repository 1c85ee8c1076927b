package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestCircuitOpensOnlyForServersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	var c circuit
	enter := func() pass {
		t.Helper()
		p, err := c.enter(now)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	failing, answered := enter(), enter()
	c.leave(answered, now, true, nil)
	c.leave(failing, now, false, io.EOF)
	if s := c.status(); s.Open || s.Failures != 1 || !errors.Is(s.LastError, io.EOF) {
		t.Errorf("after a failure and an answer: %+v; want it closed, with one failure", s)
	}
	c.leave(enter(), now, false, context.DeadlineExceeded)
	c.leave(enter(), now, false, context.Canceled)
	if s := c.status(); s.Open || s.Failures != 1 {
		t.Errorf("after impatient callers: %+v; want no change", s)
	}
	c.leave(enter(), now, false, io.EOF)
	if s := c.status(); s.Open || s.Failures != 2 {
		t.Errorf("after a connection was cut: %+v; want it closed, with two failures", s)
	}
	c.leave(enter(), now, false, semel.ErrOutcomeUnknown)
	if s := c.status(); !s.Open || s.Failures != 3 || !s.Since.Equal(now) {
		t.Errorf("after a failure without any answer: %+v; want it open", s)
	}
	c.leave(pass{}, now, true, nil)
	if s := c.status(); s.Open || s.Failures != 0 || s.LastError == nil {
		t.Errorf("after an answer: %+v; want it closed, with its last error", s)
	}
}

func TestOpenCircuitLetsOneCallTry(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	var c circuit
	c.leave(pass{}, now, false, fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, io.EOF))
	pause := firstPause
	for range 10 {
		if _, err := c.enter(now.Add(pause - 1)); !errors.Is(err, semel.ErrStoreUnavailable) || errors.Is(err, io.EOF) {
			t.Fatalf("got %v inside the pause of %v; want unavailable, and not the older error itself", err, pause)
		}
		now = now.Add(pause)
		probe, err := c.enter(now)
		if err != nil {
			t.Fatalf("after the pause of %v: %v", pause, err)
		}
		if _, err := c.enter(now.Add(time.Hour)); err == nil {
			t.Fatal("a second call tries during the first")
		}
		c.leave(probe, now, false, io.EOF)
		pause = min(2*pause, lastPause)
	}
	now = now.Add(pause)
	probe, _ := c.enter(now)
	c.leave(probe, now, false, context.Canceled)
	probe, err := c.enter(now)
	if err != nil {
		t.Fatalf("after a try that was given up: %v", err)
	}
	c.leave(probe, now, true, nil)
	if _, err := c.enter(now); err != nil || c.status().Open {
		t.Errorf("after an answer: %v, %+v", err, c.status())
	}
}

func TestPausedServerCostsOneTimeOut(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	const timeout = 2 * time.Second
	client := inTime(t, func() (*Client, error) {
		client, err := NewClient(t.Context(), server.URL(), &ClientOptions{Timeout: timeout, ConnectTimeout: timeout})
		if err != nil {
			return nil, err
		}
		t.Cleanup(client.Close)
		return client, ping(t.Context(), client)
	})
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	var wg sync.WaitGroup
	var unknown atomic.Int32
	for range 64 {
		wg.Go(func() {
			err := ping(t.Context(), client)
			if semel.Classify(err) == semel.ClassUnknown {
				unknown.Add(1)
			} else if !errors.Is(err, semel.ErrStoreUnavailable) || !client.Status().Open { // a late call finds the circuit open
				t.Errorf("got %v of class %v; want an unknown outcome", err, semel.Classify(err))
			}
		})
	}
	wg.Wait()
	if unknown.Load() == 0 {
		t.Error("no call has an unknown outcome")
	}
	if took := time.Since(began); took < timeout || took > 40*timeout {
		t.Errorf("64 concurrent calls took %v; want about one time-out of %v", took, timeout)
	}
	if s := client.Status(); !s.Open || s.Failures == 0 || s.LastError == nil || s.Since.Before(began) {
		t.Errorf("the status is %+v; want it open", s)
	}
	began = time.Now()
	for range 1000 {
		if err := ping(t.Context(), client); err == nil {
			t.Fatal("a paused server answered")
		}
	}
	if took := time.Since(began); took > 40*timeout {
		t.Errorf("1000 further calls took %v", took)
	}
	if err := server.Continue(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return ping(t.Context(), client) == nil }, "the server answers again")
	if s := client.Status(); s.Open || s.Failures != 0 {
		t.Errorf("the status is %+v; want it closed", s)
	}
}

// inTime opens something with time-outs that a running server may miss, and tries it again
// then.
func inTime[T any](t testing.TB, open func() (T, error)) (opened T) {
	t.Helper()
	var last error
	t.Cleanup(func() {
		if t.Failed() && last != nil {
			t.Log(last)
		}
	})
	eventually(t, func() bool {
		opened, last = open()
		return last == nil
	}, "a running server answers in time")
	return opened
}

// eventually polls until a condition holds.
func eventually(t testing.TB, holds func() bool, what string) {
	t.Helper()
	deadline := time.After(5 * time.Minute) // needed only if something hangs
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within five minutes: %s", what)
		}
	}
}
