package kafkatxn

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/marks"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/operator"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/watermarks"
)

// slot is the place of one partition's state in this process. A session that is
// assigned the partition takes the slot. It first asks another holder, a session or the
// standby, to release it.
type slot struct {
	holder  holder
	decides bool          // the holder is a session
	free    chan struct{} // closed when the holder releases it
	waiting int           // sessions that wait for it
	// The fields below are the holder's. keys are those of the partition. store is the state of
	// an operator, or nil, and clock moves its watermark. logs are the changelogs of keys and of
	// store, and empty if nothing is loaded.
	keys  *keys.State
	store operator.Store
	clock watermarks.Clock
	logs  []*state.Log
	note  marks.Note // of the committed offset
	// deletable are the offsets up to which the changelogs may be deleted, or 0.
	deletable [2]atomic.Int64
	// open, size and watermark are those of the committed store.
	open, size, watermark atomic.Int64
}

// holder is a session or the standby.
type holder interface {
	// ask says that a session needs the partition. It does not block.
	ask(id cluster.Partition)
}

// keysLog returns the changelog of keys.
func (s *slot) keysLog() *state.Log { return s.logs[0] }

// close frees what is loaded. What is on disk is only a copy.
func (s *slot) close() {
	for _, l := range s.logs {
		l.Close()
	}
	s.keys, s.store, s.clock, s.logs = nil, nil, nil, nil
}

// drop discards what the open transaction adds.
func (s *slot) drop() {
	for _, l := range s.logs {
		l.Drop()
	}
}

// changed reports whether the open transaction has written records of changelogs.
func (s *slot) changed() bool {
	return slices.ContainsFunc(s.logs, func(l *state.Log) bool { return len(l.Written()) > 0 })
}

// commit ends the open transaction, which is committed. After an error the state must be
// built again.
func (s *slot) commit() (err error) {
	for _, l := range s.logs {
		err = errors.Join(err, l.Commit())
	}
	s.measure()
	return err
}

// measure notes the values of the gauges.
func (s *slot) measure() {
	if s.store != nil {
		s.open.Store(int64(s.store.Open()))
		s.size.Store(s.store.Bytes())
		s.watermark.Store(s.store.Watermark())
	}
}

// slots are the places of the partitions' states in this process.
type slots struct {
	keep bool // what is released, for the standby

	mu   sync.Mutex // guards list, and the holders and waiters of slots
	list map[cluster.Partition]*slot
}

// each calls fn for each slot.
func (l *slots) each(fn func(id cluster.Partition, at *slot)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, at := range l.list {
		fn(id, at)
	}
}

// close frees all states. Nothing uses them any longer.
func (l *slots) close() {
	for _, at := range l.list {
		at.close()
	}
}

// at returns the slot of a partition. l.mu is held.
func (l *slots) at(id cluster.Partition) *slot {
	if l.list[id] == nil {
		l.list[id] = &slot{}
	}
	return l.list[id]
}

// take makes a session the holder of a partition's slot. It waits until another holder
// releases it.
func (l *slots) take(ctx context.Context, id cluster.Partition, s holder) (*slot, error) {
	for {
		l.mu.Lock()
		at := l.at(id)
		if at.holder == nil || at.holder == s {
			if at.holder == nil {
				at.holder, at.decides, at.free = s, true, make(chan struct{})
			}
			l.mu.Unlock()
			return at, nil
		}
		other, free := at.holder, at.free
		at.waiting++
		l.mu.Unlock()
		other.ask(id)
		var err error
		select {
		case <-free:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		l.mu.Lock()
		at.waiting--
		l.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// takeFree makes the standby the holder of a slot without a holder and waiting
// sessions, or returns nil.
func (l *slots) takeFree(id cluster.Partition, b holder) *slot {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.at(id)
	if at.holder != nil || at.waiting > 0 {
		return nil
	}
	at.holder, at.free = b, make(chan struct{})
	return at
}

// free returns the partitions of topics, by their numbers of partitions, without a holder and waiting sessions.
func (l *slots) free(sizes map[string]int32) (list []cluster.Partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for topic, size := range sizes {
		for number := range size {
			id := cluster.Partition{Topic: topic, Number: number}
			if at := l.list[id]; at == nil || at.holder == nil && at.waiting == 0 {
				list = append(list, id)
			}
		}
	}
	return list
}

// release gives up a partition. Without a standby its memory is freed. That can wait for a
// disk, and the other partitions do not wait with it.
func (l *slots) release(id cluster.Partition, h holder) {
	l.mu.Lock()
	at := l.list[id]
	held := at != nil && at.holder == h
	l.mu.Unlock()
	if !held {
		return
	}
	if l.keep && len(at.logs) > 0 {
		at.drop() // the next holder can use the committed entries
	} else {
		at.close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at.holder, at.decides = nil, false
	close(at.free)
}
