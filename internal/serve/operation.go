package serve

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/storeapi"
)

type verb uint8

const (
	verbClaim verb = iota + 1
	verbComplete
	verbRelease
	verbExtend
	verbLookup
)

// operation is one item of a request: one request to the store, and its answer.
type operation struct {
	verb    verb
	problem *storeapi.Problem // refuses it; the other members then count for nothing

	claim    semel.ClaimRequest // a lookup has its key here
	claimID  string
	named    bool // the request has the claim_id
	wait     time.Duration
	complete semel.CompleteRequest
	release  semel.ReleaseRequest
	extend   semel.ExtendRequest

	claimed  semel.ClaimAnswer
	extended semel.ExtendAnswer
	digest   semel.Digest // of a lookup, instead of the key
	record   semel.Record // of a lookup, and of a claim that was not granted
	err      error
	full     bool // its result found no room in the answer
	hidden   bool // the caller may not see its result
}

// key returns the key of the operation.
func (o *operation) key() *semel.Key {
	switch o.verb {
	case verbComplete:
		return &o.complete.Key
	case verbRelease:
		return &o.release.Key
	case verbExtend:
		return &o.extend.Key
	}
	return &o.claim.Key
}

// run asks the store for all operations that were not refused, in one call for each verb,
// and these calls at the same time.
// If a key comes twice with different verbs, its operations are done in order, in several
// calls.
//
// A call does not end with its client: a claim that is granted to no client would otherwise be
// given back while its repetition is granted.
func run(ctx context.Context, store semel.Store, list []*operation, r *room) {
	ctx = context.WithoutCancel(ctx)
	if len(list) == 1 {
		if list[0].problem == nil {
			ask(ctx, store, list[0].verb, list)
			r.fit(list)
		}
		return
	}
	type last struct {
		verb verb
		wave int
	}
	lasts := make(map[semel.Key]last, len(list))
	var waves [][verbLookup][]*operation
	for _, o := range list {
		if o.problem != nil {
			continue
		}
		before, again := lasts[*o.key()]
		wave := before.wave
		if again && before.verb != o.verb {
			wave++
		}
		lasts[*o.key()] = last{o.verb, wave}
		if wave == len(waves) {
			waves = append(waves, [verbLookup][]*operation{})
		}
		waves[wave][o.verb] = append(waves[wave][o.verb], o)
	}
	for i := range waves {
		askWave(ctx, store, &waves[i], r)
	}
}

// askWave asks the store for operations with different keys, by their verbs. The verbs are
// asked for at the same time: one after another, each would wait for the disk.
func askWave(ctx context.Context, store semel.Store, wave *[verbLookup][]*operation, r *room) {
	var rest sync.WaitGroup
	var panicked atomic.Value
	for v := verbComplete; v < verbLookup; v++ {
		if list := wave[v]; len(list) > 0 {
			rest.Go(func() {
				defer func() {
					if p := recover(); p != nil {
						panicked.Store(fmt.Sprintf("%v\n%s", p, debug.Stack()))
					}
				}()
				ask(ctx, store, v, list)
			})
		}
	}
	for part := range slices.Chunk(wave[verbClaim], r.chunk) {
		ask(ctx, store, verbClaim, part)
		r.fit(part)
	}
	rest.Wait()
	if p := panicked.Load(); p != nil {
		panic(p) // it costs this request, as in the goroutine of the request
	}
}

// errNoAnswer is the error of a request that a store did not answer.
var errNoAnswer = errors.New("the store gave no answer")

// ask sends operations of one verb to the store.
func ask(ctx context.Context, store semel.Store, v verb, list []*operation) {
	n := len(list)
	errs := make([]error, n)
	var err error
	switch v {
	case verbClaim:
		reqs, answers := make([]semel.ClaimRequest, n), make([]semel.ClaimAnswer, n)
		for i, o := range list {
			reqs[i] = o.claim
		}
		err = store.Claim(ctx, reqs, answers)
		for i, o := range list {
			o.claimed, o.err = answers[i], answers[i].Err
			if o.err == nil && o.claimed.Decision == semel.Undecided {
				o.err = errNoAnswer
			}
		}
	case verbComplete:
		reqs := make([]semel.CompleteRequest, n)
		for i, o := range list {
			reqs[i] = o.complete
		}
		err = store.Complete(ctx, reqs, errs)
	case verbRelease:
		reqs := make([]semel.ReleaseRequest, n)
		for i, o := range list {
			reqs[i] = o.release
		}
		err = store.Release(ctx, reqs, errs)
	case verbExtend:
		reqs, answers := make([]semel.ExtendRequest, n), make([]semel.ExtendAnswer, n)
		for i, o := range list {
			reqs[i] = o.extend
		}
		err = store.Extend(ctx, reqs, answers)
		for i, o := range list {
			o.extended, o.err = answers[i], answers[i].Err
			if o.err == nil && o.extended.LeaseEnd.IsZero() {
				o.err = errNoAnswer
			}
		}
	}
	for i, o := range list {
		if v == verbComplete || v == verbRelease {
			o.err = errs[i]
			if o.err == nil && err != nil { // nil does not mean success then
				o.err = err
			}
		}
		if errors.Is(o.err, errNoAnswer) && err != nil {
			o.err = err
		}
	}
}

// The pauses between two questions of a claim that waits.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// await asks for a claim again while its key is in flight, for as long as it waits. It ends
// when ctx does, and at stop.
func await(ctx context.Context, store semel.Store, o *operation, r *room, stop <-chan struct{}) {
	timer := time.NewTimer(o.wait)
	defer timer.Stop()
	pause := time.NewTimer(firstPause)
	defer pause.Stop()
	for next := firstPause; o.err == nil && o.claimed.Decision == semel.InFlight; {
		select {
		case <-ctx.Done():
			return
		case <-stop:
			return
		case <-timer.C:
			return
		case <-pause.C:
		}
		run(ctx, store, []*operation{o}, r)
		next = min(2*next, lastPause)
		pause.Reset(next)
	}
}
