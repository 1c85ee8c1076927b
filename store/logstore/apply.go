package logstore

import (
	"encoding/binary"
	"errors"
	"maps"
	"runtime"
	"sync"

	"github.com/semel-dev/semel"
)

// worker applies the entries of its shards. Every worker walks every record and
// takes only the entries of its own shards. The entries of one key are
// therefore applied in order, and workers exchange nothing.
type worker struct {
	loader *loader
	mask   uint64 // a shard belongs to the worker if shard&mask == number
	number uint64
	tally  tally
	claims map[semel.Digest]claim
	hidden map[semel.Digest]uint64 // removals of keys that a run may have
	values map[string]value        // set in the first worker only
	group  []pending
	err    error
}

// pending is a compact entry that is queued for the index.
type pending struct {
	off     int
	tag     uint64
	shard   uint32
	expired bool
}

func newWorkers(l *loader) []*worker {
	n := 1
	for n*2 <= min(runtime.GOMAXPROCS(0), 8) {
		n *= 2
	}
	workers := make([]*worker, n)
	for i := range workers {
		workers[i] = &worker{
			loader: l, mask: uint64(n - 1), number: uint64(i),
			claims: make(map[semel.Digest]claim), hidden: make(map[semel.Digest]uint64), values: make(map[string]value),
			group: make([]pending, 0, 512),
		}
	}
	return workers
}

// apply applies one segment with all workers.
func (l *loader) apply(img *image) error {
	for _, r := range img.records {
		img.segment.mark(r.off)
	}
	var all sync.WaitGroup
	for _, w := range l.workers {
		all.Go(func() {
			for _, r := range img.records {
				if w.err == nil && !r.seal {
					w.err = w.record(img, r)
				}
			}
			if w.err == nil {
				w.err = w.flush(img)
			}
		})
	}
	l.summarise(img)
	all.Wait()
	for _, w := range l.workers {
		if w.err != nil {
			return w.err
		}
	}
	return nil
}

// merge adds the results of the workers to the store.
func (l *loader) merge() {
	s := l.store
	for _, w := range l.workers {
		s.finder.index.count += w.tally.count
		s.finder.index.bytes += w.tally.bytes
		for d, c := range w.claims {
			if c.isAbandoned(l.now) {
				continue
			}
			s.keys.claims.put(&d, &c)
			// Otherwise the log would not show that another owner took this key,
			// and the next open would accept the old token again. Nobody takes over a
			// claim with Hold.
			s.opts.DurableClaims = s.opts.DurableClaims || c.lasts() && !c.hold
		}
		for d, pos := range w.hidden {
			s.finder.runs.hidden.Put(&d, &pos)
		}
		maps.Copy(s.committer.named, w.values)
	}
}

// summarise rebuilds the summary of an unsealed segment.
func (l *loader) summarise(img *image) {
	g := img.segment
	if g.sealed {
		return
	}
	for _, r := range img.records {
		g.summary.seen(r.time)
		// The workers report entries that do not decode.
		_ = walk(img.bytes, r, g.base, func(e entry) error {
			if e.kind == kindDone {
				tick := int64(never)
				if e.expires != never {
					tick = e.expires / tickNanos
					g.window = max(g.window, tick-r.time/tickNanos)
				}
				g.summary.add(tick, g.base)
			}
			return nil
		})
	}
}

// record applies those entries of a record that belong to the worker.
func (w *worker) record(img *image, r record) error {
	off, end := r.off+recordHead, r.end()-recordTrail
	for range r.count {
		if off+entryHead > end {
			return w.bad(img, r)
		}
		b := img.bytes[off:end]
		meta := binary.LittleEndian.Uint32(b[16:])
		size := entrySize(meta)
		if size > len(b) {
			return w.bad(img, r)
		}
		h := binary.LittleEndian.Uint64(b)
		shard := h >> (64 - shardBits)
		switch {
		case shard&w.mask != w.number:
		case meta&flagRich != 0:
			if err := w.rich(img, r, off, b[:size]); err != nil {
				return err
			}
		default:
			w.add(img, off, h, meta)
		}
		if len(w.group) == cap(w.group) {
			if err := w.flush(img); err != nil {
				return err
			}
		}
		off += size
	}
	if off != end {
		return w.bad(img, r)
	}
	return nil
}

func (w *worker) bad(img *image, r record) error {
	return w.loader.store.dir.corrupt(img.segment, r.off, errors.New("cannot decode the entries of a record"))
}

// add queues a compact entry.
func (w *worker) add(img *image, off int, h uint64, meta uint32) {
	expires := int64(never)
	if tick := int64(meta >> metaShift); tick != tickNever {
		expires = tickTime(img.segment.base + tick)
	}
	w.group = append(w.group, pending{
		off: off, shard: uint32(h >> (64 - shardBits)), tag: h >> (64 - shardBits - tagBits) & (1<<tagBits - 1),
		expired: w.loader.now >= expires,
	})
}

// flush applies the queued entries. It touches all their slots first, so that
// the memory latencies overlap.
func (w *worker) flush(img *image) error {
	w.touch()
	for _, p := range w.group {
		if err := w.put(img, p); err != nil {
			return err
		}
	}
	w.group = w.group[:0]
	return nil
}

// touch is index.touch for the queued entries.
//
//go:noinline
func (w *worker) touch() (sum uint64) {
	x := &w.loader.store.finder.index
	for _, p := range w.group {
		if s := &x.shards[p.shard]; len(s.slots) > 0 {
			sum += s.slots[s.home(p.tag)]
		}
	}
	return sum
}

// put makes the entry at an offset the current entry of its key.
func (w *worker) put(img *image, p pending) error {
	l := w.loader
	d := semel.Digest(img.bytes[p.off:])
	if len(w.claims) > 0 {
		delete(w.claims, d)
	}
	s := &l.store.finder.index.shards[p.shard]
	pos := img.segment.position(p.off)
	at := s.seek(p.tag)
	for i := at; s.has(i, p.tag); i++ {
		same, err := w.sameKey(img, s.pos(i), &d)
		if err != nil {
			return err
		}
		if !same {
			continue
		}
		if p.expired {
			w.tally.remove(s, i)
		} else {
			s.slots[i] = p.tag<<posBits | pos
		}
		return nil
	}
	if !p.expired {
		w.tally.insert(s, at, p.tag, pos)
	}
	return nil
}

// sameKey reports whether the entry at an earlier position has the given
// digest.
func (w *worker) sameKey(img *image, pos uint64, d *semel.Digest) (bool, error) {
	g, off := w.loader.store.log.segments.at(pos), offset(pos)
	if g == img.segment {
		return semel.Digest(img.bytes[off:]) == *d, nil
	}
	var b semel.Digest
	if _, err := g.file.ReadAt(b[:], int64(off)); err != nil {
		return false, w.loader.store.dir.corrupt(g, off, err)
	}
	return b == *d, nil
}

// rich applies a rich entry.
func (w *worker) rich(img *image, r record, off int, b []byte) error {
	e, ok := decodeEntry(b, img.segment.base)
	if !ok {
		return w.bad(img, r)
	}
	// The queued entries precede this one.
	if err := w.flush(img); err != nil {
		return err
	}
	sh, tag := split(&e.digest)
	gone := pending{off: off, shard: uint32(sh), tag: tag, expired: true}
	switch {
	case e.digest == (semel.Digest{}) && e.rich.holder != "":
		w.value(img, off, &e)
		return nil
	case e.kind == kindDone:
		gone.expired = w.loader.now >= e.expires
		return w.put(img, gone)
	case e.kind == kindRemoval:
		if w.loader.store.finder.runs.mayHave(&e.digest) {
			w.hidden[e.digest] = img.segment.position(off)
		}
		return w.put(img, gone)
	case e.kind == kindClaim:
		// An earlier done entry had expired by then, whatever the clock says
		// now.
		if err := w.put(img, gone); err != nil {
			return err
		}
		w.claims[e.digest] = claimOf(e.rich, img.segment.position(off))
		return nil
	}
	return w.bad(img, r)
}

func (w *worker) value(img *image, off int, e *entry) {
	if e.kind == kindRemoval {
		delete(w.values, e.rich.holder)
		return
	}
	w.values[e.rich.holder] = value{e.rich.data, img.segment.position(off)}
}

// claimOf returns the state of a durable claim after its process ended. A claim
// with Hold is unknown, unless its lease was kept.
func claimOf(r *rich, pos uint64) claim {
	c := claim{
		token: r.token, nonce: r.nonce, name: r.holder, first: r.first, leaseEnd: r.until,
		attempt: r.attempt, hold: !r.retry, kept: r.kept, unknown: !r.retry && !r.kept, durable: true, pos: pos,
		fingerprint: r.fingerprint,
	}
	if d := (detail{r.key, r.origin}); d != (detail{}) {
		c.detail = &d
	}
	return c
}
