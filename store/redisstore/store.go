package redisstore

import (
	"cmp"
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
	"github.com/semel-dev/semel/internal/invalid"
)

// These are the defaults of [Options] and [Compact].
const (
	DefaultPrefix    = "semel:"
	defaultMaxResult = 1 << 20
	defaultSlices    = 4
	defaultExpect    = 1 << 20
	defaultGrace     = 30 * time.Second
)

// Persistence says what the server keeps when it ends.
type Persistence uint8

const (
	// Volatile means that the server may forget everything when it ends. It has
	// no append-only file, or only snapshots.
	Volatile Persistence = iota
	// Logged means that an append-only file survives an orderly stop of the
	// server. With appendfsync everysec the server may answer before it has
	// written. When it is killed, crashes or loses power, it may forget the
	// keys of the last one or two seconds.
	Logged
	// Synced means that the server syncs the append-only file before each
	// answer (appendfsync always).
	Synced
)

// Options are the options of [Connect] and [New]. The zero value is valid.
type Options struct {
	// Prefix begins all names in Redis. Stores with the same prefix on the same
	// server are one store. Defaults to "semel:". Must not contain "{" or "}".
	Prefix string
	// Secret is the key of the digests. All stores of a prefix must have the
	// same secret. Defaults to a random secret that is kept in Redis.
	Secret [16]byte
	// Persistence says what the server keeps when it ends. The store's traits
	// follow from it, and Examine compares it with the server. Defaults to
	// Volatile.
	Persistence Persistence
	// MaxResult is the longest result in bytes that the store accepts. It
	// refuses longer results with ErrResultTooLarge. Defaults to 1 MiB. Must
	// not be negative.
	MaxResult int64
	// KeepIDs keeps the readable key in each record, so that listings show it.
	// This takes as much memory as the key is long. Keys in the compact form
	// have no readable key. Defaults to false.
	KeepIDs bool
	// Compact keeps done keys without result and fingerprint in a fraction of
	// the memory. Defaults to nil: no compact form.
	Compact *Compact
	// Client has the options of the connection that Connect makes. Defaults to
	// the zero ClientOptions. Must be nil for New.
	Client *ClientOptions
}

// Compact describes the compact form: a key is half of its digest, in a set of
// integers. There is one set for each bucket of digests and slice of time.
//
// A key that is done with a result, with a fingerprint or for another window
// keeps its record. A key in the compact form is forgotten up to one slice
// after its window, and shows neither token nor attempt.
//
// Half a digest is 64 bits. If one of the m members of the sets that the server
// looks into has the same 64 bits, a new key is taken for a duplicate, and its
// message is dropped. The probability is m / 2^64. If Expect is right, m is at
// most about 500 for any number of keys. For N new keys the probability is then
// N m / 2^64, which is one in 37 million for a billion keys.
type Compact struct {
	// Window is the window of keys that may take the compact form. Must be
	// above 0 and not Forever.
	Window time.Duration
	// Slices is the number of slices of a window. With more slices keys are
	// forgotten sooner after their window, and calls take longer. Defaults to
	// 4. Must be from 1 to 64.
	Slices int
	// Expect is about how many keys are done in one window, in any distribution
	// over the window. It takes effect when the prefix is first used. If there
	// are many more keys, each takes several times the memory. If there are
	// many fewer, each takes somewhat more. Defaults to 1048576. Must not be
	// negative.
	Expect int64
	// Grace is how long the record of a key stays in addition to the compact
	// form. During that time a repeated completion or claim with Done is
	// recognised. So Grace must be longer than callers repeat a request, and
	// much shorter than the window to save memory. Defaults to 30 s. Must be at
	// least 1 ms and shorter than Window.
	Grace time.Duration
}

// Store is a [semel.Store] in Redis. Its methods may be called concurrently. It
// starts no goroutine.
type Store struct {
	client  rueidis.Client
	owned   *Client // the client that Connect made, or nil
	closed  atomic.Bool
	opts    Options
	scripts scripts
	// cluster is set if all names that one script uses must be in one slot.
	cluster bool
	// setGet is set if the server supports SET with NX and GET.
	setGet bool
	ring   *ring // nil without the compact form
	// sliceArg and graceArg are the arguments of scripts about the ring.
	sliceArg, graceArg string
	agreed             atomic.Pointer[agreement]
	// reminded is when the agreement is checked next, in nanoseconds.
	reminded atomic.Int64
	// failed is set when the server has lost its data and has another agreement
	// now.
	failed atomic.Bool
}

var (
	_ semel.Store          = (*Store)(nil)
	_ semel.Inspector      = (*Store)(nil)
	_ semel.Resolver       = (*Store)(nil)
	_ semel.DigestResolver = (*Store)(nil)
	_ semel.ScopeBinder    = (*Store)(nil)
)

// Connect connects to the servers that a URL names and opens the store of a
// prefix on them. [NewClient] documents the URL and its errors. Options.Client
// has the options of the connection. Nil options are the zero options. Connect
// blocks for a few round trips. The caller closes the store, which closes its
// connections.
//
// If several stores or filters share one client, use [NewClient] and [New]
// instead.
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

// New opens the store of a prefix on a client. The server must be Redis 6.2 or
// later, or Valkey. New blocks while it asks the server for its version and for
// the agreement of the stores of this prefix. Nil options are the zero options.
// One error names all options that are out of bounds, and wraps
// ErrInvalidRequest. So does an error about options that contradict the
// agreement. Other errors are those of the store's methods.
func New(ctx context.Context, client rueidis.Client, opts *Options) (*Store, error) {
	if client == nil {
		return nil, fmt.Errorf("redisstore: New: the client is nil: %w", semel.ErrInvalidRequest)
	}
	if opts != nil && opts.Client != nil {
		return nil, fmt.Errorf("redisstore: Options.Client: New already has a client, so leave this field nil or use Connect: %w", semel.ErrInvalidRequest)
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

// withDefaults returns a copy in which unset fields have their defaults.
func (o *Options) withDefaults() Options {
	var filled Options
	if o != nil {
		filled = *o
	}
	filled.Prefix = cmp.Or(filled.Prefix, DefaultPrefix)
	filled.MaxResult = cmp.Or(filled.MaxResult, defaultMaxResult)
	if filled.Compact != nil {
		c := *filled.Compact
		c.Slices = cmp.Or(c.Slices, defaultSlices)
		c.Expect = cmp.Or(c.Expect, defaultExpect)
		c.Grace = cmp.Or(c.Grace, defaultGrace)
		filled.Compact = &c
	}
	return filled
}

func (o *Options) validate() error {
	wrong := invalid.In("redisstore: Options.")
	if strings.ContainsAny(o.Prefix, "{}") {
		wrong.Add("Prefix: %q contains a brace, which decides the slot in a cluster", o.Prefix)
	}
	if o.Persistence > Synced {
		wrong.Add("Persistence: %d is not Volatile, Logged or Synced", o.Persistence)
	}
	if o.MaxResult < 0 {
		wrong.Add("MaxResult: %d is negative", o.MaxResult)
	}
	if c := o.Compact; c != nil {
		if c.Window <= 0 || c.Window == semel.Forever {
			wrong.Add("Compact.Window: %v is not above 0, or is Forever", c.Window)
		}
		if c.Slices < 1 || c.Slices > 64 {
			wrong.Add("Compact.Slices: %d is not from 1 to 64", c.Slices)
		}
		if c.Expect < 0 {
			wrong.Add("Compact.Expect: %d is negative", c.Expect)
		}
		if c.Grace < time.Millisecond || c.Grace >= c.Window {
			wrong.Add("Compact.Grace: %v is not between 1ms and the window of %v", c.Grace, c.Window)
		}
	}
	return wrong.Err()
}

// greet asks for the version and the mode of the server.
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
		// The server is Valkey or another successor of Redis 7.
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

// usualSetLimit is the default number of members up to which Redis packs a set
// of integers.
const usualSetLimit = 512

// newRing plans the sets of the compact form. There are so many sets that the
// server packs them even if all keys of a window come in one slice. Usually
// each slice has a part of the keys. Sets of some dozen members still save
// memory.
func (s *Store) newRing(ctx context.Context, c *Compact) (*ring, error) {
	limit := int64(usualSetLimit)
	// A user without the permission to ask gets the default limit, which holds
	// nearly everywhere.
	asked, err := s.client.Do(ctx, s.client.B().ConfigGet().Parameter("set-max-intset-entries").Build()).AsStrMap()
	if n, e := strconv.ParseInt(asked["set-max-intset-entries"], 10, 64); err == nil && e == nil {
		limit = n
	}
	if limit < 16 {
		return nil, fmt.Errorf("redisstore: Options.Compact: the server's set-max-intset-entries is %d, so it does not pack sets; set it to at least 16: %w", limit, semel.ErrInvalidRequest)
	}
	r := &ring{window: c.Window, slices: c.Slices}
	// By chance some sets get a few dozen members more than others.
	members := limit * 3 / 4
	subs := (c.Expect/int64(tags) + members) / members
	r.subs = uint32(min(max(subs, 1), 1<<31))
	return r, nil
}

// Close makes later calls fail with [semel.ErrClosed]. If [Connect] made the
// store, Close waits for running calls and closes the connections. A client
// that was passed to [New] stays open. A second Close does nothing.
func (s *Store) Close() error {
	s.closed.Store(true)
	if s.owned != nil {
		s.owned.Close()
	}
	return nil
}

// Traits implements [semel.Store].
func (s *Store) Traits() semel.Traits { return s.opts.traits() }

// Traits returns the promises of a store with these options, without a server.
// Nil options are the zero options. One error names all options that are out of
// bounds, and wraps ErrInvalidRequest.
func (o *Options) Traits() (semel.Traits, error) {
	filled := o.withDefaults()
	if err := filled.validate(); err != nil {
		return semel.Traits{}, err
	}
	return filled.traits(), nil
}

func (o *Options) traits() semel.Traits {
	t := semel.Traits{
		Durable:       o.Persistence >= Logged,
		PowerSafe:     o.Persistence == Synced,
		DurableClaims: o.Persistence >= Logged,
		Shared:        true,
		Exact:         o.Compact == nil,
		Origins:       o.Compact == nil,
		Results:       true,
		MaxResult:     o.MaxResult,
		// While the server works on one call, the client packs and reads others. With
		// fewer requests the overhead of each call counts. With many more the server
		// idles while the client packs them.
		Batching: semel.Batching{Calls: 4, Least: 32, Most: 256},
	}
	if c := o.Compact; c != nil {
		// The agreement of the prefix has the same window and slices.
		t.Tick = (&ring{window: c.Window, slices: c.Slices}).length()
	}
	return t
}

// enter starts a call.
func (s *Store) enter(ctx context.Context, verb string, requests, answers int) error {
	switch {
	case requests != answers:
		return fmt.Errorf("redisstore: %s: %d requests and %d answers: %w", verb, requests, answers, semel.ErrInvalidRequest)
	case s.closed.Load():
		return fmt.Errorf("redisstore: %s: %w", verb, semel.ErrClosed)
	case s.failed.Load():
		return fmt.Errorf("redisstore: %s: the server has lost its data, and another process uses the prefix with other options: %w", verb, semel.ErrStoreFailed)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("redisstore: %s: nothing was changed: %w: %w", verb, semel.ErrStoreUnavailable, context.Cause(ctx))
	}
	return nil
}

// ids returns the part of a request that the store keeps for people. The compact
// form cannot keep an origin.
func (s *Store) ids(req *semel.ClaimRequest) (of ids) {
	if s.opts.KeepIDs {
		of.key = req.Key
	}
	if s.ring == nil {
		of.origin = req.Origin
	}
	return of
}

// digests returns the digester for the keys of one call.
func (s *Store) digests() digest.Memo {
	return digest.Memo{Hasher: digest.New(s.agreed.Load().secret)}
}
