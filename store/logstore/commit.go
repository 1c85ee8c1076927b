package logstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"runtime"
	"time"

	"github.com/semel-dev/semel"
)

// batch is a record that collects entries and is then written and synced. The call that creates a
// batch leads it: it waits until the previous batch is written, and then closes and writes its
// own. Calls that arrive in the meantime join the batch. So there is no timer, and a single
// caller does not wait for other callers.
type batch struct {
	segment *segment
	start   int // offset of the record
	end     int // offset behind the record; 0 while it collects entries
	seq     uint32
	count   int   // number of entries
	calls   int   // number of calls that wait for it
	at      int64 // time of the record
	prev    *batch
	before  func() error // runs before the record is written
	sealed  bool         // closed by a transaction
	named   []namedValue // visible once the record is durable
	done    chan struct{}
	err     error // set before done is closed
}

// newBatch starts a record at the end of the log. The caller must have reserved
// room; see reserve.
func (s *Store) newBatch() *batch {
	g := s.active
	s.seq++
	b := &batch{segment: g, start: g.next, seq: s.seq, prev: s.last, done: make(chan struct{})}
	g.next += recordHead
	g.mark(b.start)
	return b
}

// closeBatch closes a record. No further entry can join it.
func (s *Store) closeBatch(b *batch) {
	if b.end != 0 {
		return
	}
	if s.open == b {
		s.open = nil
	}
	g := b.segment
	var trail [recordTrail]byte
	binary.LittleEndian.PutUint32(trail[:], trailer)
	// Room for the bytes of the header as well. commit fills them in.
	var head [recordHead]byte
	s.put(g, b.start, head[:])
	s.put(g, g.next, trail[:])
	g.next += recordTrail
	b.end = g.next
	b.at = s.clock.Nanos()
	g.summary.seen(b.at)
}

// appendEntry writes an encoded entry into the open record and returns its
// position. The caller must have reserved room.
func (s *Store) appendEntry(o *op, entry []byte) uint64 {
	b := s.open
	if b == nil {
		b = s.newBatch()
		s.open, s.last = b, b
		o.led = append(o.led, b)
	}
	if o.wait != b {
		o.wait = b
		b.calls++
	}
	g := b.segment
	off := g.next
	s.put(g, off, entry)
	g.next += len(entry)
	b.count++
	return g.position(off)
}

// lead writes a batch after the previous batches are written.
func (s *Store) lead(b *batch) {
	if b.prev != nil {
		<-b.prev.done
	}
	s.gather(b)
	s.mu.Lock()
	s.closeBatch(b)
	s.mu.Unlock()
	s.commit(b)
}

// gather yields so that runnable callers can join the batch, as long as more of
// them arrive. All callers of a batch wake up after its sync. The first of them
// must not write a record with one entry while the others queue behind it. A
// caller that was alone the last time does not yield.
func (s *Store) gather(b *batch) {
	const most = 16
	calls := 0
	for range most {
		s.mu.Lock()
		now, alone, closed := b.calls, s.lastCalls <= 1 && b.calls <= 1, b.end != 0
		s.mu.Unlock()
		if closed || alone || now == calls {
			return
		}
		calls = now
		runtime.Gosched()
	}
}

// commit writes and syncs a closed batch, wakes its waiters and publishes its
// values. The previous batches are already written.
func (s *Store) commit(b *batch) {
	s.mu.Lock()
	err := s.failed
	if p := b.prev; err == nil && p != nil {
		err = p.err
	}
	b.prev = nil
	s.mu.Unlock()
	if err == nil && b.before != nil {
		err = b.before()
	}
	if err == nil {
		err = s.write(b)
	}
	s.mu.Lock()
	if err != nil {
		s.fail(err)
		b.err = s.failed
	} else {
		b.segment.written = b.end
		s.dirty = s.opts.Fsync != Always
		s.publish(b.named)
		s.trimChunks()
		if s.spare == nil && s.active.next > s.active.limit/2 {
			s.wakeMaintenance()
		}
	}
	if s.last == b {
		s.last = nil
	}
	s.lastCalls = b.calls
	s.mu.Unlock()
	close(b.done)
}

// write writes a closed batch to the file. The writer owns the bytes of the
// record, so it reads them without the lock. It needs the lock for the list of
// chunks.
func (s *Store) write(b *batch) error {
	g := b.segment
	s.mu.Lock()
	for s.writing != g {
		old := s.writing
		s.mu.Unlock()
		if err := s.sealSegment(old); err != nil {
			return err
		}
		s.mu.Lock()
		s.writing = s.log.byNum(old.num + 1)
	}
	chunks := g.chunks[b.start>>chunkBits : (b.end-1)>>chunkBits+1]
	r := record{off: b.start, length: b.end - b.start, time: b.at, synced: g.synced, seq: b.seq, count: b.count}
	s.mu.Unlock()
	return s.writeRecord(g, chunks, &r)
}

// writeRecord fills in the header of a record in memory and writes the record.
func (s *Store) writeRecord(g *segment, chunks [][]byte, r *record) error {
	parts := make([][]byte, 0, 4)
	first := r.off &^ (chunkSize - 1)
	for i, c := range chunks {
		from := max(r.off-first-i*chunkSize, 0)
		to := min(r.end()-first-i*chunkSize, chunkSize)
		parts = append(parts, c[from:to])
	}
	var head [recordHead]byte
	r.encodeHead(head[:])
	scatter(parts, head[:])
	sum := crc32.Update(g.seed, castagnoli, head[4:])
	skip, left := recordHead, r.length-recordTrail
	for _, p := range parts {
		if left < len(p) {
			p = p[:max(left, 0)]
		}
		left -= len(p)
		sum = crc32.Update(sum, castagnoli, p[min(skip, len(p)):])
		skip -= min(skip, len(p))
	}
	binary.LittleEndian.PutUint32(head[:], sum)
	scatter(parts, head[:4])
	off := int64(r.off)
	for _, p := range parts {
		if _, err := g.file.WriteAt(p, off); err != nil {
			return fmt.Errorf("write segment %d at %d: %w", g.num, off, err)
		}
		off += int64(len(p))
	}
	if s.opts.Fsync != Always {
		return nil
	}
	return s.syncSegment(g, r.end())
}

// scatter copies b over the start of consecutive parts.
func scatter(parts [][]byte, b []byte) {
	for _, p := range parts {
		b = b[copy(p, b):]
	}
}

func (s *Store) syncSegment(g *segment, upTo int) error {
	if err := g.file.Sync(); err != nil {
		return fmt.Errorf("sync segment %d: %w", g.num, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.synced = max(g.synced, upTo)
	return nil
}

// Sync makes all answered changes durable. Under Always, each answer already
// is. It blocks until the data is on disk.
func (s *Store) Sync() error {
	s.mu.Lock()
	if err := s.usable(); err != nil || s.opts.Fsync == Always {
		s.mu.Unlock()
		return err
	}
	s.background.Add(1) // Close waits for it
	s.mu.Unlock()
	defer s.background.Done()
	return s.syncAll(true)
}

// syncAll makes durable what was written under Interval and Never. If must is
// true, that includes data that another sync is working on. Older segments were
// synced when they were sealed.
func (s *Store) syncAll(must bool) error {
	s.mu.Lock()
	g, upTo, dirty, err := s.writing, s.writing.written, s.dirty || must, s.failed
	s.dirty = false
	g.pin()
	s.mu.Unlock()
	defer s.unpin(g)
	if err != nil || !dirty {
		return err
	}
	if err := s.syncSegment(g, upTo); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fail(err)
		return s.failed
	}
	return nil
}

// syncPeriodically is the background sync of Interval. The first error stops
// the store and ends the loop.
func (s *Store) syncPeriodically(ctx context.Context) {
	ticker := time.NewTicker(s.opts.FsyncInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if s.syncAll(false) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// settle leads the batches of a call and waits until all its entries are
// durable.
func (s *Store) settle(ctx context.Context, o *op) error {
	for _, b := range o.led {
		s.lead(b)
	}
	if o.wait == nil {
		return nil
	}
	return o.wait.wait(ctx)
}

// wait blocks until a batch is durable or has failed, or ctx ends.
func (b *batch) wait(ctx context.Context) error {
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
	}
	select {
	case <-b.done: // both are ready: prefer the known outcome
		return b.err
	default:
		return fmt.Errorf("logstore: wait for the log: %w: %w", semel.ErrOutcomeUnknown, context.Cause(ctx))
	}
}

// follow commits a closed batch after the previous batch.
func (s *Store) follow(b *batch) {
	if b.prev != nil {
		<-b.prev.done
	}
	s.commit(b)
}
