package logstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

// TxBytes is the minimum capacity of a transaction. A key takes at most
// [Store.TxKeyBytes]. A value takes a little more than its own length plus that
// of its name.
const TxBytes = segmentStride / 2

// Tx is a transaction for sinks in the same process: it completes keys and
// changes values in one commit record. While it is open it holds the end of the
// log, and every other change of the store waits. A Tx is not safe for
// concurrent use.
type Tx struct {
	store *Store
	op    *op
	batch *batch
	over  bool
	err   error // the error of a Set, or why the store ended the transaction

	summary summary // summary of the segment before the transaction
	window  int64
	taken   []takenClaim
	named   []namedValue
	room    int // for named
}

// takenClaim is an expired claim that the transaction removed.
type takenClaim struct {
	digest semel.Digest
	claim  claim
}

var errOver = fmt.Errorf("logstore: the transaction is over: %w", semel.ErrInvalidRequest)

// Begin opens a transaction. It waits until the previous transaction was
// committed, sealed or aborted. Changes that waited for that transaction run
// first. Begin waits for the disk only if a segment must be created.
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
		err = s.usable() // it may have been closed in between
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

// waitSealed waits until only a few sealed transactions wait for the disk. A
// caller that never waits for one therefore cannot fill the memory. It releases
// the lock while it waits.
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

// reserveTx reserves room for a transaction of TxBytes.
func (s *Store) reserveTx() error {
	for {
		room := 0
		if s.active.next > TxBytes {
			room = TxBytes // not enough left: start a new segment
		}
		if moved, err := s.reserve(room); !moved || err != nil {
			return err
		}
	}
}

// TxKeys are the keys of a [Tx.Claim]. The slices that are set have the same
// length and order.
type TxKeys struct {
	// Digests are the digests of the keys, computed by [Store.Digester].
	Digests []semel.Digest
	// Prints are the first halves of the fingerprints. 0 means no fingerprint.
	// Defaults to no fingerprints.
	Prints []uint64
	// Keys are the keys themselves. A store with Options.KeepIDs rejects a
	// claim without them. Other stores ignore them. Defaults to nil.
	Keys []semel.Key
	// Origins say where the deliveries come from, in at most
	// semel.MaxOriginBytes each. Defaults to no origins.
	Origins []string
}

// detail returns the key and origin of a key, as far as there are any.
func (k *TxKeys) detail(i int) (d detail) {
	if k.Keys != nil {
		d.key = k.Keys[i]
	}
	if k.Origins != nil {
		d.origin = k.Origins[i]
	}
	return d
}

// print returns the print of a key, or 0.
func (k *TxKeys) print(i int) uint64 {
	if k.Prints == nil {
		return 0
	}
	return k.Prints[i]
}

// TxKeyBytes returns the maximum size of a key in a transaction, with its origin.
// It uses the key only if the store has Options.KeepIDs.
func (s *Store) TxKeyBytes(k semel.Key, origin string) int {
	if !s.opts.KeepIDs {
		k = semel.Key{}
	}
	return detail{k, origin}.txBytes()
}

func (d detail) txBytes() int {
	if d == (detail{}) {
		return compactMost
	}
	return richLeast + len(d.key.Scope) + len(d.key.ID) + len(d.origin)
}

// Claim decides keys in order and writes the decisions to out, which must have
// the same length. The decisions are:
//   - Fresh: the key becomes done when the transaction commits. A later claim
//     of it in this transaction is a Duplicate.
//   - Duplicate: the key is done.
//   - Mismatch: the key is done with another print.
//   - InFlight: another holder's lease covers the key.
//   - OutcomeUnknown: the outcome of the key is unknown.
//
// Claim may read files. After an error, this call has decided nothing. The
// transaction can continue or be aborted.
func (tx *Tx) Claim(keys TxKeys, window time.Duration, out []semel.Decision) error {
	s := tx.store
	n := len(keys.Digests)
	if len(out) != n || keys.Prints != nil && len(keys.Prints) != n || keys.Keys != nil && len(keys.Keys) != n || keys.Origins != nil && len(keys.Origins) != n {
		return errLengths
	}
	if window <= 0 {
		return invalid("window must be above 0, got %s", window)
	}
	if !s.opts.KeepIDs {
		keys.Keys = nil
	} else if keys.Keys == nil && n > 0 {
		return invalid("TxKeys.Keys is required, because the store has Options.KeepIDs")
	}
	room := n * compactMost
	if keys.Keys != nil || keys.Origins != nil {
		room = 0
		for i := range n {
			if most := semel.MaxOriginBytes; keys.Origins != nil && len(keys.Origins[i]) > most {
				return invalid("origin %d has %d bytes, more than %d", i, len(keys.Origins[i]), most)
			}
			room += keys.detail(i).txBytes()
		}
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
		if err := tx.claimRun(&keys, from, min(from+run, n), window, out); err != nil {
			return err
		}
	}
	return nil
}

// Expect says how many more keys the store will get in this transaction and later
// ones. The index then grows in fewer steps, up to eightfold, but not beyond that number
// and half of Options.MaxIndexBytes. The number may change at any time. It is no
// promise, and 0 means unknown.
func (tx *Tx) Expect(more int64) {
	s := tx.store
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.expected = 0
	if more > 0 {
		s.index.expected = min(homesOf(s.index.count+more), int(s.opts.MaxIndexBytes/2/8/shards))
	}
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

// claimRun decides the keys in [from, to). It first touches all their slots, so that
// the memory latencies overlap. Then it does the file reads, and then it decides.
func (tx *Tx) claimRun(keys *TxKeys, from, to int, window time.Duration, out []semel.Decision) error {
	s := tx.store
	s.index.touch(keys.Digests[from:to])
	now := s.clock.Nanos()
	tick := expiryTick(now, int64(window))
	o := tx.op
	clear(o.known)
	o.live = append(o.live[:0], make([]liveKey, to-from)...)
	for i := from; i < to; {
		o.request = i - from
		decision, err := tx.claimOne(keys, i, tick, now)
		if err != nil {
			return err
		}
		if decision != semel.Undecided {
			out[i] = decision
			i++
			continue
		}
		for k := i + 1; k < to; k++ {
			o.request = k - from
			s.plan(o, &keys.Digests[k])
		}
		s.mu.Unlock()
		s.readQueued(o, func(r *read, is reading) { o.keep(r, is, now) })
		s.mu.Lock()
		if tx.over {
			return tx.overErr()
		}
	}
	return nil
}

// keep keeps the result of a read. A live key stays as it is while the transaction is
// open, so it need not be looked up again.
func (o *op) keep(r *read, is reading, now int64) {
	if is.err == nil && is.entry.kind == kindDone && is.entry.digest == r.digest && now < is.entry.expires {
		o.live[r.request] = liveKey{is.entry.expires, is.entry.print}
		return
	}
	if o.known == nil {
		o.known = make(map[uint64]reading)
	}
	o.known[r.pos] = is
}

// claimOne decides one key. It returns Undecided if it must read first.
func (tx *Tx) claimOne(keys *TxKeys, i int, tick, now int64) (semel.Decision, error) {
	s, d, print := tx.store, &keys.Digests[i], keys.print(i)
	if s.claims.Len() > 0 {
		if decision := tx.claimTaken(d, print, now); decision != semel.Fresh {
			return decision, nil
		}
	}
	if k := tx.op.live[tx.op.request]; now < k.expires {
		return known(print, k.print), nil
	}
	f, ok, pending, err := s.find(tx.op, d)
	switch {
	case err != nil:
		return semel.Undecided, err
	case pending:
		return semel.Undecided, nil
	case ok && now < f.entry.expires:
		return known(print, f.entry.print), nil
	case ok:
		s.index.remove(f.shard, f.slot)
	}
	more := keys.detail(i)
	if more != (detail{}) || !s.addCompact(tx.op, d, f.slot, tick, 0, print, now) {
		s.addDone(tx.op, d, &done{tick: tick, rich: rich{first: now, attempt: 1, fingerprint: wholeOf(print), key: more.key, origin: more.origin}}, now)
	}
	return semel.Fresh, nil
}

// known decides a key that is done, by the prints of the claim and of the key.
func known(claim, key uint64) semel.Decision {
	if mismatch(claim, key) {
		return semel.Mismatch
	}
	return semel.Duplicate
}

// claimTaken decides a key that is claimed. It returns Fresh if the key is no
// longer claimed.
func (tx *Tx) claimTaken(d *semel.Digest, print uint64, now int64) semel.Decision {
	s := tx.store
	c := s.claims.Get(d)
	switch {
	case c == nil:
		return semel.Fresh
	case mismatch(print, half(c.fingerprint)):
		return semel.Mismatch
	case c.state(now) == semel.Unknown:
		return semel.OutcomeUnknown
	case now < c.leaseEnd:
		return semel.InFlight
	}
	tx.taken = append(tx.taken, takenClaim{*d, *c})
	s.claims.Remove(d)
	return semel.Fresh
}

// Set changes a named value when the transaction commits. A nil value removes
// it. The last Set of a name wins. Names that start with a NUL byte are
// reserved for the store: Commit rejects them.
func (tx *Tx) Set(name string, value []byte) {
	if strings.HasPrefix(name, reserved) && tx.err == nil {
		tx.err = invalid("the name %q starts with a NUL byte, which is reserved for the store", name)
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

// Commit writes the transaction as one record. The record is durable when
// Commit returns nil. An error means that nothing was changed, unless its class
// is unknown outcome or store failed. In all cases the transaction is over.
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

// Seal is the first half of Commit, and [Pending.Wait] is the second. It ends
// the transaction and gives its record to a background writer, so that the next
// transaction can begin immediately. The writer calls before, if it is not nil,
// and then writes and syncs the record. If either fails, the store has failed,
// and every later record fails with it. Records are written in the order of
// their transactions.
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

// Pending is a sealed transaction that is not yet known to be durable.
type Pending struct{ batch *batch }

// Wait blocks until the transaction is durable or has failed, or ctx ends. It
// may be called repeatedly and concurrently.
func (p *Pending) Wait(ctx context.Context) error {
	return p.batch.wait(ctx)
}

// Done reports whether Wait would return immediately. It does not block.
func (p *Pending) Done() bool {
	select {
	case <-p.batch.done:
		return true
	default:
		return false
	}
}

// Abort ends the transaction without changes. After Commit, Seal or Abort it
// does nothing, so it can be deferred.
func (tx *Tx) Abort() {
	tx.store.mu.Lock()
	defer tx.store.mu.Unlock()
	tx.abort(errOver)
}

// finish closes the record and admits the next change to the log.
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

// abort reverts the changes of the transaction. The caller holds the lock.
func (tx *Tx) abort(why error) {
	if tx.over {
		return
	}
	s, b := tx.store, tx.batch
	g := b.segment
	var scratch [entryHead]byte
	for off := b.start + recordHead; off < g.next; {
		head, _ := g.memory(off, entryHead, scratch[:]) // unwritten data is in memory
		d := semel.Digest(head[:16])
		s.index.forget(&d, g.position(off))
		off += entrySize(binary.LittleEndian.Uint32(head[16:]))
	}
	for _, t := range tx.taken {
		s.putClaim(&t.digest, &t.claim)
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
