package tiered

import (
	"context"
	"slices"
	"time"

	"github.com/semel-dev/semel"
)

// reading is the state of one Claim call on its way down the layers. It is
// reused.
type reading struct {
	answered []bool // requests that a cache has answered
	asked    []int  // requests for the next layer
	keys     []semel.Key
	records  []semel.Record
	maybe    []bool
	sifted   []*layer // filters that answered and whose answers are checked: see compare
	copies   []copied
	reqs     []semel.ClaimRequest // requests for the durable store
	answers  []semel.ClaimAnswer
}

// Claim implements semel.Store. It blocks for one call of each layer on the way down, and for the
// writes of copies to the layers above.
func (s *Store) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if len(reqs) != len(answers) {
		return lengthError("claim", len(reqs), len(answers))
	}
	r := s.scratch.Get().(*reading)
	defer s.recycle(r, len(reqs))
	rest := len(reqs) - s.read(ctx, r, reqs, answers)
	switch {
	case rest == len(reqs):
		err := s.claimBelow(ctx, r, reqs, answers)
		r.compare(answers)
		return err
	case rest == 0:
		return nil
	}
	for i := range reqs {
		if !r.answered[i] {
			r.reqs = append(r.reqs, reqs[i])
		}
	}
	r.answers = slices.Grow(r.answers[:0], rest)[:rest]
	clear(r.answers)
	err := s.claimBelow(ctx, r, r.reqs, r.answers)
	below := r.answers
	for i := range reqs {
		if !r.answered[i] {
			answers[i], below = below[0], below[1:]
		}
	}
	r.compare(answers)
	return err
}

// compare counts the false positives of the filters: keys that were not
// filtered out and that had no record in the durable store.
func (r *reading) compare(answers []semel.ClaimAnswer) {
	if len(r.sifted) == 0 {
		return
	}
	absent := int64(0)
	for _, i := range r.asked {
		if answers[i].Decision == semel.Fresh && answers[i].Claim.Attempt == 1 {
			absent++
		}
	}
	for _, l := range r.sifted {
		l.mistaken.Add(absent)
	}
}

// recycle clears a reading of n requests and keeps its memory for reuse.
func (s *Store) recycle(r *reading, n int) {
	const most = 4096
	if n > most {
		return
	}
	*r = reading{
		answered: r.answered[:0], asked: r.asked[:0], maybe: r.maybe[:0], sifted: r.sifted[:0],
		keys: emptied(r.keys, n), records: emptied(r.records, n), copies: emptied(r.copies, n),
		reqs: emptied(r.reqs, n), answers: emptied(r.answers, n),
	}
	s.scratch.Put(r)
}

// emptied clears a slice of which at most n elements were in use, and returns
// it with length 0.
func emptied[T any](used []T, n int) []T {
	clear(used[:min(n, cap(used))])
	return used[:0]
}

// read asks the layers from the top and answers the requests whose keys a cache
// knows as done. It returns the number of answered requests.
func (s *Store) read(ctx context.Context, r *reading, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) (answered int) {
	r.answered = slices.Grow(r.answered, len(reqs))[:len(reqs)]
	clear(r.answered)
	for i := range reqs {
		// The durable store rejects invalid requests. A claim with Done may
		// repeat a granted claim whose answer was lost. Only the durable store
		// knows who completed the key.
		if reqs[i].Validate() == nil && !(reqs[i].Done && reqs[i].Owner != semel.Owner{}) {
			r.asked = append(r.asked, i)
		}
	}
	for at, l := range s.layers {
		if len(r.asked) == 0 {
			break
		}
		r.keys = r.keys[:0]
		for _, i := range r.asked {
			r.keys = append(r.keys, reqs[i].Key)
		}
		if l.filter != nil {
			s.sift(ctx, r, l)
			continue
		}
		answered += s.lookIn(ctx, r, at, reqs, answers)
	}
	return answered
}

// sift removes from further cache reads the keys that a filter reports as
// certainly new. This is safe even if the filter is wrong, because the durable
// store is still asked.
func (s *Store) sift(ctx context.Context, r *reading, l *layer) {
	n := len(r.asked)
	r.maybe = slices.Grow(r.maybe[:0], n)[:n]
	ok := l.use(ctx, func(ctx context.Context) error { return l.filter.MayContain(ctx, r.keys, r.maybe) })
	if !ok {
		return
	}
	kept := r.asked[:0]
	for j, i := range r.asked {
		if r.maybe[j] {
			kept = append(kept, i)
		}
	}
	r.asked = kept
	r.sifted = append(r.sifted, l)
	l.answered.Add(int64(n - len(kept)))
}

// lookIn answers the requests whose keys the cache at a position among the
// layers knows as done. It copies those keys to the layers above.
func (s *Store) lookIn(ctx context.Context, r *reading, at int, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) (answered int) {
	l, n := s.layers[at], len(r.asked)
	r.records = slices.Grow(r.records[:0], n)[:n]
	clear(r.records)
	var began, now time.Time
	if at > 0 {
		began, now = time.Now(), s.clock.Now()
	}
	if !l.use(ctx, func(ctx context.Context) error { return l.cache.Look(ctx, r.keys, r.records) }) {
		return 0
	}
	kept := r.asked[:0]
	for j, i := range r.asked {
		record := &r.records[j]
		// Check the invalidations after the record was read: an earlier removal may not
		// have reached the cache.
		if !vouches(record, &reqs[i]) || l.invalid.has(reqs[i].Key) {
			kept = append(kept, i)
			continue
		}
		answers[i] = semel.ClaimAnswer{Decision: semel.Duplicate, Result: record.Result}
		r.answered[i] = true
		if at > 0 {
			r.copies = append(r.copies, copyOf(reqs[i].Key, record, now))
		}
	}
	answered = n - len(kept)
	r.asked = kept
	l.answered.Add(int64(answered))
	s.fill(ctx, s.layers[:at], r.copies, moment{began, now})
	r.copies = r.copies[:0]
	return answered
}

// vouches reports whether a copy answers a request. It must be at least as
// strict as the copied record. A copy without a fingerprint may stand for a
// record with one, which only the durable store knows. It therefore answers
// only requests without a fingerprint. The durable store decides requests with
// a different fingerprint.
func vouches(record *semel.Record, req *semel.ClaimRequest) bool {
	if record.State != semel.Done {
		return false
	}
	return req.Fingerprint.IsZero() || !record.Fingerprint.IsZero() && record.Fingerprint.Matches(req.Fingerprint)
}

// claimBelow asks the durable store and copies its answers to the layers above.
func (s *Store) claimBelow(ctx context.Context, r *reading, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	var trial bool
	if s.opts.OnOutage == Pass {
		var ok bool
		if trial, ok = s.outage.enter(); !ok {
			r.sifted = r.sifted[:0]
			s.pass(reqs, answers, nil)
			return nil
		}
	}
	began, wall := time.Now(), s.clock.Now()
	err := s.ask(ctx, trial, func() error {
		clear(answers)
		return s.claims.Claim(ctx, reqs, answers)
	})
	if len(s.layers) > 0 {
		s.learn(ctx, r, reqs, answers, began, wall)
	}
	if s.opts.OnOutage == Pass && silent(err) && ctx.Err() == nil {
		r.sifted = r.sifted[:0]
		s.pass(reqs, answers, err)
		return nil
	}
	return wrap("claim", err)
}

// learn copies the durable store's answers to the layers above, and records the
// data that later copies need. It ignores lost answers.
func (s *Store) learn(ctx context.Context, r *reading, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, began, wall time.Time) {
	r.keys, r.copies = r.keys[:0], r.copies[:0]
	for i := range answers {
		req, a := &reqs[i], &answers[i]
		switch {
		case a.Decision == semel.Duplicate:
			r.keys = append(r.keys, req.Key)
		case a.Decision != semel.Fresh:
		case !req.Done:
			s.granted.add(req.Key, a.Claim.Token, req.Fingerprint)
			s.ahead.Store(int64(a.Claim.LeaseEnd.Add(-req.Lease).Sub(wall)))
		case a.Claim.Attempt > 0:
			// A claim that was granted earlier, perhaps to a process that has
			// ended, is not copied: its window began at that time.
			r.copies = append(r.copies, copied{req.Key, req.Fingerprint, semel.Result{}, req.Window})
		}
	}
	if len(r.keys) > 0 {
		s.lookBelow(ctx, r)
	}
	s.fill(ctx, s.layers, r.copies, moment{began, wall})
}
