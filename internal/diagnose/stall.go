package diagnose

import (
	"context"
	"sync"
	"time"
)

// look is how often a Stall looks at the work.
const look = time.Second

// StallAfter returns how long work must stand still before the report with this number,
// from 0: 10 s, 1, 5 and 15 min, and then every 15 min.
func StallAfter(report int) time.Duration {
	first := [...]time.Duration{10 * time.Second, time.Minute, 5 * time.Minute}
	if report < len(first) {
		return first[report]
	}
	return time.Duration(report-len(first)+1) * 15 * time.Minute
}

// Stall decides whether work stands still. It does if there is work and nothing was
// settled for a while. The zero value is ready to use.
type Stall struct {
	// Slow is how long work may take although it does not stand still. Start must not
	// have been called. Defaults to 0.
	Slow time.Duration

	mu    sync.Mutex // guards since
	since time.Time  // when the work began to stand still; zero while it does not
}

// Work is the work that a Stall watches. All fields are required. A Stall calls the
// functions from one goroutine.
type Work struct {
	// Look returns how many things were settled so far, and whether there is work.
	Look func() (settled uint64, busy bool)
	// Stalled reports that work has stood still for this long. It is called at the
	// times that StallAfter returns, and blocks at most until ctx ends.
	Stalled func(ctx context.Context, still time.Duration)
	// Moves reports that work moves again, or that none is left.
	Moves func(still time.Duration)
}

// Start watches work until stop is called. stop waits for the end of a report.
func (s *Stall) Start(ctx context.Context, w Work) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.watch(ctx, w)
	}()
	return func() {
		cancel()
		<-ended
	}
}

func (s *Stall) watch(ctx context.Context, w Work) {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	moved, reports := time.Now(), 0
	before, _ := w.Look()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		now := time.Now()
		settled, busy := w.Look()
		if settled != before || !busy {
			if reports > 0 {
				s.set(time.Time{})
				w.Moves(now.Sub(moved))
			}
			before, moved, reports = settled, now, 0
			continue
		}
		if now.Sub(moved) < s.Slow+StallAfter(reports) {
			continue
		}
		s.set(moved)
		reports++
		w.Stalled(ctx, now.Sub(moved))
	}
}

func (s *Stall) set(since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = since
}

// For returns for how long the work has stood still, or 0 if it does not. It may be
// called at any time.
func (s *Stall) For() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.since.IsZero() {
		return 0
	}
	return time.Since(s.since)
}
