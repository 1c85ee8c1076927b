package storetest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// logged is the reference store with a log. Each call writes the changed records as one entry
// with length and checksum, and syncs before it answers. Close records the length of the log in a
// separate file. RunCrash must accept it, and must catch its broken variants.
type logged struct {
	*reference
	bug  crashBug
	fs   vfs.FS
	dir  string
	lock io.Closer

	mu     sync.Mutex // guards all fields below, and is held during each call
	file   vfs.File
	unsaid []byte // with the bug writesWhenClosed, the entries that are not written
	end    int64
	failed error
}

// headSize is the size of an entry's length and checksum.
const headSize = 8

// openLogged opens a logged store.
func openLogged(fsys vfs.FS, dir string, now func() time.Time, bug crashBug) (_ semel.Store, err error) {
	traits := full
	traits.Shared, traits.PowerSafe = false, true
	if bug == syncsNever || bug == saysPowerSafe {
		traits.PowerSafe = bug == saysPowerSafe
	}
	p := &place{traits: traits, wall: now, records: make(map[semel.Key]record), now: now(), seen: now()}
	inner, err := p.open()
	if err != nil {
		return nil, err
	}
	l := &logged{reference: inner.(*reference), bug: bug, fs: fsys, dir: dir}
	if err := fsys.MkdirAll(dir); err != nil {
		return nil, err
	}
	if err := l.syncDir(filepath.Dir(dir)); err != nil {
		return nil, err
	}
	if l.lock, err = fsys.Lock(filepath.Join(dir, "lock"), "test"); err != nil {
		return nil, err
	}
	if err := l.load(); err != nil {
		return nil, errors.Join(err, l.lock.Close())
	}
	// Skip tokens that the previous process issued but did not log.
	l.last += 1 << 20
	l.tick()
	if err := l.write(nil); err != nil {
		return nil, errors.Join(err, l.lock.Close())
	}
	return l, nil
}

func (l *logged) syncDir(dir string) error {
	if l.bug == syncsNoDirectory {
		return nil
	}
	return l.fs.SyncDir(dir)
}

// load reads the log and cuts off a torn end.
func (l *logged) load() (err error) {
	name := filepath.Join(l.dir, "log")
	least, err := l.least()
	if err != nil {
		return err
	}
	content, err := l.fs.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) && least == 0 {
		if l.file, err = l.fs.Create(name); err != nil {
			return err
		}
		return l.syncDir(l.dir)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := l.syncDir(l.dir); err != nil { // the previous process may have failed to sync it
		return err
	}
	for {
		size, ok := l.replay(content[l.end:])
		if !ok {
			break
		}
		l.end += size
	}
	if err := l.checkTail(content[l.end:]); err != nil {
		return err
	}
	if l.end < least {
		return fmt.Errorf("logged: the log ends at %d and had %d bytes: %w", l.end, least, semel.ErrCorrupt)
	}
	if l.file, err = l.fs.Open(name); err != nil {
		return err
	}
	// If an earlier sync failed, this data may be visible but not on disk.
	// Write it again before new entries follow it.
	if _, err := l.file.WriteAt(content[:l.end], 0); err != nil {
		return err
	}
	return l.file.Truncate(l.end)
}

// least returns the length of the log at the last close.
func (l *logged) least() (n int64, err error) {
	content, err := l.fs.ReadFile(filepath.Join(l.dir, "end"))
	if errors.Is(err, fs.ErrNotExist) || l.bug == forgetsItsEnd {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if n, err = strconv.ParseInt(string(content), 10, 64); err != nil {
		return 0, fmt.Errorf("logged: the length of the log: %w: %w", semel.ErrCorrupt, err)
	}
	return n, nil
}

// noteEnd records the length of the synced log.
func (l *logged) noteEnd() error {
	name := filepath.Join(l.dir, "end")
	if err := l.fs.Remove(name + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := l.fs.Create(name + ".new")
	if err != nil {
		return err
	}
	if _, err = file.WriteAt(strconv.AppendInt(nil, l.end, 10), 0); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = l.fs.Rename(name+".new", name)
	}
	if err == nil {
		err = l.syncDir(l.dir)
	}
	return err
}

// replay applies the entry at the beginning of b.
func (l *logged) replay(b []byte) (size int64, ok bool) {
	if len(b) < headSize {
		return 0, false
	}
	n := binary.LittleEndian.Uint32(b)
	if n == 0 || int(n) > len(b)-headSize {
		return 0, false
	}
	body := b[headSize : headSize+n]
	if binary.LittleEndian.Uint32(b[4:]) != crc32.ChecksumIEEE(body) && l.bug != ignoresChecksums {
		return 0, false
	}
	d := decoder{rest: body}
	l.last = max(l.last, semel.Token(d.uint()))
	if now := d.time(); now.After(l.now) {
		l.now = now
	}
	for len(d.rest) > 0 && !d.broken {
		if rec := d.record(); rec.State == semel.Absent {
			delete(l.records, rec.Key)
		} else {
			l.records[rec.Key] = rec
		}
	}
	return headSize + int64(n), !d.broken
}

// checkTail distinguishes a last write that was cut short from damage: no
// complete entry follows a cut write.
func (l *logged) checkTail(rest []byte) error {
	if l.bug == cutsAnything {
		return nil
	}
	for i := 1; i < len(rest)-headSize; i++ {
		n := int(binary.LittleEndian.Uint32(rest[i:]))
		if n > 0 && n <= len(rest)-headSize-i && binary.LittleEndian.Uint32(rest[i+4:]) == crc32.ChecksumIEEE(rest[i+headSize:i+headSize+n]) {
			return fmt.Errorf("logged: an entry follows damage at offset %d: %w", l.end, semel.ErrCorrupt)
		}
	}
	if len(rest) > 0 && l.bug == refusesTornTail {
		return fmt.Errorf("logged: torn at offset %d: %w", l.end, semel.ErrCorrupt)
	}
	return nil
}

// write logs the current records of keys.
func (l *logged) write(keys []semel.Key) error {
	if l.failed != nil {
		return l.failed
	}
	b := appendTime(binary.AppendUvarint(make([]byte, headSize), uint64(l.last)), l.now)
	for _, key := range keys {
		rec := l.records[key]
		rec.Key = key
		b = rec.append(b)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)-headSize))
	binary.LittleEndian.PutUint32(b[4:], crc32.ChecksumIEEE(b[headSize:]))
	if l.bug == writesWhenClosed {
		l.unsaid = append(l.unsaid, b...)
		return nil
	}
	if _, err := l.file.WriteAt(b, l.end); err != nil {
		return l.stop(err)
	}
	l.end += int64(len(b))
	switch l.bug {
	case syncsNever, saysPowerSafe:
		return nil
	case retriesSync:
		for l.file.Sync() != nil {
		}
		return nil
	}
	if err := l.file.Sync(); err != nil && l.bug != ignoresSyncErrors {
		return l.stop(err)
	}
	return nil
}

// stop stops the store, because the content of the disk is unknown.
func (l *logged) stop(err error) error {
	err = fmt.Errorf("logged: write: %w: %w", semel.ErrStoreFailed, err)
	if l.bug != goesOnAfterErrors {
		l.failed = err
	}
	return err
}

// do makes a call of the reference durable.
func (l *logged) do(call func() error, n int, key func(i int) semel.Key) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed != nil {
		return l.failed
	}
	keys := make([]semel.Key, n)
	for i := range keys {
		keys[i] = key(i)
	}
	if l.bug != writesFirst {
		if err := call(); err != nil {
			return err
		}
		if l.bug == answersBeforeWriting {
			_ = l.write(keys)
			return nil
		}
		return l.write(keys)
	}
	// The bug: the change is on disk before it is decided.
	for _, key := range keys {
		rec := l.records[key]
		l.records[key] = record{Record: semel.Record{Key: key, State: semel.Done, Expires: l.now.Add(crashWindow)}}
		err := l.write([]semel.Key{key})
		if l.records[key] = rec; rec.State == semel.Absent {
			delete(l.records, key)
		}
		if err != nil {
			return err
		}
	}
	if err := call(); err != nil {
		return err
	}
	return l.write(keys)
}

// Claim implements semel.Store.
func (l *logged) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if l.bug == answersClaimsFirst && !reqs[0].Done && !reqs[0].Hold {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.reference.Claim(ctx, reqs, answers)
	}
	return l.do(func() error { return l.reference.Claim(ctx, reqs, answers) }, len(reqs), func(i int) semel.Key { return reqs[i].Key })
}

// Complete implements semel.Store.
func (l *logged) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	return l.do(func() error { return l.reference.Complete(ctx, reqs, answers) }, len(reqs), func(i int) semel.Key { return reqs[i].Key })
}

// Release implements semel.Store.
func (l *logged) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	return l.do(func() error { return l.reference.Release(ctx, reqs, answers) }, len(reqs), func(i int) semel.Key { return reqs[i].Key })
}

// Extend implements semel.Store.
func (l *logged) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	if l.bug == answersLeasesFirst {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.reference.Extend(ctx, reqs, answers)
	}
	return l.do(func() error { return l.reference.Extend(ctx, reqs, answers) }, len(reqs), func(i int) semel.Key { return reqs[i].Key })
}

// Resolve implements semel.Resolver.
func (l *logged) Resolve(ctx context.Context, req semel.ResolveRequest) error {
	return l.do(func() error { return l.reference.Resolve(ctx, req) }, 1, func(int) semel.Key { return req.Key })
}

// Remove implements semel.Resolver.
func (l *logged) Remove(ctx context.Context, key semel.Key) (was bool, err error) {
	err = l.do(func() (err error) { was, err = l.reference.Remove(ctx, key); return err }, 1, func(int) semel.Key { return key })
	return was, err
}

// Close implements io.Closer.
func (l *logged) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.failed
	if err == nil && len(l.unsaid) > 0 {
		_, err = l.file.WriteAt(l.unsaid, l.end)
		l.end += int64(len(l.unsaid))
		err = errors.Join(err, l.file.Sync())
	}
	if err == nil {
		err = l.noteEnd()
	}
	return errors.Join(err, l.reference.Close(), l.file.Close(), l.lock.Close())
}

// transactLogged is transact on a logged store.
func transactLogged(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error {
	l := store.(*logged)
	return l.do(func() error { return transact(ctx, l.reference, reqs, answers, commit) }, len(reqs), func(i int) semel.Key { return reqs[i].Key })
}
