// Package lines generates the input of the file benchmarks: JSON lines of about 200
// bytes, or CSV records of about 120 with the same values. The member or column event_id
// is a UUID, and one line in five is a duplicate.
//
// The input depends only on a seed. Half of the duplicates repeat one of the last [Near]
// lines, the other half any earlier line. Half of the duplicates have the same bytes.
// The others differ in white space, in the order of members or in a timestamp, a third
// each. A comparison of whole lines does not find those. Records differ only in a
// timestamp, and a quarter of them has a field with quotes.
package lines

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Near is the largest distance of a near duplicate, in lines.
const Near = 1000

// Summary describes the generated input and the right answer. The right answer is the
// first line of each id, byte for byte, in input order, behind the header of CSV.
type Summary struct {
	Seed  uint64
	Lines int
	// Fresh counts the distinct ids.
	Fresh int
	Bytes int64
	// FreshSHA256 is the digest of the right answer, in hexadecimal.
	FreshSHA256 string
}

// Generate writes count JSON lines to w.
func Generate(w io.Writer, seed uint64, count int) (Summary, error) {
	return generate(w, seed, count, "", appendLine)
}

// GenerateCSV writes a header and count records to w.
func GenerateCSV(w io.Writer, seed uint64, count int) (Summary, error) {
	return generate(w, seed, count, "event_id,type,user,cents,address,note,time\n", appendRecord)
}

// GenerateShort writes count lines of 40 bytes. Duplicates repeat a line byte for byte.
func GenerateShort(w io.Writer, seed uint64, count int) (Summary, error) {
	return generate(w, seed, count, "", appendShort)
}

// appendShort appends a UUID and three more characters.
func appendShort(dst []byte, seed, id uint64, _ variant) []byte {
	rand := random{seed ^ id*0xd1342543de82ef95}
	dst = appendUUID(dst, rand.next(), rand.next())
	return append(dst, '-', 'a'+byte(id%26), 'a'+byte(id/26%26), '\n')
}

func generate(w io.Writer, seed uint64, count int, header string, appendLine func(dst []byte, seed, id uint64, v variant) []byte) (Summary, error) {
	s := Summary{Seed: seed, Lines: count, Bytes: int64(len(header))}
	rand := random{seed}
	answer := sha256.New()
	if _, err := io.MultiWriter(w, answer).Write([]byte(header)); err != nil {
		return s, fmt.Errorf("lines: write the header: %w", err)
	}
	var recent [Near]uint64
	var line []byte
	for i := range count {
		id, v := uint64(s.Fresh), variant(0)
		if i > 0 && rand.below(5) == 0 {
			if rand.below(2) == 0 {
				id = recent[(uint64(i)-1-rand.below(uint64(min(i, Near))))%Near]
			} else {
				id = rand.below(uint64(s.Fresh))
			}
			v = [...]variant{0, 0, 0, spaced, reordered, retimed}[rand.below(6)]
		}
		recent[i%Near] = id
		line = appendLine(line[:0], seed, id, v)
		if id == uint64(s.Fresh) {
			s.Fresh++
			answer.Write(line)
		}
		s.Bytes += int64(len(line))
		if _, err := w.Write(line); err != nil {
			return s, fmt.Errorf("lines: write line %d: %w", i+1, err)
		}
	}
	s.FreshSHA256 = hex.EncodeToString(answer.Sum(nil))
	return s, nil
}

// GenerateNext writes count JSON lines of the day after that of the summary first. Four in
// five have an id of that day, half of them in its order and the others at random, and one
// has a new id. The right answer is the lines with new ids.
func GenerateNext(w io.Writer, first Summary, count int) (Summary, error) {
	s := Summary{Seed: first.Seed, Lines: count}
	rand := random{first.Seed + 1}
	answer := sha256.New()
	var line []byte
	next := uint64(0)
	for i := range count {
		id := uint64(first.Fresh) + uint64(s.Fresh)
		isNew := rand.below(5) == 0
		switch {
		case isNew:
			s.Fresh++
		case rand.below(2) == 0:
			id, next = next, (next+1)%uint64(first.Fresh)
		default:
			id = rand.below(uint64(first.Fresh))
		}
		line = appendLine(line[:0], first.Seed, id, 0)
		if isNew {
			answer.Write(line)
		}
		s.Bytes += int64(len(line))
		if _, err := w.Write(line); err != nil {
			return s, fmt.Errorf("lines: write line %d: %w", i+1, err)
		}
	}
	s.FreshSHA256 = hex.EncodeToString(answer.Sum(nil))
	return s, nil
}

// File creates path with count lines of this seed, or records if its name ends with
// .csv, or short lines if it ends with .txt, unless it exists. It returns their summary,
// which it stores next to path.
func File(path string, seed uint64, count int) (Summary, error) {
	generate := Generate
	switch filepath.Ext(path) {
	case ".csv":
		generate = GenerateCSV
	case ".txt":
		generate = GenerateShort
	}
	return file(path, seed, count, func(w io.Writer) (Summary, error) { return generate(w, seed, count) })
}

// NextFile is File for the lines of [GenerateNext].
func NextFile(path string, first Summary, count int) (Summary, error) {
	return file(path, first.Seed, count, func(w io.Writer) (Summary, error) { return GenerateNext(w, first, count) })
}

func file(path string, seed uint64, count int, generate func(io.Writer) (Summary, error)) (Summary, error) {
	var s Summary
	if data, err := os.ReadFile(path + ".summary"); err == nil && json.Unmarshal(data, &s) == nil {
		if info, err := os.Stat(path); err == nil && info.Size() == s.Bytes && s.Seed == seed && s.Lines == count {
			return s, nil
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return s, fmt.Errorf("lines: %w", err)
	}
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<20)
	if s, err = generate(w); err != nil {
		return s, err
	}
	if err := w.Flush(); err != nil {
		return s, fmt.Errorf("lines: %w", err)
	}
	if err := f.Close(); err != nil {
		return s, fmt.Errorf("lines: %w", err)
	}
	data, err := json.Marshal(s)
	if err != nil {
		return s, fmt.Errorf("lines: %w", err)
	}
	if err := os.WriteFile(path+".summary", data, 0o644); err != nil {
		return s, fmt.Errorf("lines: %w", err)
	}
	return s, nil
}

// EventID finds the id by a search of bytes: it returns the text between quotes behind
// "event_id":. This is right for generated lines and wrong for many others.
func EventID(line []byte) (id []byte, ok bool) {
	_, rest, ok := bytes.Cut(line, []byte(`"event_id":`))
	if !ok {
		return nil, false
	}
	_, rest, ok = bytes.Cut(rest, []byte(`"`))
	if !ok {
		return nil, false
	}
	id, _, ok = bytes.Cut(rest, []byte(`"`))
	return id, ok
}

// variant says how a duplicate differs from the first line of its id.
type variant uint8

const (
	spaced variant = 1 << iota
	reordered
	retimed
)

// orders are the orders of members. Each is used for a third of the ids: event_id is the
// first member, one in the middle, or the last.
var orders = [...][7]string{
	{"event_id", "type", "user", "cents", "address", "note", "time"},
	{"time", "type", "user", "event_id", "cents", "address", "note"},
	{"type", "time", "cents", "user", "address", "note", "event_id"},
}

// event has the values of an id.
type event struct{ hi, lo, user, cents, at, order uint64 }

func newEvent(seed, id uint64, v variant) event {
	rand := random{seed ^ (id+1)*0x9e3779b97f4a7c15}
	e := event{rand.next(), rand.next(), rand.below(1e6), rand.below(1e7), rand.below(86_400_000), rand.below(3)}
	if v&reordered != 0 {
		e.order = (e.order + 1) % 3
	}
	if v&retimed != 0 {
		e.at = (e.at + 1000) % 86_400_000
	}
	return e
}

func (e event) appendTime(dst []byte) []byte {
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return day.Add(time.Duration(e.at)*time.Millisecond).AppendFormat(dst, "2006-01-02T15:04:05.000Z07:00")
}

// appendRecord appends the CSV record of an id.
func appendRecord(dst []byte, seed, id uint64, v variant) []byte {
	e := newEvent(seed, id, v)
	dst = append(appendUUID(dst, e.hi, e.lo), ",order.placed,"...)
	dst = append(strconv.AppendUint(dst, e.user, 10), ',')
	dst = append(strconv.AppendUint(dst, e.cents, 10), ",Tórshavn street "...)
	dst = strconv.AppendUint(dst, e.user%997, 10)
	note := ",ring twice,"
	if e.user%4 == 0 {
		note = `,"ring ""twice"", then wait",`
	}
	return append(e.appendTime(append(dst, note...)), '\n')
}

// appendLine appends the JSON line of an id.
func appendLine(dst []byte, seed, id uint64, v variant) []byte {
	e := newEvent(seed, id, v)
	colon, comma := ":", ","
	if v&spaced != 0 {
		colon, comma = ": ", ", "
	}
	separator := "{"
	for _, member := range orders[e.order] {
		dst = append(dst, separator...)
		separator = comma
		dst = append(append(append(append(dst, '"'), member...), '"'), colon...)
		switch member {
		case "event_id":
			dst = append(appendUUID(append(dst, '"'), e.hi, e.lo), '"')
		case "type":
			dst = append(dst, `"order.placed"`...)
		case "user":
			dst = strconv.AppendUint(dst, e.user, 10)
		case "cents":
			dst = strconv.AppendUint(dst, e.cents, 10)
		case "address":
			dst = append(append(append(dst, `{"city":"Tórshavn","street":"`...), strconv.Itoa(int(e.user%997))...), `"}`...)
		case "note":
			dst = append(dst, `"ring \"twice\""`...)
		case "time":
			dst = append(e.appendTime(append(dst, '"')), '"')
		}
	}
	return append(dst, '}', '\n')
}

// appendUUID appends a UUID of version 4.
func appendUUID(dst []byte, hi, lo uint64) []byte {
	hi = hi&^0xf000 | 0x4000
	lo = lo&^(0xc<<60) | 0x8<<60
	const digits = "0123456789abcdef"
	for i := range 32 {
		if i == 8 || i == 12 || i == 16 || i == 20 {
			dst = append(dst, '-')
		}
		word := hi
		if i >= 16 {
			word = lo
		}
		dst = append(dst, digits[word>>(60-4*(i%16))&15])
	}
	return dst
}

// random is SplitMix64 (Steele, Lea and Flood, 2014). Unlike the generators of math/rand,
// it is cheap to seed for every line.
type random struct{ state uint64 }

func (r *random) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

func (r *random) below(n uint64) uint64 { return r.next() % n }
