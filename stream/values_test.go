package stream_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
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
		`{"c":1.5}`: ".c is 1.5: only whole numbers", `{"c":"1"}`: `.c is "1"`, `{"c":1`: "no JSON document",
	} {
		if _, err := f.Add(full, &semel.Message{Body: []byte(body)}); err == nil || semel.Classify(err) != semel.ClassPermanent || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", body, err, want)
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
