package term

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel/internal/kind"
)

func TestProgressIsALineEveryTenSecondsOffTerminals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		a := &App{Kinds: kind.All(), Stderr: &stderr}
		begin := time.Now()
		stop := a.StartProgress(func() Progress {
			seconds := int64(time.Since(begin) / time.Second)
			return Progress{Done: 1000 * seconds, Unit: "lines", Share: float64(seconds) / 40}
		})
		time.Sleep(25 * time.Second)
		stop()
		stop()
		want := "10,000 lines  1.0 k lines/s  25 %  30.0 s left\n20,000 lines  1.0 k lines/s  50 %  20.0 s left\n"
		if stderr.String() != want {
			t.Errorf("got %q, want %q", &stderr, want)
		}
	})
}

// TestProgressAfterAResumeCountsThisAttempt: the first attempt did three quarters.
func TestProgressAfterAResumeCountsThisAttempt(t *testing.T) {
	t.Parallel()
	p := Progress{Done: 800, Unit: "lines", Share: 0.8, Before: 750, ShareBefore: 0.75}
	for elapsed, want := range map[time.Duration]string{
		10 * time.Second:       "800 lines  5 lines/s  80 %  40.0 s left",
		999 * time.Millisecond: "800 lines  80 %",
	} {
		if got := p.line(elapsed); got != want {
			t.Errorf("after %s: %q, want %q", elapsed, got, want)
		}
	}
	p.ShareBefore = p.Share
	if got, want := p.line(time.Second), "800 lines  50 lines/s  80 %"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestProgressOverwritesItsLineOnTerminals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		a := &App{Kinds: kind.All(), Stderr: &stderr, Columns: 20}
		stop := a.StartProgress(func() Progress { return Progress{Done: 123456, Unit: "lines", Share: -1} })
		time.Sleep(time.Second + time.Millisecond)
		stop()
		lines := strings.Split(stderr.String(), "\r")[1:]
		if len(lines) != 11 || lines[10] != "\x1b[K" {
			t.Fatalf("a second should show 10 lines and clear the last: %q", lines)
		}
		for _, line := range lines {
			if strings.Contains(line, "\n") || len(strings.TrimSuffix(line, "\x1b[K")) >= 20 {
				t.Errorf("the line wraps: %q", line)
			}
		}
	})
}

func TestProgressIsSilentWhenAsked(t *testing.T) {
	t.Parallel()
	for _, a := range []*App{{Quiet: true}, {NoProgress: true}} {
		synctest.Test(t, func(t *testing.T) {
			var stderr bytes.Buffer
			a.Stderr = &stderr
			stop := a.StartProgress(func() Progress { return Progress{Unit: "lines"} })
			time.Sleep(time.Minute)
			stop()
			if stderr.Len() > 0 {
				t.Errorf("got %q", &stderr)
			}
		})
	}
}

func TestScreenShowsItsLinesBelowOtherText(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		a := &App{Stderr: &stderr, Columns: 10}
		s := a.NewScreen()
		if !s.Shows() || (&App{}).NewScreen().Shows() || (&App{Columns: 10, Quiet: true}).NewScreen().Shows() || (&App{Columns: 10, NoProgress: true}).NewScreen().Shows() {
			t.Error("lines are shown on terminals that want them, and only there")
		}
		if _, err := s.Write([]byte("before\n")); err != nil {
			t.Fatal(err)
		}
		stop := s.Show(func() []string { return []string{"copy", "a line that is too long"} })
		time.Sleep(time.Second + time.Millisecond)
		if _, err := s.Write([]byte("log\n")); err != nil {
			t.Fatal(err)
		}
		stop()
		const lines, up = "copy\na line th", "\r\x1b[1A\x1b[J"
		if want := "before\n" + lines + up + "log\n" + lines + up; stderr.String() != want {
			t.Errorf("got  %q\nwant %q", &stderr, want)
		}
		stderr.Reset()
		s.replace([]string{"one"})
		s.replace(nil)
		if want := "one\r\x1b[J"; stderr.String() != want {
			t.Errorf("got %q, want %q", &stderr, want)
		}
		s.replace([]string{"one"})
		a.Stderr = failing{errors.New("closed")}
		if _, err := s.Write([]byte("x\n")); err == nil {
			t.Error("a failed write is not reported")
		}
	})
}
