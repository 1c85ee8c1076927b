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

// committer writes to the end of the log: what is committed together is one record.
type committer struct {
	log  *log
	gate gate
	tx   *Tx // the open transaction

	open      *batch           // collects entries
	last      *batch           // the latest batch, until it is written
	lastCalls int              // number of calls that waited for the latest written batch
	seq       uint32           // of the latest batch
	emptySeq  uint32           // of the empty record that ended the log at open
	dirty     bool             // written data is not yet synced
	named     map[string]value // by name, from durable records
}

// newBatch starts a record at the end of the log. The caller must have reserved
// room; see reserve.
func (c *committer) newBatch() *batch {
	g := c.log.active
	c.seq++
	b := &batch{segment: g, start: g.next, seq: c.seq, prev: c.last, done: make(chan struct{})}
	g.next += recordHead
	g.mark(b.start)
	return b
}

// closeBatch closes a record. No further entry can join it.
func (c *committer) closeBatch(b *batch) {
	if b.end != 0 {
		return
	}
	if c.open == b {
		c.open = nil
	}
	g := b.segment
	var trail [recordTrail]byte
	binary.LittleEndian.PutUint32(trail[:], trailer)
	// Room for the bytes of the header as well. commit fills them in.
	var head [recordHead]byte
	c.log.cache.put(g, b.start, head[:])
	c.log.cache.put(g, g.next, trail[:])
	g.next += recordTrail
	b.end = g.next
	b.at = c.log.clock.Nanos()
	g.summary.seen(b.at)
}

// append writes an encoded entry into the open record and returns its
// position. The caller must have reserved room.
func (c *committer) append(o *op, entry []byte) uint64 {
	b := c.open
	if b == nil {
		b = c.newBatch()
		c.open, c.last = b, b
		o.led = append(o.led, b)
	}
	if o.wait != b {
		o.wait = b
		b.calls++
	}
	g := b.segment
	off := g.next
	c.log.cache.put(g, off, entry)
	g.next += len(entry)
	b.count++
	return g.position(off)
}

// settle leads the batches of a call and waits until all its entries are
// durable.
func (c *committer) settle(ctx context.Context, o *op) error {
	c.leadAll(o)
	if o.wait == nil {
		return nil
	}
	return o.wait.wait(ctx)
}

// leadAll leads the batches of a call. A call must do so before it waits for anything else,
// because others may have joined them and wait.
func (c *committer) leadAll(o *op) {
	for _, b := range o.led {
		c.lead(b)
	}
	clear(o.led)
	o.led = o.led[:0]
}

// lead writes a batch after the previous batches are written.
func (c *committer) lead(b *batch) {
	if b.prev != nil {
		<-b.prev.done
	}
	c.gather(b)
	c.log.mu.Lock()
	c.closeBatch(b)
	c.log.mu.Unlock()
	c.commit(b)
}

// gather yields so that runnable callers can join the batch, as long as more of
// them arrive. All callers of a batch wake up after its sync. The first of them
// must not write a record with one entry while the others queue behind it. A
// caller that was alone the last time does not yield.
func (c *committer) gather(b *batch) {
	const most = 16
	calls := 0
	for range most {
		c.log.mu.Lock()
		now, alone, closed := b.calls, c.lastCalls <= 1 && b.calls <= 1, b.end != 0
		c.log.mu.Unlock()
		if closed || alone || now == calls {
			return
		}
		calls = now
		runtime.Gosched()
	}
}

// commit writes and syncs a closed batch, wakes its waiters and publishes its
// values. The previous batches are already written.
func (c *committer) commit(b *batch) {
	c.log.mu.Lock()
	err := c.log.failed
	if p := b.prev; err == nil && p != nil {
		err = p.err
	}
	b.prev = nil
	c.log.mu.Unlock()
	if err == nil && b.before != nil {
		err = b.before()
	}
	if err == nil {
		err = c.write(b)
	}
	c.log.mu.Lock()
	if err != nil {
		c.log.fail(err)
		b.err = c.log.failed
	} else {
		b.segment.written = b.end
		c.dirty = c.log.opts.Fsync != Always
		c.publish(b.named)
		c.log.cache.trim(c.log.active)
		if c.log.wantsSpare() {
			c.log.wakeMaintenance()
		}
	}
	if c.last == b {
		c.last = nil
	}
	c.lastCalls = b.calls
	c.log.mu.Unlock()
	close(b.done)
}

// write writes a closed batch to the file. The writer owns the bytes of the
// record, so it reads them without the lock. It needs the lock for the list of
// chunks.
func (c *committer) write(b *batch) error {
	g := b.segment
	c.log.mu.Lock()
	for c.log.writing != g {
		old := c.log.writing
		c.log.mu.Unlock()
		if err := c.sealSegment(old); err != nil {
			return err
		}
		c.log.mu.Lock()
		c.log.writing = c.log.segments.byNum(old.num + 1)
	}
	chunks := g.chunks[b.start>>chunkBits : (b.end-1)>>chunkBits+1]
	r := record{off: b.start, length: b.end - b.start, time: b.at, synced: g.synced, seq: b.seq, count: b.count}
	c.log.mu.Unlock()
	return c.writeRecord(g, chunks, &r)
}

// writeRecord fills in the header of a record in memory and writes the record.
func (c *committer) writeRecord(g *segment, chunks [][]byte, r *record) error {
	parts := make([][]byte, 0, 4)
	first := r.off &^ (chunkSize - 1)
	for i, chunk := range chunks {
		from := max(r.off-first-i*chunkSize, 0)
		to := min(r.end()-first-i*chunkSize, chunkSize)
		parts = append(parts, chunk[from:to])
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
	if c.log.opts.Fsync != Always {
		return nil
	}
	return c.syncSegment(g, r.end())
}

// scatter copies b over the start of consecutive parts.
func scatter(parts [][]byte, b []byte) {
	for _, p := range parts {
		b = b[copy(p, b):]
	}
}

func (c *committer) syncSegment(g *segment, upTo int) error {
	if err := g.file.Sync(); err != nil {
		return fmt.Errorf("sync segment %d: %w", g.num, err)
	}
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	g.synced = max(g.synced, upTo)
	return nil
}

// sealSegment ends a full segment with its summary. It syncs the segment under
// every sync policy, so that only the last segment can have a torn end.
func (c *committer) sealSegment(g *segment) error {
	c.log.mu.Lock()
	r := record{off: g.next, length: sealRecord, time: g.summary.last, synced: g.synced, seq: g.sealSeq, seal: true}
	body := g.summary.encode(nil)
	c.log.mu.Unlock()
	b := make([]byte, 0, sealRecord)
	b = append(append(b, make([]byte, recordHead)...), body...)
	b = binary.LittleEndian.AppendUint32(b, trailer)
	r.encodeHead(b)
	binary.LittleEndian.PutUint32(b, crc32.Update(g.seed, castagnoli, b[4:len(b)-recordTrail]))
	if _, err := g.file.WriteAt(b, int64(r.off)); err != nil {
		return fmt.Errorf("seal segment %d: %w", g.num, err)
	}
	if err := g.file.Truncate(int64(r.end())); err != nil {
		return fmt.Errorf("seal segment %d: %w", g.num, err)
	}
	if err := c.syncSegment(g, r.end()); err != nil {
		return err
	}
	c.log.mu.Lock()
	defer c.log.mu.Unlock()
	g.sealed = true
	g.limit = r.end()
	return nil
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

// pendingAt returns the unwritten batch that contains a position, or nil.
func (c *committer) pendingAt(pos uint64) *batch {
	g, off := c.log.segments.at(pos), offset(pos)
	if off < g.written {
		return nil
	}
	b := c.last
	for b != nil && b.prev != nil && (b.segment != g || b.start > off) {
		b = b.prev
	}
	return b
}

// follow commits a closed batch after the previous batch.
func (c *committer) follow(b *batch) {
	if b.prev != nil {
		<-b.prev.done
	}
	c.commit(b)
}

// waitSealed waits until only a few sealed transactions wait for the disk. A
// caller that never waits for one therefore cannot fill the memory. It releases
// the lock while it waits.
func (c *committer) waitSealed(ctx context.Context) error {
	const most = 4
	var oldest *batch
	n := 0
	for b := c.last; b != nil; b = b.prev {
		if b.sealed {
			oldest = b
			n++
		}
	}
	if n < most {
		return nil
	}
	c.log.mu.Unlock()
	defer c.log.mu.Lock()
	err := oldest.wait(ctx)
	if ctx.Err() != nil {
		return interrupted(ctx)
	}
	return err
}

// writeEmpty writes the last record, unless the log ends with an empty record.
func (c *committer) writeEmpty(g *segment) error {
	c.log.mu.Lock()
	if c.log.writing == g && c.seq == c.emptySeq || g.next+emptyRecord+sealRecord > g.limit {
		c.log.mu.Unlock()
		return nil
	}
	b := c.newBatch()
	c.closeBatch(b)
	c.log.mu.Unlock()
	c.commit(b)
	return b.err
}

// publish makes the values of a durable record visible.
func (c *committer) publish(named []namedValue) {
	for _, n := range named {
		if n.data == nil {
			delete(c.named, n.name)
		} else {
			c.named[n.name] = value{n.data, n.pos}
		}
	}
}

// sync makes all answered changes durable. Under Always, each answer already is.
func (c *committer) sync() error {
	c.log.mu.Lock()
	if err := c.log.usable(); err != nil || c.log.opts.Fsync == Always {
		c.log.mu.Unlock()
		return err
	}
	c.log.background.Add(1) // Close waits for it
	c.log.mu.Unlock()
	defer c.log.background.Done()
	return c.syncAll(true)
}

// syncAll makes durable what was written under Interval and Never. If must is
// true, that includes data that another sync is working on. Older segments were
// synced when they were sealed.
func (c *committer) syncAll(must bool) error {
	c.log.mu.Lock()
	g, upTo, dirty, err := c.log.writing, c.log.writing.written, c.dirty || must, c.log.failed
	c.dirty = false
	g.pin()
	c.log.mu.Unlock()
	defer c.log.unpin(g)
	if err != nil || !dirty {
		return err
	}
	if err := c.syncSegment(g, upTo); err != nil {
		c.log.mu.Lock()
		defer c.log.mu.Unlock()
		c.log.fail(err)
		return c.log.failed
	}
	return nil
}

// syncPeriodically is the background sync of Interval. The first error stops
// the store and ends the loop.
func (c *committer) syncPeriodically(ctx context.Context) {
	ticker := time.NewTicker(c.log.opts.FsyncInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if c.syncAll(false) != nil {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
