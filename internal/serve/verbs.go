package serve

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/storeapi"
)

// decode reads the body of a call.
func (c *call) decode(read func(d *decoder) error) *storeapi.Problem {
	ids := parsers.Get().(*jsonid.Parser)
	defer parsers.Put(ids)
	if err := read(&decoder{ids: *ids, opts: &c.server.opts, caller: c.who.Name}); err != nil {
		return refusal(err)
	}
	return nil
}

// one reads the body of a call with one operation, and does it.
func (c *call) one(read func(d *decoder, value []byte) (*operation, error)) (*operation, *storeapi.Problem) {
	var o *operation
	if p := c.decode(func(d *decoder) (err error) { o, err = read(d, c.body); return err }); p != nil {
		return nil, p
	}
	c.do([]*operation{o})
	return o, o.problem
}

func (c *call) claim() (any, *storeapi.Problem) {
	o, p := c.one((*decoder).claim)
	if p != nil {
		return nil, p
	}
	answer, p := c.server.answer(o, time.Now())
	if p != nil {
		return nil, p
	}
	claimed := answer.(*storeapi.Claimed)
	h := c.w.Header()
	h.Set("Semel-Decision", claimed.Decision)
	if claimed.RetryAfterMS != nil {
		h.Set("Retry-After", strconv.FormatInt((*claimed.RetryAfterMS+999)/1000, 10))
	}
	return answer, nil
}

func (c *call) complete() (any, *storeapi.Problem) {
	return c.settle((*decoder).complete)
}

func (c *call) release() (any, *storeapi.Problem) {
	return c.settle((*decoder).release)
}

func (c *call) settle(read func(d *decoder, value []byte) (*operation, error)) (any, *storeapi.Problem) {
	o, p := c.one(read)
	if p != nil {
		return nil, p
	}
	return c.server.answer(o, time.Now())
}

func (c *call) extend() (any, *storeapi.Problem) {
	return c.many((*decoder).extensions)
}

func (c *call) batch() (any, *storeapi.Problem) {
	return c.many((*decoder).batch)
}

// many does the operations of a body, and answers each of them.
func (c *call) many(read func(d *decoder, value []byte) ([]*operation, error)) (any, *storeapi.Problem) {
	var list []*operation
	if p := c.decode(func(d *decoder) (err error) { list, err = read(d, c.body); return err }); p != nil {
		return nil, p
	}
	if c.server.isDraining() {
		for _, o := range list {
			if o.verb == verbClaim && o.problem == nil {
				o.problem = drainingProblem()
			}
		}
	}
	c.do(list)
	for _, o := range list {
		c.unique = c.unique || o.claimed.Decision == semel.Fresh && !o.named
	}
	return c.items(list), nil
}

// items returns the answers of operations.
func (c *call) items(list []*operation) *storeapi.Items {
	all := &storeapi.Items{Items: make([]json.RawMessage, len(list))}
	now := time.Now()
	var text []byte // of all items
	for i, o := range list {
		answer, p := c.server.answer(o, now)
		if p == nil && o.full {
			p = storeapi.Of(storeapi.Overloaded, "The results of the items before fill the answer. Nothing was changed. Send this item again.")
		}
		if p != nil {
			answer = &storeapi.Refused{Error: p}
		}
		start := len(text)
		text = appendAnswer(text, answer)
		all.Items[i] = text[start:len(text):len(text)]
	}
	return all
}

// do does operations for a caller: it checks scopes and quotas, asks the store, waits, and
// reports to the observer.
func (c *call) do(list []*operation) {
	restrict(c.who, list)
	counted := c.restrain(list)
	began := time.Now()
	r := c.server.room()
	defer r.end()
	run(c.r.Context(), c.store, list, r)
	if len(list) == 1 && list[0].wait > 0 && list[0].problem == nil {
		if c.server.waiting.Add(1) <= int64(c.server.opts.MaxWaiters) {
			await(c.r.Context(), c.store, list[0], r, c.server.draining)
		}
		c.server.waiting.Add(-1)
	}
	unused := 0
	for _, o := range counted {
		if o.err != nil || o.claimed.Decision != semel.Fresh {
			unused++
		}
	}
	c.server.quota.give(c.who.Name, unused, time.Now())
	c.report(list, began)
	c.explain(list)
}

// restrain reserves the new keys of a caller, and refuses those above its limit. A key that
// the store knows gets its decision. It returns the claims whose keys are counted.
func (c *call) restrain(list []*operation) (counted []*operation) {
	if c.server.opts.MaxKeysPerCaller == 0 {
		return nil
	}
	var claims []*operation
	for _, o := range list {
		if o.problem == nil && o.verb == verbClaim {
			claims = append(claims, o)
		}
	}
	_ = c.look(claims, nil) // without records, each key counts as new
	absent := map[semel.Key]bool{}
	for _, o := range claims {
		if o.record.State == semel.Absent {
			absent[o.claim.Key] = true
		}
	}
	left, after := c.server.quota.reserve(c.who.Name, len(absent), time.Now())
	for _, o := range claims {
		uncounted, isNew := absent[o.claim.Key]
		switch {
		case !isNew: // known to the store
		case uncounted && left > 0:
			left--
			absent[o.claim.Key] = false
			counted = append(counted, o)
		case uncounted:
			o.problem = storeapi.Of(storeapi.Quota, "The caller has used all new keys of this hour (serve.max_keys_per_caller). Nothing was changed.")
			o.problem.RetryAfterMS = after.Milliseconds()
		}
	}
	return counted
}

// report tells the observer and the drain what became of operations. Keys that were claimed
// for the first time share an event, and so do completions.
func (c *call) report(list []*operation, began time.Time) {
	now := time.Now()
	elapsed := now.Sub(began)
	var granted, settled int
	var lease time.Duration
	var first, completed semel.Event
	for _, o := range list {
		switch {
		case o.problem != nil:
			continue
		case o.err != nil:
			c.observer.Observe(semel.Event{Kind: semel.EventStoreError, Key: *o.key(), Err: o.err})
			continue
		}
		switch o.verb {
		case verbClaim:
			e := semel.Event{Kind: semel.EventDecided, Key: o.claim.Key, Decision: o.claimed.Decision, Attempt: o.claimed.Claim.Attempt, Elapsed: elapsed}
			if e.Decision != semel.Fresh || e.Attempt > 1 {
				c.observer.Observe(e)
			} else {
				first = and(first, e)
			}
			if e.Decision == semel.Fresh && !o.claim.Done {
				granted++
				lease = max(lease, o.claim.Lease)
			}
		case verbComplete:
			completed = and(completed, semel.Event{Kind: semel.EventCompleted, Key: o.complete.Key})
			settled++
		case verbRelease:
			settled++
		case verbExtend:
			lease = max(lease, o.extend.Lease)
		}
	}
	for _, e := range [...]semel.Event{first, completed} {
		if e.Kind != 0 {
			c.observer.Observe(e)
		}
	}
	if lease > 0 {
		c.server.claims.granted(granted, now.Add(lease))
	}
	c.server.claims.settled(settled)
}

// and returns the event that stands for one more key than e does.
func and(e, next semel.Event) semel.Event {
	if e.Kind != 0 {
		next.Key, next.Count = semel.Key{}, max(e.Count, 1)+1
	}
	return next
}

// explain looks the records up of claims that were not granted, and of stale tokens, for
// what the store's answer does not say: who has or had the key. Without it, an answer lacks
// these members.
func (c *call) explain(list []*operation) {
	var ask []*operation
	for _, o := range list {
		if o.problem != nil {
			continue
		}
		stale := o.err != nil && o.verb != verbClaim && storeapi.FromError(o.err, "").Kind() == storeapi.StaleToken
		refused := o.verb == verbClaim && o.err == nil && o.claimed.Decision != semel.Fresh && o.claimed.Decision != semel.Late
		if stale || refused {
			ask = append(ask, o)
		}
	}
	_ = c.look(ask, nil) // the answer then lacks them
}

// look looks the records of operations up, if the store can. It leaves those out that it
// cannot look up. r has room for the results; without it, they are dropped.
func (c *call) look(list []*operation, r *room) error {
	if c.inspector == nil {
		return nil
	}
	for part := range slices.Chunk(list, c.server.room().chunk) {
		keys, records := make([]semel.Key, len(part)), make([]semel.Record, len(part))
		for i, o := range part {
			keys[i] = *o.key()
		}
		if err := c.inspector.Look(c.r.Context(), keys, records); err != nil {
			return err
		}
		for i, o := range part {
			if o.record, o.hidden = records[i], r == nil; o.hidden {
				o.record.Result.Data = nil
			}
		}
		if r != nil {
			r.fit(part)
		}
	}
	return nil
}

func (c *call) lookup() (any, *storeapi.Problem) {
	var list []*operation
	if p := c.decode(func(d *decoder) (err error) { list, err = d.keys(c.body); return err }); p != nil {
		return nil, p
	}
	if c.inspector == nil {
		return nil, unsupported()
	}
	r := c.server.room()
	defer r.end()
	if p := c.lookDigests(list, r); p != nil {
		return nil, p
	}
	restrict(c.who, list)
	fine := slices.DeleteFunc(slices.Clone(list), func(o *operation) bool { return o.problem != nil || o.digest != semel.Digest{} })
	if c.who.Role == Viewer {
		r = nil
	}
	if err := c.look(fine, r); err != nil {
		return nil, c.failed(err)
	}
	return c.items(list), nil
}

// lookDigests looks the records up that are asked for by their digest. The caller must
// have the scope of the record, or all scopes if that is not known. A record of another
// scope gets the answer of one that is not there.
func (c *call) lookDigests(list []*operation, r *room) *storeapi.Problem {
	for _, o := range list {
		if o.problem != nil || o.digest == (semel.Digest{}) {
			continue
		}
		by, err := byDigest(c.store)
		if err != nil {
			return unsupported()
		}
		if o.record, err = by.LookDigest(c.r.Context(), o.digest); err != nil {
			return c.failed(err)
		}
		o.record.Digest = o.digest
		if o.claim.Key = o.record.Key; !c.who.maySee(&o.record) {
			o.problem, o.record = forbidden("of this record"), semel.Record{}
		}
		if o.hidden = c.who.Role == Viewer; o.hidden {
			o.record.Result.Data = nil
		}
		r.fit([]*operation{o})
	}
	return nil
}

func unsupported() *storeapi.Problem {
	return storeapi.Of(storeapi.Unsupported, "The store of this server cannot look keys up, list or settle them.")
}

// failed returns the problem of a call that the store did not answer.
func (c *call) failed(err error) *storeapi.Problem {
	c.observer.Observe(semel.Event{Kind: semel.EventStoreError, Err: err})
	return c.server.problemOf(&operation{err: err})
}

func (c *call) limits() (any, *storeapi.Problem) {
	o, t := &c.server.opts, c.store.Traits()
	expired := "retry"
	if o.Hold {
		expired = "hold"
	}
	return &storeapi.Limits{
		MaxBody: o.MaxBody, MaxBatch: o.MaxBatch, MaxResult: o.MaxResult, MaxID: o.MaxID, MaxWaitMS: MaxWait.Milliseconds(),
		MaxKeysPerCaller: o.MaxKeysPerCaller, MaxConnections: o.MaxConnections,
		Lease: schema.Duration(o.Lease), Window: schema.Duration(o.Window), OnLeaseExpired: expired,
		Store: storeapi.Traits{
			Durable: t.Durable, PowerSafe: t.PowerSafe, DurableClaims: t.DurableClaims, Shared: t.Shared, Exact: t.Exact, Results: t.Results, Origins: t.Origins, Tick: t.Tick.String(),
		},
	}, nil
}

func (c *call) whoami() (any, *storeapi.Problem) {
	return &storeapi.Identity{Name: c.who.Name, Role: string(c.who.Role), Scopes: c.who.Scopes, Auth: c.who.auth}, nil
}

var _ http.Handler = (*Server)(nil)
