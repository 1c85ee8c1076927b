package engine

import (
	"path/filepath"

	"go.etcd.io/bbolt"
)

type boltEngine struct{ db *bbolt.DB }

func openBolt(dir string) (Engine, error) {
	db, err := bbolt.Open(filepath.Join(dir, "keys.db"), 0o600, nil)
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(bucket())
		return err
	})
	if err != nil {
		db.Close()
		return nil, err
	}
	return &boltEngine{db}, nil
}

func bucket() []byte { return []byte("keys") }

// Claim implements Engine. The transaction sees its own writes.
func (e *boltEngine) Claim(keys [][]byte, fresh []bool) error {
	return e.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucket())
		for i, key := range keys {
			if fresh[i] = b.Get(key) == nil; fresh[i] {
				if err := b.Put(key, []byte{}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Close implements Engine.
func (e *boltEngine) Close() error { return e.db.Close() }
