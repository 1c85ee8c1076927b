package schema

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

var errNoDuration = errors.New("not a duration: write it like 90s, 36h, 7d or 2w")

// ParseDuration reads a duration in Go syntax, with the additional units d (24 h)
// and w (7 d): 36h, 7d, 1w12h.
func ParseDuration(text string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(text, "-")
	if rest == "0" {
		return 0, nil
	}
	var total time.Duration
	for rest != "" {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789."))
		unit := digits + len(rest[digits:]) - len(strings.TrimLeft(rest[digits:], "abcdefghijklmnopqrstuvwxyzµμ"))
		part, err := parsePart(rest[:digits], rest[digits:unit])
		switch total += part; {
		case errors.Is(err, strconv.ErrRange), err == nil && total < 0:
			return 0, errors.New("too long: write at most 15250w")
		case err != nil || digits == 0:
			return 0, errNoDuration
		}
		rest = rest[unit:]
	}
	switch {
	case text == "" || text == "-":
		return 0, errNoDuration
	case negative:
		return -total, nil
	}
	return total, nil
}

// parsePart reads one number with its unit. If the duration is too long, the
// error wraps strconv.ErrRange.
func parsePart(number, unit string) (time.Duration, error) {
	hours := 0.0
	switch unit {
	case "d":
		hours = 24
	case "w":
		hours = 7 * 24
	}
	if hours == 0 {
		part, err := time.ParseDuration(number + unit)
		if err == nil {
			return part, nil
		}
		_, unitErr := time.ParseDuration("1" + unit)
		if _, numberErr := strconv.ParseFloat(number, 64); unitErr == nil && numberErr == nil {
			err = strconv.ErrRange
		}
		return part, err
	}
	value, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, err
	}
	if value *= hours * float64(time.Hour); value < math.MaxInt64 {
		return time.Duration(value), nil
	}
	return 0, strconv.ErrRange
}

// ParseCount reads a whole number, with or without an exponent: 1000000, 1e6,
// 2.5e3.
func ParseCount(text string) (int64, error) {
	if value, err := strconv.ParseInt(text, 10, 64); err == nil && value >= 0 {
		return value, nil // exact, unlike a float64
	}
	value, err := strconv.ParseFloat(text, 64)
	whole := err == nil && value >= 0 && value < math.MaxInt64 && value == math.Trunc(value)
	if !whole || strings.ContainsAny(text, "xXpP_") {
		return 0, errors.New("not a count: write it like 1000000 or 1e6")
	}
	return int64(value), nil
}

// ParsePositive reads a duration above 0.
func ParsePositive(text string) (time.Duration, error) {
	d, err := ParseDuration(text)
	if err == nil && d <= 0 {
		err = errors.New("must be above 0")
	}
	return d, err
}

// ParsePause reads a duration from 0 on.
func ParsePause(text string) (time.Duration, error) {
	d, err := ParseDuration(text)
	if err == nil && d < 0 {
		err = errors.New("must not be below 0")
	}
	return d, err
}

// ParseChoice reads one of some words.
func ParseChoice(text string, allowed ...string) (string, error) {
	if !slices.Contains(allowed, text) {
		return "", errors.New(OneOf(text, allowed))
	}
	return text, nil
}

// ParseZone parses the name of a time zone. It refuses the zone of the host, which differs
// from host to host.
func ParseZone(text string) (*time.Location, error) {
	zone, err := time.LoadLocation(text)
	if err != nil || zone == time.Local {
		return nil, errors.New("no time zone: write its name in the IANA database, as in Europe/Vienna")
	}
	return zone, nil
}

// ParseWindow reads a duration above 0. "forever" is semel.Forever.
func ParseWindow(text string) (time.Duration, error) {
	if text == "forever" {
		return semel.Forever, nil
	}
	window, err := ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%w, or forever", err)
	}
	if window <= 0 {
		return 0, errors.New("must be above 0, or forever")
	}
	return window, nil
}

// ParseSize reads a number of bytes: 4096, 64KiB, 10MB.
func ParseSize(text string) (int64, error) {
	bad := errors.New("not a size: write it like 4096, 64KiB or 10MB")
	digits := len(text) - len(strings.TrimLeft(text, "0123456789."))
	factor := sizeOf(text[digits:])
	number, err := strconv.ParseFloat(text[:digits], 64)
	switch {
	case factor == 0 || err != nil:
		return 0, bad
	case number*factor >= math.MaxInt64:
		return 0, errors.New("too large")
	case number*factor != math.Trunc(number*factor):
		return 0, bad
	}
	return int64(number * factor), nil
}

// sizeOf returns the number of bytes in a unit, or 0 if the unit is unknown.
// ParseBytes reads a size of at least one byte.
func ParseBytes(text string) (int64, error) { return atLeast1(ParseSize)(text) }

func sizeOf(unit string) float64 {
	switch unit {
	case "", "B":
		return 1
	case "kB", "KB":
		return 1e3
	case "MB":
		return 1e6
	case "GB":
		return 1e9
	case "TB":
		return 1e12
	case "KiB":
		return 1 << 10
	case "MiB":
		return 1 << 20
	case "GiB":
		return 1 << 30
	case "TiB":
		return 1 << 40
	}
	return 0
}

// Duration formats a duration as in a configuration: 7d, 36h, 1m30s, forever.
func Duration(d time.Duration) string {
	if d == semel.Forever {
		return "forever"
	}
	text := ""
	for _, unit := range []struct {
		name string
		long time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}} {
		if n := d / unit.long; n > 0 && (unit.name != "d" || d%unit.long == 0 || n > 2) {
			text += fmt.Sprint(int64(n)) + unit.name
			d %= unit.long
		}
	}
	if d > 0 || text == "" {
		text += d.String()
	}
	return text
}
