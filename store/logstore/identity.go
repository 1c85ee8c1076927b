package logstore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/vfs"
)

// storeID links segments to their store.
type storeID [16]byte

// identity is the content of the STORE file.
type identity struct {
	store   storeID
	secret  digest.Secret
	created int64 // nanoseconds since the epoch
	opens   uint64
	reached logEnd
	runs    bool // the store may have runs, which older programs do not know
}

const (
	identityName = "STORE"
	identityTemp = "STORE.tmp"
	lockName     = "LOCK"

	identityMagic   = "SEMELSTO"
	identityVersion = 2
	// Version 3 is the same, in a store that may have runs.
	identityVersion3 = 3
	identitySize     = 72
	// Version 1 did not record the end of the log.
	identitySize1 = 64

	// tokenBits is the binary logarithm of the number of tokens that one open
	// can issue.
	tokenBits = 40
)

// encode returns the content of the file.
//
//	0  magic   8  version   12  zero   16  store id   32  secret
//	48  created   56  count of opens (32 bits)
//	60  segment that the log reached   64  bytes of it
//	68  checksum of 0 to 68
//
// In version 1, the checksum of 0 to 60 was at 60 and ended the file.
func (id *identity) encode() []byte {
	b := make([]byte, identitySize)
	copy(b, identityMagic)
	binary.LittleEndian.PutUint32(b[8:], identityVersion)
	if id.runs {
		binary.LittleEndian.PutUint32(b[8:], identityVersion3)
	}
	copy(b[16:], id.store[:])
	copy(b[32:], id.secret[:])
	binary.LittleEndian.PutUint64(b[48:], uint64(id.created))
	binary.LittleEndian.PutUint32(b[56:], uint32(id.opens))
	binary.LittleEndian.PutUint32(b[60:], id.reached.segment)
	binary.LittleEndian.PutUint32(b[64:], uint32(id.reached.offset))
	putSum(b)
	return b
}

// putSum writes the checksum of all preceding bytes to the end of b.
func putSum(b []byte) {
	end := len(b) - 4
	binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
}

func (id *identity) decode(b []byte) error {
	if len(b) < 12 || string(b[:8]) != identityMagic {
		return errors.New("not a store identity file")
	}
	size := identitySize
	switch v := binary.LittleEndian.Uint32(b[8:]); v {
	case identityVersion:
	case identityVersion3:
		id.runs = true
	case 1:
		size = identitySize1
	default:
		return fmt.Errorf("this program reads format versions 1 to %d, but the file has version %d: use the program that wrote the store", identityVersion3, v)
	}
	if len(b) != size {
		return fmt.Errorf("the identity file has %d bytes, want %d", len(b), size)
	}
	if crc32.Checksum(b[:size-4], castagnoli) != binary.LittleEndian.Uint32(b[size-4:]) {
		return errors.New("checksum mismatch in the identity file")
	}
	id.store = storeID(b[16:32])
	id.secret = digest.Secret(b[32:48])
	id.created = int64(binary.LittleEndian.Uint64(b[48:]))
	id.opens = uint64(binary.LittleEndian.Uint32(b[56:]))
	if size == identitySize {
		id.reached = logEnd{binary.LittleEndian.Uint32(b[60:]), int(binary.LittleEndian.Uint32(b[64:]))}
	}
	return nil
}

func newIdentity(wall func() time.Time) identity {
	if wall == nil {
		wall = time.Now
	}
	id := identity{secret: digest.NewSecret(), created: wall().UnixNano()}
	rand.Read(id.store[:]) // never fails
	return id
}

// logEnd is a position in the log: a segment and a number of bytes in it. All
// earlier segments are full. The zero value means unknown.
type logEnd struct {
	segment uint32
	offset  int
}

// before reports whether e is an earlier position than other.
func (e logEnd) before(other logEnd) bool {
	return e.segment < other.segment || e.segment == other.segment && e.offset < other.offset
}

// directory is the directory of a store, with the store's identity.
type directory struct {
	path string
	fs   vfs.FS
	lock io.Closer
	id   identity
}

// make creates the directory and makes its name durable. It does so at every
// open, because an existing directory may still disappear after a power loss.
func (d *directory) make() error {
	dir, err := filepath.Abs(d.path)
	if err != nil {
		return err
	}
	parents := []string{filepath.Dir(dir)}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := d.fs.List(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		parents = append(parents, filepath.Dir(at))
	}
	if err := d.fs.MkdirAll(d.path); err != nil {
		return err
	}
	for _, parent := range parents {
		// A process that may not open the parent directory cannot sync it, and
		// did not create the store's directory.
		if err := d.fs.SyncDir(parent); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// CheckNew returns the error with which Open would refuse to create a new store
// in a directory. That is the case if the directory contains the rest of
// another store, or foreign files. It changes nothing.
func CheckNew(dir string) error {
	names, err := vfs.OS{}.List(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), slices.Contains(names, identityName):
		return nil
	case err != nil:
		return fmt.Errorf("logstore: %w", err)
	}
	return checkEmpty(dir, names)
}

// checkDir rejects a directory with foreign files before the store creates
// anything in it, including the lock. It ignores a checkEmpty error about a
// store's own files, because another process may be creating the store at this
// moment.
func (d *directory) checkDir() error {
	names, err := d.fs.List(d.path)
	if err != nil || slices.Contains(names, identityName) {
		return nil // the caller's next step returns the same error
	}
	if err := checkEmpty(d.path, names); errors.Is(err, semel.ErrInvalidRequest) {
		return err
	}
	return nil
}

// checkEmpty refuses to create a new store next to the log of an old one, or
// among foreign files. Without the old store's secret, its digests are useless.
func checkEmpty(dir string, names []string) error {
	for _, name := range names {
		_, isSegment := parseSegmentName(name)
		_, _, isRun := parseRunName(strings.TrimSuffix(strings.TrimSuffix(name, run.IndexSuffix), run.Suffix) + run.Suffix)
		if isSegment || isRun {
			return &CorruptError{File: filepath.Join(dir, identityName), Err: errors.New("the file is missing, but the directory has segments")}
		}
		if name != lockName && name != identityTemp && !strings.HasSuffix(name, tempSuffix) {
			return fmt.Errorf("logstore: directory %s is not a store and not empty: it contains %q: %w", dir, name, semel.ErrInvalidRequest)
		}
	}
	return nil
}

// takeLock locks the directory for this process.
func (d *directory) takeLock() (io.Closer, error) {
	lock, err := d.fs.Lock(filepath.Join(d.path, lockName), holder(time.Now()))
	if locked, ok := errors.AsType[*vfs.LockedError](err); ok {
		return nil, &lockedError{d.path, locked}
	}
	if err != nil {
		return nil, fmt.Errorf("logstore: lock: %w", err)
	}
	return lock, nil
}

// holder describes this process for the lock file.
func holder(now time.Time) string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unknown host"
	}
	const most = 64
	command := strings.Join(os.Args, " ")
	if len(command) > most {
		command = command[:most] + "…"
	}
	return fmt.Sprintf("process %d on %s since %s (%s)", os.Getpid(), host, now.UTC().Format(time.RFC3339), command)
}

// loadIdentity reads the identity, or creates one for a new store.
func (d *directory) loadIdentity(names []string, wall func() time.Time) error {
	content, err := d.fs.ReadFile(d.identityFile())
	switch {
	case err == nil:
		if err := d.id.decode(content); err != nil {
			return &CorruptError{File: d.identityFile(), Err: err}
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("logstore: read identity: %w", err)
	}
	if err := checkEmpty(d.path, names); err != nil {
		return err
	}
	d.id = newIdentity(wall)
	return d.saveIdentity()
}

// countOpen durably counts this open and records the end of the log. Tokens
// start with the count. The tokens of one key therefore only grow, although the
// claims of retry mode are in memory only.
func (d *directory) countOpen(reached logEnd) error {
	d.id.opens++
	if d.id.opens >= 1<<(64-tokenBits) {
		return fmt.Errorf("logstore: %s was opened %d times, which is the maximum: %w", d.path, d.id.opens, semel.ErrStoreFull)
	}
	// An earlier sync of the directory may have failed. The names of the
	// segments must be durable before the identity says that the log reaches
	// into them.
	if err := d.fs.SyncDir(d.path); err != nil {
		return fmt.Errorf("logstore: sync %s: %w", d.path, err)
	}
	d.id.reached = reached
	return d.saveIdentity()
}

// allowRuns makes older programs refuse the store, before it has a run that they do not
// know.
func (d *directory) allowRuns() error {
	if d.id.runs {
		return nil
	}
	d.id.runs = true
	err := d.saveIdentity()
	d.id.runs = err == nil
	return err
}

func (d *directory) identityFile() string { return filepath.Join(d.path, identityName) }

// saveIdentity replaces the file atomically. A crash leaves the old or the new
// one.
func (d *directory) saveIdentity() error {
	temp := filepath.Join(d.path, identityTemp)
	err := d.removeIfThere(temp)
	if err == nil {
		err = d.writeIdentity(temp)
	}
	if err == nil {
		err = d.fs.Rename(temp, d.identityFile())
	}
	if err == nil {
		err = syncFailed(d.fs.SyncDir(d.path))
	}
	if err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			err = refusal(err)
		}
		return fmt.Errorf("logstore: write %s: %w", d.identityFile(), err)
	}
	return nil
}

func (d *directory) writeIdentity(temp string) error {
	f, err := d.fs.Create(temp)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(d.id.encode(), 0); err == nil {
		err = syncFailed(f.Sync())
	}
	return errors.Join(err, f.Close())
}

func (d *directory) removeIfThere(name string) error {
	if err := d.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// corrupt returns a CorruptError for an offset of a segment.
func (d *directory) corrupt(g *segment, off int, err error) error {
	return &CorruptError{File: filepath.Join(d.path, segmentName(g.num)), Offset: int64(off), Err: err}
}

// missing returns the error of a missing segment file.
func (d *directory) missing(num uint32, then string) error {
	return &CorruptError{File: filepath.Join(d.path, segmentName(num)), Err: errors.New("the segment is missing: " + then)}
}
