package run

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/semel-dev/semel"
)

// Writer writes a run.
type Writer struct {
	run    *Run
	build  *filterBuilder
	block  []byte // the block that collects entries
	count  int    // its entries
	same   int    // the length of each of them, or 0
	last   uint64 // the order of the last entry
	buffer []byte // blocks that are not yet written
	off    int64  // where they belong
}

// writeBuffer is the length of a write.
const writeBuffer = 1 << 20

// Create begins a run. The number of entries is a guess, by which memory is divided. The
// run does not exist before Finish.
func Create(p *Place, name string, entries int64) (*Writer, error) {
	temp := p.path(name) + tempSuffix
	if err := removeIfThere(p.FS, temp); err != nil {
		return nil, err
	}
	file, err := p.FS.Create(temp)
	if err != nil {
		return nil, err
	}
	return &Writer{
		run:   newRun(p, name, file),
		build: newFilterBuilder(entries),
		block: make([]byte, blockHead, unit),
		off:   unit,
	}, nil
}

// Add adds an entry. Entries come in the order of their digests, and no digest comes twice.
func (w *Writer) Add(entry []byte) error {
	d := semel.Digest(entry)
	order := Order(&d)
	if w.count > 0 && len(w.block)+len(entry) > unit && order != w.last {
		if err := w.closeBlock(); err != nil {
			return err
		}
	}
	if w.count == 0 {
		x := &w.run.index
		x.first, x.at = append(x.first, order), append(x.at, uint32((w.off+int64(len(w.buffer)))/unit))
	}
	if w.count == 0 {
		w.same = len(entry)
	} else if len(entry) != w.same {
		w.same = 0
	}
	w.block = append(w.block, entry...)
	w.count++
	w.last = order
	w.run.entries++
	return w.build.add(order)
}

// closeBlock ends a block.
func (w *Writer) closeBlock() error {
	w.block = append(w.block, make([]byte, -len(w.block)&(unit-1))...)
	b := w.block
	if (w.off+int64(len(w.buffer)+len(b)))/unit > math.MaxUint32 {
		return errors.New("a run cannot have more than 16 TiB")
	}
	binary.LittleEndian.PutUint32(b[4:], uint32(len(b)/unit))
	binary.LittleEndian.PutUint32(b[8:], uint32(w.count))
	binary.LittleEndian.PutUint32(b[12:], uint32(w.same))
	sum := w.run.blockSum(b, w.off+int64(len(w.buffer)))
	binary.LittleEndian.PutUint32(b, sum)
	w.run.sum += sum
	w.buffer = append(w.buffer, b...)
	w.block, w.count = b[:blockHead], 0
	clear(w.block)
	if len(w.buffer) < writeBuffer {
		return nil
	}
	return w.flush()
}

// flush writes the buffered blocks.
func (w *Writer) flush() error {
	_, err := w.run.file.WriteAt(w.buffer, w.off)
	w.off += int64(len(w.buffer))
	w.buffer = w.buffer[:0]
	return err
}

// Finish ends the run with the data that the caller keeps in its header. When it returns, the
// content of the run is durable, and its name is so after a sync of the directory. After an
// error the run does not exist.
func (w *Writer) Finish(meta []byte) (*Run, error) {
	r := w.run
	err := w.finish(meta)
	if err == nil {
		err = r.saveIndex(r.place.sync)
	}
	if err == nil {
		err = r.place.FS.Rename(r.place.path(r.name)+tempSuffix, r.place.path(r.name))
	}
	if err != nil {
		return nil, errors.Join(err, w.Abort())
	}
	return r, nil
}

func (w *Writer) finish(meta []byte) (err error) {
	r := w.run
	if len(meta) > mostMeta {
		return errors.New("the header of a run has no room")
	}
	if w.count > 0 {
		if err := w.closeBlock(); err != nil {
			return err
		}
	}
	if err := w.flush(); err != nil {
		return err
	}
	r.units, r.meta = uint32(w.off/unit), meta
	if r.index.filter, err = w.build.finish(); err != nil {
		return err
	}
	if _, err := r.file.WriteAt(r.encodeHead(), 0); err != nil {
		return err
	}
	return r.place.sync(r.file)
}

// Abort ends the writer and deletes what it wrote.
func (w *Writer) Abort() error {
	p := w.run.place
	name := p.path(w.run.name) + tempSuffix
	return errors.Join(w.run.file.Close(), removeIfThere(p.FS, name), removeIfThere(p.FS, p.path(indexName(w.run.name))))
}
