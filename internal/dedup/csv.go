package dedup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/dchest/siphash"

	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/framing"
	"github.com/semel-dev/semel/key"
)

// column is a field that a rule names. Its errors, for records without the
// field, are allocated in advance.
type column struct {
	at            int
	absent, empty *key.MissingError
}

// findColumns returns, for each rule, the columns that it names. Without a
// header, names is nil.
func findColumns(names []string, rules []*key.Rule, comma byte, p *problems) [][]column {
	all := make([][]column, len(rules))
	for i, r := range rules {
		for _, path := range r.Paths() {
			if path.String() == "." {
				continue // hash(.) means the whole record
			}
			name, ok := path.Name()
			if !ok {
				p.addf("--key %s: a CSV column is .name or .[\"odd name\"]", r)
				continue
			}
			at, err := findColumn(names, name, comma)
			if err != nil {
				p.addf("--key %s: %v", r, err)
			}
			all[i] = append(all[i], newColumn(at, path))
		}
	}
	return all
}

// findFields finds the columns that the run needs.
func (x *extraction) findFields(names []string, p *problems) {
	x.names = names
	x.columns, x.left = findColumns(names, x.rules, x.comma, p), findLeft(names, x.rules, x.comma, p)
	if x.when == nil {
		return
	}
	path := x.when.rule.Paths()[0]
	name, ok := path.Name()
	if !ok {
		p.addf("--time %s: a CSV column is .name or .[\"odd name\"]", path)
		return
	}
	at, err := findColumn(names, name, x.comma)
	if err != nil {
		p.addf("--time %s: %v", path, err)
	}
	x.when.column = newColumn(at, path)
}

func newColumn(at int, path key.Path) column {
	return column{
		at:     at,
		absent: &key.MissingError{Rule: path.String(), Reason: key.Absent},
		empty:  &key.MissingError{Rule: path.String(), Reason: key.IsEmpty},
	}
}

// findLeft returns, for each rule, the columns that it leaves out.
func findLeft(names []string, rules []*key.Rule, comma byte, p *problems) [][]int {
	all := make([][]int, len(rules))
	for i, r := range rules {
		for _, path := range r.Without() {
			name, ok := path.Name()
			if !ok {
				p.addf("--key %s: a CSV column is .name or .[\"odd name\"]", r)
				continue
			}
			at, err := findColumn(names, name, comma)
			if err != nil {
				p.addf("--key %s: %v", r, err)
			}
			all[i] = append(all[i], at)
		}
	}
	return all
}

func findColumn(names []string, name string, comma byte) (int, error) {
	if names == nil {
		number, err := strconv.Atoi(name)
		if err != nil || number < 1 || strconv.Itoa(number) != name {
			return 0, errors.New("without a header the columns are .1, .2 and so on")
		}
		return number - 1, nil
	}
	at := -1
	for i, n := range names {
		switch {
		case n != name:
		case at >= 0:
			return 0, fmt.Errorf("the header has two columns %q, %d and %d: rename one of them, or add --no-header and write --key .%d or .%d, which makes the header the first record", name, at+1, i+1, at+1, i+1)
		default:
			at = i
		}
	}
	if at < 0 {
		text, _ := fieldHint("the header", names, name, diagnose.PathOf)
		if other := otherComma([]byte(names[0]), comma); len(names) == 1 && other != "" {
			text = "the header is one column, " + names[0] + other
		}
		return 0, fmt.Errorf("there is no column %q: %s", name, text)
	}
	return at, nil
}

// allFields is more than the fields of any record.
const allFields = math.MaxInt

// fieldsNeeded returns how many fields of each record the keys need. A rule without
// columns is a hash of all fields, or the line itself.
func (x *extraction) fieldsNeeded() (n int) {
	for i, columns := range x.columns {
		if x.hashMissing || len(columns) == 0 && x.rules[i].Form() == key.FormHash {
			return allFields
		}
		for _, c := range columns {
			n = max(n, c.at+1)
		}
	}
	if x.when != nil && x.comma != 0 {
		n = max(n, x.when.column.at+1)
	}
	return n
}

// parseRecords parses the records whose ends the reader found.
func (w *worker) parseRecords(b *block) {
	start := int32(0)
	bad := b.bad
	for i, end := range b.ends {
		line := int32(i)
		record := trimEnd(b.data[start:end])
		start = end
		good := len(bad) == 0 || bad[0] != line
		if !good {
			bad = bad[1:]
		}
		if len(record) == 0 {
			b.odd = append(b.odd, oddLine{line: line})
			continue
		}
		err := framing.ErrQuotes
		if good {
			err = framing.Flaw(record)
		}
		if err == nil {
			w.fields, w.room = framing.AppendFields(w.fields[:0], w.room[:0], record, w.comma, w.needed)
			w.id, err = w.recordID(w.id[:0], record)
			if err == nil && w.when != nil {
				err = w.columnTime(b)
			}
		}
		if err != nil {
			w.recordWithoutKey(b, line, record, err)
			continue
		}
		b.digests = append(b.digests, w.digester.Bytes(w.id))
		if w.prints {
			b.prints = append(b.prints, siphash.Hash(w.seed, ^w.seed, record))
		}
	}
}

// recordID appends the id of w.fields. The id of several rules is a composite.
func (w *worker) recordID(dst, record []byte) ([]byte, error) {
	if len(w.rules) == 1 {
		return w.columnID(dst, record, 0)
	}
	parts := make([][]byte, len(w.rules))
	for i := range w.rules {
		var err error
		if parts[i], err = w.columnID(nil, record, i); err != nil {
			return dst, err
		}
	}
	return key.AppendComposite(dst, parts...), nil
}

func (w *worker) columnID(dst, record []byte, rule int) ([]byte, error) {
	r, columns := w.rules[rule], w.columns[rule]
	if r.Form() == key.FormLine {
		return key.AppendLine(dst, record), nil
	}
	for _, c := range columns {
		if c.at >= len(w.fields) {
			return dst, c.absent
		}
	}
	switch {
	case r.Form() == key.FormHash && len(columns) == 0:
		w.values = w.values[:0]
		for at, value := range w.fields {
			if !slices.Contains(w.left[rule], at) {
				w.values = append(w.values, value)
			}
		}
		return w.appendContent(dst, w.values), nil
	case r.Form() == key.FormHash:
		w.values = w.values[:0]
		for _, c := range columns {
			w.values = append(w.values, w.fields[c.at])
		}
		return w.appendContent(dst, w.values), nil
	case len(w.fields[columns[0].at]) == 0:
		return dst, columns[0].empty
	case r.Form() == key.FormShaped:
		w.content = key.AppendString(w.content[:0], w.fields[columns[0].at])
		return r.AppendShaped(dst, w.content)
	}
	return key.AppendString(dst, w.fields[columns[0].at]), nil
}

// appendContent appends the id of values, however the record quotes them.
func (w *worker) appendContent(dst []byte, values [][]byte) []byte {
	w.content = w.content[:0]
	for _, value := range values {
		w.content = append(binary.AppendUvarint(w.content, uint64(len(value))), value...)
	}
	return key.AppendBytes(dst, w.content)
}

func (w *worker) recordWithoutKey(b *block, line int32, record []byte, err error) {
	if !w.hashMissing {
		b.odd = append(b.odd, oddLine{line: line, err: err})
		return
	}
	b.hashed++
	if err == framing.ErrQuotes || err == framing.ErrCR || err == framing.ErrMark {
		w.id = key.AppendBytes(append(w.id[:0], unkeyedBytes...), record)
	} else {
		w.id = w.appendContent(append(w.id[:0], unkeyed...), w.fields)
	}
	b.digests = append(b.digests, w.digester.Bytes(w.id))
	if w.prints {
		b.prints = append(b.prints, 0) // the key is the content
	}
	if w.when != nil {
		b.times = append(b.times, noTime)
	}
}
