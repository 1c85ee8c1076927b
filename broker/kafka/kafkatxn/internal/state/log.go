package state

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// Log is the changelog of one partition's state, as this process knows it. One goroutine uses it
// at a time.
type Log struct {
	opts  LogOptions
	state State
	// position is the offset up to which all records are applied. The record before it has the
	// checksum last. verify means that the next record to be read must be that one.
	position int64
	last     uint32
	verify   bool
	cut      int64 // the offset before which no record counts
	failed   bool  // the state must be built again
	ends     bool  // a file of the copy should end
	written  []*kgo.Record
	places   []Place
}

// LogOptions are the options of OpenLog.
type LogOptions struct {
	Topic     string // of the changelog
	Partition int32
	// Input is the topic whose records the state is of.
	Input ID
	// New makes an empty state, which may leave values in the copy on disk.
	New func(*Disk) State
	// Disk is where the copy is, or nil.
	Disk *Disk
	// ByTime says that brokers, or other members, delete records by their times. So the state
	// may have more than the topic. Otherwise each record from the first one on counts.
	ByTime bool
	// CheckOwner returns an error if records that were made of another input cannot be used.
	CheckOwner func(ctx context.Context, input ID) error
	// Detached hears why there is no copy any longer.
	Detached func(error)
}

// OpenLog returns a log with what its copy on disk has. Records that cannot be applied are
// read from the brokers, which refuse them or not.
func OpenLog(ctx context.Context, opts LogOptions) (*Log, error) {
	l := &Log{opts: opts, state: opts.New(opts.Disk)}
	if opts.Disk == nil {
		return l, nil
	}
	err := l.load(ctx)
	if err != nil {
		l.Close()
	}
	return l, err
}

// load applies what the copy on disk has.
func (l *Log) load(ctx context.Context) error {
	if err := l.loadSpilled(ctx); err != nil {
		return err
	}
	err := l.opts.Disk.Open(func(bytes int64) { l.state.Expect(bytes) }, func(value []byte, position int64, place Place) error {
		h, err := l.read(ctx, value)
		if err != nil && !errors.Is(err, semel.ErrInvalidRequest) {
			return err // it is not known whether the record can be applied
		}
		if err != nil || h.Barrier {
			return ErrEnd
		}
		l.apply(value, position-1, place)
		return nil
	})
	l.shorten()
	l.ends = false
	return err
}

// read reads a record.
func (l *Log) read(ctx context.Context, value []byte) (Header, error) {
	h, err := l.state.Read(value)
	if err == nil && !h.Barrier && h.Topic != l.opts.Input && h.Topic != (ID{}) {
		err = l.opts.CheckOwner(ctx, h.Topic)
	}
	return h, err
}

// apply applies the record that was read last.
func (l *Log) apply(value []byte, at int64, place Place) {
	l.state.Apply(at, place)
	l.stored(value, at)
}

// stored notes that a record is part of the state.
func (l *Log) stored(value []byte, at int64) {
	l.ends = l.state.Stored(at, len(value)) || l.ends
	l.position, l.last = at+1, crc32.Checksum(value, Castagnoli)
}

// shorten notes which records do not count any longer.
func (l *Log) shorten() {
	if at, ok := l.state.Cut(); ok {
		l.cut = at
	}
}

// Topic returns the topic of the changelog.
func (l *Log) Topic() string { return l.opts.Topic }

// Broken reports whether the log must be closed and opened again, because the state is a Spiller
// and has failed.
func (l *Log) Broken() bool {
	_, spills := l.state.(Spiller)
	return spills && l.failed
}

// Position returns the offset up to which all records are applied.
func (l *Log) Position() int64 { return l.position }

// Cut returns the offset before which no record counts.
func (l *Log) Cut() int64 { return l.cut }

// Written returns the records of the open transaction.
func (l *Log) Written() []*kgo.Record { return l.written }

// Start returns the offset from which to read the changelog. Its topic has records from start
// to end, of which those before live do not count. If records are gone that the state lacks or
// has applied, the state is dropped.
func (l *Log) Start(start, live, end int64) (at int64, err error) {
	live = min(live, end)
	old := l.position > 0 && l.position <= live // nothing in it counts, and others may have started over
	if l.position > end || old || !l.opts.ByTime && (l.position <= start || !l.opts.Disk.whole(start)) {
		if err := l.forget(); err != nil {
			return 0, err
		}
	}
	// The last applied record is read again, to check that it still exists.
	at = max(l.position-1, start)
	l.verify = at == l.position-1
	if live > at {
		at, l.verify = live, false
	}
	return at, nil
}

// forget replaces the state by an empty one. After an error, that is neither.
func (l *Log) forget() error {
	l.position, l.last, l.cut, l.verify, l.ends, l.failed = 0, 0, 0, false, false, true
	err := l.renew()
	if err == nil && l.opts.Disk != nil {
		err = l.opts.Disk.Clear()
	}
	l.failed = err != nil
	return err
}

// Barrier returns a record that marks the present end of the topic.
func (l *Log) Barrier(nonce ID) *kgo.Record {
	return &kgo.Record{Topic: l.opts.Topic, Partition: l.opts.Partition, Value: l.state.Barrier(nonce)}
}

// Read applies records of the topic up to the barrier of a nonce. It returns how many entries
// they had, and whether the barrier was reached. No barrier has the zero nonce. It drops a
// state that the changelog contradicts, because brokers may lose acknowledged records.
func (l *Log) Read(ctx context.Context, records []*kgo.Record, nonce ID) (entries int, reached bool, err error) {
	for _, r := range records {
		if l.verify && (r.Offset != l.position-1 || l.last != crc32.Checksum(r.Value, Castagnoli)) {
			return entries, false, errors.Join(fmt.Errorf("kafka: %s/%d at %d is another record than before: %w", r.Topic, r.Partition, r.Offset, ErrAgain), l.forget())
		}
		l.verify = false
		if r.Offset < l.position {
			continue
		}
		h, err := l.read(ctx, r.Value)
		if err != nil {
			return entries, false, fmt.Errorf("kafka: %s/%d at %d: %w", r.Topic, r.Partition, r.Offset, err)
		}
		if h.Barrier {
			if reached = h.Nonce == nonce; reached {
				break
			}
			continue
		}
		l.apply(r.Value, r.Offset, l.copy(r))
		entries += h.Len
	}
	l.shorten()
	return entries, reached, l.writeCopy()
}

// copy adds a record to the copy on disk.
func (l *Log) copy(r *kgo.Record) Place {
	if l.opts.Disk == nil {
		return Place{}
	}
	return l.opts.Disk.Add(r.Value, r.Offset+1)
}

// writeCopy writes the copy on disk. After an error, a state that has left values there must
// be built again. Others continue without a copy.
func (l *Log) writeCopy() error {
	if l.opts.Disk == nil {
		return nil
	}
	err := l.opts.Disk.Write()
	if err == nil {
		err = l.opts.Disk.Tidy(l.cut, l.ends)
		l.ends = false
	}
	if err == nil {
		err = l.spill()
	}
	if err != nil && l.state.Detach() {
		l.opts.Detached(err)
		l.Close()
		l.opts.Disk, err = nil, nil
	}
	l.failed = l.failed || err != nil
	return err
}

// Write gives the records of the open transaction to produce, once. Each has at most a number of
// bytes, unless one change needs more. After an error the transaction must be dropped.
func (l *Log) Write(most int, produce func(*kgo.Record)) error {
	records, err := l.state.Changes(most)
	for _, r := range records {
		r.Topic, r.Partition = l.opts.Topic, l.opts.Partition
		produce(r)
	}
	l.written = records
	l.failed = l.failed || err != nil
	return err
}

// Commit ends the open transaction, whose records are committed. After an error the state must
// be built again.
func (l *Log) Commit() error {
	at := int64(0)
	l.places = l.places[:0]
	for i, r := range l.written {
		if i == 0 {
			at = r.Offset
		}
		l.places = append(l.places, l.copy(r))
	}
	l.state.Commit(at, l.places)
	for _, r := range l.written {
		l.stored(r.Value, r.Offset)
	}
	l.shorten()
	l.end()
	return l.writeCopy()
}

// Drop discards the open transaction.
func (l *Log) Drop() {
	l.state.Drop()
	l.end()
}

// end removes the records of the open transaction.
func (l *Log) end() {
	l.written = nil
}

// Close closes the copy on disk, which may lack what was not written: it is only a copy.
func (l *Log) Close() {
	if s, ok := l.state.(Spiller); ok {
		s.Close()
	}
	if l.opts.Disk != nil {
		l.opts.Disk.Close()
	}
}
