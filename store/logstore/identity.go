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
	"github.com/semel-dev/semel/vfs"
)

// storeID ties segments to their store.
type storeID [16]byte

// identity is the content of the file STORE.
type identity struct {
	store   storeID
	secret  digest.Secret
	created int64 // nanoseconds since the epoch
	opens   uint64
	reached logEnd
}

// logEnd is a place in the log: a number of bytes of a segment. All segments
// before it are full. The zero value says nothing.
type logEnd struct {
	segment uint32
	offset  int
}

// before reports whether a log that ends at e is shorter than one that ends at
// other.
func (e logEnd) before(other logEnd) bool {
	return e.segment < other.segment || e.segment == other.segment && e.offset < other.offset
}

const (
	identityName = "STORE"
	identityTemp = "STORE.tmp"
	lockName     = "LOCK"

	identityMagic   = "SEMELSTO"
	identityVersion = 2
	identitySize    = 72
	// Version 1 did not know how far the log reached.
	identitySize1 = 64

	// tokenBits is how many tokens one open can give out, as a power of two.
	tokenBits = 40
)

// encode returns the content of the file.
//
//	0  magic   8  version   12  zero   16  store id   32  secret
//	48  created   56  count of opens (32 bits)
//	60  segment that the log reached   64  bytes of it
//	68  checksum of 0 to 68
//
// In version 1, the checksum of 0 to 60 stood at 60 and nothing followed.
func (id *identity) encode() []byte {
	b := make([]byte, identitySize)
	copy(b, identityMagic)
	binary.LittleEndian.PutUint32(b[8:], identityVersion)
	copy(b[16:], id.store[:])
	copy(b[32:], id.secret[:])
	binary.LittleEndian.PutUint64(b[48:], uint64(id.created))
	binary.LittleEndian.PutUint32(b[56:], uint32(id.opens))
	binary.LittleEndian.PutUint32(b[60:], id.reached.segment)
	binary.LittleEndian.PutUint32(b[64:], uint32(id.reached.offset))
	putSum(b)
	return b
}

// putSum ends b with the checksum of what stands before it.
func putSum(b []byte) {
	end := len(b) - 4
	binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
}

func (id *identity) decode(b []byte) error {
	if len(b) < 12 || string(b[:8]) != identityMagic {
		return errors.New("not the identity of a store")
	}
	size := identitySize
	switch v := binary.LittleEndian.Uint32(b[8:]); v {
	case identityVersion:
	case 1:
		size = identitySize1
	default:
		return fmt.Errorf("this program reads format versions 1 to %d, not %d: use the program that wrote the store", identityVersion, v)
	}
	if len(b) != size {
		return fmt.Errorf("the identity has %d bytes, not %d", len(b), size)
	}
	if crc32.Checksum(b[:size-4], castagnoli) != binary.LittleEndian.Uint32(b[size-4:]) {
		return errors.New("the identity fails its checksum")
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

// loadIdentity reads the identity, or makes that of a new store.
func (s *Store) loadIdentity(names []string) error {
	content, err := s.fs.ReadFile(s.identityFile())
	switch {
	case err == nil:
		if err := s.id.decode(content); err != nil {
			return &CorruptError{File: s.identityFile(), Err: err}
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("logstore: read identity: %w", err)
	}
	if err := checkEmpty(s.dir, names); err != nil {
		return err
	}
	s.id = newIdentity(s.opts.Clock)
	return s.saveIdentity()
}

// countOpen counts this open durably, and notes how far the log reaches. Tokens
// begin with the count, so that those of one key only grow although the claims
// of retry mode are in memory alone.
func (s *Store) countOpen() error {
	s.id.opens++
	if s.id.opens >= 1<<(64-tokenBits) {
		return fmt.Errorf("logstore: %s was opened %d times, which is all it can count: %w", s.dir, s.id.opens, semel.ErrStoreFull)
	}
	// A sync of the directory may have failed before. The names of the segments
	// must last before anything says that the log reaches into them.
	if err := s.fs.SyncDir(s.dir); err != nil {
		return fmt.Errorf("logstore: sync %s: %w", s.dir, err)
	}
	s.id.reached = logEnd{s.active.num, s.active.next}
	return s.saveIdentity()
}

func (s *Store) identityFile() string { return filepath.Join(s.dir, identityName) }

// checkDir refuses a directory of foreign files before anything is put there,
// even the lock. What checkEmpty says of a store's own files may be another
// process that makes the store right now.
func (s *Store) checkDir() error {
	names, err := s.fs.List(s.dir)
	if err != nil || slices.Contains(names, identityName) {
		return nil // an error comes again where it is told
	}
	if err := checkEmpty(s.dir, names); errors.Is(err, semel.ErrInvalidRequest) {
		return err
	}
	return nil
}

// CheckNew returns the error with which Open would refuse to make a new store in a
// directory: what is left of another store is there, or files of others. It
// changes nothing.
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

// checkEmpty refuses to make a new store beside the log of an old one, whose
// digests nobody could read without its secret, or among foreign files.
func checkEmpty(dir string, names []string) error {
	for _, name := range names {
		if _, ok := parseSegmentName(name); ok {
			return &CorruptError{File: filepath.Join(dir, identityName), Err: errors.New("it is missing, but there are segments")}
		}
		if name != lockName && name != identityTemp && !strings.HasSuffix(name, tempSuffix) {
			return fmt.Errorf("logstore: %s is not a store and not empty: it has %q: %w", dir, name, semel.ErrInvalidRequest)
		}
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

// saveIdentity replaces the file at once: a crash leaves the old or the new.
func (s *Store) saveIdentity() error {
	temp := filepath.Join(s.dir, identityTemp)
	err := s.removeIfThere(temp)
	if err == nil {
		err = s.writeIdentity(temp)
	}
	if err == nil {
		err = s.fs.Rename(temp, s.identityFile())
	}
	if err == nil {
		err = s.fs.SyncDir(s.dir)
	}
	if err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			err = refusal(err)
		}
		return fmt.Errorf("logstore: write %s: %w", s.identityFile(), err)
	}
	return nil
}

func (s *Store) writeIdentity(temp string) error {
	f, err := s.fs.Create(temp)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(s.id.encode(), 0); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

func (s *Store) removeIfThere(name string) error {
	if err := s.fs.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// takeLock takes the lock of the directory for this process.
func (s *Store) takeLock() (io.Closer, error) {
	lock, err := s.fs.Lock(filepath.Join(s.dir, lockName), holder(time.Now()))
	if locked, ok := errors.AsType[*vfs.LockedError](err); ok {
		return nil, &LockedError{Dir: s.dir, PID: pidOf(locked.Holder), Holder: locked.Holder}
	}
	if err != nil {
		return nil, fmt.Errorf("logstore: lock: %w", err)
	}
	return lock, nil
}

// holderPID is how the text in the lock file begins.
const holderPID = "process %d"

// pidOf returns the process id in a holder's text, or 0.
func pidOf(holder string) (pid int) {
	if n, _ := fmt.Sscanf(holder, holderPID, &pid); n != 1 {
		return 0
	}
	return pid
}

// holder describes this process for the lock file.
func holder(now time.Time) string {
	host, err := os.Hostname()
	if err != nil {
		host = "an unnamed host"
	}
	const most = 64
	command := strings.Join(os.Args, " ")
	if len(command) > most {
		command = command[:most] + "…"
	}
	return fmt.Sprintf(holderPID+" on %s since %s (%s)", os.Getpid(), host, now.UTC().Format(time.RFC3339), command)
}
