package logstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

// TxBytes is what a transaction has room for at least: 20 bytes for each key,
// 28 with a print, and a little more than the length of each value and its
// name.
const TxBytes = segmentStride / 2

// Tx is a transaction for sinks that live beside the store: keys become done
// and values change in one commit record. While it is open it holds the end of
// the log, and every other change of the store waits. It is for one goroutine.
type Tx struct {
	store *Store
	op    *op
	batch *batch
	over  bool
	err   error // what a Set did wrong, or why the store ended it

	summary summary // of the segment, before
	window  int64
	taken   []takenClaim
	named   []namedValue
	room    int // for named
}

// takenClaim is a claim whose lease had ended and which the transaction ended.
type takenClaim struct {
	digest semel.Digest
	claim  claim
}

var errOver = fmt.Errorf("logstore: the transaction is over: %w", semel.ErrInvalidRequest)

// Begin opens a transaction. It waits until the transaction before it was
// committed, sealed or aborted, and lets the changes that waited for that go
// first. It does not wait for the disk, but where a segment must be made.
func (s *Store) Begin(ctx context.Context) (*Tx, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.gate.take(ctx, s); err != nil {
		return nil, err
	}
	err := s.waitSealed(ctx)
	if err == nil {
		err = s.reserveTx()
	}
	if err == nil {
		err = s.usable() // it may have been closed meanwhile
	}
	if err != nil {
		s.gate.release()
		return nil, err
	}
	if s.open != nil {
		s.closeBatch(s.open)
	}
	tx := &Tx{store: s, op: s.newOp(), summary: s.active.summary, window: s.active.window}
	tx.batch = s.newBatch()
	s.open, s.tx = tx.batch, tx
	return tx, nil
}

// waitSealed waits until few sealed transactions wait for the disk, so that who
// never waits for one does not fill the memory. It releases the lock meanwhile.
func (s *Store) waitSealed(ctx context.Context) error {
	const most = 4
	var oldest *batch
	n := 0
	for b := s.last; b != nil; b = b.prev {
		if b.sealed {
			oldest = b
			n++
		}
	}
	if n < most {
		return nil
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	err := oldest.wait(ctx)
	if ctx.Err() != nil {
		return interrupted(ctx)
	}
	return err
}

// reserveTx makes room for a transaction of TxBytes.
func (s *Store) reserveTx() error {
	for {
		room := 0
		if s.active.next > TxBytes {
			room = TxBytes // there is not, so a new segment is begun
		}
		if moved, err := s.reserve(room); !moved || err != nil {
			return err
		}
	}
}

// Claim decides on keys in order and fills out, which must be as long. A key
// that is Fresh becomes done when the transaction commits, and is Duplicate to
// what comes later in it. prints are the first halves of fingerprints; 0, and
// nil for all, is none. Mismatch is a key that is done with another print,
// InFlight one that another holder's lease covers, InDoubt one whose outcome is
// unknown. It may read files. After an error nothing of this call was decided,
// and the transaction can go on, or be aborted.
func (tx *Tx) Claim(keys []semel.Digest, prints []uint64, window time.Duration, out []semel.Decision) error {
	if len(out) != len(keys) || prints != nil && len(prints) != len(keys) {
		return errLengths
	}
	if window <= 0 {
		return invalid("window %s is not above 0", window)
	}
	s := tx.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tx.grow(len(keys) * compactMost); err != nil {
		return err
	}
	if s.full() {
		return s.errFull()
	}
	const run = 1024
	for from := 0; from < len(keys); from += run {
		to := min(from+run, len(keys))
		var p []uint64
		if prints != nil {
			p = prints[from:to]
		}
		if err := tx.claimRun(keys[from:to], p, window, out[from:to]); err != nil {
			return err
		}
	}
	return nil
}

// grow makes room for n more bytes in the record. It may release the lock.
func (tx *Tx) grow(n int) error {
	s := tx.store
	if tx.over {
		return tx.overErr()
	}
	g := tx.batch.segment
	need := g.next + n + tx.room + slack
	if need <= g.limit {
		return s.failed
	}
	if need > segmentStride {
		return invalid("the transaction has %d bytes and cannot grow by %d: commit earlier", g.next-tx.batch.start, n+tx.room)
	}
	const step = 4 << 20
	s.mu.Unlock()
	err := s.allocate(g, min((need+step-1)&^(step-1), segmentStride))
	s.mu.Lock()
	if err == nil && tx.over {
		err = tx.overErr()
	}
	return err
}

func (tx *Tx) overErr() error {
	if tx.err != nil {
		return tx.err
	}
	return errOver
}

// claimRun decides on a few keys. It looks at all their slots first, so that
// the waits for memory overlap, then reads what must be read, then decides.
func (tx *Tx) claimRun(keys []semel.Digest, prints []uint64, window time.Duration, out []semel.Decision) error {
	s := tx.store
	s.index.touch(keys)
	now := s.clock.Nanos()
	tick := expiryTick(now, int64(window))
	clear(tx.op.known)
	for i := 0; i < len(keys); {
		var print uint64
		if prints != nil {
			print = prints[i]
		}
		decision, err := tx.claimOne(&keys[i], print, tick, now)
		if err != nil {
			return err
		}
		if decision != semel.Undecided {
			out[i] = decision
			i++
			continue
		}
		for k := i + 1; k < len(keys); k++ {
			s.plan(tx.op, &keys[k])
		}
		s.mu.Unlock()
		s.readAll(tx.op)
		s.mu.Lock()
		if tx.over {
			return tx.overErr()
		}
	}
	return nil
}

// claimOne decides on one key. It returns Undecided if it must read first.
func (tx *Tx) claimOne(d *semel.Digest, print uint64, tick, now int64) (semel.Decision, error) {
	s := tx.store
	if s.claims.count > 0 {
		if decision := tx.claimTaken(d, print, now); decision != semel.Fresh {
			return decision, nil
		}
	}
	f, ok, pending, err := s.find(tx.op, d)
	switch {
	case err != nil:
		return semel.Undecided, err
	case pending:
		return semel.Undecided, nil
	case ok && now < f.entry.expires:
		if mismatch(print, f.entry.print) {
			return semel.Mismatch, nil
		}
		return semel.Duplicate, nil
	case ok:
		s.index.remove(f.shard, f.slot)
	}
	at := f.slot
	if !s.addCompact(tx.op, d, at, tick, 0, print, now) {
		s.addDone(tx.op, d, &done{tick: tick, rich: rich{first: now, attempt: 1, fingerprint: wholeOf(print)}}, now)
	}
	return semel.Fresh, nil
}

// claimTaken decides on a key that is claimed; Fresh if it is not, any more.
func (tx *Tx) claimTaken(d *semel.Digest, print uint64, now int64) semel.Decision {
	s := tx.store
	c := s.claims.get(d)
	switch {
	case c == nil:
		return semel.Fresh
	case mismatch(print, half(c.fingerprint)):
		return semel.Mismatch
	case c.state(now) == semel.Unknown:
		return semel.InDoubt
	case now < c.leaseEnd:
		return semel.InFlight
	}
	tx.taken = append(tx.taken, takenClaim{*d, *c})
	s.claims.remove(d)
	return semel.Fresh
}

// Set changes a named value when the transaction commits; nil forgets it. The
// last Set of a name counts. Names that begin with a NUL byte belong to the
// store: Commit refuses them.
func (tx *Tx) Set(name string, value []byte) {
	if strings.HasPrefix(name, reserved) && tx.err == nil {
		tx.err = invalid("the name %q begins with a NUL byte", name)
	}
	if value != nil {
		value = append(make([]byte, 0, len(value)), value...)
	}
	tx.room += valueRoom(name, value)
	for i := range tx.named {
		if tx.named[i].name == name {
			tx.room -= valueRoom(name, tx.named[i].data)
			tx.named[i].data = value
			return
		}
	}
	tx.named = append(tx.named, namedValue{name: name, data: value})
}

// Commit writes the transaction as one record, which is durable when it
// returns. An error that is not of the classes unknown outcome or store failed
// means that nothing was changed. In any case the transaction is over.
func (tx *Tx) Commit(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		tx.Abort()
		return interrupted(ctx)
	}
	if err := tx.finish(nil); err != nil {
		return err
	}
	tx.store.follow(tx.batch)
	return tx.batch.err
}

// Seal is Commit in two: it ends the transaction and hands its record to a
// background writer, so that the next one may begin at once. The writer calls
// before, if it is not nil, and then writes and syncs the record; if either
// fails the store has failed, and with it every later record. Records are
// written in the order of their transactions.
func (tx *Tx) Seal(before func() error) *Pending {
	s := tx.store
	if err := tx.finish(before); err != nil {
		done := make(chan struct{})
		close(done)
		return &Pending{&batch{done: done, err: err}}
	}
	s.background.Go(func() { s.follow(tx.batch) })
	return &Pending{tx.batch}
}

// Pending is a sealed transaction on its way to the disk.
type Pending struct{ batch *batch }

// Wait blocks until the transaction is durable, or failed, or ctx ends. It may
// be called more than once and by many.
func (p *Pending) Wait(ctx context.Context) error {
	return p.batch.wait(ctx)
}

// Done reports whether Wait would return at once. It does not block.
func (p *Pending) Done() bool {
	select {
	case <-p.batch.done:
		return true
	default:
		return false
	}
}

// Abort ends the transaction and changes nothing. After Commit, Seal or Abort
// it does nothing, so that it can be deferred.
func (tx *Tx) Abort() {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	tx.abort(errOver)
}

// finish closes the record and lets the next change at the log.
func (tx *Tx) finish(before func() error) error {
	s := tx.store
	s.mu.Lock()
	defer s.mu.Unlock()
	err := tx.err
	if err == nil {
		err = tx.grow(0)
	}
	if err == nil {
		err = s.usable()
	}
	if err != nil {
		tx.abort(errOver)
		return err
	}
	for _, n := range tx.named {
		s.writeValue(tx.op, n.name, n.data)
	}
	b := tx.batch
	b.before, b.sealed = before, true
	s.closeBatch(b)
	s.last = b
	tx.end(errOver)
	return nil
}

// abort takes back what the transaction did. The lock is held.
func (tx *Tx) abort(why error) {
	if tx.over {
		return
	}
	s, b := tx.store, tx.batch
	g := b.segment
	var scratch [entryHead]byte
	for off := b.start + recordHead; off < g.next; {
		head, _ := g.memory(off, entryHead, scratch[:]) // what is not yet written is in memory
		d := semel.Digest(head[:16])
		s.index.forget(&d, g.position(off))
		off += entrySize(binary.LittleEndian.Uint32(head[16:]))
	}
	for _, t := range tx.taken {
		s.claims.put(&t.digest, &t.claim)
	}
	g.next, g.summary, g.window = b.start, tx.summary, tx.window
	s.seq--
	s.open = nil
	tx.end(why)
}

func (tx *Tx) end(why error) {
	tx.over = true
	if tx.err == nil {
		tx.err = why
	}
	tx.store.tx = nil
	tx.op.wait = nil
	tx.op.free()
	tx.op = nil
	tx.store.gate.release()
}
