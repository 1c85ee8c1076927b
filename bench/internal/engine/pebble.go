package engine

import (
	"errors"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// pebbleEngine looks keys up with Get and commits the new ones with one synced batch. It
// finds duplicates within a batch with a map, which is faster than an indexed batch.
type pebbleEngine struct {
	db     *pebble.DB
	inside map[string]struct{}
}

func openPebble(dir string) (Engine, error) {
	opts := &pebble.Options{
		MemTableSize: 64 << 20,
		CacheSize:    256 << 20,
		Logger:       quiet{},
	}
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	db, err := pebble.Open(dir, opts)
	if err != nil {
		return nil, err
	}
	return &pebbleEngine{db, map[string]struct{}{}}, nil
}

// Claim implements Engine.
func (e *pebbleEngine) Claim(keys [][]byte, fresh []bool) error {
	batch := e.db.NewBatch()
	defer batch.Close()
	clear(e.inside)
	for i, key := range keys {
		fresh[i] = false
		if _, ok := e.inside[string(key)]; ok {
			continue
		}
		_, closer, err := e.db.Get(key)
		if err == nil {
			if err := closer.Close(); err != nil {
				return err
			}
			continue
		}
		if !errors.Is(err, pebble.ErrNotFound) {
			return err
		}
		fresh[i] = true
		e.inside[string(key)] = struct{}{}
		if err := batch.Set(key, nil, nil); err != nil {
			return err
		}
	}
	return batch.Commit(pebble.Sync)
}

// Close implements Engine.
func (e *pebbleEngine) Close() error { return e.db.Close() }

// quiet keeps Pebble's log lines out of the benchmark's output.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { pebble.DefaultLogger.Fatalf(format, args...) }
