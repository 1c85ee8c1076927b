package schema

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
		if got, err := ParseDuration(text); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-", "d", "7", "7x", "7 d", "1e3d", "forever", "99999999w", "200000w200000w", "1.2.3d", "--1d", "+1d"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("ParseDuration(%q) = %v; want an error", text, got)
		}
	}
}

func TestWindowsAreAboveZeroOrForever(t *testing.T) {
	t.Parallel()
	if got, err := ParseWindow("forever"); err != nil || got != semel.Forever {
		t.Errorf("ParseWindow(forever) = %v, %v", got, err)
	}
	for _, text := range []string{"0", "-1h", "ever", ""} {
		if got, err := ParseWindow(text); err == nil {
			t.Errorf("ParseWindow(%q) = %v; want an error", text, got)
		}
	}
}

func TestCountsTakeExponents(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"0": 0, "12": 12, "1e6": 1e6, "2.5e3": 2500, "9007199254740993": 9007199254740993} {
		if got, err := ParseCount(text); err != nil || got != want {
			t.Errorf("ParseCount(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "1.5", "1e19", "NaN", "Inf", "0x1p4", "1_000", "ten"} {
		if got, err := ParseCount(text); err == nil {
			t.Errorf("ParseCount(%q) = %v; want an error", text, got)
		}
	}
}

func TestSizesHaveBinaryAndDecimalUnits(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"0": 0, "4096": 4096, "64KiB": 64 << 10, "1GiB": 1 << 30, "10MB": 10e6, "1.5KiB": 1536, "7B": 7, "2TiB": 2 << 40, "3kB": 3000} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "KiB", "-1", "1.5", "1Kib", "9999999TiB", "1e3", "0x10", "1 2"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("ParseSize(%q) = %v; want an error", text, got)
		}
	}
}

func TestDurationsAreWrittenAsTheyAreRead(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		semel.Forever: "forever", 0: "0s", 100 * time.Millisecond: "100ms", 90 * time.Second: "1m30s", time.Hour: "1h", 36 * time.Hour: "36h",
		24 * time.Hour: "1d", 7 * 24 * time.Hour: "7d", 8*24*time.Hour + time.Hour: "8d1h", 25 * time.Second: "25s", 10*time.Minute + time.Second/2: "10m500ms",
	} {
		got := Duration(d)
		if back, err := ParseWindow(got); got != want || d > 0 && (err != nil || back != d) {
			t.Errorf("%v: %s, want %s (back: %v %v)", d, got, want, back, err)
		}
	}
}
