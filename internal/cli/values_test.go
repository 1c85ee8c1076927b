package cli

import (
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func TestDurationsTakeDaysAndWeeks(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"36h": 36 * time.Hour, "7d": 168 * time.Hour, "2w": 336 * time.Hour, "1w1d12h": 204 * time.Hour,
		"1.5d": 36 * time.Hour, "90s": 90 * time.Second, "250ms": 250 * time.Millisecond, "0": 0, "-1d": -24 * time.Hour,
		"1h30m": 90 * time.Minute, "2µs": 2 * time.Microsecond,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("parseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-", "d", "7", "7x", "7 d", "1e3d", "forever", "99999999w", "200000w200000w", "1.2.3d", "--1d", "+1d"} {
		if got, err := parseDuration(text); err == nil {
			t.Errorf("parseDuration(%q) = %v; want an error", text, got)
		}
	}
}

func TestWindowsAreAboveZeroOrForever(t *testing.T) {
	t.Parallel()
	if got, err := parseWindow("forever"); err != nil || got != semel.Forever {
		t.Errorf("parseWindow(forever) = %v, %v", got, err)
	}
	for _, text := range []string{"0", "-1h", "ever", ""} {
		if got, err := parseWindow(text); err == nil {
			t.Errorf("parseWindow(%q) = %v; want an error", text, got)
		}
	}
}

func TestCountsTakeExponents(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"0": 0, "12": 12, "1e6": 1e6, "2.5e3": 2500, "9007199254740993": 9007199254740993} {
		if got, err := parseCount(text); err != nil || got != want {
			t.Errorf("parseCount(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "1.5", "1e19", "NaN", "Inf", "0x1p4", "1_000", "ten"} {
		if got, err := parseCount(text); err == nil {
			t.Errorf("parseCount(%q) = %v; want an error", text, got)
		}
	}
}

func TestFormatsReadAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		formatCount(0): "0", formatCount(999): "999", formatCount(5000000): "5,000,000", formatCount(-1234): "-1,234", formatCount(-123): "-123",
		formatRate(870): "870", formatRate(12_400): "12.4 k", formatRate(2.6e6): "2.6 M", formatRate(999_999): "1.0 M",
		formatBytes(870): "870 B", formatBytes(1 << 20): "1.0 MiB", formatBytes(1<<20 - 1): "1.0 MiB",
		formatElapsed(1900 * time.Millisecond): "1.9 s", formatElapsed(200 * time.Second): "3 min 20 s",
		formatElapsed(59960 * time.Millisecond): "1 min 0 s", formatElapsed(125 * time.Minute): "2 h 5 min",
		formatElapsed(semel.Forever): "forever", formatElapsed(49 * time.Hour): "2 d 1 h",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
