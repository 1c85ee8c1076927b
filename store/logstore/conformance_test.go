package logstore_test

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/store/storetest"
	"github.com/semel-dev/semel/test/sampletest"
	"github.com/semel-dev/semel/vfs"
)

// With -short, conformance and crashes are tested on drawn forms.
func TestConformance(t *testing.T) {
	for name, opts := range sampletest.Sampled(map[string]logstore.Options{
		"defaults":       {},
		"readable ids":   {KeepIDs: true, DurableClaims: true, SegmentSize: 1 << 20},
		"small segments": {SegmentSize: 64 << 10, CacheBytes: 256 << 10, Fsync: logstore.Never, DurableClaims: true},
		"interval":       {Fsync: logstore.Interval, FsyncInterval: time.Millisecond, SegmentSize: 1 << 20, MaxResult: 1000},
	}, 2) {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Harness{
				New: func(tb testing.TB, now func() time.Time) func() (semel.Store, error) {
					dir := tb.TempDir()
					return func() (semel.Store, error) {
						o := opts
						o.Clock = now
						return logstore.Open(dir, &o)
					}
				},
				Transact: transact,
			})
		})
	}
}

// spilling is a store whose keys leave memory all the time.
type spilling struct {
	*logstore.Store
	claims *atomic.Int64
}

func (s spilling) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if s.claims.Add(1)%4 == 0 {
		// If it fails, the keys stay in memory, and the call fails as well if it must.
		_ = logstore.Spill(ctx, s.Store)
	}
	return s.Store.Claim(ctx, reqs, answers)
}

// openSpilling opens a store whose keys leave memory all the time, and merges its runs often.
func openSpilling(dir string, opts *logstore.Options, claims *atomic.Int64) (semel.Store, error) {
	s, err := logstore.Open(dir, opts)
	if err != nil {
		return nil, err
	}
	logstore.MergePairs(s)
	return spilling{s, claims}, nil
}

func TestConformanceOfKeysThatHaveLeftMemory(t *testing.T) {
	for name, keepIDs := range sampletest.Sampled(map[string]bool{"readable ids": true, "digests": false}, 1) {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Harness{
				New: func(tb testing.TB, now func() time.Time) func() (semel.Store, error) {
					dir := tb.TempDir()
					claims := new(atomic.Int64)
					return func() (semel.Store, error) {
						return openSpilling(dir, &logstore.Options{Clock: now, Fsync: logstore.Never, SegmentSize: 64 << 10, KeepIDs: keepIDs}, claims)
					}
				},
				Transact: transact,
			})
		})
	}
}

func TestCopyOfTheDirectoryHasEveryAcknowledgedChange(t *testing.T) {
	t.Parallel()
	storetest.RunCopies(t, storetest.CopyHarness{
		Open: func(dir string, now func() time.Time) (semel.Store, error) {
			return logstore.Open(dir, &logstore.Options{Clock: now, SegmentSize: 64 << 10, Fsync: logstore.Never, DurableClaims: true})
		},
		Transact: transact,
	})
}

func BenchmarkSuite(b *testing.B) {
	storetest.RunBenchmarks(b, storetest.Harness{New: func(tb testing.TB, now func() time.Time) func() (semel.Store, error) {
		return func() (semel.Store, error) { return logstore.Open(tb.TempDir(), &logstore.Options{Clock: now}) }
	}})
}

// transact claims keys one by one in a transaction.
func transact(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error {
	s, ok := store.(*logstore.Store)
	if !ok {
		s = store.(spilling).Store
	}
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

const leaveMemory = "keys leave memory"

func TestStoreSurvivesCrashes(t *testing.T) {
	for name, opts := range sampletest.Sampled(map[string]logstore.Options{
		"always":       {Fsync: logstore.Always},
		"never":        {Fsync: logstore.Never},
		"readable ids": {Fsync: logstore.Always, KeepIDs: true, DurableClaims: true},
		leaveMemory:    {Fsync: logstore.Always},
	}, 1) {
		t.Run(name, func(t *testing.T) {
			storetest.RunCrash(t, storetest.CrashHarness{
				Open: func(fs vfs.FS, dir string, now func() time.Time) (semel.Store, error) {
					o := opts
					o.FS, o.Clock, o.SegmentSize, o.CacheBytes = fs, now, 64<<10, 256<<10
					// Long enough that a power loss loses something.
					o.FsyncInterval = time.Hour
					if name == leaveMemory {
						return openSpilling(dir, &o, new(atomic.Int64))
					}
					return logstore.Open(dir, &o)
				},
				Transact: transact,
			})
		})
	}
}
