package logstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

// TxBytes is the least room that a transaction has. A key takes
// [Store.TxKeyBytes] at most, and a value a little more than the length of its
// name and itself.
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

// TxKeys are the keys of a [Tx.Claim]. The slices that are set have the same
// length and order.
type TxKeys struct {
	// Digests are the digests of the keys, by [Store.Digester].
	Digests []semel.Digest
	// Prints are the first halves of the fingerprints; 0 is no fingerprint.
	// Defaults to no fingerprints.
	Prints []uint64
	// Keys are the keys themselves. A store with Options.KeepIDs refuses a
	// claim without them; another store ignores them. Defaults to nil.
	Keys []semel.Key
}

// slice returns the keys from one position to another.
func (k *TxKeys) slice(from, to int) TxKeys {
	part := TxKeys{Digests: k.Digests[from:to]}
	if k.Prints != nil {
		part.Prints = k.Prints[from:to]
	}
	if k.Keys != nil {
		part.Keys = k.Keys[from:to]
	}
	return part
}

// print returns the print of a key, or 0.
func (k *TxKeys) print(i int) uint64 {
	if k.Prints == nil {
		return 0
	}
	return k.Prints[i]
}

// TxKeyBytes returns the most room that a key takes in a transaction. The key
// is looked at only if the store has Options.KeepIDs.
func (s *Store) TxKeyBytes(k semel.Key) int {
	if !s.opts.KeepIDs {
		return compactMost
	}
	return richLeast + len(k.Scope) + len(k.ID)
}

// Claim decides on keys in order and fills out, which must be as long. A key
// that is Fresh becomes done when the transaction commits, and is Duplicate to
// what comes later in it. Mismatch is a key that is done with another print,
// InFlight one that another holder's lease covers, InDoubt one whose outcome is
// unknown. It may read files. After an error nothing of this call was decided,
// and the transaction can go on, or be aborted.
func (tx *Tx) Claim(keys TxKeys, window time.Duration, out []semel.Decision) error {
	s := tx.store
	n := len(keys.Digests)
	if len(out) != n || keys.Prints != nil && len(keys.Prints) != n || keys.Keys != nil && len(keys.Keys) != n {
		return errLengths
	}
	if window <= 0 {
		return invalid("window %s is not above 0", window)
	}
	if !s.opts.KeepIDs {
		keys.Keys = nil
	} else if keys.Keys == nil && n > 0 {
		return invalid("TxKeys.Keys is not set, and the store has Options.KeepIDs")
	}
	room := 0
	if keys.Keys == nil {
		room = n * compactMost
	}
	for _, k := range keys.Keys {
		room += s.TxKeyBytes(k)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tx.grow(room); err != nil {
		return err
	}
	if s.full() {
		return s.errFull()
	}
	const run = 1024
	for from := 0; from < n; from += run {
		to := min(from+run, n)
		if err := tx.claimRun(keys.slice(from, to), window, out[from:to]); err != nil {
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
func (tx *Tx) claimRun(keys TxKeys, window time.Duration, out []semel.Decision) error {
	s := tx.store
	s.index.touch(keys.Digests)
	now := s.clock.Nanos()
	tick := expiryTick(now, int64(window))
	clear(tx.op.known)
	for i := 0; i < len(out); {
		var key semel.Key
		if keys.Keys != nil {
			key = keys.Keys[i]
		}
		decision, err := tx.claimOne(&keys.Digests[i], &key, keys.print(i), tick, now)
		if err != nil {
			return err
		}
		if decision != semel.Undecided {
			out[i] = decision
			i++
			continue
		}
		for k := i + 1; k < len(out); k++ {
			s.plan(tx.op, &keys.Digests[k])
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

// claimOne decides on one key, which is empty where the store does not keep it.
// It returns Undecided if it must read first.
func (tx *Tx) claimOne(d *semel.Digest, key *semel.Key, print uint64, tick, now int64) (semel.Decision, error) {
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
	if *key != (semel.Key{}) || !s.addCompact(tx.op, d, at, tick, 0, print, now) {
		s.addDone(tx.op, d, &done{tick: tick, rich: rich{first: now, attempt: 1, fingerprint: wholeOf(print), key: *key}}, now)
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
