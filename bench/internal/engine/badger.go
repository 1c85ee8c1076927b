package engine

import (
	"errors"

	"github.com/dgraph-io/badger/v4"
)

type badgerEngine struct{ db *badger.DB }

func openBadger(dir string) (Engine, error) {
	db, err := badger.Open(badger.DefaultOptions(dir).WithSyncWrites(true).WithLogger(nil))
	if err != nil {
		return nil, err
	}
	return &badgerEngine{db}, nil
}

// Claim implements Engine. The transaction sees its own writes.
func (e *badgerEngine) Claim(keys [][]byte, fresh []bool) error {
	return e.db.Update(func(tx *badger.Txn) error {
		for i, key := range keys {
			_, err := tx.Get(key)
			fresh[i] = errors.Is(err, badger.ErrKeyNotFound)
			if err != nil && !fresh[i] {
				return err
			}
			if fresh[i] {
				// The transaction keeps the key until it commits.
				if err := tx.Set(key, nil); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Close implements Engine.
func (e *badgerEngine) Close() error { return e.db.Close() }
