package stream

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

// Value is a named value of a result.
type Value struct {
	Name string
	// Of is "count", or one of "sum", "min", "max", "avg", "first" and "last" with the
	// path of a JSON value, such as "sum .cents".
	//
	// Sums, minima, maxima and averages take whole numbers of at most 64 bits. A
	// message with another number or a text is refused. Messages without the value, or
	// with null, do not count. Among messages of the same time, the one that was read
	// first is first.
	Of string
}

// Values returns an Aggregator whose results are JSON objects with the members key,
// start, end and values. The error wraps semel.ErrInvalidRequest.
func Values(list ...Value) (Aggregator, error) {
	v := &values{}
	if len(list) == 0 {
		return nil, fmt.Errorf("stream: there is no value to compute: %w", semel.ErrInvalidRequest)
	}
	seen := map[string]bool{}
	var text []string
	for _, item := range list {
		if item.Name == "" || seen[item.Name] {
			return nil, fmt.Errorf("stream: value %q: each value needs a name of its own: %w", item.Name, semel.ErrInvalidRequest)
		}
		seen[item.Name] = true
		p := part{name: item.Name, path: -1}
		op, path, _ := strings.Cut(strings.TrimSpace(item.Of), " ")
		var ok bool
		if p.op, ok = operations[op]; !ok {
			return nil, fmt.Errorf("stream: value %s: %q is not count, or sum, min, max, avg, first or last and a path: %w", item.Name, item.Of, semel.ErrInvalidRequest)
		}
		if path = strings.TrimSpace(path); (path == "") != (p.op == opCount) {
			return nil, fmt.Errorf("stream: value %s: %q: count has no path, and every other operation has one, such as sum .cents: %w", item.Name, item.Of, semel.ErrInvalidRequest)
		}
		if path != "" {
			at, err := key.ParsePath(path)
			if err != nil {
				return nil, fmt.Errorf("stream: value %s: %w", item.Name, err)
			}
			p.path, p.text = len(v.paths), at.String()
			v.paths = append(v.paths, at)
		}
		v.parts = append(v.parts, p)
		text = append(text, strings.TrimSpace(item.Name+" "+op+" "+p.text))
	}
	v.text = strings.Join(text, ", ")
	if _, err := key.NewFinder(v.paths, nil); err != nil {
		return nil, fmt.Errorf("stream: %w", err)
	}
	return v, nil
}

// values computes values from JSON bodies. An accumulator has the accumulators of its
// parts one after the other:
//
//	count  number of messages (8)
//	sum    sum (8)
//	min, max  number of messages (8), value (8)
//	avg    number of messages (8), sum (8)
//	first, last  number of messages (8), time in nanoseconds (8), length (4), JSON text
//
// All numbers are little-endian.
type values struct {
	parts   []part
	paths   []key.Path
	text    string
	finders sync.Pool
}

type part struct {
	name string
	op   operation
	path int // in paths, or -1
	text string
}

type operation uint8

const (
	opCount operation = iota
	opSum
	opMin
	opMax
	opAvg
	opFirst
	opLast
)

var operations = map[string]operation{"count": opCount, "sum": opSum, "min": opMin, "max": opMax, "avg": opAvg, "first": opFirst, "last": opLast}

// String implements Aggregator.
func (v *values) String() string { return v.text }

// Add implements Aggregator.
func (v *values) Add(acc []byte, m *semel.Message) ([]byte, error) {
	var f *key.Finder
	if len(v.paths) > 0 {
		if f, _ = v.finders.Get().(*key.Finder); f == nil {
			f, _ = key.NewFinder(v.paths, nil) // Values has checked the paths
		}
		defer v.finders.Put(f)
		if err := f.Find(m.Body); err != nil {
			return nil, semel.Permanent(fmt.Errorf("aggregate: the body is no JSON document: %w", err))
		}
	}
	next := make([]byte, 0, len(acc)+24*len(v.parts))
	for i := range v.parts {
		p := &v.parts[i]
		var was []byte
		if len(acc) > 0 {
			was, acc = p.split(acc)
		}
		var err error
		if next, err = p.add(next, was, f, m.Time); err != nil {
			return nil, semel.Permanent(fmt.Errorf("aggregate: %s: %w", p.name, err))
		}
	}
	return next, nil
}

// split cuts the accumulator of a part from the others.
func (p *part) split(acc []byte) (own, others []byte) {
	n := 16
	switch p.op {
	case opCount, opSum:
		n = 8
	case opFirst, opLast:
		n = 20 + int(binary.LittleEndian.Uint32(acc[16:]))
	}
	return acc[:n], acc[n:]
}

// add appends the accumulator of a part after a message. An empty one is new.
func (p *part) add(dst, was []byte, f *key.Finder, when time.Time) ([]byte, error) {
	var n, value int64
	if len(was) > 0 {
		n = int64(binary.LittleEndian.Uint64(was))
		if len(was) > 8 {
			value = int64(binary.LittleEndian.Uint64(was[8:]))
		}
	}
	if p.op == opCount {
		return put(dst, n+1), nil
	}
	raw, kind := f.Raw(p.path)
	counts := kind != key.Missing && kind != key.Null
	if p.op == opFirst || p.op == opLast {
		switch at := when.UnixNano(); {
		case counts && (n == 0 || p.op == opFirst && at < value || p.op == opLast && at >= value):
			dst = put(put(dst, n+1), at)
			return append(binary.LittleEndian.AppendUint32(dst, uint32(len(raw))), raw...), nil
		case len(was) > 0:
			return append(dst, was...), nil
		}
		return append(dst, make([]byte, 20)...), nil
	}
	var x int64
	if counts {
		var err error
		if x, err = strconv.ParseInt(string(raw), 10, 64); err != nil {
			return nil, fmt.Errorf("%s is %s: only whole numbers of at most 64 bits are added and compared, such as an amount in cents", p.text, shorten(raw))
		}
	}
	switch p.op {
	case opSum:
		sum, err := sumOf(n, x)
		return put(dst, sum), err
	case opAvg:
		if counts {
			n++
		}
		sum, err := sumOf(value, x)
		return put(put(dst, n), sum), err
	}
	if counts && (n == 0 || p.op == opMin && x < value || p.op == opMax && x > value) {
		value = x
	}
	if counts {
		n++
	}
	return put(put(dst, n), value), nil
}

func put(dst []byte, n int64) []byte { return binary.LittleEndian.AppendUint64(dst, uint64(n)) }

// sumOf adds numbers, or returns an error if the sum has more than 64 bits.
func sumOf(a, b int64) (int64, error) {
	sum := a + b
	if (a < 0) == (b < 0) && (sum < 0) != (a < 0) {
		return 0, fmt.Errorf("the sum of %d and %d has more than 64 bits", a, b)
	}
	return sum, nil
}

// shorten returns a text for a message.
func shorten(raw []byte) string {
	const most = 40
	if len(raw) > most {
		return string(raw[:most]) + "..."
	}
	return string(raw)
}

// Result implements Aggregator.
func (v *values) Result(w *Closed) ([]byte, error) {
	dst := append([]byte(`{"key":`), quote(w.Key)...)
	dst = append(append(dst, `,"start":`...), quote(w.Start.UTC().Format(time.RFC3339Nano))...)
	dst = append(append(dst, `,"end":`...), quote(w.End.UTC().Format(time.RFC3339Nano))...)
	dst = append(dst, `,"values":{`...)
	acc := w.Acc
	for i := range v.parts {
		p := &v.parts[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		var own []byte
		own, acc = p.split(acc)
		dst = p.result(append(append(dst, quote(p.name)...), ':'), own)
	}
	return append(dst, "}}"...), nil
}

// result appends the value of a part as JSON.
func (p *part) result(dst, own []byte) []byte {
	n := int64(binary.LittleEndian.Uint64(own))
	if p.op == opCount || p.op == opSum {
		return strconv.AppendInt(dst, n, 10)
	}
	if n == 0 {
		return append(dst, "null"...)
	}
	value := int64(binary.LittleEndian.Uint64(own[8:]))
	switch p.op {
	case opAvg:
		return appendQuotient(dst, value, n)
	case opFirst, opLast:
		return append(dst, own[20:]...)
	}
	return strconv.AppendInt(dst, value, 10)
}

// appendQuotient appends sum/n with six digits after the point, rounded half away from
// zero. Floating-point numbers would lose digits of large sums.
func appendQuotient(dst []byte, sum, n int64) []byte {
	size := uint64(sum)
	if sum < 0 {
		size = -size
	}
	whole, rest := size/uint64(n), size%uint64(n)
	hi, lo := bits.Mul64(rest, 1_000_000)
	digits, left := bits.Div64(hi, lo, uint64(n))
	if left >= uint64(n)-left {
		digits++
	}
	if digits == 1_000_000 {
		whole, digits = whole+1, 0
	}
	if sum < 0 && (whole > 0 || digits > 0) {
		dst = append(dst, '-')
	}
	dst = strconv.AppendUint(dst, whole, 10)
	if digits == 0 {
		return dst
	}
	return append(dst, strings.TrimRight(fmt.Sprintf(".%06d", digits), "0")...)
}

// quote returns a text as JSON.
func quote(text string) []byte {
	quoted, _ := json.Marshal(text) // never fails for a string
	return quoted
}
