package dedup

import (
	"bytes"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

// extraction is what workers need to know. It does not change while they run.
type extraction struct {
	format   Format
	comma    byte
	rules    []*key.Rule
	columns  [][]column // of each rule, in CSV
	prints   bool       // a line's content is not told by its key
	digester interface{ Bytes(id []byte) semel.Digest }
	seed     uint64
	// hashMissing: lines without a key take their content for one.
	hashMissing bool
}

// worker parses blocks. Each has buffers of its own.
type worker struct {
	*extraction
	// A JSON line's id comes from the finder if all rules are paths, from the
	// reader if not.
	finder  *key.Finder
	reader  *key.Reader
	message semel.Message
	// document finds the content of lines without a key. It is the finder if
	// there is one, which has seen the line then.
	document *key.Finder
	// The fields of a CSV record, the room for those with quotes in them, and
	// what a hash is made of.
	fields, values [][]byte
	room, content  []byte
	id             []byte
}

// What the id of a line that took its content for its key begins with: no rule
// makes such ids, so that the line is the same as its like alone. A line that
// is not of its format is told by its bytes, which are no fields.
const (
	unkeyed      = "\x00mc"
	unkeyedBytes = "\x00mb"
)

func newWorker(x *extraction) (*worker, error) {
	w := &worker{extraction: x}
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

// work has threads workers parse blocks until there are no more, which wait
// waits for.
func (x *extraction) work(threads int, blocks <-chan *block) (wait func(), err error) {
	workers := make([]*worker, threads)
	for i := range workers {
		if workers[i], err = newWorker(x); err != nil {
			return nil, err
		}
	}
	var running sync.WaitGroup
	for _, w := range workers {
		running.Go(func() {
			for b := range blocks {
				w.parse(b)
				b.parsed <- struct{}{}
			}
		})
	}
	return running.Wait, nil
}

func (w *worker) parse(b *block) {
	switch {
	case w.comma != 0:
		w.parseRecords(b)
	case w.format != JSONL || isLine(w.rules):
		w.parseLines(b)
	case w.finder != nil:
		w.parseJSON(b)
	default:
		w.parseContent(b)
	}
}

// isLine reports whether the key is the line itself. Such a key takes any line.
func isLine(rules []*key.Rule) bool { return len(rules) == 1 && rules[0].Form() == key.FormLine }

// parseJSON is the hot path: of a line with a key it calls the finder, the
// digest and nothing else.
func (w *worker) parseJSON(b *block) {
	data := b.data
	for start := 0; start < len(data); {
		end := start + bytes.IndexByte(data[start:], '\n') + 1
		line := trimEnd(data[start:end])
		b.ends = append(b.ends, int32(end))
		start = end
		err := w.finder.Find(line)
		if err == nil {
			w.id, err = w.finder.AppendID(w.id[:0])
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

// parseContent is parseJSON for keys with a hash in them.
func (w *worker) parseContent(b *block) {
	data := b.data
	for start := 0; start < len(data); {
		end := start + bytes.IndexByte(data[start:], '\n') + 1
		line := trimEnd(data[start:end])
		b.ends = append(b.ends, int32(end))
		start = end
		w.message.Body = line
		id, err := w.reader.AppendID(w.id[:0], &w.message)
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

// parseLines takes each line for its own key, in text and in JSON lines.
func (w *worker) parseLines(b *block) {
	data := b.data
	for start := 0; start < len(data); {
		end := start + bytes.IndexByte(data[start:], '\n') + 1
		line := trimEnd(data[start:end])
		b.ends = append(b.ends, int32(end))
		start = end
		if w.format == JSONL && isBlank(line) {
			b.odd = append(b.odd, oddLine{line: int32(len(b.ends) - 1)})
			continue
		}
		w.id = key.AppendLine(w.id[:0], line)
		b.digests = append(b.digests, w.digester.Bytes(w.id))
	}
}

// withoutKey decides between blank lines, lines whose content is their key, and
// lines that the committer has to deal with.
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
	default:
		b.odd = append(b.odd, oddLine{line: at, err: err})
	}
}

// appendUnkeyed appends the id of a JSON line that took its content for its key.
func (w *worker) appendUnkeyed(dst, line []byte) []byte {
	if w.document != w.finder {
		_ = w.document.Find(line) // AppendContent returns its error
	}
	if id, err := w.document.AppendContent(append(dst, unkeyed...)); err == nil {
		return id
	}
	return key.AppendBytes(append(dst, unkeyedBytes...), line)
}

// trimEnd takes the line end off: a newline, and a carriage return before it.
func trimEnd(line []byte) []byte {
	line = line[:len(line)-1]
	if n := len(line); n > 0 && line[n-1] == '\r' {
		line = line[:n-1]
	}
	return line
}

// isBlank reports whether a line has nothing but JSON white space.
func isBlank(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' && c != '\r' {
			return false
		}
	}
	return true
}
