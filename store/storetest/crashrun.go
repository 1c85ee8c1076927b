package storetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/faultfs"
)

// crashRun is one run of the workload. It records all requested and all
// acknowledged changes.
type crashRun struct {
	env   *crashEnv
	fs    *faultfs.FS
	clock *clock
	store semel.Store // nil while it is not open
	where string      // describes the run, for messages
	// tolerates reports whether a run may return an error.
	tolerates func(error) bool
	// between is called before a call, when no other is under way. It is nil, or copies
	// the files.
	between func()

	mu    sync.Mutex // guards all fields below
	fates map[semel.Key]*fate
	order []semel.Key
	errs  []error // errors of faults that callers got
	opens int
	calls int
	keys  int
	nonce uint64
}

// fate is the history of one key: its requested and its acknowledged changes.
type fate struct {
	asked   []semel.Result // completions that may have happened
	acked   *semel.Result  // the acknowledged completion
	call    int            // the number of the last acknowledged call
	expired bool           // the window may have ended
	held    bool           // a claim with Hold was acknowledged and has not ended
	doubt   bool           // the key was at some time claimed with Hold or left unknown
	removed bool           // a removal was acknowledged
	token   semel.Token    // the highest granted token
	lease   time.Time      // until then, a claim without Hold lasts; zero if none exists
}

const (
	crashWindow = 24 * time.Hour
	shortWindow = time.Hour
	crashLease  = time.Minute
	longLease   = 12 * time.Hour // longer than the workload
)

func newCrashRun(e *crashEnv, fs *faultfs.FS, tolerates func(error) bool) *crashRun {
	return &crashRun{env: e, fs: fs, clock: newClock(), tolerates: tolerates, where: "no fault", fates: make(map[semel.Key]*fate)}
}

// refusal reports whether a store may refuse a call with this error after a
// fault.
func refusal(err error) bool {
	for _, allowed := range []error{
		semel.ErrStoreFull, semel.ErrStoreFailed, semel.ErrStoreUnavailable, semel.ErrOutcomeUnknown,
	} {
		if errors.Is(err, allowed) {
			return true
		}
	}
	return false
}

// workload uses all operations of a store, on about 200 keys.
func (r *crashRun) workload() {
	r.open()
	r.cycle(3, semel.Result{})
	r.inOneStep(12, crashWindow)
	r.claims()
	r.holds()
	r.large()
	r.together()
	r.reopen()
	r.expiring()
	r.transactions()
	r.releases()
	r.claims()
	r.large()
	r.expired()
	r.holds()
	r.cycle(4, text("small"))
	r.reopen()
	r.large()
	r.inOneStep(5, semel.Forever)
	r.together()
	r.cycle(1, text("the last one"))
}

// failed records that a call failed, which is only allowed in a run with
// faults. Open and Close may return the file system's error without an error
// class.
func (r *crashRun) failed(what string, err error) {
	r.mu.Lock()
	r.errs = append(r.errs, err)
	r.mu.Unlock()
	plain := (what == "open" || what == "close") && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EIO))
	if !plain && !r.tolerates(err) {
		r.env.Errorf("%s: %s: unexpected error: %v", r.where, what, err)
	}
}

// open opens the store. With a fault, it may stay closed.
func (r *crashRun) open() {
	r.mu.Lock()
	r.opens++
	r.mu.Unlock()
	store, err := r.env.harness.Open(r.fs, storeDir, r.clock.Now)
	if err != nil {
		r.failed("open", err)
		return
	}
	r.store = store
	r.env.traits = store.Traits()
}

// close closes the store, if it is open. A fault may appear here.
func (r *crashRun) close() {
	if r.store == nil {
		return
	}
	if err := r.store.(io.Closer).Close(); err != nil {
		r.failed("close", err)
	}
	r.store = nil
}

func (r *crashRun) reopen() {
	r.close()
	r.clock.Advance(time.Millisecond)
	r.open()
}

// request returns a claim request for a new key.
func (r *crashRun) request() semel.ClaimRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys++
	r.nonce++
	key := semel.Key{Scope: "crash", ID: fmt.Sprintf("key-%04d", r.keys)}
	r.fates[key] = new(fate)
	r.order = append(r.order, key)
	// Keys with and without an origin may have different forms.
	return semel.ClaimRequest{Key: key, Owner: semel.Owner{Name: "crash", Nonce: r.nonce}, Lease: crashLease, Window: crashWindow, Origin: "o"[:r.keys%2]}
}

func (r *crashRun) requests(n int, change func(*semel.ClaimRequest)) []semel.ClaimRequest {
	reqs := make([]semel.ClaimRequest, n)
	for i := range reqs {
		reqs[i] = r.request()
		change(&reqs[i])
	}
	return reqs
}

// life returns the number of opens and the number of errors that callers got.
func (r *crashRun) life() (opens, told int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.opens, len(r.errs)
}

// note changes the history of a key.
func (r *crashRun) note(key semel.Key, change func(*fate)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r.fates[key])
}

// call returns the number of the next call that makes something durable.
func (r *crashRun) call() int {
	if r.between != nil {
		r.between()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	return r.calls
}

// unchanged reports whether an error guarantees that nothing was changed.
func unchanged(err error) bool {
	class := semel.Classify(err)
	return class == semel.ClassRetryable || class == semel.ClassPermanent
}

// ask records that a completion is requested. The returned function records the
// store's answer.
func (r *crashRun) ask(key semel.Key, result semel.Result, call int) (answered func(err error)) {
	r.note(key, func(f *fate) { f.asked = append(f.asked, result) })
	return func(err error) {
		r.note(key, func(f *fate) {
			switch {
			case err == nil:
				f.acked, f.call, f.held = &result, call, false
			case unchanged(err):
				f.asked = f.asked[:len(f.asked)-1]
			}
		})
	}
}

// claim makes one call and returns its answers, or nil if it failed.
func (r *crashRun) claim(reqs []semel.ClaimRequest) []semel.ClaimAnswer {
	return r.claimBy(reqs, true, func(answers []semel.ClaimAnswer) error {
		return r.store.Claim(context.Background(), reqs, answers)
	})
}

func (r *crashRun) claimBy(reqs []semel.ClaimRequest, lasts bool, claim func([]semel.ClaimAnswer) error) []semel.ClaimAnswer {
	if r.store == nil {
		return nil
	}
	call := r.call()
	answered := make([]func(error), len(reqs))
	for i, req := range reqs {
		if req.Done && lasts {
			answered[i] = r.ask(req.Key, semel.Result{}, call)
		}
		if req.Hold {
			r.note(req.Key, func(f *fate) { f.doubt = true })
		}
	}
	answers := make([]semel.ClaimAnswer, len(reqs))
	err := claim(answers)
	if err != nil {
		r.failed("claim", err)
	}
	for i, a := range answers {
		failed := errors.Join(err, a.Err)
		if answered[i] != nil {
			answered[i](failed)
		}
		if failed != nil {
			if a.Err != nil {
				r.failed("claim", a.Err)
			}
			continue
		}
		if a.Decision != semel.Fresh {
			r.env.Errorf("%s: the first claim of %s is answered %s", r.where, reqs[i].Key, a.Decision)
		}
		r.note(reqs[i].Key, func(f *fate) {
			f.call, f.token, f.held = call, a.Claim.Token, reqs[i].Hold
			if !reqs[i].Hold {
				f.lease = a.Claim.LeaseEnd
			}
		})
	}
	if err != nil {
		return nil
	}
	return answers
}

// complete completes the granted claims.
func (r *crashRun) complete(reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, result semel.Result, window time.Duration) {
	if r.store == nil || answers == nil {
		return
	}
	call := r.call()
	completes := make([]semel.CompleteRequest, 0, len(reqs))
	var answered []func(error)
	for i, req := range reqs {
		if answers[i].Decision == semel.Fresh {
			completes = append(completes, semel.CompleteRequest{Key: req.Key, Token: answers[i].Claim.Token, Result: result, Window: window})
			answered = append(answered, r.ask(req.Key, result, call))
		}
	}
	errs := make([]error, len(completes))
	err := r.store.Complete(context.Background(), completes, errs)
	if err != nil {
		r.failed("complete", err)
	}
	for i := range completes {
		if errs[i] != nil {
			r.failed("complete", errs[i])
		}
		answered[i](errors.Join(err, errs[i]))
	}
}

// cycle claims and completes keys in one batch.
func (r *crashRun) cycle(n int, result semel.Result) {
	reqs := r.requests(n, func(*semel.ClaimRequest) {})
	r.complete(reqs, r.claim(reqs), result, crashWindow)
}

// inOneStep records keys with Done.
func (r *crashRun) inOneStep(n int, window time.Duration) {
	r.claim(r.requests(n, func(req *semel.ClaimRequest) { req.Done, req.Window = true, window }))
}

// large completes keys with results that fill files.
func (r *crashRun) large() {
	for i := range 3 {
		r.cycle(1, semel.Result{Kind: semel.Value, Data: noise(r.env.harness.Large-i, uint32(i))})
	}
}

// together completes keys from several goroutines.
func (r *crashRun) together() {
	between := r.between
	r.between = nil
	defer func() { r.between = between }()
	inParallel(4, func(i int) {
		for j := range 3 {
			r.cycle(2, text(fmt.Sprint("together ", i, j)))
		}
	})
}

// holds leaves claims with Hold in each state: open, completed, unknown, and
// resolved.
func (r *crashRun) holds() {
	reqs := r.requests(6, func(req *semel.ClaimRequest) { req.Hold = true })
	answers := r.claim(reqs)
	if answers == nil {
		return
	}
	r.complete(reqs[1:2], answers[1:2], text("held and completed"), crashWindow)
	for i, unknown := range []bool{false, true, true, true} {
		r.release(reqs[2+i].Key, answers[2+i].Claim.Token, unknown)
	}
	r.complete(reqs[3:4], answers[3:4], text("late"), crashWindow)
	resolver, ok := r.store.(semel.Resolver)
	if !ok {
		return
	}
	answered := r.ask(reqs[4].Key, text("resolved"), r.call())
	answered(r.resolve(resolver, reqs[4].Key, semel.Done, text("resolved")))
	r.note(reqs[5].Key, func(f *fate) { f.held = false })
	_ = r.resolve(resolver, reqs[5].Key, semel.Absent, semel.Result{})
	r.remove(resolver)
}

// resolve resolves a key by hand. If the release before it failed, the key is
// not unknown yet, and the store must say so.
func (r *crashRun) resolve(resolver semel.Resolver, key semel.Key, as semel.State, result semel.Result) error {
	err := resolver.Resolve(context.Background(), semel.ResolveRequest{Key: key, As: as, Result: result, Window: crashWindow})
	if err != nil && !errors.Is(err, semel.ErrNotUnknown) {
		r.failed("resolve", err)
	}
	return err
}

// remove removes a key that is done.
func (r *crashRun) remove(resolver semel.Resolver) {
	reqs := r.requests(1, func(*semel.ClaimRequest) {})
	r.complete(reqs, r.claim(reqs), text("to be removed"), crashWindow)
	key := reqs[0].Key
	r.note(key, func(f *fate) { f.acked, f.lease = nil, time.Time{} }) // from here on it may be missing
	was, err := resolver.Remove(context.Background(), key)
	if err != nil {
		r.failed("remove", err)
		return
	}
	r.note(key, func(f *fate) { f.removed = true })
	if !was && len(r.errs) == 0 {
		r.env.Errorf("%s: remove finds no record of %s", r.where, key)
	}
}

func (r *crashRun) release(key semel.Key, token semel.Token, unknown bool) {
	r.note(key, func(f *fate) {
		f.held = f.held && unknown
		f.doubt = f.doubt || unknown
		f.lease = time.Time{}
	})
	errs := make([]error, 1)
	err := r.store.Release(context.Background(), []semel.ReleaseRequest{{Key: key, Token: token, Unknown: unknown}}, errs)
	if err = errors.Join(err, errs[0]); err != nil {
		r.failed("release", err)
		return
	}
	r.note(key, func(f *fate) { f.held = unknown })
}

// releases releases claims without Hold.
func (r *crashRun) releases() {
	reqs := r.requests(2, func(*semel.ClaimRequest) {})
	for i, a := range r.claim(reqs) {
		if a.Decision == semel.Fresh {
			r.release(reqs[i].Key, a.Claim.Token, false)
		}
	}
}

// claims leaves claims without Hold: as granted, with a longer lease, and with a
// shorter one.
func (r *crashRun) claims() {
	reqs := r.requests(3, func(req *semel.ClaimRequest) { req.Lease = longLease })
	reqs[1].Lease = crashLease
	if answers := r.claim(reqs); answers != nil {
		r.extend(reqs[1].Key, answers[1].Claim, 2*longLease)
		r.extend(reqs[2].Key, answers[2].Claim, crashLease)
	}
}

// extend sets the end of a lease. Of the old and the new end, only the earlier one is
// certain before the answer.
func (r *crashRun) extend(key semel.Key, c semel.Claim, lease time.Duration) {
	call := r.call()
	if end := r.clock.Now().Add(lease); end.Before(c.LeaseEnd) {
		r.note(key, func(f *fate) { f.lease = end })
	}
	answers := make([]semel.ExtendAnswer, 1)
	err := r.store.Extend(context.Background(), []semel.ExtendRequest{{Key: key, Token: c.Token, Lease: lease}}, answers)
	if err = errors.Join(err, answers[0].Err); err != nil {
		r.failed("extend", err)
		return
	}
	r.note(key, func(f *fate) { f.call, f.lease = call, answers[0].LeaseEnd })
}

// expiring completes keys that expire, and leaves one claimed.
func (r *crashRun) expiring() {
	reqs := r.requests(4, func(req *semel.ClaimRequest) { req.Window = shortWindow })
	answers := r.claim(reqs)
	if answers != nil {
		r.complete(reqs[:3], answers[:3], text("short"), shortWindow)
	}
	for _, req := range reqs {
		r.note(req.Key, func(f *fate) { f.expired = true })
	}
}

// expired lets time pass and purges.
func (r *crashRun) expired() {
	r.clock.Advance(2 * shortWindow)
	if p, ok := r.store.(semel.Purger); ok {
		if _, err := p.Purge(context.Background()); err != nil {
			r.failed("purge", err)
		}
	}
}

// transactions commits one transaction and rolls another back.
func (r *crashRun) transactions() {
	if r.env.harness.Transact == nil {
		return
	}
	for _, commit := range []bool{true, false, true} {
		reqs := r.requests(4, func(req *semel.ClaimRequest) { req.Done = true })
		r.claimBy(reqs, commit, func(answers []semel.ClaimAnswer) error {
			return r.env.harness.Transact(context.Background(), r.store, reqs, answers, commit)
		})
	}
}
