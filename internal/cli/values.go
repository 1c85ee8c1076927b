package cli

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/semel-dev/semel"
)

// parseDuration reads a duration in Go's syntax with the units d, 24 h, and w,
// 7 d: 36h, 7d, 1w12h.
func parseDuration(text string) (time.Duration, error) {
	bad := fmt.Errorf("not a duration: write it like 90s, 36h, 7d or 2w")
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
			return 0, bad
		}
		rest = rest[unit:]
	}
	switch {
	case text == "" || text == "-":
		return 0, bad
	case negative:
		return -total, nil
	}
	return total, nil
}

// parsePart reads one number with its unit. The error of a duration that is too
// long wraps strconv.ErrRange.
func parsePart(number, unit string) (time.Duration, error) {
	hours := map[string]float64{"d": 24, "w": 7 * 24}[unit]
	if hours == 0 {
		part, err := time.ParseDuration(number + unit)
		_, unitErr := time.ParseDuration("1" + unit)
		if _, numberErr := strconv.ParseFloat(number, 64); err != nil && unitErr == nil && numberErr == nil {
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

// parseCount reads a whole number, also with an exponent: 1000000, 1e6, 2.5e3.
func parseCount(text string) (int64, error) {
	if value, err := strconv.ParseInt(text, 10, 64); err == nil && value >= 0 {
		return value, nil // exact where a float64 is not
	}
	value, err := strconv.ParseFloat(text, 64)
	whole := err == nil && value >= 0 && value < math.MaxInt64 && value == math.Trunc(value)
	if !whole || strings.ContainsAny(text, "xXpP_") {
		return 0, errors.New("not a count: write it like 1000000 or 1e6")
	}
	return int64(value), nil
}

// parsedValue is a flag whose text a function reads.
type parsedValue[T any] struct {
	target *T
	text   string
	kind   string
	parse  func(text string) (T, error)
}

func (v *parsedValue[T]) String() string { return v.text }
func (v *parsedValue[T]) Type() string   { return v.kind }

func (v *parsedValue[T]) Set(text string) error {
	value, err := v.parse(text)
	if err != nil {
		return err
	}
	*v.target, v.text = value, text
	return nil
}

// windowVar adds a flag for a time to remember: a duration above 0, or
// "forever", which is semel.Forever; initial is its default as a user writes it.
func windowVar(flags *pflag.FlagSet, target *time.Duration, name, initial, usage string) {
	addParsed(flags, target, name, initial, "DUR", usage, parseWindow)
}

func parseWindow(text string) (time.Duration, error) {
	if text == "forever" {
		return semel.Forever, nil
	}
	window, err := parseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%w, or forever", err)
	}
	if window <= 0 {
		return 0, errors.New("must be above 0, or forever")
	}
	return window, nil
}

// countVar adds a flag for a number of things.
func countVar(flags *pflag.FlagSet, target *int64, name, initial, usage string) {
	addParsed(flags, target, name, initial, "N", usage, parseCount)
}

// addParsed panics if the default does not parse, which every run would show.
func addParsed[T any](flags *pflag.FlagSet, target *T, name, initial, kind, usage string, parse func(string) (T, error)) {
	value := &parsedValue[T]{target: target, kind: kind, parse: parse}
	if initial != "" {
		if err := value.Set(initial); err != nil {
			panic(fmt.Sprintf("default of --%s: %v", name, err))
		}
	}
	flags.Var(value, name, usage)
}
