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
	// An earlier attempt processed Before of the items, and this part of the whole.
	// Rate and remaining time are those of this attempt.
	Before      int64
	ShareBefore float64
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
	shown := false
	return repeat(period, func() {
		a.showProgress(read().line(time.Since(begin)))
		shown = true
	}, func() {
		if shown && a.Columns > 0 {
			fmt.Fprint(a.Stderr, "\r\x1b[K")
		}
	})
}

// repeat calls show periodically until the returned function is called, and then last.
// That function waits for both. A second call does nothing.
func repeat(period time.Duration, show, last func()) (stop func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer last()
		ticker := time.NewTicker(period)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				show()
			case <-quit:
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(quit)
		<-ended
	})
}

// LeastRated is the shortest time for which a rate says something.
const LeastRated = time.Second

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
	if elapsed >= LeastRated {
		fmt.Fprintf(&text, "  %s %s/s", FormatRate(float64(p.Done-p.Before)/elapsed.Seconds()), p.Unit)
	}
	if p.Share >= 0 {
		fmt.Fprintf(&text, "  %.0f %%", 100*p.Share)
	}
	if own := p.Share - p.ShareBefore; own > 0 && p.Share <= 1 && elapsed >= LeastRated {
		left := time.Duration(float64(elapsed) * (1 - p.Share) / own)
		fmt.Fprintf(&text, "  %s left", FormatElapsed(left))
	}
	return text.String()
}

// Screen is stderr with lines at its end that are replaced all the time. Other text is
// written above them. Its methods are safe for concurrent use.
type Screen struct {
	a *App

	mu    sync.Mutex // guards the fields below
	lines []string
}

// NewScreen returns a Screen without lines.
func (a *App) NewScreen() *Screen { return &Screen{a: a} }

// Shows reports whether lines can be shown: stderr is a terminal that can replace them,
// and the flags permit progress.
func (s *Screen) Shows() bool {
	return s.a.Columns > 0 && !s.a.Quiet && !s.a.NoProgress
}

// screenEvery is how often the lines of a Screen are replaced.
const screenEvery = time.Second

// Show shows the lines that read returns until stop is called, which removes them. read
// is called from another goroutine.
func (s *Screen) Show(read func() []string) (stop func()) {
	return repeat(screenEvery, func() { s.replace(read()) }, func() { s.replace(nil) })
}

// replace replaces the lines.
func (s *Screen) replace(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	above := s.clear()
	s.lines = lines
	fmt.Fprint(s.a.Stderr, above+s.drawn())
}

// Write implements io.Writer. The text ends with a line end.
func (s *Screen) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lines) == 0 {
		return s.a.Stderr.Write(text)
	}
	if _, err := fmt.Fprint(s.a.Stderr, s.clear()+string(text)+s.drawn()); err != nil {
		return 0, err
	}
	return len(text), nil
}

// clear returns the text that removes the lines. The cursor is at the end of the last.
func (s *Screen) clear() string {
	switch n := len(s.lines); n {
	case 0:
		return ""
	case 1:
		return "\r\x1b[J"
	default:
		return fmt.Sprintf("\r\x1b[%dA\x1b[J", n-1)
	}
}

// drawn returns the lines. A line that wraps could not be removed.
func (s *Screen) drawn() string {
	short := make([]string, len(s.lines))
	for i, line := range s.lines {
		short[i] = line
		if all := []rune(line); len(all) >= s.a.Columns {
			short[i] = string(all[:s.a.Columns-1])
		}
	}
	return strings.Join(short, "\n")
}
