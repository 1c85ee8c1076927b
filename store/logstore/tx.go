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
	keys  *keys
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

// newTx opens a transaction.
func newTx(ctx context.Context, k *keys) (*Tx, error) {
	c := k.committer
	k.log.mu.Lock()
	defer k.log.mu.Unlock()
	if k.log.usable() == nil && k.canRelieve() {
		k.log.mu.Unlock()
		k.makeRoom(ctx)
		k.log.mu.Lock()
	}
	if err := c.gate.take(ctx, k.log); err != nil {
		return nil, err
	}
	err := c.waitSealed(ctx)
	if err == nil {
		err = c.reserveTx()
	}
	if err == nil {
		err = k.log.usable() // it may have been closed in between
	}
	if err != nil {
		c.gate.release()
		return nil, err
	}
	if c.open != nil {
		c.closeBatch(c.open)
	}
	tx := &Tx{keys: k, op: k.newOp(), summary: k.log.active.summary, window: k.log.active.window}
	tx.batch = c.newBatch()
	c.open, c.tx = tx.batch, tx
	return tx, nil
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
	k := tx.keys
	n := len(keys.Digests)
	if len(out) != n || keys.Prints != nil && len(keys.Prints) != n || keys.Keys != nil && len(keys.Keys) != n || keys.Origins != nil && len(keys.Origins) != n {
		return errLengths
	}
	if window <= 0 {
		return invalid("window must be above 0, got %s", window)
	}
	if !k.opts.KeepIDs {
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
	k.log.mu.Lock()
	defer k.log.mu.Unlock()
	if err := tx.grow(room); err != nil {
		return err
	}
	if k.full() {
		return k.errFull()
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
	k := tx.keys
	k.log.mu.Lock()
	defer k.log.mu.Unlock()
	k.finder.index.expected = 0
	if more > 0 {
		k.finder.index.expected = min(homesOf(k.finder.index.count+more), int(k.opts.MaxIndexBytes/2/8/shards))
	}
}

// grow makes room for n more bytes in the record. It may release the lock.
func (tx *Tx) grow(n int) error {
	k := tx.keys
	if tx.over {
		return tx.overErr()
	}
	g := tx.batch.segment
	need := g.next + n + tx.room + slack
	if need <= g.limit {
		return k.log.failed
	}
	if need > segmentStride {
		return invalid("the transaction has %d bytes and cannot grow by %d: commit earlier", g.next-tx.batch.start, n+tx.room)
	}
	const step = 4 << 20
	k.log.mu.Unlock()
	err := k.log.allocate(g, min((need+step-1)&^(step-1), segmentStride))
	k.log.mu.Lock()
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
	k := tx.keys
	k.finder.touch(keys.Digests[from:to])
	tx.op.screen.begin(keys.Digests[from:to])
	now := k.log.clock.Nanos()
	tick := expiryTick(now, int64(window))
	o := tx.op
	o.forgetReads()
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
		for behind := i + 1; behind < to; behind++ {
			o.request = behind - from
			k.finder.plan(o, &keys.Digests[behind])
		}
		k.log.mu.Unlock()
		k.finder.readQueued(o, func(r *read, is reading) { o.keep(r, is, now) })
		k.finder.readBlocks(o, func(r *runRead, is reading) { o.keepBlock(r, is, now) })
		k.log.mu.Lock()
		if tx.over {
			return tx.overErr()
		}
	}
	return nil
}

// claimOne decides one key. It returns Undecided if it must read first.
func (tx *Tx) claimOne(keys *TxKeys, i int, tick, now int64) (semel.Decision, error) {
	k, d, print := tx.keys, &keys.Digests[i], keys.print(i)
	if k.claims.Len() > 0 {
		if decision := tx.claimTaken(d, print, now); decision != semel.Fresh {
			return decision, nil
		}
	}
	if live := tx.op.live[tx.op.request]; now < live.expires {
		return known(print, live.print), nil
	}
	f, ok, pending, err := k.finder.find(tx.op, d)
	switch {
	case err != nil:
		return semel.Undecided, err
	case pending:
		return semel.Undecided, nil
	case ok && now < f.entry.expires:
		return known(print, f.entry.print), nil
	case ok:
		k.finder.remove(f)
	}
	more := keys.detail(i)
	if more != (detail{}) || !k.addCompact(tx.op, d, f.slot, tick, 0, print, now) {
		k.addDone(tx.op, d, &done{tick: tick, rich: rich{first: now, attempt: 1, fingerprint: wholeOf(print), key: more.key, origin: more.origin}}, now)
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
	k := tx.keys
	c := k.claims.Get(d)
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
	k.claims.Remove(d)
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

// BindScope binds a scope to a rule when the transaction commits, unless an earlier
// durable transaction bound the scope. It returns the rule to which the scope is
// then bound. It does not block. See [semel.BindScope], which also checks the rule.
func (tx *Tx) BindScope(scope, rule string) (bound string) {
	if data, ok := tx.keys.values.get(scopeRule + scope); ok {
		return string(data)
	}
	tx.Set(scopeRule+scope, []byte(rule))
	return rule
}

// bindScope binds a scope to a rule in a transaction of its own.
func bindScope(ctx context.Context, k *keys, scope, rule string) (string, error) {
	k.values.binding.Lock() // a value is visible only when it is durable
	defer k.values.binding.Unlock()
	bound, ok, err := k.values.boundTo(scope)
	if ok || err != nil || rule == "" {
		return bound, err
	}
	tx, err := newTx(ctx, k)
	if err != nil {
		return "", err
	}
	defer tx.Abort()
	if bound := tx.BindScope(scope, rule); bound != rule {
		return bound, nil
	}
	if err := tx.Commit(ctx); err != nil {
		return "", err
	}
	return rule, nil
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
	tx.keys.committer.follow(tx.batch)
	return tx.batch.err
}

// Seal is the first half of Commit, and [Pending.Wait] is the second. It ends
// the transaction and gives its record to a background writer, so that the next
// transaction can begin immediately. The writer calls before, if it is not nil,
// and then writes and syncs the record. If either fails, the store has failed,
// and every later record fails with it. Records are written in the order of
// their transactions.
func (tx *Tx) Seal(before func() error) *Pending {
	k := tx.keys
	if err := tx.finish(before); err != nil {
		done := make(chan struct{})
		close(done)
		return &Pending{&batch{done: done, err: err}}
	}
	k.log.background.Go(func() { k.committer.follow(tx.batch) })
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
	tx.keys.log.mu.Lock()
	defer tx.keys.log.mu.Unlock()
	tx.abort(errOver)
}

// finish closes the record and admits the next change to the log.
func (tx *Tx) finish(before func() error) error {
	k := tx.keys
	k.log.mu.Lock()
	defer k.log.mu.Unlock()
	err := tx.err
	if err == nil {
		err = tx.grow(0)
	}
	if err == nil {
		err = k.log.usable()
	}
	if err != nil {
		tx.abort(errOver)
		return err
	}
	for _, n := range tx.named {
		k.values.write(tx.op, n.name, n.data)
	}
	b := tx.batch
	b.before, b.sealed = before, true
	k.committer.closeBatch(b)
	k.committer.last = b
	tx.end(errOver)
	return nil
}

// abort reverts the changes of the transaction. The caller holds the lock.
func (tx *Tx) abort(why error) {
	if tx.over {
		return
	}
	k, b := tx.keys, tx.batch
	g := b.segment
	var scratch [entryHead]byte
	for off := b.start + recordHead; off < g.next; {
		head, _ := g.memory(off, entryHead, scratch[:]) // unwritten data is in memory
		d := semel.Digest(head[:16])
		k.finder.index.forget(&d, g.position(off))
		off += entrySize(binary.LittleEndian.Uint32(head[16:]))
	}
	for _, t := range tx.taken {
		k.claims.put(&t.digest, &t.claim)
	}
	g.next, g.summary, g.window = b.start, tx.summary, tx.window
	k.committer.seq--
	k.committer.open = nil
	tx.end(why)
}

func (tx *Tx) end(why error) {
	tx.over = true
	if tx.err == nil {
		tx.err = why
	}
	tx.keys.committer.tx = nil
	tx.op.wait = nil
	tx.op.free()
	tx.op = nil
	tx.keys.committer.gate.release()
}
