package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/run"
)

// runWriter writes a run from entries of segments or of other runs.
type runWriter struct {
	log     *log
	w       *run.Writer
	name    string
	base    int64 // tick from which expiries count
	summary summary
	scratch []byte
}

// newRunWriter begins the run that replaces the segments from one number to another, with
// about n entries.
func newRunWriter(l *log, from, to uint32, base int64, n int64) (*runWriter, error) {
	w := &runWriter{log: l, name: runName(from, to), base: base}
	var err error
	w.w, err = run.Create(l.dir.runPlace(), w.name, n)
	return w, w.failed(err)
}

func (w *runWriter) failed(err error) error {
	if err == nil {
		return nil
	}
	return refusal(fmt.Errorf("logstore: write %s: %w", w.name, err))
}

// cover notes the times of a segment or run that is replaced.
func (w *runWriter) cover(s *summary) {
	if s.first != 0 {
		w.summary.seen(s.first)
		w.summary.seen(s.last)
	}
}

// addRemoval adds the removal of a key, which hides it in older runs.
func (w *runWriter) addRemoval(d *semel.Digest) error {
	w.scratch = new(rich).encode(w.scratch[:0], d, kindRemoval)
	return w.failed(w.w.Add(w.scratch))
}

// add adds a done entry, the first of raw, whose expiry counts from another base.
func (w *runWriter) add(e *entry, raw []byte, from int64) error {
	raw = raw[:e.size]
	tick := int64(never)
	if e.expires != never {
		tick = e.expires / tickNanos
	}
	w.summary.add(tick, w.base)
	if e.rich == nil && from != w.base && tick != never {
		raw = w.rebase(raw, e, tick)
	}
	return w.failed(w.w.Add(raw))
}

// rebase returns a compact entry with its expiry counted from the base of the run.
func (w *runWriter) rebase(raw []byte, e *entry, tick int64) []byte {
	if relative := tick - w.base; relative >= 0 && relative < tickNever {
		w.scratch = append(w.scratch[:0], raw...)
		meta := binary.LittleEndian.Uint32(raw[16:])
		binary.LittleEndian.PutUint32(w.scratch[16:], meta&(1<<metaShift-1)|uint32(relative)<<metaShift)
		return w.scratch
	}
	r := rich{nonce: uint64(e.check), attempt: 1, until: e.expires, fingerprint: wholeOf(e.print)}
	w.scratch = r.encode(w.scratch[:0], &e.digest, kindDone)
	return w.scratch
}

// abort ends the writer after an error, and returns that.
func (w *runWriter) abort(err error) error { return errors.Join(err, w.w.Abort()) }

// finish makes the run durable and returns it.
func (w *runWriter) finish() (*sortedRun, error) {
	r, err := w.w.Finish(runMeta(w.base, &w.summary))
	if err != nil {
		return nil, w.failed(err)
	}
	if err = syncFailed(w.log.dir.fs.SyncDir(w.log.dir.path)); err != nil {
		return nil, w.failed(errors.Join(err, r.Close()))
	}
	return newSortedRun(r)
}
