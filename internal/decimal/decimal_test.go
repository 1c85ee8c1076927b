package decimal

import (
	"encoding/json"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestEqualNumbersHaveOneText(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("9", 5000)
	for text, want := range map[string]string{
		"7": "7", "7.0": "7", "7e0": "7", "70e-1": "7", "0.7E+1": "7", "007": "7", "-7.00": "-7",
		"0": "0", "-0": "0", "0.000": "0", "0e99999999999999999999999": "0", "00": "0",
		"12345678901234567890123.50": "12345678901234567890123.5", "100": "100", "1e2": "100", "0.1": "0.1", "1e-1": "0.1", "0.00000000000000000001": "0.00000000000000000001",
		"1e20": "100000000000000000000", "1e21": "1e21", "1000000000000000000000": "1e21", "1200000000000000000000000": "12e23", "0.000000000000000000000012": "12e-24",
		"1e999999999": "1e999999999", "10e999999998": "1e999999999", "1e-999999999": "1e-999999999", "1e00000000000000000000007": "10000000",
		"1e12345678901234567": "1e12345678901234567", long: long, "0." + long: "0." + long, long + "e3": long + "000",
	} {
		n, ok := Parse([]byte(text))
		if got := string(n.Append(nil)); !ok || got != want || !json.Valid([]byte(got)) {
			t.Errorf("%.40s is %.40s, %v, want %.40s", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "-", "--7", "+7", ".5", "5.", "5.e1", "1e", "1e+", "1e+-1", "1.2.3", "1e1e1", "7 ", " 7", "0x7", "1_000", "1,5", "NaN", "Infinity", "٧", "7\x00", "1e123456789012345678"} {
		if n, ok := Parse([]byte(text)); ok {
			t.Errorf("%q is read as %s", text, n.Append(nil))
		}
	}
}

// TestTextsOfNumbersAreExact compares numbers with those of math/big.
func TestTextsOfNumbersAreExact(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	digits := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteByte("0001234567890"[random.IntN(13)])
		}
		return b.String()
	}
	number := func() string {
		text := []string{"", "-"}[random.IntN(2)] + digits(1+random.IntN(4))
		if random.IntN(2) == 0 {
			text += "." + digits(1+random.IntN(4))
		}
		if random.IntN(2) == 0 {
			text += []string{"e", "E", "e+", "e-", "E-"}[random.IntN(5)] + digits(1+random.IntN(2))
		}
		return text
	}
	value := func(text string) *big.Rat {
		r, ok := new(big.Rat).SetString(text)
		if !ok {
			t.Fatalf("%s is no number", text)
		}
		return r
	}
	for range 20_000 {
		a, b := number(), number()
		m, ok1 := Parse([]byte(a))
		n, ok2 := Parse([]byte(b))
		if !ok1 || !ok2 {
			t.Fatalf("%s, %s: not read", a, b)
		}
		x, y := string(m.Append(nil)), string(n.Append(nil))
		if value(a).Cmp(value(x)) != 0 || (value(a).Cmp(value(b)) == 0) != (x == y) {
			t.Fatalf("%s is %s, and %s is %s", a, x, b, y)
		}
	}
}
