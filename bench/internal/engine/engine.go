// Package engine stores keys in the storage engines that people use for this purpose.
// Each follows the advice of the engine's documentation: one durable commit for a batch
// of keys.
package engine

import (
	"fmt"
	"sync"
)

// Engine is a durable set of keys.
type Engine interface {
	// Claim sets fresh[i] if keys[i] is neither in the engine nor earlier in keys.
	// When it returns, all keys are durable, and the caller may overwrite them. It is
	// not safe for concurrent use.
	Claim(keys [][]byte, fresh []bool) error
	Close() error
}

// Module returns the Go module of an engine.
func Module(name string) string {
	return map[string]string{
		"pebble": "github.com/cockroachdb/pebble/v2",
		"badger": "github.com/dgraph-io/badger/v4",
		"bbolt":  "go.etcd.io/bbolt",
		"sqlite": "modernc.org/sqlite",
	}[name]
}

// Open opens an engine in an existing directory.
func Open(name, dir string) (Engine, error) {
	open, ok := map[string]func(string) (Engine, error){
		"pebble": openPebble,
		"badger": openBadger,
		"bbolt":  openBolt,
		"sqlite": openSQLite,
	}[name]
	if !ok {
		return nil, fmt.Errorf("engine: %q is not known", name)
	}
	e, err := open(dir)
	if err != nil {
		return nil, fmt.Errorf("engine: open %s: %w", name, err)
	}
	return e, nil
}

// Group lets many callers share an engine's commits. The keys that arrive while one
// commit runs are the next commit. There is no timer.
type Group struct {
	calls chan *call
	ended chan struct{}
	once  sync.Once
}

type call struct {
	key   []byte
	fresh bool
	err   error
	done  chan struct{}
}

// NewGroup returns a Group whose commits have at most this many keys. The engine belongs
// to the Group until Close has returned.
func NewGroup(e Engine, most int) *Group {
	g := &Group{calls: make(chan *call, most), ended: make(chan struct{})}
	go g.commit(e, most)
	return g
}

// Claim is Engine.Claim for one key. It is safe for concurrent use.
func (g *Group) Claim(key []byte) (fresh bool, err error) {
	c := &call{key: key, done: make(chan struct{})}
	g.calls <- c
	<-c.done
	return c.fresh, c.err
}

// Close waits for running commits. The caller must not call Claim during Close or later.
func (g *Group) Close() {
	g.once.Do(func() { close(g.calls) })
	<-g.ended
}

func (g *Group) commit(e Engine, most int) {
	defer close(g.ended)
	batch := make([]*call, 0, most)
	keys := make([][]byte, 0, most)
	fresh := make([]bool, most)
	for first := range g.calls {
		batch, keys = append(batch[:0], first), append(keys[:0], first.key)
		for open := true; open && len(batch) < most; {
			select {
			case c, ok := <-g.calls:
				if open = ok; ok {
					batch, keys = append(batch, c), append(keys, c.key)
				}
			default:
				open = false
			}
		}
		err := e.Claim(keys, fresh[:len(keys)])
		for i, c := range batch {
			c.fresh, c.err = fresh[i], err
			close(c.done)
		}
	}
}
