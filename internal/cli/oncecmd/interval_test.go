package oncecmd

import (
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
)

// TestIntervalsStartWhereWindowsDo has days in which clocks are changed, and a zone that leaves
// midnight out.
func TestIntervalsStartWhereWindowsDo(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for _, c := range []struct {
		zone  string
		every time.Duration
		at    string
		want  string
	}{
		{"", time.Hour, "2026-11-28T22:59:59.999Z", "2026-11-28T22:00:00Z"},
		{"", time.Hour, "2026-11-28T23:00:00Z", "2026-11-28T23:00:00Z"},
		{"", day, "2026-11-28T23:59:59Z", "2026-11-28T00:00:00Z"},
		{"", 90 * time.Minute, "1969-12-31T23:00:00Z", "1969-12-31T22:30:00Z"},
		{"", 1500 * time.Millisecond, "1970-01-01T00:00:02Z", "1970-01-01T00:00:01.5Z"},
		{"Europe/Vienna", day, "2026-11-28T23:59:59Z", "2026-11-29T00:00:00+01:00"},
		{"Europe/Vienna", day, "2026-03-29T21:59:59Z", "2026-03-29T00:00:00+01:00"}, // a day of 23 hours
		{"Europe/Vienna", day, "2026-03-29T22:00:00Z", "2026-03-30T00:00:00+02:00"},
		{"Europe/Vienna", day, "2026-10-25T22:59:59Z", "2026-10-25T00:00:00+02:00"}, // a day of 25 hours
		{"Europe/Vienna", day, "2026-10-25T23:00:00Z", "2026-10-26T00:00:00+01:00"},
		{"Africa/Cairo", day, "2023-04-27T22:30:00Z", "2023-04-28T01:00:00+03:00"}, // without midnight
		{"UTC", 7 * day, "2026-11-28T22:59:59Z", "2026-11-26T00:00:00Z"},
	} {
		var zone *time.Location
		if c.zone != "" {
			var err error
			if zone, err = time.LoadLocation(c.zone); err != nil {
				t.Fatal(err)
			}
		}
		at, err := time.Parse(time.RFC3339Nano, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if got := intervalStart(at, c.every, zone).Format(time.RFC3339Nano); got != c.want {
			t.Errorf("%s every %s in %q: %s, want %s", c.at, c.every, c.zone, got, c.want)
		}
	}
}

// A key is remembered for longer than its interval.
func TestTheDefaultWindowCoversTheInterval(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for args, want := range map[string]time.Duration{
		"":                       7 * day,
		"--every 1h":             7 * day,
		"--every 7d":             8 * day,
		"--every 30d":            31 * day,
		"--every 7d --window 7d": 7 * day,
		"--every 106751d":        semel.Forever,
		"--every 1d --zone Europe/Vienna --window 2d": 2 * day,
	} {
		f := &flags{StoreFlags: open.StoreFlags{App: &term.App{}, Default: t.TempDir()}}
		cmd := f.command()
		if err := cmd.ParseFlags(strings.Fields("--key a " + args)); err != nil {
			t.Fatal(err)
		}
		var wrong term.Problems
		f.checkIntervals(cmd, &wrong)
		if err := wrong.Err(); err != nil || f.window != want {
			t.Errorf("%s: %s, want %s; %v", args, f.window, want, err)
		}
	}
}
