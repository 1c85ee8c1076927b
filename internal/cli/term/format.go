package term

import (
	"fmt"
	"strconv"
	"time"

	"github.com/semel-dev/semel"
)

// FormatCount formats a number with a comma after each group of thousands.
func FormatCount(n int64) string {
	text := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	for i := len(text) - 3; i > start; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// FormatRate formats a rate per second with two or three digits: 870, 12.4 k, 2.6
// M.
func FormatRate(perSecond float64) string {
	switch {
	case perSecond >= 999_950_000:
		return fmt.Sprintf("%.1f G", perSecond/1e9)
	case perSecond >= 999_950:
		return fmt.Sprintf("%.1f M", perSecond/1e6)
	case perSecond >= 999.5:
		return fmt.Sprintf("%.1f k", perSecond/1e3)
	}
	return fmt.Sprintf("%.0f", perSecond)
}

// FormatBytes formats a size in binary units: 870 B, 12.4 KiB, 2.6 GiB.
func FormatBytes(n int64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, i := float64(n), 0
	for value >= 1023.95 && i < len(units)-1 {
		value /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[i])
}

// FormatElapsed formats a duration for people: 1.9 s, 3 min 20 s, 2 h 5 min.
func FormatElapsed(d time.Duration) string {
	seconds := int64(d.Round(time.Second) / time.Second)
	switch {
	case d == semel.Forever:
		return "forever"
	case d < 59950*time.Millisecond:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case seconds < 3600:
		return fmt.Sprintf("%d min %d s", seconds/60, seconds%60)
	case seconds < 48*3600:
		return fmt.Sprintf("%d h %d min", seconds/3600, seconds%3600/60)
	}
	return fmt.Sprintf("%d d %d h", seconds/86400, seconds%86400/3600)
}

// Trouble returns the reason of a trouble, and in how much time the next attempt is if that is
// known.
func Trouble(reason string, next, now time.Time) string {
	if next.IsZero() {
		return reason
	}
	left := max(next.Sub(now).Seconds(), 0)
	if left < 9.95 {
		return fmt.Sprintf("%s; next attempt in %.1f s", reason, left)
	}
	return fmt.Sprintf("%s; next attempt in %.0f s", reason, left)
}
