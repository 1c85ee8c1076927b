package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// Defaults of [FilterOptions].
const (
	DefaultFilterPrefix   = "semel:"
	DefaultFilterCapacity = 1_000_000
	DefaultFilterRate     = 0.001
	DefaultFilterWindow   = 24 * time.Hour
	DefaultFilterSlices   = 2
)

// FilterForm says how a server keeps a filter.
type FilterForm string

const (
	// FilterAuto takes the form that the filter has already or, for a new one,
	// FilterModule where the server has the commands, and else FilterBits.
	FilterAuto FilterForm = ""
	// FilterModule is a Bloom filter of the BF commands of a module. It takes
	// the least memory for its rate.
	FilterModule FilterForm = "module"
	// FilterBits is a blocked Bloom filter in a plain string: all bits of a key
	// are in one block of 64 bytes, so that one command looks at them all.
	FilterBits FilterForm = "bits"
)

// FilterOptions are the options of [NewFilter]. The zero value is valid. All
// users of one filter have the same, which NewFilter checks.
type FilterOptions struct {
	// Prefix begins the names of the filter's keys; all are in one slot of a
	// cluster. Defaults to "semel:".
	Prefix string
	// Capacity is the most keys that are added in one slice, Window/Slices
	// long. Further ones are refused with [semel.ErrStoreFull] until the next
	// slice begins. Defaults to 1,000,000. Must be above 0; in FilterBits it is
	// limited by the 512 MiB that a string may have.
	Capacity int64
	// Rate is the probability with which a key that was never added is called
	// maybe there, when all slices are full. Defaults to 0.001. Must be at
	// least 0.0000001 and below 0.5.
	Rate float64
	// Window is how long keys stay in the filter; some stay up to
	// Window/Slices longer. Defaults to 24 h. Must be at least a second for
	// each slice.
	Window time.Duration
	// Slices is in how many parts a window is forgotten. One more filter than
	// that is kept and looked into: more slices take less memory and more
	// time. Defaults to 2. Must be between 1 and 64.
	Slices int
	// Form is how the filter is kept. Defaults to FilterAuto.
	Form FilterForm
}

// Filter remembers keys in a fraction of the memory that exact records take,
// and calls some keys maybe there that are not. It belongs in front of an exact
// store, which confirms every "maybe"; alone it drops new messages at its rate:
// see TestAndAdd.
//
// Keys are kept by slices of the server's time; the server forgets each slice
// as a whole. What the server forgets sooner, because it restarts without
// persistence, fails over or evicts, the filter calls not there: it must never
// replace a claim. All methods may be called at once from many goroutines and
// block for about one round trip for each few hundred keys.
type Filter struct {
	client rueidis.Client
	opts   FilterOptions
	form   filterForm
	hasher digest.Hasher
	base   time.Time
	offset atomic.Int64 // from base to the server's clock, in ns
}

// filterForm makes the commands of a form and reads their answers.
type filterForm interface {
	// look asks for digests in the filter of one slice.
	look(b rueidis.Builder, key string, digests []semel.Digest) []rueidis.Completed
	// looked sets seen[i] where digest i is maybe there.
	looked(results []rueidis.RedisResult, digests []semel.Digest, seen []bool) error
	// add adds digests to the filter of one slice, which ends at until. An
	// error says that the filter is full, as far as is known before asking.
	add(b rueidis.Builder, key string, digests []semel.Digest, until time.Time) ([]rueidis.Completed, error)
	// added sets seen[i] where digest i was maybe there before. It returns how
	// many digests were added, from the first.
	added(key string, results []rueidis.RedisResult, seen []bool) (int, error)
	// check examines the filter of one slice, if it exists.
	check(ctx context.Context, client rueidis.Client, key string) error
}

// NewFilter opens the filter under a prefix, or makes it. Nil options are
// valid. It blocks for a few round trips. Errors wrap [semel.ErrInvalidRequest]
// if options are out of bounds, differ from those the filter was made with, or
// what the server has is not a filter of that size and rate; the others are
// the server's. The client stays the caller's.
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
	o.Prefix = cmp.Or(o.Prefix, DefaultFilterPrefix)
	o.Capacity = cmp.Or(o.Capacity, DefaultFilterCapacity)
	o.Rate = cmp.Or(o.Rate, DefaultFilterRate)
	o.Window = cmp.Or(o.Window, DefaultFilterWindow)
	o.Slices = cmp.Or(o.Slices, DefaultFilterSlices)
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("redisstore: FilterOptions."+format+": %w", append(args, semel.ErrInvalidRequest)...))
	}
	if strings.ContainsAny(o.Prefix, "{}") {
		bad("Prefix: %q has a hash tag", o.Prefix)
	}
	if o.Capacity <= 0 {
		bad("Capacity: %d is not above 0", o.Capacity)
	}
	if !(o.Rate >= 1e-7 && o.Rate < 0.5) {
		bad("Rate: %g is not from 1e-7 to 0.5", o.Rate)
	}
	switch {
	case o.Slices < 1 || o.Slices > 64:
		bad("Slices: %d is not between 1 and 64", o.Slices)
	case o.Window < time.Duration(o.Slices)*time.Second:
		bad("Window: %v is not a second for each of %d slices", o.Window, o.Slices)
	}
	switch o.Form {
	case FilterAuto, FilterModule, FilterBits:
	default:
		bad("Form: %q is none of %q and %q", o.Form, FilterModule, FilterBits)
	}
	return errors.Join(errs...)
}

// sliceRate is the rate that each slice may have for all to have o.Rate.
func (o *FilterOptions) sliceRate() float64 {
	return -math.Expm1(math.Log1p(-o.Rate) / float64(o.Slices+1))
}

// Rate returns the probability with which a key that was never added is called
// maybe there, when all slices are full. It does not block.
func (f *Filter) Rate() float64 { return f.opts.Rate }

// Form returns how the server keeps the filter. It does not block.
func (f *Filter) Form() FilterForm { return f.opts.Form }

// MayContain sets maybe[i] to whether keys[i] may have been added within the
// window: false is certain as long as the server has lost nothing, true is not.
// After an error maybe is not to be used.
func (f *Filter) MayContain(ctx context.Context, keys []semel.Key, maybe []bool) error {
	if len(keys) != len(maybe) {
		return fmt.Errorf("redisstore: %d keys but room for %d answers: %w", len(keys), len(maybe), semel.ErrInvalidRequest)
	}
	_, err := f.inParts(ctx, keys, maybe, purpose{look: true})
	return err
}

// Add adds keys. After an error it is not known which were added, and adding
// them again is right. A filter that is full refuses with
// [semel.ErrStoreFull]: what was refused is later called not there.
func (f *Filter) Add(ctx context.Context, keys []semel.Key) error {
	_, err := f.inParts(ctx, keys, make([]bool, len(keys)), purpose{add: true})
	return err
}

// TestAndAdd sets seen[i] to whether keys[i] may have been added within the
// window, and adds it. Of several callers with one key at the same time one is
// told that it was not there, or at the boundary of two slices more than one.
// A key that occurs twice in a call was there the second time.
//
// Who drops a message because it was seen loses new ones at the filter's rate,
// and whenever the answer to a first try was lost or the effect failed after
// it: there is no claim to give back. Only the first answered keys have an
// answer; there are fewer than all if there is an error.
func (f *Filter) TestAndAdd(ctx context.Context, keys []semel.Key, seen []bool) (answered int, err error) {
	if len(keys) != len(seen) {
		return 0, fmt.Errorf("redisstore: %d keys but room for %d answers: %w", len(keys), len(seen), semel.ErrInvalidRequest)
	}
	return f.inParts(ctx, keys, seen, purpose{look: true, add: true})
}
