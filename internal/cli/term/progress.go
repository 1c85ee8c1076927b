package term

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Progress intervals: short on a terminal, long in a log.
const (
	progressOnTerminal = 100 * time.Millisecond
	progressInLog      = 10 * time.Second
)

// Progress is the progress of a long task.
type Progress struct {
	// Done is the number of processed items, in Unit ("lines").
	Done int64
	Unit string
	// Share is the completed part of the whole, from 0 to 1. It is below 0 if the
	// whole is not known.
	Share float64
}

// StartProgress writes progress to stderr until the returned function is called.
// That function waits for the last write, so that later output on stderr starts
// on its own line. A second call does nothing. read returns the progress. It is
// called from another goroutine.
func (a *App) StartProgress(read func() Progress) (stop func()) {
	if a.Quiet || a.NoProgress {
		return func() {}
	}
	period := progressInLog
	if a.Columns > 0 {
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
				if shown && a.Columns > 0 {
					fmt.Fprint(a.Stderr, "\r\x1b[K")
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

// showProgress writes one line. On a terminal it replaces the previous one.
func (a *App) showProgress(line string) {
	if a.Columns == 0 {
		fmt.Fprintln(a.Stderr, line)
		return
	}
	if len(line) >= a.Columns {
		line = line[:a.Columns-1] // a wrapped line cannot be overwritten
	}
	fmt.Fprint(a.Stderr, "\r"+line+"\x1b[K")
}

// line formats count, rate, share and remaining time in ASCII.
func (p Progress) line(elapsed time.Duration) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s", FormatCount(p.Done), p.Unit)
	if elapsed > 0 {
		fmt.Fprintf(&text, "  %s %s/s", FormatRate(float64(p.Done)/elapsed.Seconds()), p.Unit)
	}
	if p.Share >= 0 {
		fmt.Fprintf(&text, "  %.0f %%", 100*p.Share)
	}
	if p.Share > 0 && p.Share <= 1 {
		left := time.Duration(float64(elapsed) * (1 - p.Share) / p.Share)
		fmt.Fprintf(&text, "  %s left", FormatElapsed(left))
	}
	return text.String()
}
