package dedup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/store/logstore"
)

// journal is the keySet of a run with a store. Its decisions become durable
// with the next commit, together with the position and the outputs.
type journal struct {
	store  *logstore.Store
	tx     *logstore.Tx // nil before begin and after the last commit
	window time.Duration
	// The scope is bound to the rule with the first key.
	scope, rule string
	bound       bool
	// id names the run in the store. It is "" if the run cannot be resumed
	// because an input or the output is a pipe.
	id   string
	mode openMode

	forecast  forecast
	keys      int        // decided in tx
	committed time.Time  // when the last commit was sealed
	bytesIn   int64      // at the time of the last commit
	pending   chan error // receives the outcome of the running commit, or nil
	failAt    func(string) error
	elapsed   time.Duration // of earlier attempts
	begun     time.Time
}

// maxTxKeys keeps a transaction below logstore.TxBytes. It also bounds the
// memory of running commits when lines are very short.
const maxTxKeys = 1 << 19

// cacheBytes is how much of the end of the log stays in memory. A duplicate of a key
// before it costs a read of the file.
const cacheBytes = 64 << 20

// storeError adds the name of the store to a write error.
type storeError struct {
	dir string
	err error
}

// Error implements error.
func (e *storeError) Error() string {
	if errors.Is(e.err, syscall.ENOSPC) {
		return "the store " + e.dir + ": " + reason(syscall.ENOSPC)
	}
	text := "the store " + e.dir + ": " + e.err.Error()
	if errors.Is(e.err, semel.ErrCorrupt) && !strings.Contains(text, "backup") {
		text += ": restore the directory from a backup: docs/runbook.md#store-corrupt"
	}
	return text
}

// Unwrap returns the cause.
func (e *storeError) Unwrap() error { return e.err }

func (j *journal) explain(err error) error {
	var write *writeError
	if err == nil || errors.As(err, &write) {
		return err // the error of syncing an output
	}
	return &storeError{j.store.Dir(), err}
}

// isStore reports whether a directory has a store.
func isStore(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "STORE"))
	return err == nil
}

func openStore(dir string) (*logstore.Store, error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, &RefusedError{Problems: []string{fmt.Sprintf("--store %s: this is a file; name a directory", dir)}}
	}
	store, err := logstore.Open(dir, &logstore.Options{CacheBytes: cacheBytes})
	holder, locked := diagnose.Holder(err)
	switch {
	case locked:
		return nil, fmt.Errorf("the store %s is in use by %s; run this again after it has ended", dir, holder)
	case errors.Is(err, semel.ErrInvalidRequest):
		return nil, &RefusedError{Problems: []string{fmt.Sprintf("--store %s: the directory holds other files; name a store, or a new or empty directory", dir)}}
	case err != nil:
		return nil, &storeError{dir, err}
	}
	return store, nil
}

func (j *journal) decide(l lines, out []semel.Decision) error {
	digests, prints := l.digests, l.prints
	if len(digests) > 0 && !j.bound {
		j.tx.BindScope(j.scope, j.rule)
		j.bound = true
	}
	if keys, ok := j.forecast.due(); ok {
		// Some parts of the index get more keys than others.
		j.tx.Expect(int64(1.02*float64(keys)) - j.forecast.keys)
	}
	for from := 0; from < len(digests); from += maxTxKeys {
		to := min(from+maxTxKeys, len(digests))
		keys := logstore.TxKeys{Digests: digests[from:to]}
		if prints != nil {
			keys.Prints = prints[from:to]
		}
		if err := j.tx.Claim(keys, j.window, out[from:to]); err != nil {
			return j.explain(err)
		}
		for _, d := range out[from:to] {
			switch d {
			case semel.Fresh:
				j.forecast.keys++
			case semel.InFlight, semel.OutcomeUnknown:
				return errUndecided
			}
		}
	}
	j.keys += len(digests)
	return nil
}

var errUndecided = errors.New("another program claimed a key in the store and left no outcome; find it with semel keys ls --state unknown and settle it with semel keys resolve")

// due reports whether it is time for a commit. The time alone does not trigger
// a commit while another is running.
func (j *journal) due(o *Options, bytesIn int64, now time.Time) bool {
	return bytesIn-j.bytesIn >= o.commitBytes || j.keys >= maxTxKeys/2 ||
		now.Sub(j.committed) >= o.commitEvery && !j.busy()
}

func (j *journal) busy() bool {
	return j.pending != nil && len(j.pending) == 0
}

// settled waits for the running commit.
func (j *journal) settled() error {
	if j.pending == nil {
		return nil
	}
	err := <-j.pending
	j.pending = nil
	return j.explain(err)
}

// set changes a named value with the next commit.
func (j *journal) set(name string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("dedup: %s: %w", name, err)
	}
	j.tx.Set(name, data)
	return nil
}

// seal starts the commit of all decisions and named values, after a sync of the
// files, and starts the next transaction.
func (j *journal) seal(ctx context.Context, files []*output, bytesIn int64) error {
	if err := j.settled(); err != nil {
		return err
	}
	if err := j.failAt("seal"); err != nil {
		return err
	}
	sealed := j.tx.Seal(func() error {
		for _, f := range files {
			if err := j.failAt("sync"); err != nil {
				return err
			}
			if err := f.file.Sync(); err != nil {
				return f.explain(err)
			}
		}
		return j.failAt("record")
	})
	j.pending = make(chan error, 1)
	go func(done chan<- error) { done <- sealed.Wait(context.Background()) }(j.pending)
	j.keys, j.bytesIn, j.committed = 0, bytesIn, time.Now()
	j.tx = nil
	return j.begin(ctx)
}

func (j *journal) begin(ctx context.Context) (err error) {
	j.tx, err = j.store.Begin(ctx)
	return j.explain(err)
}

// abort waits for the running commit and drops the decisions since then.
func (j *journal) abort() {
	if j.tx != nil {
		j.tx.Abort()
		j.tx = nil
	}
	_ = j.settled() // the error that caused the abort says more
}
