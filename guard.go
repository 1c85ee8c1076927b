package semel

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Defaults of [GuardOptions].
const (
	DefaultLease  = 30 * time.Second
	DefaultWindow = 24 * time.Hour
)

// ExpiryPolicy says what happens when a lease ends without completion or release.
// Its holder crashed, or could not reach the store.
type ExpiryPolicy uint8

const (
	// ExpiryRetry lets the next delivery claim the key again. The effect may repeat, with
	// a higher token. Attempt is above 1 as long as the store remembers the claim
	// that ended. A store inside the process forgets it with the process; a shared
	// store forgets it an hour later.
	ExpiryRetry ExpiryPolicy = iota
	// ExpiryHold makes the key Unknown until it is resolved; see [Resolver]. The effect
	// does not repeat by itself.
	ExpiryHold
)

// LatePolicy says what happens to a message that is older than its window and has
// no record left. It is not known whether such a message had its effect.
type LatePolicy uint8

const (
	// LateReject returns ErrLate.
	LateReject LatePolicy = iota
	// LateRun runs the effect. It may be the second time.
	LateRun
	// LatePark hands the message to GuardOptions.Park. If that succeeds, the
	// outcome is Late without an error, and the message may be acknowledged.
	LatePark
)

// GuardOptions are the options of [NewGuard]. The zero value is valid.
type GuardOptions struct {
	// Name shows operators which process holds a key. Defaults to host and process
	// id. A random suffix is always added.
	Name string
	// Lease is how long a claim lasts without a heartbeat. Defaults to 30 s.
	// Must be at least 1 ms.
	Lease time.Duration
	// Heartbeat is how often the lease is extended while an effect runs.
	// Defaults to a third of the lease. Must be shorter than the lease.
	Heartbeat time.Duration
	// Window is how long a key is remembered after completion. The store may
	// remember it longer by up to its Traits.Tick, which is 2.6 s for a memstore
	// with default options. Defaults to 24 h. Must be above 0; it may be Forever.
	Window time.Duration
	// OnLeaseExpired says what happens to the key of a lost holder. Defaults to
	// ExpiryRetry.
	OnLeaseExpired ExpiryPolicy
	// Wait is how long a delivery waits for a key that another holder has. Then it
	// gets an InFlightError. DoBatch never waits: it would hold up the rest of the
	// batch. Defaults to 0: it does not wait.
	Wait time.Duration
	// OnLate says what happens to a message that is older than the window. Defaults
	// to LateReject.
	OnLate LatePolicy
	// Park stores a late message durably with its reason. OnLate: LatePark requires
	// it. Do calls it from its own goroutine and returns its error. Defaults to
	// none.
	Park func(ctx context.Context, call *Call, reason error) error
	// MaxResult is the maximum size in bytes of the results that effects return, if
	// you know it. NewGuard then returns ErrResultTooLarge for a store that keeps
	// less, before any effect runs. If it is not set and a result is too large, the
	// effect is complete and its result is not kept. Defaults to 0: not known. Must
	// not be negative.
	MaxResult int64
	// Observer receives decisions and incidents. If it is a [Tracer], it also
	// follows the steps. Defaults to none.
	Observer Observer
}

// Guard is a policy around a store: it claims a key, runs the effect and
// completes the key. It is safe for concurrent use and has nothing to close.
type Guard struct {
	store  Store
	opts   GuardOptions
	tracer Tracer // the observer, if it is one; else nil
	nonce  atomic.Uint64
	// singles holds *single.
	singles sync.Pool
	unused  unused
}

// NewGuard returns a guard around a store. Nil options are the zero options. If
// options are out of bounds, one error names all of them; it wraps
// ErrInvalidRequest.
func NewGuard(store Store, opts *GuardOptions) (*Guard, error) {
	if store == nil {
		return nil, fmt.Errorf("semel: NewGuard: the store is nil: %w", ErrInvalidRequest)
	}
	var o GuardOptions
	if opts != nil {
		o = *opts
	}
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = o.Lease / 3
	}
	if o.Window == 0 {
		o.Window = DefaultWindow
	}
	if o.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		o.Name = host + ":" + strconv.Itoa(os.Getpid())
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	if t := store.Traits(); o.MaxResult > 0 && (!t.Results || t.MaxResult > 0 && t.MaxResult < o.MaxResult) {
		return nil, fmt.Errorf("semel: GuardOptions.MaxResult: effects return up to %d bytes, the store keeps %d: %w", o.MaxResult, t.MaxResult, ErrResultTooLarge)
	}
	// Two guards with the same name must never recognise each other's claims, in
	// one process or after a restart.
	var unique [8]byte
	rand.Read(unique[:]) // never fails: crypto/rand ends the process instead
	o.Name += "/" + hex.EncodeToString(unique[:])
	g := &Guard{store: Join(store, 0), opts: o}
	g.tracer, _ = o.Observer.(Tracer)
	g.unused.guard = g
	g.singles.New = func() any { return &single{Batch: Batch{guard: g}} }
	return g, nil
}

func (o *GuardOptions) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("semel: GuardOptions."+format+": %w", append(args, ErrInvalidRequest)...))
	}
	if o.Lease < time.Millisecond {
		bad("Lease: %v is shorter than 1ms", o.Lease)
	}
	if o.Heartbeat <= 0 || o.Heartbeat >= o.Lease {
		bad("Heartbeat: %v is not between 0 and the lease of %v", o.Heartbeat, o.Lease)
	}
	if o.Window < 0 {
		bad("Window: %v is negative", o.Window)
	}
	if o.OnLeaseExpired > ExpiryHold {
		bad("OnLeaseExpired: %d is neither ExpiryRetry nor ExpiryHold", o.OnLeaseExpired)
	}
	if o.Wait < 0 {
		bad("Wait: %v is negative", o.Wait)
	}
	if o.OnLate > LatePark {
		bad("OnLate: %d is none of LateReject, LateRun and LatePark", o.OnLate)
	}
	if (o.OnLate == LatePark) != (o.Park != nil) {
		bad("Park: it is set: %t; OnLate is LatePark: %t", o.Park != nil, o.OnLate == LatePark)
	}
	if o.MaxResult < 0 {
		bad("MaxResult: %d is negative", o.MaxResult)
	}
	return errors.Join(errs...)
}

// Store returns the guard's store, with its concurrent single calls joined.
func (g *Guard) Store() Store { return g.store }

// MeasureWindow asks the store for the age of its oldest record. It reports the
// age to the observer, together with the window that the guard promises. It
// blocks for one store call. It does nothing if the store is not an Inspector.
func (g *Guard) MeasureWindow(ctx context.Context) error {
	counter, ok := As[Inspector](g.store)
	if !ok {
		return nil
	}
	counts, err := counter.Count(ctx)
	if err != nil {
		return fmt.Errorf("semel: measure the window: %w", err)
	}
	g.Observe(Event{Kind: EventWindowMeasured, Window: g.opts.Window, Elapsed: counts.Oldest})
	return nil
}

// Call is one delivery for a guard. Only Key is required.
type Call struct {
	Key Key
	// Fingerprint is the digest of the payload. Another payload under the same key
	// gets ErrMismatch.
	Fingerprint Fingerprint
	// Window replaces the guard's window if it is above 0.
	Window time.Duration
	// Time is the message's own time. If it is set, a message is late when it is
	// older than the window and has no record left.
	Time time.Time
	// Origin says for people where this delivery comes from, for instance
	// "orders 2/17". The record of the key shows it, if the store has
	// Traits.Origins. A text above MaxOriginBytes loses its beginning.
	Origin string
}

// Outcome is the outcome of a call without an error.
type Outcome struct {
	// Decision is Fresh if the effect ran now, Duplicate if it ran before.
	Decision Decision
	// Attempt is the attempt that ran now. It is 0 for a duplicate.
	Attempt int
	// Result is the effect's result, either new or from the store.
	Result Result
}

// Func is an effect. It must return soon after its context ends. The context ends
// with the cause [ErrLeaseLost] when another holder may have taken the key over.
// A nil result means that there is no result. An empty one is a result.
//
// After an error, the key is released and the next delivery runs the effect
// again. An error made by [Permanent] is recorded as the result instead. An error
// that wraps [ErrOutcomeUnknown] or a context error leaves open whether the
// effect happened, and so does a panic. Under the policy ExpiryHold, the key becomes
// Unknown. Under ExpiryRetry, the next attempt has a number above 1.
type Func func(ctx context.Context, claim Claim) (result []byte, err error)

// Request returns the claim request that Do would send to a store. Its owner is
// unique to this request. Use it if you claim keys yourself, for instance in your
// own transaction; see Settle.
func (g *Guard) Request(c *Call) ClaimRequest { return g.request(c, g.newOwner()) }

func (g *Guard) newOwner() Owner { return Owner{Name: g.opts.Name, Nonce: g.nonce.Add(1)} }

func (g *Guard) request(c *Call, owner Owner) ClaimRequest {
	req := ClaimRequest{
		Key:         c.Key,
		Owner:       owner,
		Lease:       g.opts.Lease,
		Window:      g.window(c),
		Fingerprint: c.Fingerprint,
		Hold:        g.opts.OnLeaseExpired == ExpiryHold,
		Time:        c.Time,
		Origin:      c.Origin[max(0, len(c.Origin)-MaxOriginBytes):],
	}
	if g.opts.OnLate == LateRun {
		req.Time = time.Time{}
	}
	return req
}

func (g *Guard) window(c *Call) time.Duration {
	if c.Window > 0 {
		return c.Window
	}
	return g.opts.Window
}

// Observe reports an event to the guard's observer, if it has one.
func (g *Guard) Observe(e Event) {
	if g.opts.Observer != nil {
		g.opts.Observer.Observe(e)
	}
}

// BeginStep calls the guard's observer if it is a [Tracer]. Otherwise it returns ctx
// and a function that does nothing. Use it if you claim keys yourself.
func (g *Guard) BeginStep(ctx context.Context, step Step, keys int) (context.Context, func(Decision, error)) {
	if g.tracer == nil {
		return ctx, ignore
	}
	return g.tracer.BeginStep(ctx, step, keys)
}

func ignore(Decision, error) {}

// follow is BeginStep for tasks. Call end when they have their outcome, with an error
// that none of them has, or nil.
func (g *Guard) follow(ctx context.Context, step Step, tasks []*Task) (_ context.Context, end func(error)) {
	if g.tracer == nil {
		return ctx, nothing
	}
	ctx, done := g.tracer.BeginStep(ctx, step, len(tasks))
	return ctx, func(err error) {
		decision := tasks[0].Decision
		for _, t := range tasks {
			if t.Decision != decision {
				decision = Undecided
			}
			if err == nil {
				err = t.Err
			}
		}
		done(decision, err)
	}
}

func nothing(error) {}

// observeDecisions reports the answers of one call. Keys that were claimed for the
// first time are one event with their Count.
func (g *Guard) observeDecisions(reqs []ClaimRequest, answers []ClaimAnswer, elapsed time.Duration) {
	if g.opts.Observer == nil {
		return
	}
	first, firsts := 0, 0
	for i := range answers {
		if a := &answers[i]; a.Decision != Fresh || a.Claim.Attempt > 1 || a.Err != nil {
			g.observeDecision(reqs[i].Key, a, elapsed)
			continue
		}
		first = i
		firsts++
	}
	if firsts > 0 {
		g.Observe(decided(reqs[first].Key, &answers[first], elapsed).of(firsts))
	}
}

// observeDecision reports an answer. elapsed is the latency of the claim.
func (g *Guard) observeDecision(key Key, a *ClaimAnswer, elapsed time.Duration) {
	if g.opts.Observer == nil {
		return
	}
	e := decided(key, a, elapsed)
	g.Observe(e)
	if a.Decision == Fresh && a.Claim.Attempt > 1 {
		e.Kind = EventTookOver
		g.Observe(e)
	}
}

// observeCompletions reports the requests that were completed, as one event with
// their Count. elapsed is how long their effects took.
func (g *Guard) observeCompletions(reqs []CompleteRequest, errs []error, elapsed time.Duration) {
	last, n := 0, 0
	for i := range reqs {
		if errs[i] == nil {
			last = i
			n++
		}
	}
	if n > 0 {
		g.Observe(Event{Kind: EventCompleted, Key: reqs[last].Key, Elapsed: elapsed}.of(n))
	}
}
