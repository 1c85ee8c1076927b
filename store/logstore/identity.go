package logstore

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/internal/vfs"
)

// storeID ties segments to their store.
type storeID [16]byte

// identity is the content of the file STORE.
type identity struct {
	store   storeID
	secret  digest.Secret
	created int64 // nanoseconds since the epoch
	opens   uint64
}

const (
	identityName = "STORE"
	identityTemp = "STORE.tmp"
	lockName     = "LOCK"

	identityMagic = "SEMELSTO"
	identitySize  = 64

	// tokenBits is how many tokens one open can give out, as a power of two.
	tokenBits = 40
)

// encode returns the content of the file.
//
//	0  magic   8  version   12  zero   16  store id   32  secret
//	48  created   56  count of opens (32 bits)   60  checksum of 0 to 60
func (id *identity) encode() []byte {
	b := make([]byte, identitySize)
	copy(b, identityMagic)
	binary.LittleEndian.PutUint32(b[8:], version)
	copy(b[16:], id.store[:])
	copy(b[32:], id.secret[:])
	binary.LittleEndian.PutUint64(b[48:], uint64(id.created))
	binary.LittleEndian.PutUint32(b[56:], uint32(id.opens))
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

func (id *identity) decode(b []byte) error {
	switch {
	case len(b) != identitySize || string(b[:8]) != identityMagic:
		return errors.New("not the identity of a store")
	case crc32.Checksum(b[:60], castagnoli) != binary.LittleEndian.Uint32(b[60:]):
		return errors.New("the identity fails its checksum")
	case binary.LittleEndian.Uint32(b[8:]) != version:
		return fmt.Errorf("format version %d is not %d", binary.LittleEndian.Uint32(b[8:]), version)
	}
	id.store = storeID(b[16:32])
	id.secret = digest.Secret(b[32:48])
	id.created = int64(binary.LittleEndian.Uint64(b[48:]))
	id.opens = uint64(binary.LittleEndian.Uint32(b[56:]))
	return nil
}

// loadIdentity reads the identity, or makes that of a new store, and counts
// this open durably: tokens begin with the count, so that those of one key only
// grow although the claims of retry mode are in memory alone.
func (s *Store) loadIdentity(names []string) error {
	name := filepath.Join(s.dir, identityName)
	content, err := s.fs.ReadFile(name)
	switch {
	case err == nil:
		if err := s.id.decode(content); err != nil {
			return &CorruptError{File: name, Err: err}
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("logstore: read identity: %w", err)
	default:
		if err := checkEmpty(s.dir, names); err != nil {
			return err
		}
		s.id = newIdentity(s.opts.Clock)
	}
	s.id.opens++
	if s.id.opens >= 1<<(64-tokenBits) {
		return fmt.Errorf("logstore: %s was opened %d times, which is all it can count: %w", s.dir, s.id.opens, semel.ErrStoreFull)
	}
	return s.saveIdentity(name)
}

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

func (s *Store) saveIdentity(name string) error {
	temp := filepath.Join(s.dir, identityTemp)
	err := s.removeIfThere(temp)
	if err == nil {
		err = s.writeIdentity(temp)
	}
	if err == nil {
		err = s.fs.Rename(temp, name)
	}
	if err == nil {
		err = s.fs.SyncDir(s.dir)
	}
	if err != nil {
		return fmt.Errorf("logstore: write identity: %w", err)
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
	return fmt.Sprintf("process %d on %s since %s (%s)", os.Getpid(), host, now.UTC().Format(time.RFC3339), command)
}
