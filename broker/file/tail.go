package file

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// identity distinguishes files.
type identity struct {
	device, inode uint64
	path          string // if the system has no inodes
}

// tail is one file that is being read. Only the goroutine of Read uses it. Its
// life holds the parts that others need.
type tail struct {
	source    *Source
	path      string
	id        identity
	partition *pipeline.Partition
	life      *life
	// packed is set if the file is compressed. rest is then the decompressed
	// data that is not a line yet.
	packed io.ReadCloser
	rest   []byte
	// offset is the start of the next line.
	offset  int64
	divider divider
	// before are the last bytes before the offset. They reveal a file that was
	// truncated and has grown since.
	before []byte
	// looked is the state of the file when it had no more data.
	size    int64
	changed time.Time
	// dry means that no whole line is known after the offset.
	dry bool
	// present means that a pattern matched the file at the last look. If not,
	// gone is the time since which no data came.
	present bool
	gone    time.Time
	// last means that a last line without a line end is a line too.
	last bool
	// ended means that no more will be read.
	ended bool

	positions []int64 // of the items of one read
	bodies    []span  // and their places in the data
	memory    []byte  // the data, if it will be reused
}

// span is a part of the data of one read.
type span struct{ start, end int }

// life is the state of a file between two truncations. It is the Ref of items.
type life struct {
	source *Source
	path   string
	file   *os.File
	mark   pipeline.Watermark
	// packed files are recognised in another way.
	packed bool
	// lines: no message has a line end.
	lines bool
	// generation is that of its entry, which does not change.
	generation int
	// identity is that of the file in the origin of its lines, once it has a line. Only
	// the goroutine of Read uses it.
	identity string

	// Guarded by Source.mu.

	// tip are the last bytes that were read, which end before a position. The file on the
	// disk has others there if it was rewritten since.
	tip       []byte
	tipEnd    int64
	saved     entry // the position as last saved
	fresh     bool  // and not yet taken by a session
	over      bool  // no more will be read
	forgotten bool  // its file was truncated
}

// overlap is the number of bytes before a position that are compared when a file
// has changed.
const overlap = 64

// start starts a life at the offset of an entry.
func (f *tail) start(file *os.File, e entry) error {
	f.life = &life{source: f.source, path: f.path, file: file, packed: f.packed != nil, generation: e.Generation, saved: e, fresh: true}
	f.offset, f.before, f.dry = e.Offset, nil, false
	f.life.lines = f.source.opts.Format != JSON
	offset := e.Offset
	f.divider = divider{opts: &f.source.opts, path: f.path}
	if err := f.divider.findContext(file, f.packed, offset); err != nil {
		return err
	}
	if f.packed == nil && offset > 0 {
		f.before = make([]byte, min(offset, overlap))
		if _, err := file.ReadAt(f.before, offset-int64(len(f.before))); err != nil {
			return f.explain(err)
		}
	}
	return nil
}

// explain adds the name of the file to a read error.
func (f *tail) explain(err error) error { return explain(f.path, err) }

// errTruncated means that the data before the position is gone.
var errTruncated = errors.New("truncated")

// read returns lines from the offset on, or none if there is no whole line.
// After errTruncated the file must be read from its beginning.
func (f *tail) read() ([]*pipeline.Item, error) {
	size := f.source.opts.chunk
	for {
		data, end, err := f.fill(size)
		if err != nil {
			return nil, err
		}
		if f.source.opts.Format != Lines {
			items, used, err := f.makeRecords(data, end && f.last)
			if err != nil {
				return nil, err
			}
			if used > 0 {
				f.keep(data, used)
				if len(items) > 0 {
					return items, nil
				}
				size = f.source.opts.chunk
				continue
			}
		}
		whole := bytes.LastIndexByte(data, '\n') + 1
		if end && f.last {
			whole = len(data)
		}
		if f.source.opts.Format != Lines {
			whole = 0
		}
		if whole == 0 && len(data) > f.source.opts.MaxLine+len("\r") {
			return nil, tooLong(f.path, &f.source.opts, f.offset)
		}
		if whole > 0 {
			items, used, err := f.makeItems(data[:whole])
			if err != nil {
				return nil, err
			}
			f.keep(data, used)
			if len(items) > 0 {
				return items, nil
			}
			size = f.source.opts.chunk // all lines were blank
			continue
		}
		if f.packed != nil {
			f.rest = data
		}
		if end {
			f.dry, f.ended = true, f.last
			return nil, nil
		}
		size *= 2
	}
}

// fill returns up to size bytes from the offset on, in memory of their own, and
// whether the file ends there. An incomplete last line is read again later,
// which costs less than keeping it.
func (f *tail) fill(size int) (data []byte, end bool, err error) {
	if f.packed != nil {
		data = make([]byte, len(f.rest)+size)
		n := copy(data, f.rest)
		for n < len(data) && err == nil {
			var m int
			m, err = f.packed.Read(data[n:])
			n += m
		}
		if err != nil && err != io.EOF {
			return nil, false, f.explain(err)
		}
		return data[:n:n], err == io.EOF, nil
	}
	if f.source.attached && size == f.source.opts.chunk {
		// The session copies lines when it decides them. Larger buffers are rare
		// and not kept.
		data = f.source.blocks.Memory(len(f.before) + size)
		f.memory = data
	} else {
		data = make([]byte, len(f.before)+size)
	}
	n, err := f.life.file.ReadAt(data, f.offset-int64(len(f.before)))
	if err != nil && err != io.EOF {
		return nil, false, f.explain(err)
	}
	if n < len(f.before) || !bytes.Equal(data[:len(f.before)], f.before) {
		return nil, false, errTruncated
	}
	return data[len(f.before):n:n], err == io.EOF, nil
}

// keep moves the offset after the used bytes.
func (f *tail) keep(data []byte, used int) {
	f.offset += int64(used)
	if f.packed != nil {
		f.rest = data[used:]
		return
	}
	before := append(f.before, data[max(0, used-overlap):used]...)
	f.before = append(make([]byte, 0, 2*overlap), before[max(0, len(before)-overlap):]...)
	f.source.mu.Lock()
	f.life.tip, f.life.tipEnd = f.before, f.offset
	f.source.mu.Unlock()
}

// intact reports whether the file still has the bytes that were read last. Call with
// Source.mu.
func (l *life) intact() bool {
	now := make([]byte, len(l.tip))
	_, err := l.file.ReadAt(now, l.tipEnd-int64(len(now)))
	return err == nil && bytes.Equal(now, l.tip)
}

// makeItems makes items of lines and returns their total size. It stops before a line
// that is too long, which is an error if it is the first. The bodies share the
// memory of the lines.
func (f *tail) makeItems(lines []byte) (items []*pipeline.Item, used int, err error) {
	if err := f.identify(); err != nil {
		return nil, 0, err
	}
	life, partition, opts := f.life, f.partition, &f.source.opts
	positions, bodies := f.positions[:0], f.bodies[:0]
	for used < len(lines) {
		start, end, next := used, len(lines), len(lines)
		if i := bytes.IndexByte(lines[start:], '\n'); i >= 0 {
			end, next = start+i, start+i+1
		}
		at := f.offset + int64(start)
		if at == 0 && bytes.HasPrefix(lines, []byte(utf8Mark)) {
			start += len(utf8Mark)
		}
		if end > start && lines[end-1] == '\r' {
			end--
		}
		if end-start > opts.MaxLine {
			if len(bodies) == 0 {
				return nil, 0, tooLong(f.path, opts, at)
			}
			break
		}
		used = next
		if opts.KeepBlank || !isBlank(lines[start:end]) {
			positions, bodies = append(positions, at), append(bodies, span{start, end})
		}
	}
	f.positions, f.bodies = positions, bodies
	life.mark.Read(positions, f.offset+int64(used))
	slab := f.source.blocks.ItemsIn(f.memory, len(bodies))
	f.memory = nil
	items = make([]*pipeline.Item, len(slab))
	for i, b := range bodies {
		it := &slab[i]
		it.Message.Body = lines[b.start:b.end:b.end]
		it.Message.Origin = semel.Origin{Source: life.path, Identity: life.identity, Offset: positions[i]}
		it.Partition, it.Ref = partition, life
		items[i] = it
	}
	return items, used, nil
}

// makeRecords is makeItems for rows and documents. used is 0 if data has no whole one.
func (f *tail) makeRecords(data []byte, last bool) (items []*pipeline.Item, used int, err error) {
	r, err := f.divider.divide(data, f.offset, last)
	if err != nil || r.used == 0 {
		return nil, 0, err
	}
	if err := f.identify(); err != nil {
		return nil, 0, err
	}
	life := f.life
	life.mark.Read(r.positions, f.offset+int64(r.used))
	slab := f.source.blocks.ItemsIn(f.memory, len(r.bodies))
	f.memory = nil
	items = make([]*pipeline.Item, len(slab))
	for i, body := range r.bodies {
		it := &slab[i]
		it.Message.Body, it.Err = body, r.errs[i]
		it.Message.Origin = semel.Origin{Source: life.path, Identity: life.identity, Offset: r.positions[i]}
		it.Partition, it.Ref = f.partition, life
		items[i] = it
	}
	return items, r.used, nil
}

// identify gives the lines of a file their identity: device, inode, when the file was created,
// a print of its first line, and its generation unless that is the first. Another file gets the
// inode when this one is deleted, and a file that is rewritten in place keeps inode and creation,
// and may keep its first line. identify is called when the file has a line.
func (f *tail) identify() error {
	life := f.life
	if life.identity != "" {
		return nil
	}
	head := make([]byte, printBytes)
	n, err := life.file.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return f.explain(err)
	}
	head = head[:n]
	if end := bytes.IndexByte(head, '\n'); end >= 0 && !life.packed { // the rest may not be there yet
		head = head[:end]
	}
	sum := sha256.Sum256(head)
	e := entry{Path: f.path, Device: f.id.device, Inode: f.id.inode}
	life.identity = e.name() + " " + strconv.FormatInt(born(life.file), 10) + " " + hex.EncodeToString(sum[:16])
	if life.generation > 0 {
		life.identity += " " + strconv.Itoa(life.generation)
	}
	return nil
}

func isBlank(line []byte) bool {
	for _, c := range line {
		if c != ' ' && c != '\t' && c != '\r' {
			return false
		}
	}
	return true
}
