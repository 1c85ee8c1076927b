package redisstore

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/internal/invalid"
)

// These are the defaults of [FilterOptions].
const (
	defaultFilterPrefix   = "semel:"
	defaultFilterCapacity = 1_000_000
	defaultFilterRate     = 0.001
	defaultFilterWindow   = 24 * time.Hour
	defaultFilterSlices   = 2
)

// FilterForm is the form in which a server keeps a filter.
type FilterForm string

const (
	// FilterModule is a Bloom filter of a module with the BF commands. It takes
	// the least memory for its rate.
	FilterModule FilterForm = "module"
	// FilterBits is a blocked Bloom filter in a plain string. All bits of a key
	// are in one block of 64 bytes, so that one command reads them all.
	FilterBits FilterForm = "bits"
)

// FilterOptions are the options of [NewFilter]. The zero value is valid. All
// users of one filter must have the same options, and NewFilter checks that.
type FilterOptions struct {
	// Prefix begins the names of the filter's keys. All of them are in one slot
	// of a cluster. Defaults to "semel:".
	Prefix string
	// Capacity is the highest number of keys in one slice, which is
	// Window/Slices long. The filter refuses further keys with
	// [semel.ErrStoreFull] until the next slice begins. Defaults to 1,000,000.
	// Must be above 0. In FilterBits a slice must fit into the 512 MiB of a
	// string.
	Capacity int64
	// Rate is the probability that a filter with full slices reports a key as
	// maybe there that was never added. Defaults to 0.001. Must be at least
	// 0.0000001 and below 0.5.
	Rate float64
	// Window is how long keys stay in the filter. Some stay up to Window/Slices
	// longer. Defaults to 24 h. Must be at least a second for each slice.
	Window time.Duration
	// Slices is the number of parts in which the filter forgets the window. The
	// server keeps one filter more than that, and each call looks into all of
	// them. More slices take less memory and more time. Defaults to 2. Must be
	// between 1 and 64.
	Slices int
	// Form is the form of the filter. Defaults to the form of an existing filter. A new
	// one gets FilterModule if the server has the commands, and FilterBits otherwise.
	Form FilterForm
}

// Filter remembers keys in a fraction of the memory of exact records, and
// reports some keys as maybe there that are not. Put it in front of an exact
// store, which confirms every "maybe". A program that drops messages because a filter
// may have seen them loses new messages at its rate.
//
// The filter keeps keys in slices of the server's time, and the server forgets
// each slice as a whole. If the server restarts without persistence, fails over
// or evicts keys, it forgets slices sooner, and the filter reports their keys
// as not there. So the filter must never replace a claim. All methods may be
// called concurrently. They block for about one round trip for each few hundred
// keys.
type Filter struct {
	client rueidis.Client
	opts   FilterOptions
	form   filterForm
	hasher digest.Hasher
	base   time.Time
	offset atomic.Int64 // from base to the server's clock, in nanoseconds
}

// filterForm makes the commands of a form and reads their answers.
type filterForm interface {
	// look returns the commands that look up digests in the filter of one
	// slice.
	look(b rueidis.Builder, key string, digests []semel.Digest) []rueidis.Completed
	// looked sets seen[i] if digest i is maybe there.
	looked(results []rueidis.RedisResult, digests []semel.Digest, seen []bool) error
	// add returns the commands that add digests to the filter of one slice,
	// which ends at until. It returns an error if the filter is known to be
	// full.
	add(b rueidis.Builder, key string, digests []semel.Digest, until time.Time) ([]rueidis.Completed, error)
	// added reads the answers to the commands of add for n digests. After an
	// error, any of them may have been added.
	added(key string, results []rueidis.RedisResult, n int) error
	// check examines the filter of one slice, if it exists.
	check(ctx context.Context, client rueidis.Client, key string) error
}

// NewFilter opens the filter under a prefix, or creates it. Nil options are
// valid. NewFilter blocks for a few round trips. Errors wrap
// [semel.ErrInvalidRequest] in three cases: options are out of bounds, options
// differ from those of the existing filter, or the server has a filter of
// another size or rate. Other errors are those of the server. The client stays
// the caller's to close.
func NewFilter(ctx context.Context, client rueidis.Client, opts *FilterOptions) (*Filter, error) {
	f, err := newFilterOf(client, opts)
	if err != nil {
		return nil, err
	}
	if err := f.open(ctx); err != nil {
		return nil, err
	}
	return f, nil
}

func newFilterOf(client rueidis.Client, opts *FilterOptions) (*Filter, error) {
	if client == nil {
		return nil, fmt.Errorf("redisstore: filter: the client is nil: %w", semel.ErrInvalidRequest)
	}
	var o FilterOptions
	if opts != nil {
		o = *opts
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	return &Filter{client: client, opts: o, base: time.Now()}, nil
}

func (o *FilterOptions) complete() error {
	o.Prefix = cmp.Or(o.Prefix, defaultFilterPrefix)
	o.Capacity = cmp.Or(o.Capacity, defaultFilterCapacity)
	o.Rate = cmp.Or(o.Rate, defaultFilterRate)
	o.Window = cmp.Or(o.Window, defaultFilterWindow)
	o.Slices = cmp.Or(o.Slices, defaultFilterSlices)
	wrong := invalid.In("redisstore: FilterOptions.")
	if strings.ContainsAny(o.Prefix, "{}") {
		wrong.Add("Prefix: %q contains a brace, which decides the slot in a cluster", o.Prefix)
	}
	if o.Capacity <= 0 {
		wrong.Add("Capacity: %d is not above 0", o.Capacity)
	}
	if !(o.Rate >= 1e-7 && o.Rate < 0.5) {
		wrong.Add("Rate: %g is not from 1e-7 to 0.5", o.Rate)
	}
	switch {
	case o.Slices < 1 || o.Slices > 64:
		wrong.Add("Slices: %d is not between 1 and 64", o.Slices)
	case o.Window < time.Duration(o.Slices)*time.Second:
		wrong.Add("Window: %v is not a second for each of %d slices", o.Window, o.Slices)
	}
	switch o.Form {
	case "", FilterModule, FilterBits:
	default:
		wrong.Add("Form: %q is neither %q nor %q", o.Form, FilterModule, FilterBits)
	}
	return wrong.Err()
}

// sliceRate returns the rate of one slice with which all slices together have
// o.Rate.
func (o *FilterOptions) sliceRate() float64 {
	return -math.Expm1(math.Log1p(-o.Rate) / float64(o.Slices+1))
}

// Rate returns the probability that a filter with full slices reports a key as
// maybe there that was never added. It does not block.
func (f *Filter) Rate() float64 { return f.opts.Rate }

// Form returns the form of the filter. It does not block.
func (f *Filter) Form() FilterForm { return f.opts.Form }

// MayContain sets maybe[i] if keys[i] may have been added within the window.
// False is certain as long as the server has lost nothing. True is not certain.
// After an error do not use maybe.
func (f *Filter) MayContain(ctx context.Context, keys []semel.Key, maybe []bool) error {
	if len(keys) != len(maybe) {
		return fmt.Errorf("redisstore: %d keys but room for %d answers: %w", len(keys), len(maybe), semel.ErrInvalidRequest)
	}
	clear(maybe)
	return f.inParts(keys, func(slice int64, digests []semel.Digest, from int) (int64, error) {
		return f.look(ctx, slice, digests, maybe[from:from+len(digests)])
	})
}

// Add adds keys. After an error it is not known which keys were added, and the
// caller may add them again. A full filter refuses keys with
// [semel.ErrStoreFull], and later reports them as not there.
func (f *Filter) Add(ctx context.Context, keys []semel.Key) error {
	return f.inParts(keys, func(slice int64, digests []semel.Digest, _ int) (int64, error) {
		return f.add(ctx, slice, digests)
	})
}

// filterSettings are the settings that all users of a filter must agree on, as
// the server keeps them. With the secret, outsiders cannot choose keys that
// collide.
type filterSettings struct {
	Version  int
	Form     FilterForm
	Capacity int64
	Rate     float64
	Window   time.Duration
	Slices   int
	Secret   string
}

func (f *Filter) name(what string) string { return f.opts.Prefix + "{filter}:" + what }

func (f *Filter) sliceKey(slice int64) string { return f.name(strconv.FormatInt(slice, 10)) }

// open reads or writes the settings and checks the existing filter.
func (f *Filter) open(ctx context.Context) error {
	best, mine, err := f.wanted(ctx)
	if err != nil {
		return err
	}
	kept, err := f.agree(ctx, mine)
	if err != nil {
		return err
	}
	return f.use(ctx, best, mine, kept)
}

// wanted returns the best form that the server supports, and the settings that
// this process would write.
func (f *Filter) wanted(ctx context.Context) (best FilterForm, mine filterSettings, err error) {
	if best, err = f.detect(ctx); err != nil {
		return best, mine, err
	}
	form := cmp.Or(f.opts.Form, best)
	if form == FilterModule && best != FilterModule {
		return best, mine, fmt.Errorf("redisstore: FilterOptions.Form: the server has no BF commands: %w", semel.ErrInvalidRequest)
	}
	secret := digest.NewSecret()
	mine = filterSettings{1, form, f.opts.Capacity, f.opts.Rate, f.opts.Window, f.opts.Slices, hex.EncodeToString(secret[:])}
	return best, mine, nil
}

// use adopts the kept settings, or returns an error if they contradict the
// options.
func (f *Filter) use(ctx context.Context, best FilterForm, mine, kept filterSettings) (err error) {
	if f.opts.Form == "" {
		mine.Form = kept.Form
	}
	mine.Secret = kept.Secret
	if kept != mine {
		mine.Secret, kept.Secret = "", ""
		return fmt.Errorf("redisstore: filter: the filter was made with the options %+v, and these are %+v: %w", kept, mine, semel.ErrInvalidRequest)
	}
	var secret digest.Secret
	if n, err := hex.Decode(secret[:], []byte(kept.Secret)); err != nil || n != len(secret) {
		return fmt.Errorf("redisstore: filter: the settings in Redis have no secret: %w", semel.ErrCorrupt)
	}
	if kept.Form == FilterModule && best != FilterModule {
		return fmt.Errorf("redisstore: filter: the filter was made by a module that the server no longer has: %w", semel.ErrCorrupt)
	}
	f.hasher = digest.New(secret)
	f.opts.Form = kept.Form
	if f.form, err = f.opts.newForm(); err != nil {
		return err
	}
	now, err := f.askTime(ctx)
	if err != nil {
		return err
	}
	for slice := now - int64(f.opts.Slices); slice <= now; slice++ {
		if err := f.form.check(ctx, f.client, f.sliceKey(slice)); err != nil {
			return err
		}
	}
	return nil
}

// detect finds out whether the server has the BF commands. A server without
// them answers "unknown command". Any other answer means that it has them.
func (f *Filter) detect(ctx context.Context) (FilterForm, error) {
	err := f.client.Do(ctx, f.client.B().BfExists().Key(f.name("settings-none")).Item("").Build()).Error()
	if answer, ok := rueidis.IsRedisErr(err); ok && strings.Contains(answer.Error(), "unknown command") {
		return FilterBits, nil
	}
	if err != nil {
		return "", storeError("filter", err)
	}
	return FilterModule, nil
}

// agree writes the settings if none exist, and returns the kept ones.
func (f *Filter) agree(ctx context.Context, mine filterSettings) (kept filterSettings, err error) {
	text, err := json.Marshal(mine)
	if err != nil {
		return kept, fmt.Errorf("redisstore: filter: settings: %w", err)
	}
	key, b := f.name("settings"), f.client.B()
	results := f.client.DoMulti(ctx, b.Set().Key(key).Value(string(text)).Nx().Build(), b.Get().Key(key).Build())
	if err := results[0].Error(); err != nil && !rueidis.IsRedisNil(err) {
		return kept, storeError("filter", err)
	}
	return readSettings(results[1])
}

func readSettings(result rueidis.RedisResult) (kept filterSettings, err error) {
	text, err := result.AsBytes()
	if err != nil {
		return kept, storeError("filter", err)
	}
	if err := json.Unmarshal(text, &kept); err != nil || kept.Version != 1 {
		return kept, fmt.Errorf("redisstore: filter: the settings in Redis are not those of a filter, or are of a later version: %w", semel.ErrCorrupt)
	}
	return kept, nil
}

func (o *FilterOptions) newForm() (filterForm, error) {
	switch o.Form {
	case FilterModule:
		return newModuleForm(o), nil
	case FilterBits:
		return newBitsForm(o)
	}
	return nil, fmt.Errorf("redisstore: filter: the form %q is of a later version: %w", o.Form, semel.ErrCorrupt)
}

// sliceLength returns the length of one slice.
func (o *FilterOptions) sliceLength() time.Duration { return o.Window / time.Duration(o.Slices) }

// guess returns the estimated current slice of the server's time.
func (f *Filter) guess() int64 {
	return (int64(time.Since(f.base)) + f.offset.Load()) / int64(f.opts.sliceLength())
}

// askTime asks for the server's time and returns its slice.
func (f *Filter) askTime(ctx context.Context) (int64, error) {
	return f.readTime(f.client.Do(ctx, f.client.B().Time().Build()))
}

func (f *Filter) readTime(result rueidis.RedisResult) (int64, error) {
	parts, err := result.AsIntSlice()
	switch {
	case err != nil:
		return 0, storeError("filter", err)
	case len(parts) != 2:
		return 0, fmt.Errorf("redisstore: filter: TIME has %d parts: %w", len(parts), semel.ErrCorrupt)
	}
	now := parts[0]*int64(time.Second) + parts[1]*int64(time.Microsecond)
	f.offset.Store(now - int64(time.Since(f.base)))
	return now / int64(f.opts.sliceLength()), nil
}

// mostCommands is the most commands of one round. For 2000 commands and more
// the client library opens another connection.
const mostCommands = 1500

// inParts makes rounds with a bounded number of keys, each in the current slice of the
// server's time. It estimates the slice. A round also asks for the time, and is repeated
// in the actual slice if that is another one. from is the index of a round's first key.
func (f *Filter) inParts(keys []semel.Key, round func(slice int64, digests []semel.Digest, from int) (actual int64, err error)) error {
	for i := range keys {
		if err := keys[i].Validate(); err != nil {
			return err
		}
	}
	memo := digest.Memo{Hasher: f.hasher}
	part := mostCommands / (f.opts.Slices + 1)
	digests := make([]semel.Digest, 0, min(part, len(keys)))
	for from := 0; from < len(keys); from += len(digests) {
		digests = digests[:0]
		for _, k := range keys[from:min(len(keys), from+part)] {
			digests = append(digests, memo.Key(k))
		}
		slice := f.guess()
		actual, err := round(slice, digests, from)
		for err == nil && actual != slice {
			slice = actual
			actual, err = round(slice, digests, from)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// look makes one round trip that looks into a slice and the older ones. It sets maybe[i]
// if digest i is maybe in one of them.
func (f *Filter) look(ctx context.Context, slice int64, digests []semel.Digest, maybe []bool) (actual int64, err error) {
	b := f.client.B()
	commands := append(make([]rueidis.Completed, 0, mostCommands), b.Time().Build())
	for older := slice - int64(f.opts.Slices); older <= slice; older++ {
		commands = append(commands, f.form.look(b, f.sliceKey(older), digests)...)
	}
	results := f.client.DoMulti(ctx, commands...)
	if actual, err = f.readTime(results[0]); err != nil {
		return 0, err
	}
	results = results[1:]
	for answers := range slices.Chunk(results, len(results)/(f.opts.Slices+1)) {
		if err := f.form.looked(answers, digests, maybe); err != nil {
			return 0, err
		}
	}
	return actual, nil
}

// add makes one round trip that adds digests to a slice.
func (f *Filter) add(ctx context.Context, slice int64, digests []semel.Digest) (actual int64, err error) {
	b, key := f.client.B(), f.sliceKey(slice)
	until := time.Unix(0, (slice+int64(f.opts.Slices)+1)*int64(f.opts.sliceLength()))
	adding, err := f.form.add(b, key, digests, until)
	if err != nil {
		return 0, err
	}
	results := f.client.DoMulti(ctx, append([]rueidis.Completed{b.Time().Build()}, adding...)...)
	if actual, err = f.readTime(results[0]); err != nil {
		return 0, err
	}
	return actual, f.form.added(key, results[1:], len(digests))
}
