package logstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// keys decides about keys. The way of a claim is this file, from top to bottom.
// claim takes the requests of a call, each runs them under the lock, and claimOne decides one
// by the claims and by its entry in the log (finder.find). answerDone and claimAgain
// answer for a key that is known. grant gives a new one to the caller, which appends
// an entry if the answer must survive the process. At the end, claim waits until the
// record with the entries is durable (committer.settle).
type keys struct {
	opts      *Options
	hasher    digest.Hasher
	log       *log
	committer *committer
	values    *values
	finder    *finder
	ops       sync.Pool // of *op

	claims claims
	token  semel.Token // the last token issued

	relieve   func(context.Context) error // lets keys leave memory
	unspilled error                       // of the last call of it
	retry     int64                       // not before that time is it called again
}

func (k *keys) newOp() *op { return k.ops.Get().(*op) }

// claim decides the requests of a call.
func (k *keys) claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if len(reqs) != len(answers) {
		return errLengths
	}
	o := k.newOp()
	defer o.free()
	k.digestAll(o, len(reqs), func(i int) (semel.Key, error) {
		answers[i] = semel.ClaimAnswer{Err: reqs[i].Validate()}
		return reqs[i].Key, answers[i].Err
	})
	err := k.each(ctx, o, len(reqs),
		func(i int) int { return k.claimRoom(&reqs[i]) },
		func(i int) {
			if answers[i].Err == nil {
				k.finder.plan(o, &o.digests[i])
			}
		},
		func(i int) bool {
			return answers[i].Err != nil || k.claimOne(o, &o.digests[i], &reqs[i], &answers[i])
		})
	if settled := k.committer.settle(ctx, o); settled != nil {
		for i := range answers {
			if answers[i].Err == nil {
				answers[i] = semel.ClaimAnswer{} // the record behind an answer may be lost
			}
		}
		return settled
	}
	return err
}

// digestAll fills o.digests with the digests of the valid keys.
func (k *keys) digestAll(o *op, n int, key func(i int) (semel.Key, error)) {
	memo := digest.Memo{Hasher: k.hasher}
	for i := range n {
		var d semel.Digest
		if valid, err := key(i); err == nil {
			d = memo.Key(valid)
		}
		o.digests = append(o.digests, d)
	}
}

// claimRoom returns an upper bound of the bytes that a claim adds to the log.
func (k *keys) claimRoom(r *semel.ClaimRequest) int {
	if !r.Hold && !r.Done && !k.opts.DurableClaims {
		return richLeast
	}
	n := richLeast + len(shortName(r.Owner.Name)) + len(r.Origin)
	if k.opts.KeepIDs {
		n += len(r.Key.Scope) + len(r.Key.ID)
	}
	return n
}

// richLeast is an upper bound of the size of an entry without strings and data.
var richLeast = new(rich).size()

// each makes the changes of a call, in runs that hold the lock for a bounded
// time. room(i) is an upper bound of the bytes that request i adds to the log.
// decide(i) answers request i, or returns false if it must read first. Then
// plan queues the reads of the requests behind it, so that one step makes all
// reads of a run.
func (k *keys) each(ctx context.Context, o *op, n int, room func(i int) int, plan func(i int), decide func(i int) bool) error {
	o.screen.begin(o.digests)
	relieved := o.maintains
	for i := 0; i < n; {
		if ctx.Err() != nil {
			return interrupted(ctx)
		}
		if err := k.committer.enter(ctx); err != nil {
			return err
		}
		if !relieved && k.canRelieve() {
			k.log.mu.Unlock()
			k.committer.leadAll(o)
			k.makeRoom(ctx)
			relieved = true
			continue
		}
		relieved = o.maintains
		o.now = k.log.clock.Nanos()
		j, bytes := runEnd(i, n, room)
		moved, err := k.committer.reserve(bytes)
		if moved || err != nil {
			k.log.mu.Unlock()
			if err != nil {
				return err
			}
			continue
		}
		for ahead := i; i < j; i++ {
			if i == ahead && j-i > 1 && i < len(o.digests) { // some calls find their keys only when they decide
				ahead = min(i+touchAhead, j)
				near := o.digests[i:min(ahead, len(o.digests))]
				k.finder.touch(near)
				k.claims.Touch(near)
			}
			o.request = i
			if !decide(i) {
				break
			}
		}
		if o.mustRead() {
			for o.request = i + 1; o.request < j; o.request++ {
				plan(o.request)
			}
		}
		k.log.mu.Unlock()
		if o.mustRead() {
			k.finder.readAll(o)
		} else {
			o.forgetReads()
		}
	}
	return nil
}

// touchAhead is the number of keys whose table slots are loaded together. It is
// large enough to overlap their latencies. It is small enough that the slots
// are still in the first-level cache when they are used.
const touchAhead = 64

// noRoom is the room of a request that adds nothing to the log.
const noRoom = -1

// runEnd returns the end of the run that starts at i.
func runEnd(i, n int, room func(i int) int) (j, bytes int) {
	const (
		mostRequests = 1024
		mostBytes    = 1 << 20
	)
	bytes = room(i) // noRoom only if no request of the run needs room
	for j = i + 1; j < n && j-i < mostRequests; j++ {
		more := room(j)
		if more == noRoom {
			continue
		}
		if max(bytes, 0)+more > mostBytes {
			break
		}
		bytes = max(bytes, 0) + more
	}
	return j, bytes
}

// claimOne decides one claim. It returns false if it must read first.
func (k *keys) claimOne(o *op, d *semel.Digest, r *semel.ClaimRequest, a *semel.ClaimAnswer) bool {
	now := o.now
	if c := k.claims.Get(d); c != nil {
		k.claimAgain(o, d, r, a, c, now)
		return true
	}
	f, ok, pending, err := k.finder.find(o, d)
	switch {
	case err != nil:
		a.Err = err
		return true
	case pending:
		return false
	case ok && now < f.entry.expires:
		k.answerDone(o, r, a, f)
		return true
	case ok:
		k.finder.remove(f)
	}
	switch {
	case !r.Time.IsZero() && r.Window != semel.Forever && timeOf(now).Sub(r.Time) > r.Window:
		a.Decision = semel.Late
	case k.full():
		a.Err = k.errFull()
	default:
		k.grant(o, d, r, a, &claim{first: now}, now)
	}
	return true
}

// answerDone answers the claim of a done key.
func (k *keys) answerDone(o *op, r *semel.ClaimRequest, a *semel.ClaimAnswer, f *found) {
	e := &f.entry
	// The answer survives a crash only if the record does.
	k.waitForEntry(o, f)
	switch {
	case mismatch(half(r.Fingerprint), e.print):
		a.Decision = semel.Mismatch
		if e.rich != nil {
			a.Claim = semel.Claim{Token: e.rich.token, Attempt: int(e.rich.attempt)}
		}
	case r.Done && e.check != 0 && e.check == o.checkOfOwner(&r.Owner):
		a.Decision = semel.Fresh // a retry of this claim after its answer was lost; Attempt is not set
	default:
		a.Decision = semel.Duplicate
		a.Result = e.result()
	}
}

// mismatch reports whether two half fingerprints prove different payloads.
func mismatch(a, b uint64) bool { return a != 0 && b != 0 && a != b }

// claimAgain decides the claim of a key that is already claimed or unknown.
func (k *keys) claimAgain(o *op, d *semel.Digest, r *semel.ClaimRequest, a *semel.ClaimAnswer, c *claim, now int64) {
	state := c.state(now)
	switch {
	case !c.fingerprint.Matches(r.Fingerprint):
		a.Decision, a.Claim = semel.Mismatch, c.grant()
	case state == semel.Claimed && !r.Done && c.owned(r.Owner):
		if end := after(now, int64(r.Lease)); end > c.leaseEnd {
			c.leaseEnd = end
			if c.lasts() {
				c.detail = k.detail(r) // there is room for this one
				k.writeClaim(o, d, c)
			}
		}
		a.Decision, a.Claim = semel.Fresh, c.grant()
		k.waitForClaim(o, c)
	case state == semel.Unknown:
		a.Decision, a.Claim, a.Holder = semel.OutcomeUnknown, c.grant(), c.name
	case now < c.leaseEnd:
		a.Decision, a.Claim, a.Holder = semel.InFlight, c.grant(), c.name
	default:
		k.grant(o, d, r, a, c, now)
	}
}

// grant gives the key to the caller. Old is the claim whose lease ended, or a
// new claim.
func (k *keys) grant(o *op, d *semel.Digest, r *semel.ClaimRequest, a *semel.ClaimAnswer, old *claim, now int64) {
	a.Decision = semel.Fresh
	if r.Done {
		a.Claim.Attempt = int(old.attempt) + 1
		if old.attempt == 0 && !k.opts.KeepIDs && r.Origin == "" &&
			k.addCompact(o, d, -1, expiryTick(now, int64(r.Window)), o.checkOfOwner(&r.Owner), half(r.Fingerprint), now) {
			return
		}
		x := done{
			tick:  expiryTick(now, int64(r.Window)),
			check: o.checkOfOwner(&r.Owner),
			rich:  rich{first: old.first, attempt: old.attempt + 1, fingerprint: r.Fingerprint, key: k.kept(r.Key), origin: r.Origin},
		}
		k.claims.Remove(d) // also invalidates old
		k.addDone(o, d, &x, now)
		return
	}
	k.token++
	c := claim{
		token: k.token, nonce: r.Owner.Nonce, name: r.Owner.Name,
		first: old.first, leaseEnd: after(now, int64(r.Lease)), attempt: old.attempt + 1,
		hold: r.Hold, kept: k.opts.DurableClaims, fingerprint: r.Fingerprint, detail: k.detail(r),
	}
	if c.fingerprint.IsZero() {
		c.fingerprint = old.fingerprint
	}
	if c.hold || k.opts.DurableClaims {
		k.writeClaim(o, d, &c)
	}
	k.claims.put(d, &c)
	a.Claim = c.grant()
}

// detail returns the detail of a request's claim.
func (k *keys) detail(r *semel.ClaimRequest) *detail {
	if !k.opts.KeepIDs && r.Origin == "" {
		return nil
	}
	return &detail{k.kept(r.Key), r.Origin}
}

// writeClaim appends a claim to the log.
func (k *keys) writeClaim(o *op, d *semel.Digest, c *claim) {
	r := c.rich()
	o.buf = r.encode(o.buf[:0], d, kindClaim)
	c.pos = k.committer.append(o, o.buf)
	c.durable = true
}

// waitForClaim makes the call wait for a granted claim's record, if the claim is
// in the log.
func (k *keys) waitForClaim(o *op, c *claim) {
	if c.durable {
		o.waitFor(k.committer.pendingAt(c.pos))
	}
}

// waitForEntry makes the call wait for the record of a key that is done.
func (k *keys) waitForEntry(o *op, f *found) {
	if f.run == nil {
		o.waitFor(k.committer.pendingAt(f.pos))
	}
}

// done describes the entry of a key that is being completed.
type done struct {
	tick  int64  // expiry
	check uint32 // of the token or owner
	rich  rich   // all other fields; written only if any is set
}

// addDone appends a done entry and adds it to the index. The index must not
// contain the key.
func (k *keys) addDone(o *op, d *semel.Digest, x *done, now int64) {
	if x.isCompact() && k.addCompact(o, d, -1, x.tick, x.check, half(x.rich.fingerprint), now) {
		return
	}
	x.rich.until = tickTime(x.tick)
	if x.rich.token == 0 {
		x.rich.nonce = uint64(x.check)
	}
	o.buf = x.rich.encode(o.buf[:0], d, kindDone)
	k.indexEntry(o, d, -1, o.buf, x.tick, now)
}

// addCompact is addDone for an entry that has only an expiry, a check and half
// a fingerprint. at has the same meaning as in insert. It returns false if the
// expiry does not fit into a compact entry.
func (k *keys) addCompact(o *op, d *semel.Digest, at int, tick int64, check uint32, print uint64, now int64) bool {
	n, ok := encodeCompact(&o.scratch, d, tick, k.log.active.base, check, print)
	if ok {
		k.indexEntry(o, d, at, o.scratch[:n], tick, now)
	}
	return ok
}

func (k *keys) indexEntry(o *op, d *semel.Digest, at int, entry []byte, tick, now int64) {
	g := k.log.active
	pos := k.committer.append(o, entry)
	g.summary.add(tick, g.base)
	if tick != never {
		g.window = max(g.window, tick-now/tickNanos)
	}
	sh, tag := split(d)
	k.finder.index.insert(&k.finder.index.shards[sh], at, tag, pos)
}

// isCompact reports whether the expiry, the check and half the fingerprint are
// all there is to write.
func (x *done) isCompact() bool {
	r := &x.rich
	return r.attempt <= 1 && r.resultKind == semel.NoResult && r.key == (semel.Key{}) && r.origin == ""
}

// kept returns the readable key if the store keeps keys.
func (k *keys) kept(key semel.Key) semel.Key {
	if !k.opts.KeepIDs {
		return semel.Key{}
	}
	return key
}

// canRelieve reports whether keys can leave memory, and take more than their share. The
// caller holds the lock.
func (k *keys) canRelieve() bool {
	return k.crowded(1, 1) && k.log.segments.byNum(k.log.segments.first).sealed &&
		(k.unspilled == nil || k.log.clock.Nanos() >= k.retry)
}

// makeRoom lets keys leave memory. If they cannot, they may take more than their share for
// a while. A failed attempt may have read and written much, so the next waits.
func (k *keys) makeRoom(ctx context.Context) {
	err := k.relieve(ctx)
	k.log.mu.Lock()
	defer k.log.mu.Unlock()
	if ctx.Err() == nil {
		const pause = int64(time.Second)
		k.unspilled, k.retry = err, k.log.clock.Nanos()+pause
	}
}

// crowded reports whether the keys in memory take their share of Options.MaxIndexBytes, or
// a part of it, and done keys, which can leave it, an eighth. The runs take the rest, but
// never all. The caller holds the lock.
func (k *keys) crowded(part, of int64) bool {
	const slotBytes = 12 // about the memory of a key in the index
	done := k.finder.index.count * slotBytes
	share := max(k.opts.MaxIndexBytes-k.finder.runs.bytes(), k.opts.MaxIndexBytes/4)
	return (done+k.claims.bytes())*of >= share*part && done*8 >= share
}

// full reports whether a new key is refused: claims cannot leave memory and take all of
// Options.MaxIndexBytes, or done keys could not leave it and take far more than their share.
func (k *keys) full() bool {
	return k.claims.bytes() >= k.opts.MaxIndexBytes || k.unspilled != nil && k.crowded(2, 1)
}

func (k *keys) memoryBytes() int64 {
	return k.finder.index.bytes + k.finder.runs.bytes() + k.claims.bytes()
}

func (k *keys) errFull() error {
	cause := k.unspilled
	if cause == nil {
		cause = errors.New("only done keys can leave memory: wait until claims are completed or released, or increase the option")
	}
	return fmt.Errorf("logstore: %d keys and %d claims take %d bytes of memory, Options.MaxIndexBytes is %d, and they cannot leave memory: %w: %w",
		k.finder.index.count, k.claims.Len(), k.memoryBytes(), k.opts.MaxIndexBytes, semel.ErrStoreFull, cause)
}

// digestOf returns the digest of a valid key.
func (k *keys) digestOf(key semel.Key) semel.Digest { return k.hasher.Key(key) }
