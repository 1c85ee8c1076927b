package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// Defaults of [Options] and [Compact].
const (
	DefaultPrefix    = "semel:"
	DefaultMaxResult = 1 << 20
	DefaultSlices    = 4
	DefaultExpect    = 1 << 20
	DefaultGrace     = 30 * time.Second
)

// Persistence is what the server is known to keep.
type Persistence uint8

const (
	// Volatile: the end of the server may forget everything, as without a file
	// or with snapshots alone.
	Volatile Persistence = iota
	// Logged: an append-only file survives an orderly end of the server. With
	// appendfsync everysec the server may answer before it has written: when it
	// is killed, crashes or loses power, it may forget what was answered in the
	// last second or two.
	Logged
	// Synced: the append-only file is synced before each answer
	// (appendfsync always).
	Synced
)

// Options are the options of [New]. The zero value is valid.
type Options struct {
	// Prefix begins all names in Redis; stores of one prefix are one store.
	// Defaults to "semel:". Must not contain "{" or "}".
	Prefix string
	// Secret is the key of the digests, the same for all stores of a prefix.
	// Defaults to a random one that is kept in Redis.
	Secret [16]byte
	// Persistence is what the server is known to keep; Traits repeat it, and
	// Examine compares. Defaults to Volatile.
	Persistence Persistence
	// MaxResult is the longest result in bytes that is kept; a longer one is
	// refused with ErrResultTooLarge. Defaults to 1 MiB. Must not be negative.
	MaxResult int64
	// KeepIDs keeps the readable key in each record, for listings, and takes
	// as much memory as the key is long; a key in the compact form has none.
	// Defaults to false.
	KeepIDs bool
	// Compact keeps what is done and has neither a result nor a fingerprint in
	// a fraction of the memory. Defaults to none.
	Compact *Compact
	// Client has the options with which Connect connects. Defaults to the zero
	// ClientOptions. Must be nil for New, which takes a client.
	Client *ClientOptions
}

// Compact describes the compact form: half of the digest in a set of whole
// numbers, one set for each bucket of digests and slice of time.
//
// A key that is done with a result, with a fingerprint or for another window
// keeps its record. A key in the compact form is forgotten up to one slice
// after its window, and shows neither token nor attempt.
//
// Half a digest is 64 bits. A new key is taken for a duplicate, and its message
// dropped, if one of the m members of the sets that are asked has the same 64
// bits: with a probability of m / 2^64. m is at most about 500 where Expect is
// right, at any number of keys; so in N new keys it is N m / 2^64, which is one
// in 37 million for a billion keys.
type Compact struct {
	// Window is the window of the keys that may take the compact form. Must be
	// above 0 and not Forever.
	Window time.Duration
	// Slices is how many slices a window has. More of them forget sooner and
	// take longer to ask. Defaults to 4. Must be from 1 to 64.
	Slices int
	// Expect is how many keys are done in one window, about, all at once or
	// little by little; it counts when the prefix is first used. Of many more
	// each takes several times the memory, and of many fewer somewhat more.
	// Defaults to 1048576. Must not be negative.
	Expect int64
	// Grace is how long a record stays beside the compact form, so that a
	// completion or a claim with Done that is sent again is recognised: longer
	// than any caller goes on to ask again. It must be much shorter than the
	// window to save memory. Defaults to 30 s. Must be at least 1 ms and
	// shorter than Window.
	Grace time.Duration
}

// Store is a [semel.Store] in Redis. Its methods may be called concurrently. It
// starts no goroutine.
type Store struct {
	client  rueidis.Client
	owned   *Client // nil unless Connect made the client
	closed  atomic.Bool
	opts    Options
	scripts scripts
	// cluster: what a script touches must be in one slot.
	cluster bool
	// setGet: the server knows SET with NX and GET.
	setGet bool
	ring   *ring // nil without the compact form
	// sliceArg and graceArg are what scripts are told of the ring.
	sliceArg, graceArg string
	agreed             atomic.Pointer[agreement]
	// reminded is when the agreement is looked at next, in nanoseconds.
	reminded atomic.Int64
	// failed: the server has begun anew under another agreement.
	failed atomic.Bool
}

var (
	_ semel.Store    = (*Store)(nil)
	_ semel.Looker   = (*Store)(nil)
	_ semel.Lister   = (*Store)(nil)
	_ semel.Resolver = (*Store)(nil)
	_ semel.Counter  = (*Store)(nil)
)

// Connect connects to the servers that a URL names and opens the store of a
// prefix on them. [NewClient] describes the URL and the errors about it;
// Options.Client has the options of the connection. Nil options are the zero
// options. Connect blocks for a few round trips. The caller closes the store,
// which closes its connections.
//
// Use [NewClient] and [New] instead if several stores or filters share one client.
func Connect(ctx context.Context, url string, opts *Options) (*Store, error) {
	o := opts.withDefaults()
	connection := o.Client
	o.Client = nil
	_, _, err := connection.resolve(url)
	if err := errors.Join(o.validate(), err); err != nil {
		return nil, err
	}
	client, err := NewClient(ctx, url, connection)
	if err != nil {
		return nil, err
	}
	s, err := New(ctx, client, &o)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.owned = client
	return s, nil
}

// New opens the store of a prefix. It asks the server, Redis from 6.2 on or
// Valkey, for its version and for what the stores of this prefix have agreed
// on, and blocks for that. Nil options are the zero options. All options that
// are out of bounds, and what contradicts the agreement, are named in errors
// that wrap ErrInvalidRequest; others say like those of the store's methods
// what the server answered.
func New(ctx context.Context, client rueidis.Client, opts *Options) (*Store, error) {
	if client == nil {
		return nil, fmt.Errorf("redisstore: New: the client is nil: %w", semel.ErrInvalidRequest)
	}
	if opts != nil && opts.Client != nil {
		return nil, fmt.Errorf("redisstore: Options.Client: it is for Connect, and New takes a client: %w", semel.ErrInvalidRequest)
	}
	o := opts.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Store{client: client, opts: o, scripts: newScripts()}
	if err := s.greet(ctx); err != nil {
		return nil, err
	}
	wanted := &agreement{secret: o.Secret, given: o.Secret != [16]byte{}}
	if !wanted.given {
		wanted.secret = digest.NewSecret()
	}
	if o.Compact != nil {
		var err error
		if wanted.ring, err = s.newRing(ctx, o.Compact); err != nil {
			return nil, err
		}
		s.graceArg = strconv.FormatUint(windowMillis(o.Compact.Grace), 10)
	}
	agreed, err := s.agree(ctx, wanted)
	if err != nil {
		return nil, err
	}
	s.agreed.Store(agreed)
	s.reminded.Store(time.Now().UnixNano() + int64(reminderEvery))
	if s.ring = agreed.ring; s.ring != nil {
		s.sliceArg = strconv.FormatInt(s.ring.length().Microseconds(), 10)
	}
	return s, nil
}

// withDefaults returns a copy with the defaults filled in.
func (o *Options) withDefaults() Options {
	var filled Options
	if o != nil {
		filled = *o
	}
	if filled.Prefix == "" {
		filled.Prefix = DefaultPrefix
	}
	if filled.MaxResult == 0 {
		filled.MaxResult = DefaultMaxResult
	}
	if filled.Compact != nil {
		c := *filled.Compact
		if c.Slices == 0 {
			c.Slices = DefaultSlices
		}
		if c.Expect == 0 {
			c.Expect = DefaultExpect
		}
		if c.Grace == 0 {
			c.Grace = DefaultGrace
		}
		filled.Compact = &c
	}
	return filled
}

func (o *Options) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("redisstore: Options."+format+": %w", append(args, semel.ErrInvalidRequest)...))
	}
	if strings.ContainsAny(o.Prefix, "{}") {
		bad("Prefix: %q contains a brace, which decides the slot in a cluster", o.Prefix)
	}
	if o.Persistence > Synced {
		bad("Persistence: %d is none of Volatile, Logged and Synced", o.Persistence)
	}
	if o.MaxResult < 0 {
		bad("MaxResult: %d is negative", o.MaxResult)
	}
	if c := o.Compact; c != nil {
		if c.Window <= 0 || c.Window == semel.Forever {
			bad("Compact.Window: %v is not above 0 and finite", c.Window)
		}
		if c.Slices < 1 || c.Slices > 64 {
			bad("Compact.Slices: %d is not from 1 to 64", c.Slices)
		}
		if c.Expect < 0 {
			bad("Compact.Expect: %d is negative", c.Expect)
		}
		if c.Grace < time.Millisecond || c.Grace >= c.Window {
			bad("Compact.Grace: %v is not between 1ms and the window of %v", c.Grace, c.Window)
		}
	}
	return errors.Join(errs...)
}

// greet asks what the server is.
func (s *Store) greet(ctx context.Context) error {
	hello, err := s.client.Do(ctx, s.client.B().Arbitrary("HELLO").Build()).AsMap()
	if err != nil {
		return storeError("open", err)
	}
	version, mode := text(hello, "version"), text(hello, "mode")
	if server := text(hello, "server"); server == "redis" {
		major, minor, err := versionOf(version)
		if err != nil || major < 6 || major == 6 && minor < 2 {
			return fmt.Errorf("redisstore: the server is Redis %s, older than 6.2: %w", version, semel.ErrInvalidRequest)
		}
		s.setGet = major >= 7
	} else {
		// Valkey and what else has come after Redis 7.
		s.setGet = true
	}
	s.cluster = mode == "cluster" || s.client.Mode() == rueidis.ClientModeCluster
	return nil
}

func text(m map[string]rueidis.RedisMessage, name string) string {
	value := m[name]
	s, _ := value.ToString()
	return s
}

// versionOf reads the first two numbers of a version.
func versionOf(version string) (major, minor int, err error) {
	first, rest, _ := strings.Cut(version, ".")
	second, _, _ := strings.Cut(rest, ".")
	major, err1 := strconv.Atoi(first)
	minor, err2 := strconv.Atoi(second)
	return major, minor, errors.Join(err1, err2)
}

// usualSetLimit is the number of members up to which Redis packs a set of whole
// numbers, unless it is configured otherwise.
const usualSetLimit = 512

// newRing plans the sets of the compact form: so many that the server packs
// them even if all keys of a window come in one slice. Usually each slice has a
// part of them; sets of some dozen members are still worth their name.
func (s *Store) newRing(ctx context.Context, c *Compact) (*ring, error) {
	limit := int64(usualSetLimit)
	// Who may not ask is not refused: the usual limit holds nearly everywhere.
	asked, err := s.client.Do(ctx, s.client.B().ConfigGet().Parameter("set-max-intset-entries").Build()).AsStrMap()
	if n, e := strconv.ParseInt(asked["set-max-intset-entries"], 10, 64); err == nil && e == nil {
		limit = n
	}
	if limit < 16 {
		return nil, fmt.Errorf("redisstore: Options.Compact: the server's set-max-intset-entries is %d, so that it does not pack sets: %w", limit, semel.ErrInvalidRequest)
	}
	r := &ring{window: c.Window, slices: c.Slices}
	// Chance gives some sets a few dozen more than others.
	members := limit * 3 / 4
	subs := (c.Expect/int64(tags) + members) / members
	r.subs = uint32(min(max(subs, 1), 1<<31))
	return r, nil
}

// Close refuses later calls with [semel.ErrClosed]. If [Connect] made the store,
// Close waits for the running calls and closes the connections; a client that was
// given to [New] stays open. A second Close does nothing.
func (s *Store) Close() error {
	s.closed.Store(true)
	if s.owned != nil {
		s.owned.Close()
	}
	return nil
}

// Traits implements [semel.Store].
func (s *Store) Traits() semel.Traits { return s.opts.traits() }

// Traits returns what a store with these options promises, without a server.
// Nil options are the zero options. All that are out of bounds are named in one
// error, which wraps ErrInvalidRequest.
func (o *Options) Traits() (semel.Traits, error) {
	filled := o.withDefaults()
	if err := filled.validate(); err != nil {
		return semel.Traits{}, err
	}
	return filled.traits(), nil
}

func (o *Options) traits() semel.Traits {
	t := semel.Traits{
		Durable:   o.Persistence >= Logged,
		PowerSafe: o.Persistence == Synced,
		Shared:    true,
		Fenced:    true,
		Exact:     o.Compact == nil,
		Results:   true,
		MaxResult: o.MaxResult,
	}
	if c := o.Compact; c != nil {
		// Window and slices are those on which the prefix has agreed.
		t.Tick = (&ring{window: c.Window, slices: c.Slices}).length()
	}
	return t
}

// JoinLanes says how many calls with joined requests are worth having under way
// at once: while the server works on one, others are packed and read.
func (s *Store) JoinLanes() int { return 4 }

// JoinSizes says how many requests such a call should have. With fewer the work
// around a call counts; many more leave the server idle while they are packed.
func (s *Store) JoinSizes() (least, most int) { return 32, 256 }

// enter begins a call.
func (s *Store) enter(ctx context.Context, verb string, requests, answers int) error {
	switch {
	case requests != answers:
		return fmt.Errorf("redisstore: %s: %d requests and %d answers: %w", verb, requests, answers, semel.ErrInvalidRequest)
	case s.closed.Load():
		return fmt.Errorf("redisstore: %s: %w", verb, semel.ErrClosed)
	case s.failed.Load():
		return fmt.Errorf("redisstore: %s: the server has lost its data and was begun anew with other options: %w", verb, semel.ErrStoreFailed)
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("redisstore: %s: %w", verb, err)
	}
	return nil
}

// ids is the readable key as far as it is kept.
func (s *Store) ids(key *semel.Key) *semel.Key {
	if s.opts.KeepIDs {
		return key
	}
	return nil
}

// digests returns what digests the keys of one call.
func (s *Store) digests() digest.Memo {
	return digest.Memo{Hasher: digest.New(s.agreed.Load().secret)}
}
