package stream

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	// Sums, minima, maxima and averages take numbers with at most 60 digits before the
	// point and 60 behind it, and are exact. Numbers are added and compared as they are
	// written, not as floating-point numbers. An average is rounded to six digits more
	// than the numbers have behind the point. A message with another number or a text is
	// refused. Messages without the value, or with null, do not count. Among messages of
	// the same time, the one that was read first is first.
	Of string
}

// Values returns an Aggregator whose results are JSON objects with the members key,
// start, end and values. The error wraps semel.ErrInvalidRequest.
func Values(list ...Value) (Aggregator, error) {
	v := &values{fixed: true}
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
		label, _ := json.Marshal(item.Name) // never fails for a string
		p := part{name: item.Name, label: string(label), path: -1}
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
		v.fixed = v.fixed && p.op != opFirst && p.op != opLast
		p.at = v.size
		v.size += p.size(nil)
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
//	sum, avg  number of messages (8), sum (16, the low half first)
//	min, max  number of messages (8), value (8)
//	first, last  1, or 0 without a value (8), time in nanoseconds (8), length (4), JSON text
//
// All numbers are little-endian. A sum, minimum or maximum that is no whole number, or too large,
// has the highest bit of the number of messages set. Then come the number of digits behind the
// point (1), 1 if it is negative (1), length (1), and the number without point and sign, the high
// byte first. One value has one form, so that the order of messages does not matter.
type values struct {
	parts   []part
	fixed   bool // the size of an accumulator changes only with its numbers
	size    int  // of an accumulator of whole numbers, if fixed
	paths   []key.Path
	text    string
	finders sync.Pool
	last    atomic.Pointer[windowText]
}

// windowText has the times of a window as JSON. Many results are of one window.
type windowText struct {
	start, end time.Time
	text       []byte
}

type part struct {
	name  string
	label string // name as JSON
	op    operation
	path  int // in paths, or -1
	text  string
	at    int // place in an accumulator of values.size
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

func (v *values) String() string { return v.text }

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
	var few [8]amount
	amounts := few[:0]
	fixed := v.fixed && len(acc) == v.size
	for i := range v.parts { // before anything is changed, because a refused message does not count
		p := &v.parts[i]
		var x amount
		if p.isNumeric() {
			raw, kind := f.Raw(p.path)
			var err error
			if x, err = amountOf(raw, kind); err != nil {
				return nil, semel.Permanent(fmt.Errorf("aggregate: %s: %s is %s: %w", p.name, p.text, shorten(raw), err))
			}
			fixed = fixed && x.units == nil && (len(acc) == 0 || !isWide(acc[p.at:]))
		}
		amounts = append(amounts, x)
	}
	next := acc[:0] // parts of a fixed size replace themselves
	if !fixed && len(acc) > 0 {
		next = make([]byte, 0, max(len(acc)+24*len(v.parts), v.size))
	}
	for i := range v.parts {
		p := &v.parts[i]
		var was []byte
		if len(acc) > 0 {
			was, acc = p.split(acc)
		}
		next = p.add(next, was, f, m.Time, &amounts[i])
	}
	return next, nil
}

// split cuts the accumulator of a part from the others.
func (p *part) split(acc []byte) (own, others []byte) {
	n := p.size(acc)
	return acc[:n], acc[n:]
}

// size returns the length of the part's accumulator at the start of bytes, or without
// bytes, of one that has no message.
func (p *part) size(acc []byte) int {
	switch p.op {
	case opCount:
		return 8
	case opMin, opMax:
		if isWide(acc) {
			return wideSize(acc)
		}
		return 16
	case opFirst, opLast:
		if acc == nil {
			return 20
		}
		return 20 + int(binary.LittleEndian.Uint32(acc[16:]))
	}
	if isWide(acc) {
		return wideSize(acc)
	}
	return 24 // sum and avg
}

// isNumeric reports whether the part takes numbers.
func (p *part) isNumeric() bool {
	return p.op == opSum || p.op == opAvg || p.op == opMin || p.op == opMax
}

// add appends the accumulator of a part after a message. An empty one is new.
func (p *part) add(dst, was []byte, f *key.Finder, when time.Time, x *amount) []byte {
	switch p.op {
	case opCount:
		return put(dst, number(was, 0)+1)
	case opFirst, opLast:
		raw, kind := f.Raw(p.path)
		counts := kind != key.Missing && kind != key.Null
		n, value := number(was, 0), number(was, 1)
		switch at := when.UnixNano(); {
		case counts && (n == 0 || p.op == opFirst && at < value || p.op == opLast && at >= value):
			dst = put(put(dst, 1), at)
			return append(binary.LittleEndian.AppendUint32(dst, uint32(len(raw))), raw...)
		case len(was) > 0:
			return append(dst, was...)
		}
		return append(dst, make([]byte, 20)...)
	}
	var own [24]byte // the accumulator of the message alone
	one := own[:0]
	switch {
	case !x.counts:
		one = append(one, make([]byte, p.size(nil))...)
	case x.units != nil:
		one = p.put(one, 1, x.units, int(x.scale))
	default:
		one = put(put(one, 1), x.small)
		if p.op == opSum || p.op == opAvg {
			one = put(one, x.small>>63)
		}
	}
	if len(was) == 0 {
		return append(dst, one...)
	}
	return p.merge(dst, was, one)
}

// merge appends the accumulator of two sets of messages.
func (p *part) merge(dst, a, b []byte) []byte {
	if p.isNumeric() && (isWide(a) || isWide(b)) {
		return p.mergeWide(dst, a, b)
	}
	n, m := number(a, 0), number(b, 0)
	switch p.op {
	case opCount:
		return put(dst, n+m)
	case opSum, opAvg:
		low, carry := bits.Add64(uint64(number(a, 1)), uint64(number(b, 1)), 0)
		high, _ := bits.Add64(uint64(number(a, 2)), uint64(number(b, 2)), carry)
		if h := int64(high); h >= 1<<(mostHigh-1) || h <= -1<<(mostHigh-1) {
			return p.mergeWide(dst, a, b)
		}
		return put(put(put(dst, n+m), int64(low)), int64(high))
	}
	x, y := number(a, 1), number(b, 1)
	if m > 0 && (n == 0 || y < x && (p.op == opMin || p.op == opFirst) || y > x && p.op == opMax || y >= x && p.op == opLast) {
		a = b
	}
	if p.op == opFirst || p.op == opLast {
		return append(dst, a...)
	}
	return append(put(dst, n+m), a[8:]...)
}

func (v *values) Merge(a, b []byte) ([]byte, error) {
	next := make([]byte, 0, len(a)+len(b))
	for i := range v.parts {
		var x, y []byte
		x, a = v.parts[i].split(a)
		y, b = v.parts[i].split(b)
		next = v.parts[i].merge(next, x, y)
	}
	return next, nil
}

func put(dst []byte, n int64) []byte { return binary.LittleEndian.AppendUint64(dst, uint64(n)) }

// number returns a number of an accumulator, or 0 for a new one.
func number(acc []byte, i int) int64 {
	if len(acc) == 0 {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(acc[8*i:]))
}

// shorten returns a text for a message.
func shorten(raw []byte) string {
	const most = 40
	if len(raw) > most {
		return string(raw[:most]) + "..."
	}
	return string(raw)
}

func (v *values) Result(w *Closed) ([]byte, error) {
	times := v.times(w)
	dst := append(make([]byte, 0, len(w.Key)+len(times)+24+24*len(v.parts)), `{"key":`...)
	dst = append(key.AppendJSON(dst, []byte(w.Key)), times...)
	dst = append(dst, `,"values":{`...)
	acc := w.Acc
	for i := range v.parts {
		p := &v.parts[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		var own []byte
		own, acc = p.split(acc)
		dst = p.result(append(append(dst, p.label...), ':'), own)
	}
	return append(dst, "}}"...), nil
}

// times returns the times of a window as members of an object, with a comma before each.
func (v *values) times(w *Closed) []byte {
	t := v.last.Load()
	if t == nil || !t.start.Equal(w.Start) || !t.end.Equal(w.End) {
		t = &windowText{start: w.Start, end: w.End}
		t.text = w.Start.UTC().AppendFormat([]byte(`,"start":"`), time.RFC3339Nano)
		t.text = append(w.End.UTC().AppendFormat(append(t.text, `","end":"`...), time.RFC3339Nano), '"')
		v.last.Store(t)
	}
	return t.text
}

// result appends the value of a part as JSON.
func (p *part) result(dst, own []byte) []byte {
	switch p.op {
	case opCount:
		return strconv.AppendInt(dst, number(own, 0), 10)
	case opFirst, opLast:
		if number(own, 0) == 0 {
			return append(dst, "null"...)
		}
		return append(dst, own[20:]...)
	}
	n, units, scale := p.total(own)
	switch {
	case n == 0 && p.op != opSum:
		return append(dst, "null"...)
	case p.op == opAvg:
		return appendQuotient(dst, units, scale, n)
	}
	return appendQuotient(dst, units, scale, 1)
}
