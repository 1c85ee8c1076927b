package stream

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/decimal"
	"github.com/semel-dev/semel/internal/invalid"
)

// TimeUnit says how a field of a message has a time.
type TimeUnit uint8

const (
	// AnyUnit takes a text as in RFC 3339, or a number since 1970 whose size allows one
	// unit only, for all times from 1973 to 5138. A number may be a text, and may have
	// decimals. Smaller numbers are refused.
	AnyUnit TimeUnit = iota
	// Seconds to Nanoseconds take a number since 1970, which may be a text and may have
	// decimals.
	Seconds
	Milliseconds
	Microseconds
	Nanoseconds
	// RFC3339 takes a text as in RFC 3339, such as 2026-01-31T12:00:00Z.
	RFC3339
)

// unitNames are the texts of units, as in a configuration.
var unitNames = [...]string{AnyUnit: "any", Seconds: "s", Milliseconds: "ms", Microseconds: "us", Nanoseconds: "ns", RFC3339: "rfc3339"}

// String returns the unit as in a configuration.
func (u TimeUnit) String() string {
	if int(u) >= len(unitNames) {
		return "unit " + strconv.Itoa(int(u))
	}
	return unitNames[u]
}

// Long returns the name of the unit of a number, such as seconds.
func (u TimeUnit) Long() string {
	return [...]string{Seconds: "seconds", Milliseconds: "milliseconds", Microseconds: "microseconds", Nanoseconds: "nanoseconds", RFC3339: "RFC 3339"}[u]
}

// ParseTimeUnit returns the unit with a text of String.
func ParseTimeUnit(text string) (TimeUnit, error) {
	if at := slices.Index(unitNames[:], text); at >= 0 {
		return TimeUnit(at), nil
	}
	return AnyUnit, fmt.Errorf("stream: %q is no unit of a time: write one of %s: %w", text, strings.Join(unitNames[:], ", "), semel.ErrInvalidRequest)
}

// validate reports a unit that does not exist, or one without a rule that finds a time.
func (u TimeUnit) validate(wrong *invalid.List, hasRule bool) {
	switch {
	case int(u) >= len(unitNames):
		wrong.Add("Unit: %d is no such unit", u)
	case u != AnyUnit && !hasRule:
		wrong.Add("Unit: %s: no rule finds a time", u)
	}
}

// isNumber reports whether the times of a unit are numbers.
func (u TimeUnit) isNumber() bool { return Seconds <= u && u <= Nanoseconds }

// UnitOf returns the unit of a number since 1970, if it is a time from 1973 to 5138 in one
// unit only. That depends on the number of its digits before the decimals.
func UnitOf(digits int) (u TimeUnit, ok bool) {
	const first = 9 // 10^8 seconds after 1970 it is 1973, and 10^11 seconds after it is 5138
	if digits < first || digits >= first+3*4 {
		return AnyUnit, false
	}
	return Seconds + TimeUnit(digits-first)/3, true
}

// Parse returns the time that a field has.
func (u TimeUnit) Parse(text []byte) (time.Time, error) {
	n, isNumber := numberOf(text)
	if isNumber && u != RFC3339 {
		return u.parseNumber(text, n)
	}
	if u.isNumber() {
		return time.Time{}, fmt.Errorf("%s is no number of %s since 1970 (time_unit: %s)", quote(text), u.Long(), u)
	}
	t, err := time.Parse(time.RFC3339Nano, string(text))
	switch {
	case err == nil:
		return t, nil
	case u == RFC3339:
		return time.Time{}, fmt.Errorf("%s is no text as in RFC 3339, such as 2026-01-31T12:00:00Z (time_unit: rfc3339)", quote(text))
	}
	return time.Time{}, fmt.Errorf("%s is no time: write a text as in RFC 3339 (2026-01-31T12:00:00Z), or seconds, milliseconds, microseconds or nanoseconds since 1970", quote(text))
}

var errTooLarge = errors.New("the number is too large for a time")

func (u TimeUnit) parseNumber(text []byte, n decimal.Number) (time.Time, error) {
	if n.Negative {
		return time.Time{}, fmt.Errorf("%s is before 1970", quote(text))
	}
	if u == AnyUnit {
		var ok bool
		if u, ok = UnitOf(int(max(n.Whole(), 0))); !ok && n.Whole() > 9 {
			return time.Time{}, fmt.Errorf("%s: %w", quote(text), errTooLarge)
		} else if !ok {
			return time.Time{}, fmt.Errorf("%s may be seconds, milliseconds, microseconds or nanoseconds since 1970: state its unit (time_unit)", quote(text))
		}
	}
	const perSecond = 9 // digits of nanoseconds
	nanos := shifted(n, perSecond-3*int(u-Seconds))
	seconds, rest := "0", nanos
	if at := len(nanos) - perSecond; at > 0 {
		seconds, rest = nanos[:at], nanos[at:]
	}
	const mostDigits = 13 // of seconds: some 300,000 years
	if len(seconds) > mostDigits {
		return time.Time{}, fmt.Errorf("%s: %w", quote(text), errTooLarge)
	}
	s, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return time.Time{}, err
	}
	ns, err := strconv.ParseInt(rest, 10, 64)
	return time.Unix(s, ns), err
}

// mostShift bounds how far the point of a number may be from its digits, because shifted writes
// the zeros between them.
const mostShift = 80

// numberOf reads a number as in JSON.
func numberOf(text []byte) (n decimal.Number, ok bool) {
	if len(text) > mostShift {
		return n, false
	}
	n, ok = decimal.Parse(text)
	return n, ok && -mostShift <= n.Exponent && n.Exponent <= mostShift
}

// shifted returns the whole number of n * 10^by, without what is behind its decimals.
func shifted(n decimal.Number, by int) string {
	switch end := int(n.Whole()) + by; {
	case end <= 0:
		return "0"
	case end <= len(n.Digits):
		return string(n.Digits[:end])
	default:
		return string(n.Digits) + strings.Repeat("0", end-len(n.Digits))
	}
}

// quote returns a text for a message.
func quote(text []byte) string { return strconv.Quote(shorten(text)) }
