package stream_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/stream"
)

var start = time.Date(2026, 11, 24, 13, 0, 0, 0, time.UTC)

// add adds bodies, a second apart, and returns the values of the result.
func add(t *testing.T, f stream.Aggregator, bodies ...string) string {
	t.Helper()
	var acc []byte
	for i, body := range bodies {
		var err error
		acc, err = f.Add(acc, &semel.Message{Body: []byte(body), Time: start.Add(time.Duration(i) * time.Second)})
		if err != nil {
			t.Fatal(err)
		}
	}
	out, err := f.Result(&stream.Closed{Key: `a"b`, Start: start, End: start.Add(time.Minute), Acc: acc})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"key":"a\"b","start":"2026-11-24T13:00:00Z","end":"2026-11-24T13:01:00Z","values":{`
	values, ok := strings.CutPrefix(string(out), want)
	if !ok {
		t.Fatalf("%s does not begin with %s", out, want)
	}
	return strings.TrimSuffix(values, "}}")
}

func values(t *testing.T, list ...stream.Value) stream.Aggregator {
	t.Helper()
	f, err := stream.Values(list...)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAggregateFunctionsComputeTheirValues(t *testing.T) {
	t.Parallel()
	f := values(t,
		stream.Value{Name: "n", Of: "count"}, stream.Value{Name: "sum", Of: "sum .c"}, stream.Value{Name: "min", Of: "min .c"}, stream.Value{Name: "max", Of: "max .c"},
		stream.Value{Name: "avg", Of: "avg .c"}, stream.Value{Name: "first", Of: "first .who.name"}, stream.Value{Name: "last", Of: "last .who.name"})
	for want, bodies := range map[string][]string{
		`"n":3,"sum":0,"min":-7,"max":5,"avg":0,"first":"x","last":{"y":1}`:                                                                           {`{"c":2,"who":{"name":"x"}}`, `{"c":-7}`, `{"c":5,"who":{"name":{"y":1}}}`},
		`"n":1,"sum":0,"min":null,"max":null,"avg":null,"first":null,"last":null`:                                                                     {`{"c":null}`},
		`"n":2,"sum":18446744073709551612,"min":9223372036854775806,"max":9223372036854775806,"avg":9223372036854775806,"first":null,"last":null`:     {`{"c":9223372036854775806}`, `{"c":9223372036854775806}`},
		`"n":2,"sum":-18446744073709551614,"min":-9223372036854775807,"max":-9223372036854775807,"avg":-9223372036854775807,"first":null,"last":null`: {`{"c":-9223372036854775807}`, `{"c":-9223372036854775807}`},
		`"n":2,"sum":9223372036854775807,"min":1,"max":9223372036854775806,"avg":4611686018427387903.5,"first":null,"last":null`:                      {`{"c":9223372036854775806}`, `{"c":1}`},
	} {
		if got := add(t, f, bodies...); got != want {
			t.Errorf("%v: %s, want %s", bodies, got, want)
		}
	}
}

func TestFirstAndLastAreByTime(t *testing.T) {
	t.Parallel()
	f := values(t, stream.Value{Name: "first", Of: "first .v"}, stream.Value{Name: "last", Of: "last .v"})
	var acc []byte
	for _, c := range []struct {
		second int
		body   string
	}{{5, `{"v":1}`}, {5, `{"v":2}`}, {1, `{"v":3}`}, {1, `{"v":4}`}, {3, `{"v":5}`}} {
		var err error
		if acc, err = f.Add(acc, &semel.Message{Body: []byte(c.body), Time: start.Add(time.Duration(c.second) * time.Second)}); err != nil {
			t.Fatal(err)
		}
	}
	out, _ := f.Result(&stream.Closed{Acc: acc})
	if want := `"values":{"first":3,"last":2}}`; !strings.HasSuffix(string(out), want) {
		t.Errorf("%s, want %s", out, want)
	}
}

func TestARefusedMessageIsPermanent(t *testing.T) {
	t.Parallel()
	f := values(t, stream.Value{Name: "sum", Of: "sum .c"})
	full, err := f.Add(nil, &semel.Message{Body: []byte(`{"c":9223372036854775807}`)})
	if err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]string{
		`{"c":"1"}`: `.c is "1": only numbers are added and compared: write it without quotes`, `{"c":[1]}`: `.c is [1]: only numbers`, `{"c":true}`: "only numbers", `{"c":1`: "no JSON document",
		`{"c":1e999999999}`: "sum: .c is 1e999999999: a number may have at most 60 digits before the point and 60 behind it", `{"c":-1e-999999999}`: "at most 60 digits", `{"c":1e60}`: "at most 60 digits", `{"c":1e-61}`: "at most 60 digits",
		`{"c":1e99999999999999999999999}`: "at most 60 digits", `{"c":` + strings.Repeat("9", 1<<20) + `}`: ": a number may have", `{"c":0.` + strings.Repeat("0", 1<<20) + `1}`: ": a number may have",
		"{\"c\":\"\xff\"}": "only numbers", `{"c":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}`: "no JSON document",
	} {
		if _, err := f.Add(full, &semel.Message{Body: []byte(body)}); err == nil || semel.Classify(err) != semel.ClassPermanent || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}

// A message of which one value is refused counts in none of them.
func TestARefusedMessageLeavesTheAccumulatorAsItWas(t *testing.T) {
	t.Parallel()
	f := values(t, stream.Value{Name: "n", Of: "count"}, stream.Value{Name: "a", Of: "sum .a"}, stream.Value{Name: "b", Of: "max .b"})
	acc, err := f.Add(nil, &semel.Message{Body: []byte(`{"a":1,"b":1}`)})
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(acc)
	for _, body := range []string{`{"a":2,"b":"x"}`, `{"a":2,"b":1e100}`, `{"a":0.5,"b":"x"}`} {
		if _, err := f.Add(acc, &semel.Message{Body: []byte(body)}); err == nil || !bytes.Equal(acc, before) {
			t.Errorf("%s: %v, and the accumulator is %x, was %x", body, err, acc, before)
		}
	}
}

func TestDecimalsAreAddedAndComparedByTheirText(t *testing.T) {
	t.Parallel()
	f := values(t, stream.Value{Name: "sum", Of: "sum .c"}, stream.Value{Name: "min", Of: "min .c"}, stream.Value{Name: "max", Of: "max .c"}, stream.Value{Name: "avg", Of: "avg .c"})
	nines := strings.Repeat("9", 60)
	for want, numbers := range map[string]string{
		`"sum":0.3,"min":0.1,"max":0.2,"avg":0.15`:                                                                        "0.1 0.2",
		`"sum":3,"min":1.5,"max":1.5,"avg":1.5`:                                                                           "1.50 15e-1",
		`"sum":2,"min":1,"max":1,"avg":1`:                                                                                 "1.0 1",
		`"sum":0,"min":-0.1,"max":0.1,"avg":0`:                                                                            "0.1 -0.1",
		`"sum":9007199254740993,"min":9007199254740993,"max":9007199254740993,"avg":9007199254740993`:                     "9007199254740993.0",
		`"sum":-0.0000003,"min":-0.0000002,"max":-0.0000001,"avg":-0.00000015`:                                            "-1e-7 -2e-7",
		`"sum":0,"min":0,"max":0,"avg":0`:                                                                                 "-0 0.0 0e999999999",
		`"sum":1` + nines[1:] + `8,"min":` + nines + `,"max":` + nines + `,"avg":` + nines:                                nines + " " + nines,
		`"sum":1` + strings.Repeat("0", 60) + `,"min":0.1,"max":` + nines + `.9,"avg":5` + strings.Repeat("0", 59):        nines + ".9 0.1",
		`"sum":-18446744073709551616,"min":-18446744073709551616,"max":-18446744073709551616,"avg":-18446744073709551616`: "-18446744073709551616",
		`"sum":0.333333,"min":0.333333,"max":0.333333,"avg":0.333333`:                                                     "0.333333",
		`"sum":0.1,"min":0,"max":0.1,"avg":0.0333333`:                                                                     "0.1 0 0",
	} {
		var bodies []string
		for number := range strings.FieldsSeq(numbers) {
			bodies = append(bodies, `{"c":`+number+`}`)
		}
		if got := add(t, f, bodies...); got != want {
			t.Errorf("%s: %s, want %s", numbers, got, want)
		}
	}
}

// TestDecimalsAreExactInAnyOrder compares with math/big, in two orders and in two parts.
func TestDecimalsAreExactInAnyOrder(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	f := values(t, stream.Value{Name: "sum", Of: "sum .c"}, stream.Value{Name: "min", Of: "min .c"}, stream.Value{Name: "n", Of: "count"}, stream.Value{Name: "max", Of: "max .c"}, stream.Value{Name: "avg", Of: "avg .c"})
	number := func() string {
		text := []string{"", "-"}[random.IntN(2)] + strconv.FormatUint(random.Uint64()>>random.IntN(64), 10)
		switch random.IntN(5) {
		case 0:
			text += "." + strconv.FormatUint(random.Uint64()>>random.IntN(64), 10)
		case 1:
			text += fmt.Sprintf("e%d", random.IntN(75)-35)
		case 2:
			text += ".0"
		case 3:
			if random.IntN(4) == 0 {
				text = []string{"-", ""}[random.IntN(2)] + []string{"10633823966279326983230456482242756608", "9.9e36", "21267647932558653966460912964485513216"}[random.IntN(3)] // around 2^123
			}
		}
		return text
	}
	for range 5000 {
		var texts []string
		for range 1 + random.IntN(6) {
			texts = append(texts, number())
		}
		sum, low, high := new(big.Rat), new(big.Rat), new(big.Rat)
		scale := 0
		for i, text := range texts {
			x, _ := new(big.Rat).SetString(text)
			if digits, _ := x.FloatPrec(); digits > scale {
				scale = digits
			}
			sum.Add(sum, x)
			if i == 0 || x.Cmp(low) < 0 {
				low = x
			}
			if i == 0 || x.Cmp(high) > 0 {
				high = x
			}
		}
		text := func(x *big.Rat, digits int) string {
			s := x.FloatString(digits)
			if strings.Contains(s, ".") {
				s = strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
			}
			if s == "-0" {
				s = "0"
			}
			return s
		}
		average := new(big.Rat).Quo(sum, big.NewRat(int64(len(texts)), 1))
		want := fmt.Sprintf(`"sum":%s,"min":%s,"n":%d,"max":%s,"avg":%s`, text(sum, scale), text(low, scale), len(texts), text(high, scale), text(average, scale+6))
		bodies := make([]string, len(texts))
		for i, text := range texts {
			bodies[i] = `{"c":` + text + `}`
		}
		if got := add(t, f, bodies...); got != want {
			t.Fatalf("%v: %s, want %s", texts, got, want)
		}
		accumulate := func(bodies []string) (acc []byte) {
			for _, body := range bodies {
				var err error
				if acc, err = f.Add(acc, &semel.Message{Body: []byte(body), Time: start}); err != nil {
					t.Fatalf("%s: %v", body, err)
				}
			}
			return acc
		}
		whole := accumulate(bodies)
		random.Shuffle(len(bodies), func(i, j int) { bodies[i], bodies[j] = bodies[j], bodies[i] })
		if other := accumulate(bodies); !bytes.Equal(whole, other) {
			t.Fatalf("%v in another order: %x, not %x", bodies, other, whole)
		}
		if at := random.IntN(len(bodies)); at > 0 {
			one, two := accumulate(bodies[:at]), accumulate(bodies[at:])
			first, second := bytes.Clone(one), bytes.Clone(two)
			merged, err := f.Merge(one, two)
			if err != nil || !bytes.Equal(merged, whole) || !bytes.Equal(one, first) || !bytes.Equal(two, second) {
				t.Fatalf("%v merged at %d: %x (%v), want %x", bodies, at, merged, err, whole)
			}
		}
	}
}

func TestAveragesAreExactToSixDigits(t *testing.T) {
	t.Parallel()
	f := values(t, stream.Value{Name: "avg", Of: "avg .c"})
	for range 1000 {
		sum, n := new(big.Int), 1+rand.IntN(7)
		var bodies []string
		for range n {
			c := rand.Int64N(2_000_000_000) - 1_000_000_000
			sum.Add(sum, big.NewInt(c))
			bodies = append(bodies, `{"c":`+big.NewInt(c).String()+`}`)
		}
		want := new(big.Rat).SetFrac(sum, big.NewInt(int64(n))).FloatString(6)
		want = strings.TrimSuffix(strings.TrimRight(want, "0"), ".")
		if got := add(t, f, bodies...); got != `"avg":`+want {
			t.Fatalf("%v: %s, want %s", bodies, got, want)
		}
	}
}

func TestInvalidValuesAreRefused(t *testing.T) {
	t.Parallel()
	for want, list := range map[string][]stream.Value{
		"no value":              nil,
		"a name of its own":     {{Name: "a", Of: "count"}, {Name: "a", Of: "count"}},
		`"median .c" is not`:    {{Name: "a", Of: "median .c"}},
		"count has no path":     {{Name: "a", Of: "count .c"}},
		"every other operation": {{Name: "a", Of: "sum"}},
		"value a: key":          {{Name: "a", Of: "sum c..d"}},
	} {
		if _, err := stream.Values(list...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", list, err, want)
		}
	}
	err := (&stream.Aggregate{Grace: -1, Over: stream.Tumbling(time.Microsecond)}).Validate()
	for _, want := range []string{"By is missing", "Func is missing", "Grace: -1ns is negative", "whole number of milliseconds"} {
		if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestMergedAggregatesEqualThoseOfAllMessages divides messages at a random place.
func TestMergedAggregatesEqualThoseOfAllMessages(t *testing.T) {
	t.Parallel()
	var list []stream.Value
	for _, of := range []string{"count", "sum .c", "min .c", "max .c", "avg .c", "first .v", "last .v"} {
		list = append(list, stream.Value{Name: of, Of: of})
	}
	f := values(t, list...)
	for range 1000 {
		n := 2 + rand.IntN(6)
		at := 1 + rand.IntN(n-1)
		var whole, one, two []byte
		for i := range n {
			m := &semel.Message{Body: fmt.Appendf(nil, `{"c":%d,"v":%d}`, rand.Int64()-rand.Int64(), i), Time: start.Add(time.Duration(rand.IntN(4)) * time.Second)}
			if rand.IntN(4) == 0 {
				m.Body = []byte("{}")
			}
			if i >= at {
				m.Time = m.Time.Add(3 * time.Second)
			}
			half := &one
			if i >= at {
				half = &two
			}
			for _, acc := range []*[]byte{&whole, half} {
				var err error
				if *acc, err = f.Add(*acc, m); err != nil {
					t.Fatal(err)
				}
			}
		}
		merged, err := f.Merge(one, two)
		if err != nil || !bytes.Equal(merged, whole) {
			t.Fatalf("%d of %d messages: %x (%v), want %x", at, n, merged, err, whole)
		}
	}
}

func TestInvalidWindowsAreRefused(t *testing.T) {
	t.Parallel()
	for want, over := range map[string]stream.Window{
		"no size":                              {},
		"leave out times":                      stream.Hopping(time.Minute, time.Hour),
		"have 3600 slices each":                stream.Hopping(time.Hour, time.Second),
		"0s is not a whole number":             stream.Hopping(time.Hour, 0),
		"-1m0s is not a whole number":          stream.Session(-time.Minute, time.Hour),
		"the greatest length of a session, 1s": stream.Session(time.Minute, time.Second),
		"sessions cannot be corrected":         stream.Session(time.Minute, time.Hour),
	} {
		err := (&stream.Aggregate{Over: over, Correct: time.Hour}).Validate()
		if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %s", over, err, want)
		}
	}
}

// TestResultsHaveTheTimesOfTheirWindows has windows that share one of their times, and
// several goroutines.
func TestResultsHaveTheTimesOfTheirWindows(t *testing.T) {
	t.Parallel()
	f, err := stream.Values(stream.Value{Name: "n", Of: "count"})
	if err != nil {
		t.Fatal(err)
	}
	acc, err := f.Add(nil, &semel.Message{})
	if err != nil {
		t.Fatal(err)
	}
	base := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ends := []string{"2026-03-01T12:01:00Z", "2026-03-01T12:02:00.5Z"}
	starts := []string{"2026-03-01T12:00:00Z", "2026-03-01T12:00:30Z"}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 400 {
				start, end := i&1, i>>1&1
				out, err := f.Result(&stream.Closed{
					Key: "k", Start: base.Add(time.Duration(start) * 30 * time.Second), End: base.Add(time.Minute + time.Duration(end)*60_500*time.Millisecond), Acc: acc,
				})
				if want := fmt.Sprintf(`{"key":"k","start":%q,"end":%q,"values":{"n":1}}`, starts[start], ends[end]); err != nil || string(out) != want {
					t.Errorf("%s, %v, want %s", out, err, want)
				}
			}
		})
	}
	all.Wait()
}
