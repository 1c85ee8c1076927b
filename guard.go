package semel

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

// Defaults of [GuardOptions].
const (
	DefaultLease  = 30 * time.Second
	DefaultWindow = 24 * time.Hour
)

// ExpiryPolicy says what follows when a lease ends without completion or
// release: its holder crashed, or lost the store.
type ExpiryPolicy uint8

const (
	// Retry lets the next delivery claim the key again: the effect may repeat,
	// under a higher token. Attempt is above 1 as long as the store knows the claim
	// that ended: a store in the process forgets it with the process, one that is
	// shared an hour later.
	Retry ExpiryPolicy = iota
	// Hold makes the key Unknown until somebody resolves it: the effect does
	// not repeat by itself.
	Hold
)

// LatePolicy says what follows a message that is older than its window, of
// which no record is left: whether it had its effect is not known.
type LatePolicy uint8

const (
	// LateReject returns ErrLate.
	LateReject LatePolicy = iota
	// LateRun runs the effect: it may be the second time.
	LateRun
	// LatePark hands the message to GuardOptions.Park. When that succeeded, the
	// outcome is Late without error: the message may be acknowledged.
	LatePark
)

// GuardOptions are the options of [NewGuard]. The zero value is valid.
type GuardOptions struct {
	// Name tells people which process holds a key. Defaults to host and
	// process id. A random suffix is always added.
	Name string
	// Lease is how long a claim lasts without a heartbeat. Defaults to 30 s.
	// Must be at least 1 ms.
	Lease time.Duration
	// Heartbeat is how often the lease is extended while an effect runs.
	// Defaults to a third of the lease. Must be shorter than the lease.
	Heartbeat time.Duration
	// Window is how long a key is remembered from completion. The store may
	// remember it longer by up to its Traits.Tick, which is 2.6 s for a
	// memstore with default options. Defaults to 24 h. Must be above 0; it may
	// be Forever.
	Window time.Duration
	// OnLeaseExpired says what follows a lost holder. Defaults to Retry.
	OnLeaseExpired ExpiryPolicy
	// Wait is how long a delivery waits for a key that another holds before
	// it gets an InFlightError. Defaults to 0: it does not wait.
	Wait time.Duration
	// OnLate says what follows a message that is older than the window can
	// answer for. Defaults to LateReject.
	OnLate LatePolicy
	// Park puts a late message aside, durably, with its reason. It is called
	// under OnLate: LatePark, which needs it, from the goroutine of Do. Its
	// error is the error of Do. Defaults to none.
	Park func(ctx context.Context, call *Call, reason error) error
	// MaxResult is the longest result in bytes that effects return, where that
	// is known. NewGuard refuses a store that keeps less with
	// ErrResultTooLarge, before any effect ran. Without it, an effect whose
	// result turns out too long is complete, and its result is not kept.
	// Defaults to 0: not known. Must not be negative.
	MaxResult int64
	// MaxJoin is the most single requests that are joined into one call of the
	// store. Defaults to 1024. Must not be negative.
	MaxJoin int
	// Observer is told of decisions and incidents. Defaults to none.
	Observer Observer
}

// Guard is policy around a store: it claims a key, runs the effect and
// completes the key. It is safe for concurrent use and has nothing to close.
type Guard struct {
	store Store
	opts  GuardOptions
	many  ManyObserver // the observer, if it is one
	nonce atomic.Uint64
}

// NewGuard returns a guard of a store. Nil options are the zero options. All
// options that are out of bounds are named in one error, which wraps
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
	// Two guards of one name, in one process or after a restart, must never
	// recognise each other's claims.
	var unique [8]byte
	rand.Read(unique[:]) // never fails: crypto/rand ends the process instead
	o.Name += "/" + hex.EncodeToString(unique[:])
	many, _ := o.Observer.(ManyObserver)
	return &Guard{store: Join(store, o.MaxJoin), opts: o, many: many}, nil
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
	if o.OnLeaseExpired > Hold {
		bad("OnLeaseExpired: %d is neither Retry nor Hold", o.OnLeaseExpired)
	}
	if o.Wait < 0 {
		bad("Wait: %v is negative", o.Wait)
	}
	if o.MaxJoin < 0 {
		bad("MaxJoin: %d is negative", o.MaxJoin)
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

// MeasureWindow asks the store for the age of its oldest record and reports it
// to the observer beside the window that the guard promises. It blocks for one
// call and does nothing if the store does not count.
func (g *Guard) MeasureWindow(ctx context.Context) error {
	counter, ok := Ability[Counter](g.store)
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

// Call is one delivery as a guard sees it. Only Key is required.
type Call struct {
	Key Key
	// Fingerprint of the payload: another payload under the same key gets
	// ErrMismatch.
	Fingerprint Fingerprint
	// Window replaces the guard's window if it is above 0.
	Window time.Duration
	// Time is the message's own time. With it, a message that is older than
	// the window, and of which no record is left, is late.
	Time time.Time
}

// Outcome is what became of a call without error.
type Outcome struct {
	// Decision is Fresh if the effect ran now, Duplicate if it had run before.
	Decision Decision
	// Attempt is the attempt that ran now; 0 for a duplicate.
	Attempt int
	// Result is the effect's, of now or as stored.
	Result Result
}

// Func is an effect. It must return before its context's end is long past: the
// context ends with the cause [ErrLeaseLost] when another may have taken the
// key over. A nil result means that there is none; an empty one is a result.
//
// An error releases the key, so that the next delivery runs the effect again;
// an error made by [Permanent] is recorded as the result instead. An error
// that wraps [ErrOutcomeUnknown] or an error of a context leaves open whether
// the effect happened: under the policy Hold it makes the key Unknown, and so
// does a panic.
type Func func(ctx context.Context, claim Claim) (result []byte, err error)

// Request returns the claim that Do would ask a store for, under an owner that
// no other claim has.
func (g *Guard) Request(c *Call) ClaimRequest {
	req := ClaimRequest{
		Key:         c.Key,
		Owner:       Owner{Name: g.opts.Name, Nonce: g.nonce.Add(1)},
		Lease:       g.opts.Lease,
		Window:      g.window(c),
		Fingerprint: c.Fingerprint,
		Hold:        g.opts.OnLeaseExpired == Hold,
		Time:        c.Time,
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

// Observe tells the guard's observer, if it has one.
func (g *Guard) Observe(e Event) {
	if g.opts.Observer != nil {
		g.opts.Observer.Observe(e)
	}
}

// ObserveDecisions is ObserveDecision for all answers of a call. It tells a
// [ManyObserver] once of the keys that were claimed for the first time.
func (g *Guard) ObserveDecisions(reqs []ClaimRequest, answers []ClaimAnswer, elapsed time.Duration) {
	if g.opts.Observer == nil {
		return
	}
	first, firsts := 0, 0
	for i := range answers {
		a := &answers[i]
		if g.many != nil && a.Decision == Fresh && a.Claim.Attempt <= 1 && a.Err == nil {
			first = i
			firsts++
			continue
		}
		g.ObserveDecision(reqs[i].Key, a, elapsed)
	}
	if firsts > 0 {
		g.many.ObserveMany(Event{Kind: EventDecided, Decision: Fresh, Reason: reason(&answers[first]), Attempt: answers[first].Claim.Attempt, Elapsed: elapsed}, firsts)
	}
}

// ObserveCompletions tells the guard's observer of the requests to which there was
// no error, elapsed after their claims. It tells a [ManyObserver] once.
func (g *Guard) ObserveCompletions(reqs []CompleteRequest, errs []error, elapsed time.Duration) {
	if g.opts.Observer == nil {
		return
	}
	n := 0
	for i := range reqs {
		switch {
		case errs[i] != nil:
		case g.many != nil:
			n++
		default:
			g.Observe(Event{Kind: EventCompleted, Key: reqs[i].Key, Elapsed: elapsed})
		}
	}
	if n > 0 {
		g.many.ObserveMany(Event{Kind: EventCompleted, Elapsed: elapsed}, n)
	}
}

// ObserveDecision tells the guard's observer of an answer that came after
// elapsed. It is for those who claim by themselves: see Settle.
func (g *Guard) ObserveDecision(key Key, a *ClaimAnswer, elapsed time.Duration) {
	if g.opts.Observer == nil {
		return
	}
	e := Event{Kind: EventDecided, Key: key, Decision: a.Decision, Reason: reason(a), Attempt: a.Claim.Attempt, Elapsed: elapsed, Err: a.Err}
	g.Observe(e)
	if a.Decision == Fresh && a.Claim.Attempt > 1 {
		e.Kind = EventTookOver
		g.Observe(e)
	}
}
