package tiered

import (
	"context"
	"errors"
	"time"

	"github.com/semel-dev/semel"
)

// fillLease is how long a copy with a result may take, because it is written in
// two steps. A cache does not answer from the first step alone.
const fillLease = 5 * time.Second

// copied is the data about a done key for the layers above.
type copied struct {
	key    semel.Key
	print  semel.Fingerprint
	result semel.Result
	// left is an upper bound of the time that remained of the record's window.
	left time.Duration
}

// copyOf makes a copy of a done record. now is the time of the store that has
// the record.
func copyOf(key semel.Key, record *semel.Record, now time.Time) copied {
	c := copied{key, record.Fingerprint, record.Result, semel.Forever}
	if !record.Expires.IsZero() {
		c.left = record.Expires.Sub(now)
	}
	return c
}

// lookBelow reads the records behind duplicates from the durable store, if a
// cache can take them. The claim's answer contains neither the record's expiry
// nor its fingerprint. Only one caller at a time reads. The others do not wait:
// their keys are copied at their next claim. The durable store therefore has at
// most one such reader.
func (s *Store) lookBelow(ctx context.Context, r *reading) {
	wanted := false
	for _, l := range s.layers {
		wanted = wanted || l.filter == nil && !l.down.Load()
	}
	r.records = append(r.records[:0], make([]semel.Record, len(r.keys))...)
	if wanted && s.looking.TryLock() {
		defer s.looking.Unlock()
		timed, cancel := context.WithTimeout(ctx, s.opts.Timeout)
		defer cancel()
		if s.inspector.Look(timed, r.keys, r.records) != nil {
			clear(r.records)
		}
	}
	now := s.clock.Now().Add(time.Duration(s.ahead.Load()))
	for i := range r.records {
		if r.records[i].State == semel.Done {
			r.copies = append(r.copies, copyOf(r.keys[i], &r.records[i], now))
		} else {
			r.copies = append(r.copies, copied{key: r.keys[i]}) // for the filters
		}
	}
}

// moment is the time at which the durable store, or a cache, was asked: by the
// monotonic clock and by the stack's clock.
type moment struct{ began, wall time.Time }

// fill copies keys that the durable store reported as done to layers. asked is
// the time of that request. A fill never fails a call: a key that a layer does
// not take is read from below.
func (s *Store) fill(ctx context.Context, layers []*layer, copies []copied, asked moment) {
	if len(copies) == 0 {
		return
	}
	for _, l := range layers {
		if l.filter != nil {
			s.fillFilter(ctx, l, copies)
		} else if time.Since(asked.began) < keepOut/2 {
			s.fillCache(ctx, l, copies, asked.wall)
		}
	}
}

func (s *Store) fillFilter(ctx context.Context, l *layer, copies []copied) {
	keys := make([]semel.Key, len(copies))
	for i := range copies {
		keys[i] = copies[i].key
	}
	l.use(ctx, func(ctx context.Context) error {
		err := l.filter.Add(ctx, keys)
		if err == nil {
			l.filled.Add(int64(len(keys)))
		}
		return l.full(err, len(keys))
	})
}

func (s *Store) fillCache(ctx context.Context, l *layer, copies []copied, asked time.Time) {
	if l.down.Load() {
		return // a later read retries, which costs less
	}
	late := s.clock.Now().Sub(asked)
	reqs := make([]semel.ClaimRequest, 0, len(copies))
	results := make([]semel.Result, 0, len(copies))
	left := make([]time.Duration, 0, len(copies))
	for i := range copies {
		c := &copies[i]
		window, ok := s.window(l, c, late)
		if !ok || !l.keeps(c.result) {
			continue
		}
		req := semel.ClaimRequest{Key: c.key, Owner: l.newClaim(), Window: window, Fingerprint: c.print, Done: true}
		if c.result.Kind != semel.NoResult || len(c.result.Data) > 0 {
			req.Done, req.Lease = false, fillLease
		}
		reqs, results, left = append(reqs, req), append(results, c.result), append(left, c.left)
		if window < shortCopy {
			l.invalid.begin(c.key)
			defer l.invalid.end(c.key)
		}
	}
	if len(reqs) == 0 {
		return
	}
	l.use(ctx, func(ctx context.Context) error { return l.write(ctx, reqs, results) })
	s.takeBack(ctx, l, reqs, left, asked)
}

// shortCopy is a window. This process ignores a copy with a shorter window
// until it knows that the copy was written in time.
const shortCopy = time.Minute

// takeBack removes copies that would outlive their records, because the process
// was stalled and wrote them late. If it does not reach a layer, it records the
// removals as pending.
func (s *Store) takeBack(ctx context.Context, l *layer, reqs []semel.ClaimRequest, left []time.Duration, asked time.Time) {
	took := s.clock.Now().Sub(asked)
	for i := range reqs {
		if left[i] == semel.Forever || took <= left[i]-reqs[i].Window {
			continue
		}
		key := reqs[i].Key
		if !l.use(context.WithoutCancel(ctx), func(ctx context.Context) error { return l.forget(ctx, key) }) {
			l.invalid.postpone(key, s.opts.MaxAge)
		}
	}
}

// window returns how long a layer may keep a copy: half of the time that is
// left of the record, minus the known lateness. The other half covers late
// writes and clock differences. It returns false if the window is below the
// layer's resolution.
func (s *Store) window(l *layer, c *copied, late time.Duration) (time.Duration, bool) {
	half := c.left
	if half != semel.Forever {
		half = (half - late) / 2
	}
	window := min(half, s.opts.MaxAge)
	return window, window > 0 && window >= l.traits.Tick
}

// keeps reports whether a layer can store a result. A copy that was stored
// without its result would answer without it.
func (l *layer) keeps(result semel.Result) bool {
	if result.Kind == semel.NoResult && len(result.Data) == 0 {
		return true
	}
	return l.traits.Results && (l.traits.MaxResult == 0 || int64(len(result.Data)) <= l.traits.MaxResult)
}

// write claims keys in a cache and completes them with their results. It skips
// a key that the cache already has, or that a removal keeps out. A full cache
// is not an outage: it still answers.
func (l *layer) write(ctx context.Context, reqs []semel.ClaimRequest, results []semel.Result) error {
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := l.cache.Claim(ctx, reqs, answers); err != nil {
		return l.full(err, len(reqs))
	}
	var filled, refused int64
	var done []semel.CompleteRequest
	for i, a := range answers {
		switch {
		case a.Decision == semel.Duplicate:
		case a.Decision != semel.Fresh:
			refused++
		case reqs[i].Done:
			filled++
		default:
			done = append(done, semel.CompleteRequest{Key: reqs[i].Key, Token: a.Claim.Token, Result: results[i], Window: reqs[i].Window})
		}
	}
	var err error
	if len(done) > 0 {
		errs := make([]error, len(done))
		err = l.cache.Complete(ctx, done, errs)
		for i := range errs {
			if err == nil && errs[i] == nil {
				filled++
			} else {
				refused++
			}
		}
	}
	l.filled.Add(filled)
	l.refused.Add(refused)
	return l.full(err, 0)
}

// full counts the keys that a full store refused and drops its error. It
// returns other errors unchanged.
func (l *layer) full(err error, keys int) error {
	if !errors.Is(err, semel.ErrStoreFull) {
		return err
	}
	l.refused.Add(int64(keys))
	return nil
}
