package stream

import (
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"

	"github.com/semel-dev/semel/internal/decimal"
	"github.com/semel-dev/semel/key"
)

// amount is a number that is added or compared: small, or units divided by 10 to the power of
// scale.
type amount struct {
	small  int64
	units  *big.Int // nil for a whole number of 64 bits
	scale  uint8
	counts bool // there is a number
}

// mostDigits is how many digits a number may have before and behind the point. A short text such
// as 1e999999999 would otherwise take all memory.
const mostDigits = 60

var (
	errNoNumber  = errors.New("only numbers are added and compared: write it without quotes, or take it with first or last")
	errOfDigits  = errors.New("a number may have at most " + strconv.Itoa(mostDigits) + " digits before the point and " + strconv.Itoa(mostDigits) + " behind it")
	bigTen       = big.NewInt(10)
	lastOfSmalls = len("-9223372036854775808")
)

// amountOf reads a value of a body.
func amountOf(raw []byte, kind key.Kind) (amount, error) {
	switch kind {
	case key.Missing, key.Null:
		return amount{}, nil
	case key.Number:
	default:
		return amount{}, errNoNumber
	}
	if len(raw) <= lastOfSmalls {
		if x, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
			return amount{counts: true, small: x}, nil
		}
	}
	n, ok := decimal.Parse(raw)
	if !ok || n.Whole() > mostDigits || n.Exponent < -mostDigits {
		return amount{}, errOfDigits
	}
	units, _ := new(big.Int).SetString("0"+string(n.Digits), 10)
	if n.Negative {
		units.Neg(units)
	}
	scale := int(-n.Exponent)
	if scale < 0 {
		units, scale = units.Mul(units, power(-scale)), 0
	}
	if scale == 0 && units.IsInt64() {
		return amount{counts: true, small: units.Int64()}, nil
	}
	return amount{counts: true, units: units, scale: uint8(scale)}, nil
}

// power returns 10 to the power of n.
func power(n int) *big.Int { return new(big.Int).Exp(bigTen, big.NewInt(int64(n)), nil) }

// wide is set in the last byte of the number of messages if the accumulator of a part is wide.
const wide, wideHead = 0x80, 8 + 3

// isWide reports whether the accumulator of a numeric part, at the start of acc, is wide.
func isWide(acc []byte) bool { return len(acc) > 0 && acc[7]&wide != 0 }

func wideSize(acc []byte) int { return wideHead + int(acc[wideHead-1]) }

// mostHigh is how many bits the high half of a sum has, so that the sum of two does not overflow.
const mostHigh = 60

// total returns the number of messages and the number of a part. A new one has no messages.
func (p *part) total(acc []byte) (n int64, units *big.Int, scale int) {
	n = number(acc, 0) & math.MaxInt64
	switch {
	case isWide(acc):
		units = new(big.Int).SetBytes(acc[wideHead:wideSize(acc)])
		if acc[9] != 0 {
			units.Neg(units)
		}
		return n, units, int(acc[8])
	case p.op == opMin || p.op == opMax:
		return n, big.NewInt(number(acc, 1)), 0
	}
	units = big.NewInt(number(acc, 2))
	return n, units.Lsh(units, 64).Add(units, new(big.Int).SetUint64(uint64(number(acc, 1)))), 0
}

// put appends the accumulator of n messages.
func (p *part) put(dst []byte, n int64, units *big.Int, scale int) []byte {
	switch isSum := p.op == opSum || p.op == opAvg; {
	case scale == 0 && isSum && units.BitLen() < 64+mostHigh:
		high := new(big.Int).Rsh(units, 64)
		low := new(big.Int).Sub(units, new(big.Int).Lsh(high, 64))
		return put(put(put(dst, n), int64(low.Uint64())), high.Int64())
	case scale == 0 && !isSum && units.IsInt64():
		return put(put(dst, n), units.Int64())
	}
	dst = put(dst, n|math.MinInt64)
	text := units.Bytes()
	sign := byte(0)
	if units.Sign() < 0 {
		sign = 1
	}
	return append(append(dst, byte(scale), sign, byte(len(text))), text...)
}

// mergeWide is merge for accumulators of which one is wide.
func (p *part) mergeWide(dst, a, b []byte) []byte {
	n, x, scale := p.total(a)
	m, y, other := p.total(b)
	if p.op == opMin || p.op == opMax {
		order := aligned(x, other-scale).Cmp(aligned(y, scale-other))
		if m > 0 && (n == 0 || order > 0 && p.op == opMin || order < 0 && p.op == opMax) {
			return p.put(dst, n+m, y, other)
		}
		return p.put(dst, n+m, x, scale)
	}
	sum := new(big.Int).Add(aligned(x, other-scale), aligned(y, scale-other))
	return p.put(dst, n+m, sum, max(scale, other))
}

// aligned returns x with more digits behind the point.
func aligned(x *big.Int, digits int) *big.Int {
	if digits <= 0 {
		return x
	}
	return new(big.Int).Mul(x, power(digits))
}

// appendQuotient appends units / 10^scale / n with at most six digits more behind the point than
// scale, rounded half away from zero. Floating-point numbers would lose digits of large sums.
func appendQuotient(dst []byte, units *big.Int, scale int, n int64) []byte {
	below := power(scale)
	text := new(big.Rat).SetFrac(units, below.Mul(below, big.NewInt(n))).FloatString(scale + 6)
	text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	if text == "-0" {
		text = "0"
	}
	return append(dst, text...)
}
