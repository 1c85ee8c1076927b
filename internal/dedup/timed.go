package dedup

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/table"
	"github.com/semel-dev/semel/key"
)

// when says where a line has its time.
type when struct {
	rule   *key.Rule // a path
	parse  func(text []byte) (time.Time, error)
	column column // in CSV
}

// noTime is the time of a line whose content became its key. Such a key is never forgotten.
const noTime = math.MinInt64

// timeRule reads the rule of --time. It returns nil without one.
func (o *Options) timeRule(format Format, p *problems) *when {
	if o.Time == "" {
		return nil
	}
	w := &when{parse: o.ParseTime}
	path, err := key.ParsePath(o.Time)
	if err == nil {
		w.rule, err = key.ParseRule(path.String())
	}
	switch {
	case err != nil:
		p.addf("--time %q: write the path of a time, such as .ts", o.Time)
		return nil
	case format == Text:
		p.addf("--time %s: lines of text have no members; add --format jsonl or --format csv if they are not text", o.Time)
	}
	return w
}

// time returns a time in nanoseconds since 1970.
func (w *when) time(text []byte) (int64, error) {
	t, err := w.parse(text)
	if err == nil && (t.Year() < firstYear || t.Year() > lastYear) {
		err = fmt.Errorf("%q is not between the years %d and %d", t.Format("2006-01-02"), firstYear, lastYear)
	}
	if err != nil {
		return 0, &timeError{w.rule.String(), err}
	}
	return t.UnixNano(), nil
}

// The years whose nanoseconds fit into 64 bits.
const firstYear, lastYear = 1678, 2261

// timeError says why a line has no time.
type timeError struct {
	path string
	err  error
}

// Error implements error.
func (e *timeError) Error() string {
	return e.path + ": " + e.err.Error()
}

// Unwrap returns the cause.
func (e *timeError) Unwrap() error { return e.err }

// timeOf notes the time of a JSON line.
func (w *worker) timeOf(b *block, line []byte) error {
	w.message.Body = line
	id, err := w.clock.AppendID(w.timeText[:0], &w.message)
	if err != nil {
		return err
	}
	w.timeText = key.AppendText(id, id)
	return w.noteTime(b, w.timeText[len(id):])
}

// columnTime notes the time of a record.
func (w *worker) columnTime(b *block) error {
	c := &w.when.column
	switch {
	case c.at >= len(w.fields):
		return c.absent
	case len(w.fields[c.at]) == 0:
		return c.empty
	}
	return w.noteTime(b, w.fields[c.at])
}

func (w *worker) noteTime(b *block, text []byte) error {
	t, err := w.when.time(text)
	if err == nil {
		b.times = append(b.times, t)
	}
	return err
}

// timed is a keySet that counts the window by the times in lines. The order of the times does not
// matter: a line is a duplicate if a kept line of its key is less than the window away, before or
// after.
//
// Time is divided into parts as long as the window. So a key has at most one kept line in a part,
// and only that part and its neighbours can have a line that is near enough. The table has an
// entry for each kept line: for its key and its part, the time and the print.
type timed struct {
	window   int64
	digester interface{ Bytes(id []byte) semel.Digest }
	table    table.Compact[[16]byte]
	near     []semel.Digest // of the lines of a group, three each
	id       []byte
	forecast forecast // of the entries
}

func (t *timed) decide(l lines, out []semel.Decision) error {
	if entries, ok := t.forecast.due(); ok {
		t.table.Expect(entries)
	}
	const ahead, parts = 32, 3 // as in table.AddBatch
	for start := 0; start < len(l.digests); start += ahead {
		end := min(start+ahead, len(l.digests))
		t.near = t.near[:0]
		for i := start; i < end; i++ {
			part := floor(l.times[i], t.window)
			for _, p := range [parts]int64{part, part - 1, part + 1} {
				d := t.entry(&l.digests[i], p)
				t.table.Prefetch(&d)
				t.near = append(t.near, d)
			}
		}
		for i := start; i < end; i++ {
			var print uint64
			if l.prints != nil {
				print = l.prints[i]
			}
			near := t.near[parts*(i-start):][:parts]
			out[i], l.digests[i] = t.decision(near, l.times[i], print)
		}
	}
	return nil
}

// decision decides one line. It returns the entry of the kept line.
func (t *timed) decision(near []semel.Digest, at int64, print uint64) (semel.Decision, semel.Digest) {
	for i := range near {
		v, ok := t.table.Find(&near[i])
		kept := int64(binary.LittleEndian.Uint64(v[:8]))
		switch {
		case !ok, i > 0 && (at == noTime || max(kept-at, at-kept) >= t.window):
			continue
		case differ(binary.LittleEndian.Uint64(v[8:]), print):
			return semel.Mismatch, near[i]
		}
		return semel.Duplicate, near[i]
	}
	var v [16]byte
	binary.LittleEndian.PutUint64(v[:8], uint64(at))
	binary.LittleEndian.PutUint64(v[8:], print)
	added, _ := t.table.Add(&near[0], v)
	*added = v
	t.forecast.keys++
	return semel.Fresh, near[0]
}

// entry returns the digest of a key in a part of time.
func (t *timed) entry(d *semel.Digest, part int64) semel.Digest {
	t.id = binary.LittleEndian.AppendUint64(append(t.id[:0], d[:]...), uint64(part))
	return t.digester.Bytes(t.id)
}

// floor returns a/b, rounded down.
func floor(a, b int64) int64 {
	n := a / b
	if a%b < 0 {
		n--
	}
	return n
}
