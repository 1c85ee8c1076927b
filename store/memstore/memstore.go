// Package memstore keeps records in the memory of this process: the reference
// for the semantics of [semel.Store], and the fast path where a restart may
// forget.
//
// A key that is done and has neither a result nor a fingerprint takes one slot
// of 16 bytes in a table without pointers; everything else, and with KeepIDs
// everything, is kept as a full record beside it. Expiry happens in place: no
// goroutine runs, and no call waits for more than a 256th of the store to be
// swept or moved. The store never forgets a live key silently: see OnFull.
//
// Three things that a full record has are not kept in the compact form: the time
// of first sight, the token, and the owner of a claim with Done. The store
// remembers tokens and owners of the last tens of thousands of keys that became
// done. So it recognises a completion, or a claim with Done, that is repeated
// soon, as after a lost answer. Later the completion gets a
// [*semel.StaleTokenError] which says that the key is done, and the claim is a
// duplicate. With KeepIDs, where every record is full, neither is forgotten.
package memstore

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/internal/table"
)

// Defaults of [Options].
const (
	DefaultMaxWindow = 24 * time.Hour
	DefaultMaxResult = 16 << 20
)

// FullPolicy says what a store does for a new key when it holds MaxKeys.
type FullPolicy uint8

const (
	// Refuse answers the claim with ErrStoreFull and forgets nothing.
	Refuse FullPolicy = iota
	// Shorten forgets keys that are done, about those whose windows would end
	// first, and reports it to OnShorten: the effect of a message that comes
	// again after that is repeated. Claimed and unknown keys and keys kept
	// forever are not forgotten; if there is nothing else, it refuses.
	Shorten
)

// Options are the options of [New]. The zero value is valid.
type Options struct {
	// MaxWindow is the longest window that is kept in the compact form; a
	// 32767th of it is the store's Tick. Longer windows are kept as full
	// records, Forever in the compact form. Defaults to 24 h. Must be above 0.
	MaxWindow time.Duration
	// Expect is the number of compact keys for which memory is taken at the
	// start. Defaults to 0. Must not be negative.
	Expect int64
	// MaxKeys is the most keys the store holds, expired ones apart. Defaults
	// to 0: no limit. Must not be negative.
	MaxKeys int64
	// OnFull says what happens to a new key when MaxKeys are held. Defaults to
	// Refuse.
	OnFull FullPolicy
	// OnShorten is told what Shorten has forgotten. It is called by the claim
	// that needed the room, maybe by several at once, and must not call the
	// store. Defaults to none.
	OnShorten func(Shortening)
	// MaxResult is the longest result in bytes that is kept; a longer one is
	// refused with ErrResultTooLarge. Defaults to 16 MiB. Must not be negative.
	MaxResult int64
	// KeepIDs keeps the readable key in each record, for listings. It takes a
	// full record of about 200 bytes for each key. Defaults to false.
	KeepIDs bool
	// Secret is the key of the digests. Defaults to a random one.
	Secret [16]byte
	// Clock is the wall clock; the store does not follow it backwards.
	// Defaults to time.Now and then the monotonic clock.
	Clock func() time.Time
}

// Shortening is an incident: keys were forgotten to make room.
type Shortening struct {
	// Forgotten is the number of keys.
	Forgotten int64
	// By is how long before the end of their windows keys were forgotten, at
	// most.
	By time.Duration
}

// Store is a [semel.Store] in the memory of this process. Its methods may be
// called at once from many goroutines; none blocks for longer than the work on
// a 256th of the store takes.
type Store struct {
	opts   Options
	clock  *clock.Clock
	scale  table.Scale
	hasher digest.Hasher
	scopes scopeCache
	seed   maphash.Seed // of owners
	closed atomic.Bool
	// token is the last token that was granted.
	token atomic.Uint64
	// count is the number of keys, kept only where MaxKeys limits it, room is
	// where in the shards to look for room next, and swept is when nothing
	// expired was last found in any of them, which is not tried again at once.
	count  atomic.Int64
	room   atomic.Uint32
	swept  atomic.Int64
	shards [table.Shards]shard
}

var (
	_ semel.Store    = (*Store)(nil)
	_ semel.Looker   = (*Store)(nil)
	_ semel.Lister   = (*Store)(nil)
	_ semel.Resolver = (*Store)(nil)
	_ semel.Purger   = (*Store)(nil)
	_ semel.Counter  = (*Store)(nil)
)

// New returns an empty store. Nil options are the zero options. All options
// that are out of bounds are named in one error, which wraps
// ErrInvalidRequest.
func New(opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.MaxWindow == 0 {
		o.MaxWindow = DefaultMaxWindow
	}
	if o.MaxResult == 0 {
		o.MaxResult = DefaultMaxResult
	}
	if o.Secret == [16]byte{} {
		o.Secret = digest.NewSecret()
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Store{opts: o, clock: clock.New(o.Clock, time.Time{}), hasher: digest.New(o.Secret), seed: maphash.MakeSeed()}
	var err error
	if s.scale, err = table.NewScale(s.clock.Nanos(), o.MaxWindow); err != nil {
		return nil, fmt.Errorf("memstore: %w", err)
	}
	// Tokens must grow over a restart too, for the sake of targets that
	// remember the highest. So they start at the time, in units short enough
	// that no store grants more than one in each, and long enough that a token
	// is a whole number in JSON for decades.
	s.token.Store(uint64(time.Now().UnixNano()) >> 8)
	tables := make([]*table.Shard[struct{}], len(s.shards))
	for i := range s.shards {
		tables[i] = &s.shards[i].done
	}
	table.Reserve(tables, o.Expect)
	return s, nil
}

func (o *Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("memstore: Options."+format+": %w", append(args, semel.ErrInvalidRequest)...))
	}
	if o.MaxWindow < 0 {
		bad("MaxWindow: %v is negative", o.MaxWindow)
	}
	if o.Expect < 0 {
		bad("Expect: %d is negative", o.Expect)
	}
	if o.MaxKeys < 0 {
		bad("MaxKeys: %d is negative", o.MaxKeys)
	}
	if o.OnFull > Shorten {
		bad("OnFull: %d is neither Refuse nor Shorten", o.OnFull)
	}
	if o.MaxResult < 0 {
		bad("MaxResult: %d is negative", o.MaxResult)
	}
	return errors.Join(errs...)
}

// Traits implements [semel.Store].
func (s *Store) Traits() semel.Traits {
	return semel.Traits{Fenced: true, Exact: true, Results: true, MaxResult: s.opts.MaxResult, Tick: s.scale.Length()}
}

// Close forgets everything. Later calls get ErrClosed; to close twice is no
// error.
func (s *Store) Close() error {
	s.closed.Store(true)
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.clear()
		sh.mu.Unlock()
	}
	return nil
}

// lock locks a shard. It returns nil if the store is closed, which a call in
// progress must learn before it fills a shard again.
func (s *Store) lock(i byte) *shard {
	sh := &s.shards[i]
	sh.mu.Lock()
	if s.closed.Load() {
		sh.mu.Unlock()
		return nil
	}
	return sh
}

func (s *Store) unlock(sh *shard) {
	if s.opts.MaxKeys > 0 {
		if n := sh.size(); n != sh.counted {
			s.count.Add(int64(n - sh.counted))
			sh.counted = n
		}
	}
	sh.mu.Unlock()
}

// enter begins a call.
func (s *Store) enter(ctx context.Context, verb string, requests, answers int) error {
	switch {
	case s.closed.Load():
		return fmt.Errorf("memstore: %s: %w", verb, semel.ErrClosed)
	case requests != answers:
		return fmt.Errorf("memstore: %s: %d requests and %d answers: %w", verb, requests, answers, semel.ErrInvalidRequest)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memstore: %s: %w", verb, err)
	}
	return nil
}

// moment is one time in the two forms in which records keep it. A call looks
// at the clock once: its requests are decided as of its receipt.
type moment struct {
	nanos int64
	tick  table.Tick
}

func (s *Store) moment() moment {
	now := s.clock.Nanos()
	return moment{now, s.scale.Tick(now)}
}

// never is the end of what does not end.
const never = math.MaxInt64

// after returns the end of a span that begins at now.
func after(now int64, span time.Duration) int64 {
	if int64(span) > never-now {
		return never
	}
	return now + int64(span)
}

// instant converts nanoseconds to a time, and 0 to none.
func instant(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}
