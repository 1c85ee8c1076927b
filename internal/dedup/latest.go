package dedup

import (
	"context"
	"errors"
	"io"
	"math"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/table"
)

// latest is a keySet that keeps the last line of each key, or the only one. It
// is given all lines twice. The first time it learns which lines these are, and
// answers Duplicate. The second time it answers Fresh for them.
type latest struct {
	keep    Keep
	learned bool
	// line counts the digests of the current pass, and lines those of the first
	// pass.
	line, lines uint64
	// last has the number of the last line of each key, and prints has its
	// print. prints is nil if content does not matter.
	last, prints *table.Compact[[8]byte]
	// keeps is the number of lines to keep, and kept is how many were kept.
	keeps, kept uint64
	forecast    forecast // of the first pass
}

// several is the number of the last line for a key of several lines, with KeepNone.
const several = math.MaxUint64

func newLatest(keep Keep, prints bool, f forecast) *latest {
	l := &latest{keep: keep, last: new(table.Compact[[8]byte]), forecast: f}
	if prints {
		l.prints = new(table.Compact[[8]byte])
	}
	return l
}

// errInputsChanged ends the second pass.
var errInputsChanged = errors.New("the inputs changed between the two passes of --keep, so the output is not complete: copy inputs that are still written, and run the same command on the copies")

func (l *latest) decide(of lines, out []semel.Decision) error {
	digests, prints := of.digests, of.prints
	if keys, ok := l.forecast.due(); ok && !l.learned {
		l.last.Expect(keys)
		if l.prints != nil {
			l.prints.Expect(keys)
		}
	}
	const ahead = 32 // as in table.AddBatch
	for start := 0; start < len(digests); start += ahead {
		end := min(start+ahead, len(digests))
		for i := start; i < end; i++ {
			l.last.Prefetch(&digests[i])
			if l.prints != nil {
				l.prints.Prefetch(&digests[i])
			}
		}
		for i := start; i < end; i++ {
			l.line++
			var print uint64
			if l.prints != nil {
				print = prints[i]
			}
			if !l.learned {
				l.learn(&digests[i], print)
				out[i] = semel.Duplicate
				continue
			}
			var ok bool
			if out[i], ok = l.decision(&digests[i], print); !ok {
				return errInputsChanged
			}
		}
	}
	return nil
}

func (l *latest) learn(d *semel.Digest, print uint64) {
	last, added := l.last.Add(d, [8]byte{})
	switch {
	case added:
		l.forecast.keys++
		l.keeps++
		*last = toBytes(l.line)
	case l.keep != KeepNone:
		*last = toBytes(l.line)
	case fromBytes(*last) != several:
		l.keeps--
		*last = toBytes(several)
	}
	if l.prints != nil {
		kept, _ := l.prints.Add(d, [8]byte{})
		*kept = toBytes(print)
	}
}

func (l *latest) decision(d *semel.Digest, print uint64) (decision semel.Decision, ok bool) {
	line, known := l.last.Find(d)
	last := fromBytes(line)
	switch {
	case !known || last < l.line:
		return semel.Fresh, false
	case last == l.line:
		l.kept++
		return semel.Fresh, true
	case l.prints != nil:
		if kept, _ := l.prints.Find(d); differ(fromBytes(kept), print) {
			return semel.Mismatch, true
		}
	}
	return semel.Duplicate, true
}

// turn ends the first pass.
func (l *latest) turn() { l.learned, l.lines, l.line = true, l.line, 0 }

// check reports whether the second pass saw the lines of the first one.
func (l *latest) check() error {
	if l.line != l.lines || l.kept != l.keeps {
		return errInputsChanged
	}
	return nil
}

// learn reads all inputs for the first time and writes nothing.
func (r *Run) learn(ctx context.Context, l *latest) error {
	c := &committer{
		opts: &r.opts, inputs: r.inputs, extract: r.extract, comma: r.extract.comma,
		set: l, out: &output{to: io.Discard}, progress: &r.progress, why: r.committer.why,
	}
	if c.why != nil {
		c.why.learning = true
		defer func() { c.why.learning = false }()
	}
	c.goTo(0)
	if err := r.read(ctx, c, c.pos); err != nil {
		return err
	}
	l.turn()
	r.progress.readBefore, r.progress.doneBefore = c.counts.Read, r.progress.done.Load()
	return nil
}
