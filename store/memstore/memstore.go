// Package memstore keeps records in the memory of this process. It is the
// reference for the semantics of [semel.Store]. Use it in tests, and in
// programs that may forget their keys on a restart.
//
// A done key without result, fingerprint and origin has a compact form: it takes one
// slot of 16 bytes in a table without pointers. Every other key has a full
// record, and with KeepIDs all keys have one. Keys expire in place. The store
// starts no goroutine, and no call waits for longer than it takes to sweep or
// move a 256th of the store. The store never forgets a live key: see
// MaxKeys.
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
	"cmp"
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/table"
)

// These are the defaults of [Options].
const (
	defaultMaxWindow = 24 * time.Hour
	defaultMaxResult = 16 << 20
)

// Options are the options of [New]. The zero value is valid.
type Options struct {
	// MaxWindow is the longest window that the compact form can keep. It also
	// sets the store's Tick, which is MaxWindow/32767: a key may be remembered
	// up to one tick longer than its window. With the default that is 2.6 s, so
	// set MaxWindow near your windows if they are a few seconds long. Keys with
	// longer windows take full records, and keys with Forever the compact form.
	// Defaults to 24 h. Must be above 0.
	MaxWindow time.Duration
	// Expect is the number of compact keys for which the store allocates memory
	// at the start. Defaults to 0. Must not be negative.
	Expect int64
	// MaxKeys is the highest number of keys that the store holds, without
	// expired ones. A full store refuses new keys with ErrStoreFull. Defaults
	// to 0: no limit. Must not be negative.
	MaxKeys int64
	// MaxResult is the longest result in bytes that the store accepts. It
	// refuses longer results with ErrResultTooLarge. Defaults to 16 MiB. Must
	// not be negative.
	MaxResult int64
	// KeepIDs keeps the readable key in each record, so that listings show it.
	// Each key then takes a full record of about 200 bytes. Defaults to false.
	KeepIDs bool
	// Clock returns the wall-clock time. The store does not follow it
	// backwards. Defaults to time.Now at the start, and the monotonic clock
	// after that.
	Clock func() time.Time
}

// Store is a [semel.Store] in the memory of this process. Its methods may be
// called concurrently. None blocks for longer than it takes to work on a 256th
// of the store.
type Store struct {
	opts   Options
	clock  *clock.Clock
	scale  table.Scale
	hasher digest.Hasher
	scopes scopeCache
	seed   maphash.Seed // of owners
	closed atomic.Bool
	rules  sync.Map // the rule of each bound scope
	// token is the last granted token.
	token atomic.Uint64
	// count is the number of keys. It is kept only if MaxKeys limits it. room
	// is the shard in which makeRoom looks next. swept is the last time at
	// which no shard had an expired key; makeRoom does not sweep again right
	// after it.
	count  atomic.Int64
	room   atomic.Uint32
	swept  atomic.Int64
	shards [table.Shards]shard
}

var (
	_ semel.Store          = (*Store)(nil)
	_ semel.Inspector      = (*Store)(nil)
	_ semel.Resolver       = (*Store)(nil)
	_ semel.DigestResolver = (*Store)(nil)
	_ semel.Purger         = (*Store)(nil)

	_ semel.ScopeBinder = (*Store)(nil)
)

// New returns an empty store. Nil options are the zero options. One error names
// all options that are out of bounds, and wraps ErrInvalidRequest.
func New(opts *Options) (*Store, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.MaxWindow = cmp.Or(o.MaxWindow, defaultMaxWindow)
	o.MaxResult = cmp.Or(o.MaxResult, defaultMaxResult)
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Store{opts: o, clock: clock.New(o.Clock, time.Time{}), hasher: digest.New(digest.NewSecret()), seed: maphash.MakeSeed()}
	var err error
	if s.scale, err = table.NewScale(s.clock.Nanos(), o.MaxWindow); err != nil {
		return nil, fmt.Errorf("memstore: %w", err)
	}
	// Tokens must also grow over a restart, because targets may remember the
	// highest token. So they start at the current time. The unit is so short
	// that no store grants more than one token in each, and so long that tokens
	// stay exact integers in JSON for decades.
	s.token.Store(uint64(time.Now().UnixNano()) >> 8)
	tables := make([]*table.Shard[struct{}], len(s.shards))
	for i := range s.shards {
		tables[i] = &s.shards[i].done
	}
	table.Reserve(tables, o.Expect)
	return s, nil
}

func (o *Options) validate() error {
	wrong := invalid.In("memstore: Options.")
	if o.MaxWindow < 0 {
		wrong.Add("MaxWindow: %v is negative", o.MaxWindow)
	}
	if o.Expect < 0 {
		wrong.Add("Expect: %d is negative", o.Expect)
	}
	if o.MaxKeys < 0 {
		wrong.Add("MaxKeys: %d is negative", o.MaxKeys)
	}
	if o.MaxResult < 0 {
		wrong.Add("MaxResult: %d is negative", o.MaxResult)
	}
	return wrong.Err()
}

// Traits implements [semel.Store].
func (s *Store) Traits() semel.Traits {
	return semel.Traits{Exact: true, Results: true, Origins: true, MaxResult: s.opts.MaxResult, Tick: s.scale.Length()}
}

// Close forgets all keys. Later calls get ErrClosed. A second Close is not an
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

// lock locks a shard. It returns nil if the store is closed, so that a running
// call does not fill a cleared shard again.
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

// enter starts a call.
func (s *Store) enter(ctx context.Context, verb string, requests, answers int) error {
	switch {
	case s.closed.Load():
		return fmt.Errorf("memstore: %s: %w", verb, semel.ErrClosed)
	case requests != answers:
		return fmt.Errorf("memstore: %s: %d requests and %d answers: %w", verb, requests, answers, semel.ErrInvalidRequest)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("memstore: %s: nothing was changed: %w: %w", verb, semel.ErrStoreUnavailable, context.Cause(ctx))
	}
	return nil
}

// moment is one time in the two forms of the records. A call reads the clock
// once and decides its requests as of that time.
type moment struct {
	nanos int64
	tick  table.Tick
}

func (s *Store) moment() moment {
	now := s.clock.Nanos()
	return moment{now, s.scale.Tick(now)}
}

// never is the end of a span that does not end.
const never = math.MaxInt64

// after returns the end of a span that starts at now.
func after(now int64, span time.Duration) int64 {
	if int64(span) > never-now {
		return never
	}
	return now + int64(span)
}

// instant converts nanoseconds to a time, and 0 to the zero time.
func instant(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// BindScope implements [semel.ScopeBinder]. It does not block.
func (s *Store) BindScope(ctx context.Context, scope, rule string) (string, error) {
	if err := s.enter(ctx, "bind scope", 0, 0); err != nil {
		return "", err
	}
	bound, ok := s.rules.Load(scope)
	if !ok && rule != "" {
		bound, _ = s.rules.LoadOrStore(scope, rule)
	}
	text, _ := bound.(string)
	return text, nil
}
