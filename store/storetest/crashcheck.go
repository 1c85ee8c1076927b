package storetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/faultfs"
)

// verify opens the store on the surviving data and compares it with the run's
// history. If strong is set, no acknowledged change may be lost. It checks that
// the store works, also after another reopen.
func (e *crashEnv) verify(r *crashRun, left *faultfs.FS, strong bool) {
	e.Helper()
	now := &clock{t: r.clock.Now()} // the run may be verified again, after another crash
	store, err := e.harness.Open(left, storeDir, now.Now)
	if err != nil {
		// Without syncs a power failure can look like damage. A store that
		// reports it has not lost data silently.
		if strong || !errors.Is(err, semel.ErrCorrupt) {
			e.Errorf("%s: open: %v", r.where, err)
		}
		return
	}
	e.wantAlikeReadable(r, store)
	leased := make(map[semel.Key]semel.Claim)
	for _, key := range r.order {
		a, err := e.claimAgain(store, key)
		if err != nil {
			e.Errorf("%s: claim %s: %v", r.where, key, err)
			continue
		}
		if wrong := r.fates[key].judge(a, e.traits, strong, now.Now()); wrong != "" {
			e.Errorf("%s: %s is answered %s with %s: %s", r.where, key, a.Decision, describe(a.Result), wrong)
		} else if f := r.fates[key]; f.acked != nil && !f.expired && a.Decision != semel.Duplicate {
			e.lost++
		}
		if a.Decision == semel.InFlight && !r.fates[key].doubt {
			leased[key] = a.Claim
		}
	}
	next := newCrashRun(e, left, nothingFails)
	next.where, next.store, next.clock = r.where+", going on", store, now
	next.keys = 9000
	next.cycle(2, text("goes on"))
	next.close()
	if store, err = e.harness.Open(left, storeDir, now.Now); err != nil {
		e.Errorf("%s: open: %v", next.where, err)
		return
	}
	for _, key := range next.order {
		if a, err := e.claimAgain(store, key); err != nil || a.Decision != semel.Duplicate {
			e.Errorf("%s: %s is answered %s, %v, want duplicate", next.where, key, a.Decision, err)
		}
	}
	e.verifyLeases(next.where, store, leased, now)
	if err := store.(io.Closer).Close(); err != nil {
		e.Errorf("%s: close: %v", next.where, err)
	}
}

// verifyLeases checks claims of a process that has ended. The old token completes one
// of them, and the leases of the others end.
func (e *crashEnv) verifyLeases(where string, store semel.Store, leased map[semel.Key]semel.Claim, now *clock) {
	e.Helper()
	completed := false
	for key, c := range leased {
		a, err := e.claimAgain(store, key)
		if err != nil || a.Decision != semel.InFlight || !sameClaim(a.Claim, c) {
			e.Errorf("%s: %s was in flight under %+v and is answered %s with %+v, %v", where, key, c, a.Decision, a.Claim, err)
		}
		if completed {
			continue
		}
		errs := make([]error, 1)
		err = store.Complete(context.Background(), []semel.CompleteRequest{{Key: key, Token: c.Token, Window: crashWindow}}, errs)
		if err = errors.Join(err, errs[0]); err != nil {
			e.Errorf("%s: %s is in flight under token %d, which does not complete it: %v", where, key, c.Token, err)
		}
		delete(leased, key)
		completed = true
	}
	now.Advance(2*longLease + slack)
	for key, c := range leased {
		a, err := e.claimAgain(store, key)
		if err != nil || a.Decision != semel.Fresh || a.Claim.Token <= c.Token {
			e.Errorf("%s: after the lease of %+v, %s is answered %s with %+v, %v", where, c, key, a.Decision, a.Claim, err)
		}
	}
}

// wantAlikeReadable checks that a store which lists some keys in readable form
// does so for all of them, however they became done.
func (e *crashEnv) wantAlikeReadable(r *crashRun, store semel.Store) {
	e.Helper()
	lister, ok := store.(semel.Inspector)
	if !ok {
		return
	}
	readable, unreadable := 0, 0
	for rec, err := range lister.List(context.Background(), semel.ListOptions{State: semel.Done}) {
		switch {
		case err != nil:
			e.Errorf("%s: list: %v", r.where, err)
			return
		case rec.Key == (semel.Key{}):
			unreadable++
		case r.fates[rec.Key] == nil:
			e.Errorf("%s: list shows %s, which no caller completed", r.where, rec.Key)
		default:
			readable++
		}
	}
	if readable > 0 && unreadable > 0 {
		e.Errorf("%s: list shows %d done keys readable and %d not", r.where, readable, unreadable)
	}
}

// claimAgain claims a key as a new owner.
func (e *crashEnv) claimAgain(store semel.Store, key semel.Key) (semel.ClaimAnswer, error) {
	answers := make([]semel.ClaimAnswer, 1)
	req := semel.ClaimRequest{
		Key: key, Owner: semel.Owner{Name: "afterwards", Nonce: e.random.Uint64()}, Lease: crashLease, Window: crashWindow,
	}
	err := store.Claim(context.Background(), []semel.ClaimRequest{req}, answers)
	return answers[0], errors.Join(err, answers[0].Err)
}

// judge returns the fault of an answer, or "" if the answer is correct.
func (f *fate) judge(a semel.ClaimAnswer, traits semel.Traits, strong bool, now time.Time) string {
	switch a.Decision {
	case semel.Duplicate:
		if f.removed && strong {
			return "it was removed"
		}
		for _, asked := range f.asked {
			if !traits.Results || equalResults(asked, a.Result) {
				return ""
			}
		}
		if len(f.asked) == 0 {
			return "no caller completed it"
		}
		return fmt.Sprintf("it was completed with %s", describe(f.asked[len(f.asked)-1]))
	case semel.Fresh:
		switch {
		case strong && f.acked != nil && !f.expired:
			return "it was completed and acknowledged"
		case strong && f.held:
			return "it was claimed with hold and acknowledged"
		case strong && traits.DurableClaims && now.Before(f.lease):
			return fmt.Sprintf("the lease of token %d lasts until %v", f.token, f.lease)
		case strong && a.Claim.Token <= f.token:
			return fmt.Sprintf("token %d was granted before, and %d is now", f.token, a.Claim.Token)
		}
		return ""
	case semel.OutcomeUnknown:
		if f.doubt && (f.acked == nil || !strong) {
			return ""
		}
		return "it is not unknown"
	case semel.InFlight:
		switch {
		case strong && f.acked != nil:
			return "it was completed and acknowledged"
		case f.token != 0 && f.token != a.Claim.Token:
			return fmt.Sprintf("it is in flight under token %d, and was granted under %d", a.Claim.Token, f.token)
		case !f.lease.IsZero() && traits.DurableClaims && strong && a.Claim.LeaseEnd.Before(f.lease):
			return fmt.Sprintf("its lease ends at %v, and was granted until %v", a.Claim.LeaseEnd, f.lease)
		}
		return ""
	}
	return "that is no answer here"
}

func syncFails(e *crashEnv) {
	for n := range e.points(e.kinds[faultfs.Sync]) {
		var mu sync.Mutex // guards the variables below, because the store may work in the background
		failed, count, again, life := faultfs.Op{}, 0, 0, 0
		r := e.failing(fmt.Sprintf("sync %d of %d fails", n, e.kinds[faultfs.Sync]), func(r *crashRun, op faultfs.Op) error {
			if op.Kind != faultfs.Sync {
				return nil
			}
			opens, _ := r.life()
			mu.Lock()
			defer mu.Unlock()
			count++
			switch {
			case count == n:
				failed, life = op, opens
				return syscall.EIO
			case op.Name == failed.Name && opens == life:
				again++
			}
			return nil
		})
		mu.Lock()
		broken, repeated, during := failed, again, life
		mu.Unlock()
		if broken.N == 0 {
			r.close() // took another path with fewer syncs
			continue
		}
		r.where += " (" + broken.String() + ")"
		opens, told := r.life()
		switch {
		case told > 0:
		case opens == during:
			e.wantFailed(r) // it failed in the background
		default:
			e.Errorf("%s: no call and no close returned the error", r.where)
		}
		if repeated > 0 {
			e.Errorf("%s: the file was synced %d times after that", r.where, repeated)
		}
		e.heal(r)
	}
}

// wantFailed checks that a store stops if it was open when a sync failed. A sync in the
// background may fail a moment before the store notices. Until then calls may succeed,
// and the changes that they acknowledge must last.
func (e *crashEnv) wantFailed(r *crashRun) {
	e.Helper()
	var err error
	for deadline := time.Now().Add(10 * time.Second); err == nil && time.Now().Before(deadline); {
		reqs, answers := r.requests(1, func(req *semel.ClaimRequest) { req.Done = true }), make([]semel.ClaimAnswer, 1)
		answered := r.ask(reqs[0].Key, semel.Result{}, r.call())
		err = errors.Join(r.store.Claim(context.Background(), reqs, answers), answers[0].Err)
		answered(err)
	}
	if !errors.Is(err, semel.ErrStoreFailed) {
		e.Errorf("%s: a claim with done afterwards: %v, want ErrStoreFailed", r.where, err)
	}
}

// bitFlips flips bits of a closed store and of a killed one.
func bitFlips(e *crashEnv) {
	closed := e.run(faultfs.New(), nothingFails)
	closed.where = "closed"
	killed := newCrashRun(e, faultfs.New(), nothingFails)
	killed.where = "killed"
	killed.workload()
	left := killed.fs.Survive(faultfs.Everything, nil)
	killed.close()
	e.flipBits(closed, closed.fs.Survive(faultfs.Everything, nil), math.MaxInt)
	e.flipBits(killed, left, killed.lastCall())
}

// lastCall returns the last call that was acknowledged.
func (r *crashRun) lastCall() int {
	last := 0
	for _, f := range r.fates {
		last = max(last, f.call)
	}
	return last
}

// endsVanish takes a properly closed store and removes files, cuts off their
// ends, or overwrites the ends with zeros. The store must detect it, or still
// have every acknowledged change.
func endsVanish(e *crashEnv) {
	r := e.run(faultfs.New(), nothingFails)
	left := r.fs.Survive(faultfs.Everything, nil)
	noticed := 0
	try := func(where string, damage func(fs *faultfs.FS) error) {
		if e.Failed() {
			return
		}
		damaged := left.Survive(faultfs.Everything, nil)
		if err := damage(damaged); err != nil {
			e.Fatalf("%s: %v", where, err)
		}
		if e.judgeDamage(r, damaged, "closed, "+where, math.MaxInt) {
			noticed++
		}
	}
	for _, name := range left.Files() {
		content, err := left.ReadFile(name)
		if err != nil {
			e.Fatalf("read %s: %v", name, err)
		}
		try(name+" removed", func(fs *faultfs.FS) error { return fs.Remove(name) })
		for _, end := range e.ends(len(content)) {
			where := fmt.Sprintf("%s ends at %d of %d bytes", name, end, len(content))
			try(where, func(fs *faultfs.FS) error { return setEnd(fs, name, end, end) })
			try(where+", then zeros", func(fs *faultfs.FS) error { return setEnd(fs, name, end, len(content)) })
			try(where+", then more zeros", func(fs *faultfs.FS) error { return setEnd(fs, name, end, len(content)+1<<16) })
		}
	}
	if noticed == 0 {
		e.Errorf("no lost end of a file was answered with ErrCorrupt")
	}
}

// ends chooses offsets at which to cut a file of n bytes: near both ends, and
// anywhere.
func (e *crashEnv) ends(n int) []int {
	if n == 0 {
		return nil
	}
	ends := []int{0, n - 1, max(n-32, 0), n / 2}
	for range times(30) {
		ends = append(ends, e.random.IntN(n))
	}
	return ends
}

// setEnd keeps a file up to an offset, and sets its size.
func setEnd(fs *faultfs.FS, name string, end, size int) error {
	f, err := fs.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(int64(end)), f.Truncate(int64(size)), f.Close())
}

// flipsPerFile limits the bit flips per file. Each run chooses other bits.
const flipsPerFile = 200

func (e *crashEnv) flipBits(r *crashRun, left *faultfs.FS, spared int) {
	e.Helper()
	noticed, flipped := 0, 0
	for _, name := range left.Files() {
		content, err := left.ReadFile(name)
		if err != nil {
			e.Fatalf("read %s: %v", name, err)
		}
		for _, offset := range e.offsets(content) {
			if e.Failed() {
				return
			}
			bit := e.random.UintN(8)
			damaged := left.Survive(faultfs.Everything, nil)
			if err := damaged.FlipBit(name, offset, bit); err != nil {
				e.Fatalf("flip: %v", err)
			}
			where := fmt.Sprintf("%s, bit %d of byte %d of %s (%d bytes) flipped", r.where, bit, offset, name, len(content))
			flipped++
			if e.judgeDamage(r, damaged, where, spared) {
				noticed++
			}
		}
	}
	if noticed == 0 {
		e.Errorf("%s: none of %d flipped bits was answered with ErrCorrupt", r.where, flipped)
	}
}

// offsets chooses bytes in all regions of a file, and mostly bytes that are not
// zero.
func (e *crashEnv) offsets(content []byte) []int64 {
	var used []int64
	for i, b := range content {
		if b != 0 || i < 64 {
			used = append(used, int64(i))
		}
	}
	if len(used) > flipsPerFile {
		step := float64(len(used)) / flipsPerFile
		start := e.random.Float64() * step
		var some []int64
		for i := range flipsPerFile {
			some = append(some, used[int(start+float64(i)*step)])
		}
		used = some
	}
	if e.short {
		var some []int64
		for i := e.random.IntN(8); i < len(used); i += 8 {
			some = append(some, used[i])
		}
		used = some
	}
	for range min(20, len(content)) {
		used = append(used, e.random.Int64N(int64(len(content))))
	}
	return used
}

// judgeDamage opens a damaged store and reports whether it detected the damage.
// Calls from number spared on may be lost, because their writes can look cut
// short. For a killed store that is the last call. For a closed store it is
// none.
func (e *crashEnv) judgeDamage(r *crashRun, damaged *faultfs.FS, where string, spared int) (noticed bool) {
	e.Helper()
	store, err := e.harness.Open(damaged, storeDir, r.clock.Now)
	if err != nil {
		if !errors.Is(err, semel.ErrCorrupt) {
			e.Errorf("%s: open: %v, want ErrCorrupt", where, err)
		}
		return true
	}
	for _, key := range r.order {
		a, err := e.claimAgain(store, key)
		if err != nil {
			if noticed = true; !errors.Is(err, semel.ErrCorrupt) {
				e.Errorf("%s: claim %s: %v, want ErrCorrupt", where, key, err)
			}
			continue
		}
		f := r.fates[key]
		if wrong := f.judge(a, e.traits, f.call < spared, r.clock.Now()); wrong != "" && !(noticed && a.Decision != semel.Duplicate) {
			e.Errorf("%s: %s is answered %s with %s: %s", where, key, a.Decision, describe(a.Result), wrong)
		}
	}
	if err := store.(io.Closer).Close(); err != nil && !errors.Is(err, semel.ErrCorrupt) && !errors.Is(err, semel.ErrStoreFailed) {
		e.Errorf("%s: close: %v", where, err)
	}
	return noticed
}
