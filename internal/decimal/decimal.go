// Package decimal reads decimal numbers by their text, without the rounding of floating-point
// numbers.
package decimal

import (
	"bytes"
	"strconv"
)

// Number is a number: its digits as a whole number, times 10 to the power of Exponent. Equal
// numbers have equal fields.
type Number struct {
	Negative bool
	// Digits has no zeros at its ends. It is empty for 0, which is not negative and has no
	// exponent.
	Digits   []byte
	Exponent int64
}

// mostExponentDigits bounds exponents, so that no calculation with them overflows.
const mostExponentDigits = 17

// Parse reads a number as JSON has it. Unlike JSON, it allows zeros at the start. It refuses an
// exponent of more than 17 digits. Digits is a part of text if text has no point.
func Parse(text []byte) (n Number, ok bool) {
	n.Negative = len(text) > 0 && text[0] == '-'
	if n.Negative {
		text = text[1:]
	}
	mantissa := text
	exponent := []byte("0")
	if at := bytes.IndexAny(text, "eE"); at >= 0 {
		mantissa, exponent = text[:at], text[at+1:]
	}
	whole, decimals, hasPoint := bytes.Cut(mantissa, []byte("."))
	if !areDigits(whole) || hasPoint && !areDigits(decimals) {
		return Number{}, false
	}
	down := false
	if len(exponent) > 0 && (exponent[0] == '+' || exponent[0] == '-') {
		down = exponent[0] == '-'
		exponent = exponent[1:]
	}
	if !areDigits(exponent) {
		return Number{}, false
	}
	n.Digits = whole
	if hasPoint {
		n.Digits = append(append(make([]byte, 0, len(mantissa)), whole...), decimals...)
	}
	n.Digits = bytes.TrimLeft(n.Digits, "0")
	all := len(n.Digits)
	if n.Digits = bytes.TrimRight(n.Digits, "0"); len(n.Digits) == 0 {
		return Number{}, true
	}
	if exponent = bytes.TrimLeft(exponent, "0"); len(exponent) > mostExponentDigits {
		return Number{}, false
	}
	for _, c := range exponent {
		n.Exponent = 10*n.Exponent + int64(c-'0')
	}
	if down {
		n.Exponent = -n.Exponent
	}
	n.Exponent += int64(all - len(n.Digits) - len(decimals))
	return n, true
}

// areDigits reports whether text has digits and nothing else.
func areDigits(text []byte) bool {
	for _, c := range text {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(text) > 0
}

// Whole returns how many digits are in front of the decimals. It is below 0 if the first decimals
// are zeros.
func (n Number) Whole() int64 { return int64(len(n.Digits)) + n.Exponent }

// mostZeros is how many zeros Append writes to avoid an exponent.
const mostZeros = 20

// Append appends the number as a number of JSON. Equal numbers have one text, and different
// numbers have different ones.
func (n Number) Append(dst []byte) []byte {
	if n.Negative {
		dst = append(dst, '-')
	}
	digits, point := n.Digits, n.Whole()
	switch {
	case len(digits) == 0:
		return append(dst, '0')
	case n.Exponent > mostZeros || -point > mostZeros:
		return strconv.AppendInt(append(append(dst, digits...), 'e'), n.Exponent, 10)
	case n.Exponent >= 0:
		return appendZeros(append(dst, digits...), n.Exponent)
	case point > 0:
		return append(append(append(dst, digits[:point]...), '.'), digits[point:]...)
	}
	return append(appendZeros(append(dst, "0."...), -point), digits...)
}

func appendZeros(dst []byte, n int64) []byte {
	for range n {
		dst = append(dst, '0')
	}
	return dst
}
