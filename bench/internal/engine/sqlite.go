package engine

import (
	"database/sql"
	"errors"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

type sqliteEngine struct {
	db     *sql.DB
	insert *sql.Stmt
}

func openSQLite(dir string) (Engine, error) {
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "keys.db")+"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer
	if _, err := db.Exec("CREATE TABLE IF NOT EXISTS keys (id BLOB PRIMARY KEY) WITHOUT ROWID"); err != nil {
		db.Close()
		return nil, err
	}
	insert, err := db.Prepare("INSERT OR IGNORE INTO keys (id) VALUES (?)")
	if err != nil {
		db.Close()
		return nil, err
	}
	return &sqliteEngine{db, insert}, nil
}

// Claim implements Engine. The unique key also finds duplicates within the batch.
func (e *sqliteEngine) Claim(keys [][]byte, fresh []bool) (err error) {
	tx, err := e.db.Begin()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tx.Rollback())
		}
	}()
	insert := tx.Stmt(e.insert)
	defer insert.Close()
	for i, key := range keys {
		result, err := insert.Exec(key)
		if err != nil {
			return err
		}
		inserted, err := result.RowsAffected()
		if err != nil {
			return err
		}
		fresh[i] = inserted == 1
	}
	return tx.Commit()
}

// Close implements Engine.
func (e *sqliteEngine) Close() error { return errors.Join(e.insert.Close(), e.db.Close()) }
