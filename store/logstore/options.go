package logstore

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// Fsync selects when writes become safe against a power loss. Under each
// setting, answered changes survive the end of the process.
type Fsync uint8

const (
	// Always syncs before it answers. It is the default.
	Always Fsync = iota
	// Interval syncs in the background, every Options.FsyncInterval. A power
	// loss loses changes that were answered since the last sync.
	Interval
	// Never leaves the sync to the operating system. The store still syncs a
	// segment when it is full and when the store is closed.
	Never
)

// String returns the name that ParseFsync accepts.
func (f Fsync) String() string {
	switch f {
	case Always:
		return "always"
	case Interval:
		return "interval"
	case Never:
		return "never"
	}
	return "invalid"
}

// ParseFsync parses the names always, interval and never.
func ParseFsync(name string) (Fsync, error) {
	for f := Always; f <= Never; f++ {
		if name == f.String() {
			return f, nil
		}
	}
	return 0, fmt.Errorf("logstore: fsync must be always, interval or never, got %q: %w", name, semel.ErrInvalidRequest)
}

// Options configure a Store. The zero value and nil select the defaults.
type Options struct {
	// Fsync selects when writes are synced. Defaults to Always.
	Fsync Fsync
	// FsyncInterval is the time between two syncs under Interval. Must be at
	// least 1ms. Defaults to 100ms.
	FsyncInterval time.Duration
	// SegmentSize is the size in bytes at which the log continues in a new
	// file. Must be between 64 KiB and 64 MiB. Defaults to 32 MiB.
	SegmentSize int64
	// CacheBytes is how much of the end of the log stays in memory. Duplicates
	// of recent keys are then confirmed without a read. Must be at least 256
	// KiB. Defaults to 8 MiB.
	CacheBytes int64
	// MaxIndexBytes is the memory for open claims and for the index, which takes 10 to
	// 13 bytes per key. Beyond it, the oldest done keys leave memory for sorted files,
	// and take about 1.3 bytes each, also beyond this number. A claim of such a key then
	// takes one read. A new key takes none, but for one in 250 for each file. FirstSeen
	// of such a key is zero, unless it has a result, a readable ID or an origin. If
	// open claims alone take this memory, others are refused with semel.ErrStoreFull.
	// Garbage of the Go runtime can take as much again: GOMEMLIMIT or GOGC limit it, and
	// cost little here, because the index and the filters have no pointers to follow.
	// Must be at least 1 MiB. Defaults to a quarter of the machine's memory, or 4 GiB if
	// that is unknown.
	MaxIndexBytes int64
	// MaxResult is the maximum size of a stored result in bytes. Must be at
	// most 32 MiB. Defaults to 1 MiB.
	MaxResult int64
	// KeepIDs stores scope and ID in readable form next to their digest, for
	// listings. Each key then takes that many bytes more in the log. Defaults
	// to false.
	KeepIDs bool
	// DurableClaims makes claims survive the end of the process, with owner, token
	// and lease. Set it if an effect can outlive the process that claimed its key, as
	// a request that a proxy has sent. The next process then grants the key to another
	// owner only after the lease ended, or, with ClaimRequest.Hold, says until then
	// that it is in flight. Without this option, a claim ends with the process. A
	// claim with Hold is always durable; without this option, its key is unknown as
	// soon as the process has ended.
	//
	// Claim, Extend and Release then block for a durable write, so a message takes
	// two of them. The store continues to keep durable claims while one of them may
	// be live, even if it is opened without this option. A configuration of semel run
	// has no field for it, because that process itself holds its claims. Defaults to
	// false.
	DurableClaims bool
	// Clock is the wall clock, for tests. Defaults to time.Now.
	Clock func() time.Time
	// FS is the file layer, for tests. Defaults to vfs.OS.
	FS vfs.FS
}

const (
	defaultFsyncInterval = 100 * time.Millisecond
	defaultSegmentSize   = 32 << 20
	defaultCacheBytes    = 8 << 20
	defaultMaxIndexBytes = 4 << 30
	defaultMaxResult     = 1 << 20

	minSegmentSize = 64 << 10
	minCacheBytes  = chunkSize
	minIndexBytes  = 1 << 20
	maxMaxResult   = 32 << 20
)

// withDefaults returns a validated copy with the defaults filled in.
func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	c.SegmentSize = cmp.Or(c.SegmentSize, defaultSegmentSize)
	c.CacheBytes = cmp.Or(c.CacheBytes, defaultCacheBytes)
	c.MaxResult = cmp.Or(c.MaxResult, defaultMaxResult)
	c.MaxIndexBytes = cmp.Or(c.MaxIndexBytes, defaultIndexBytes())
	c.FsyncInterval = cmp.Or(c.FsyncInterval, defaultFsyncInterval)
	if c.FS == nil {
		c.FS = vfs.OS{}
	}
	return c, c.validate()
}

func (o *Options) validate() error {
	var errs []error
	between := func(field string, value, least, most int64) {
		if value < least || value > most {
			errs = append(errs, fmt.Errorf("logstore: Options.%s: %d is not between %d and %d: %w",
				field, value, least, most, semel.ErrInvalidRequest))
		}
	}
	if o.Fsync > Never {
		errs = append(errs, fmt.Errorf("logstore: Options.Fsync: %d is not Always, Interval or Never: %w", o.Fsync, semel.ErrInvalidRequest))
	}
	if o.FsyncInterval < time.Millisecond {
		errs = append(errs, fmt.Errorf("logstore: Options.FsyncInterval: %s is shorter than 1ms: %w", o.FsyncInterval, semel.ErrInvalidRequest))
	}
	between("SegmentSize", o.SegmentSize, minSegmentSize, segmentStride)
	between("CacheBytes", o.CacheBytes, minCacheBytes, 1<<40)
	between("MaxIndexBytes", o.MaxIndexBytes, minIndexBytes, 1<<50)
	between("MaxResult", o.MaxResult, 1, maxMaxResult)
	return errors.Join(errs...)
}

// defaultIndexBytes is a quarter of the machine's memory.
func defaultIndexBytes() int64 {
	if total := totalMemory(); total > 0 {
		return max(total/4, minIndexBytes)
	}
	return defaultMaxIndexBytes
}
