package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// How often progress is told: on a terminal as often as an eye follows,
// elsewhere as often as a log bears.
const (
	progressOnTerminal = 100 * time.Millisecond
	progressInLog      = 10 * time.Second
)

// progress is how far a piece of long work is.
type progress struct {
	// Done counts what is done, in Unit ("lines").
	Done int64
	Unit string
	// Share is the part of the whole that is done, from 0 to 1; below 0 if
	// the whole is not known.
	Share float64
}

// startProgress tells on stderr how far read says that the work is, until the
// returned function is called. That function waits for the last write, so that
// what is written to stderr after it stands on a line of its own; calling it
// again does nothing. read is called from another goroutine than the caller's.
func (a *app) startProgress(read func() progress) (stop func()) {
	if a.quiet || a.noProgress {
		return func() {}
	}
	period := progressInLog
	if a.columns > 0 {
		period = progressOnTerminal
	}
	begin := time.Now()
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		shown := false
		for {
			select {
			case <-ticker.C:
				a.showProgress(read().line(time.Since(begin)))
				shown = true
			case <-quit:
				if shown && a.columns > 0 {
					fmt.Fprint(a.stderr, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(quit)
		<-ended
	})
}

// showProgress writes one line, over the one before it on a terminal.
func (a *app) showProgress(line string) {
	if a.columns == 0 {
		fmt.Fprintln(a.stderr, line)
		return
	}
	if len(line) >= a.columns {
		line = line[:a.columns-1] // a line that wraps cannot be written over
	}
	fmt.Fprint(a.stderr, "\r"+line+"\x1b[K")
}

// line tells done, rate, share and time left, in ASCII.
func (p progress) line(elapsed time.Duration) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s", formatCount(p.Done), p.Unit)
	if elapsed > 0 {
		fmt.Fprintf(&text, "  %s %s/s", formatRate(float64(p.Done)/elapsed.Seconds()), p.Unit)
	}
	if p.Share >= 0 {
		fmt.Fprintf(&text, "  %.0f %%", 100*p.Share)
	}
	if p.Share > 0 && p.Share <= 1 {
		left := time.Duration(float64(elapsed) * (1 - p.Share) / p.Share)
		fmt.Fprintf(&text, "  %s left", formatElapsed(left))
	}
	return text.String()
}
