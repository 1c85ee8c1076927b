package tiered_test

import (
	"context"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/storetest"
	"github.com/semel-dev/semel/store/tiered"
	"github.com/semel-dev/semel/test/sampletest"
)

// place prepares an empty location for a store with the given clock. It returns
// the function that opens the store there.
type place func(tb testing.TB, now func() time.Time) func() (semel.Store, error)

// bottom is a durable store of the combinations, or a stand-in for one.
type bottom struct {
	place    place
	transact func(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error
}

func inMemory(opts memstore.Options) place {
	return func(_ testing.TB, now func() time.Time) func() (semel.Store, error) {
		return func() (semel.Store, error) {
			o := opts
			o.Clock = now
			return memstore.New(&o)
		}
	}
}

func onDisk(tb testing.TB, now func() time.Time) func() (semel.Store, error) {
	dir := tb.TempDir()
	return func() (semel.Store, error) {
		return logstore.Open(dir, &logstore.Options{Clock: now, Fsync: logstore.Never, SegmentSize: 256 << 10})
	}
}

// tops are the layers above. Each is opened again with each stack.
var tops = map[string][]func(testing.TB, func() time.Time) func() (tiered.Layer, error){
	"nothing":           nil,
	"filter":            {memoryFilter},
	"cache":             {cacheOf(inMemory(memstore.Options{}))},
	"filter over cache": {memoryFilter, cacheOf(inMemory(memstore.Options{}))},
	"cache over filter over cache": {
		cacheOf(inMemory(memstore.Options{MaxKeys: 100})), memoryFilter,
		cacheOf(inMemory(memstore.Options{KeepIDs: true})),
	},
	"cache that takes little": {cacheOf(inMemory(memstore.Options{MaxKeys: 3, MaxResult: 10}))},
}

func memoryFilter(_ testing.TB, now func() time.Time) func() (tiered.Layer, error) {
	return func() (tiered.Layer, error) {
		f, err := tiered.NewMemoryFilter(&tiered.FilterOptions{Capacity: 10_000, Clock: now})
		return tiered.Layer{Filter: f}, err
	}
}

func cacheOf(p place) func(testing.TB, func() time.Time) func() (tiered.Layer, error) {
	return func(tb testing.TB, now func() time.Time) func() (tiered.Layer, error) {
		open := p(tb, now)
		return func() (tiered.Layer, error) {
			store, err := open()
			return tiered.Layer{Cache: store}, err
		}
	}
}

// closing is a stack that also closes its durable store.
type closing struct {
	*tiered.Store
	io.Closer
}

// stacked returns a place for a stack.
func stacked(b place, layers []func(testing.TB, func() time.Time) func() (tiered.Layer, error), opts tiered.Options) place {
	return func(tb testing.TB, now func() time.Time) func() (semel.Store, error) {
		// The layers of one process share one clock. All of them see its steps,
		// whether they are called at that moment or not.
		now = clock.New(now, time.Time{}).Now
		openDurable := b(tb, now)
		var open []func() (tiered.Layer, error)
		for _, l := range layers {
			open = append(open, l(tb, now))
		}
		return func() (semel.Store, error) {
			o := opts
			o.Clock = now
			for _, open := range open {
				l, err := open()
				if err != nil {
					return nil, err
				}
				o.Layers = append(o.Layers, l)
			}
			durable, err := openDurable()
			if err != nil {
				return nil, err
			}
			s, err := tiered.New(durable, &o)
			if c, ok := durable.(io.Closer); ok && err == nil {
				return closing{s, c}, nil
			}
			return s, err
		}
	}
}

func TestConformance(t *testing.T) {
	all := map[string]bottom{
		"memory": {inMemory(memstore.Options{}), nil},
		"disk":   {onDisk, transactOnDisk},
	}
	for below, b := range all {
		for above, layers := range sampletest.Sampled(tops, 1) {
			ages := map[string]time.Duration{"": 0}
			if strings.Contains(above, "cache over") { // it differs only if copies are copied
				ages[", for ever"] = semel.Forever
			}
			for age, maxAge := range sampletest.Sampled(ages, 1) {
				t.Run(above+" over "+below+age, func(t *testing.T) {
					t.Parallel()
					storetest.Run(t, storetest.Harness{
						New:      stacked(b.place, layers, tiered.Options{MaxAge: maxAge}),
						Transact: b.transact,
					})
				})
			}
		}
	}
}

// transactOnDisk claims keys one by one in a transaction of the durable store.
func transactOnDisk(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error {
	s, _ := semel.As[*logstore.Store](store)
	tx, err := s.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Abort()
	for i, r := range reqs {
		digest := s.Digester(r.Key.Scope).String(r.Key.ID)
		prints := []uint64{binary.LittleEndian.Uint64(r.Fingerprint[:8])}
		var out [1]semel.Decision
		if err := tx.Claim(logstore.TxKeys{Digests: []semel.Digest{digest}, Prints: prints, Keys: []semel.Key{r.Key}, Origins: []string{r.Origin}}, r.Window, out[:]); err != nil {
			return err
		}
		answers[i] = semel.ClaimAnswer{Decision: out[0]}
	}
	if !commit {
		return nil
	}
	return tx.Commit(ctx)
}
