package dedup

import (
	"bytes"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

// extraction has the parameters of the workers. It does not change while they
// run.
type extraction struct {
	format   Format
	comma    byte
	noHeader bool
	rules    []*key.Rule
	columns  [][]column // for each rule, in CSV
	left     [][]int    // the columns that a rule leaves out
	names    []string   // of the columns, in CSV with a header
	when     *when      // nil without --time
	prints   bool       // the key does not determine the content of a line
	digester interface{ Bytes(id []byte) semel.Digest }
	seed     uint64
	// hashMissing means that the content of a line without a key becomes its
	// key.
	hashMissing bool
}

// worker parses blocks. Each worker has its own buffers.
type worker struct {
	*extraction
	// The id of a JSON line comes from the finder if all rules are paths, and
	// otherwise from the reader.
	finder  *key.Finder
	reader  *key.Reader
	message semel.Message
	// document finds the content of lines without a key. If there is a finder,
	// document is that finder and has already read the line.
	document *key.Finder
	clock    *key.Reader // finds the time of a JSON line
	// fields has the first fields of a CSV record, as many as are needed, and
	// values the input of a hash. The buffer below holds fields with quotes in them.
	needed         int
	fields, values [][]byte
	room, content  []byte
	id, timeText   []byte
}

// The id of a line whose content became its key starts with one of these. No
// rule makes such ids, so the line equals only other lines without a key. A
// line that is not valid in its format is identified by its bytes.
const (
	unkeyed      = "\x00mc"
	unkeyedBytes = "\x00mb"
)

func newWorker(x *extraction) (*worker, error) {
	w := &worker{extraction: x, needed: x.fieldsNeeded()}
	if x.when != nil {
		w.clock = x.when.rule.Reader(nil)
	}
	options := &key.FinderOptions{Content: x.prints, Seed: x.seed}
	var paths []key.Path
	for _, r := range x.rules {
		if r.Form() != key.FormPath {
			all, err := key.All(x.rules...)
			if err != nil {
				return nil, err
			}
			w.reader = all.Reader(options)
			w.document, err = key.NewFinder(nil, nil)
			return w, err
		}
		paths = append(paths, r.Paths()...)
	}
	var err error
	w.finder, err = key.NewFinder(paths, options)
	w.document = w.finder
	return w, err
}

func (w *worker) parse(b *block) {
	switch {
	case w.comma != 0:
		w.parseRecords(b)
	case !w.format.documents() || isLine(w.rules):
		w.parseLines(b)
	case w.finder != nil:
		w.parseJSON(b)
	default:
		w.parseContent(b)
	}
}

// isLine reports whether the key is the line itself. Every line has such a key.
func isLine(rules []*key.Rule) bool { return len(rules) == 1 && rules[0].Form() == key.FormLine }

// parseJSON is the hot path. For a line with a key it calls only the finder and
// the digest.
func (w *worker) parseJSON(b *block) {
	var line []byte
	for start := 0; start < len(b.data); {
		line, start = b.next(start)
		err := w.finder.Find(line)
		if err == nil {
			w.id, err = w.finder.AppendID(w.id[:0])
		}
		if err == nil && w.when != nil {
			err = w.timeOf(b, line)
		}
		if err != nil {
			w.withoutKey(b, line, err)
			continue
		}
		b.digests = append(b.digests, w.digester.Bytes(w.id))
		if w.prints {
			b.prints = append(b.prints, w.finder.Print())
		}
	}
}

// parseContent is parseJSON for keys that contain a hash or a function around a path.
func (w *worker) parseContent(b *block) {
	var line []byte
	for start := 0; start < len(b.data); {
		line, start = b.next(start)
		w.message.Body = line
		id, err := w.reader.AppendID(w.id[:0], &w.message)
		if err == nil && w.when != nil {
			err = w.timeOf(b, line)
		}
		if err != nil {
			w.withoutKey(b, line, err)
			continue
		}
		w.id = id
		b.digests = append(b.digests, w.digester.Bytes(id))
		if w.prints {
			b.prints = append(b.prints, w.reader.Print())
		}
	}
}

// parseLines uses each line as its key, in text and in JSON lines.
func (w *worker) parseLines(b *block) {
	var line []byte
	for start := 0; start < len(b.data); {
		line, start = b.next(start)
		if w.format.documents() && isBlank(line) {
			b.odd = append(b.odd, oddLine{line: int32(len(b.ends) - 1)})
			continue
		}
		if w.when != nil {
			if err := w.timeOf(b, line); err != nil {
				w.withoutKey(b, line, err)
				continue
			}
		}
		w.id = key.AppendLine(w.id[:0], line)
		b.digests = append(b.digests, w.digester.Bytes(w.id))
	}
}

// next records the end of the line that starts at start, and returns the line
// and the start of the following one.
func (b *block) next(start int) (line []byte, following int) {
	end := start + bytes.IndexByte(b.data[start:], '\n') + 1
	b.ends = append(b.ends, int32(end))
	return trimEnd(b.data[start:end]), end
}

// withoutKey distinguishes blank lines, lines whose content becomes their key,
// and lines that the committer has to handle.
func (w *worker) withoutKey(b *block, line []byte, err error) {
	at := int32(len(b.ends) - 1)
	switch {
	case isBlank(line):
		b.odd = append(b.odd, oddLine{line: at})
	case w.hashMissing:
		b.hashed++
		w.id = w.appendUnkeyed(w.id[:0], line)
		b.digests = append(b.digests, w.digester.Bytes(w.id))
		if w.prints {
			b.prints = append(b.prints, 0) // the key is the content
		}
		if w.when != nil {
			b.times = append(b.times, noTime)
		}
	default:
		b.odd = append(b.odd, oddLine{line: at, err: err})
	}
}

// appendUnkeyed appends the id of a JSON line whose content became its key.
func (w *worker) appendUnkeyed(dst, line []byte) []byte {
	if w.document != w.finder {
		_ = w.document.Find(line) // AppendContent returns the error
	}
	if id, err := w.document.AppendContent(append(dst, unkeyed...)); err == nil {
		return id
	}
	return key.AppendBytes(append(dst, unkeyedBytes...), line)
}

// trimEnd removes the line end: a newline, and a carriage return before it.
func trimEnd(line []byte) []byte {
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line
}

// isBlank reports whether a line has only JSON white space.
func isBlank(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' && c != '\r' {
			return false
		}
	}
	return true
}
