package redisstore

import (
	"encoding/binary"
	"strconv"
	"time"

	"github.com/semel-dev/semel"
)

// All names of a store begin with its prefix. Names that scripts use continue
// with a hash tag of two characters, which is ten bits of the digest. So all
// names of one key are in one slot of a cluster:
//
//	semel:meta                 the agreement of the stores of this prefix
//	semel:scope:<scope>        the rule that finds the ids of a scope
//	semel:{1f}<digest>         the record of a key; 16 bytes
//	semel:{1f}token            the token counter
//	semel:{1f}<sub>.<place>    a set of the compact form
//
// Without a cluster one counter is enough: the counter of the first tag.
const (
	tagDigits = "0123456789abcdefghijklmnopqrstuv"
	tags      = len(tagDigits) * len(tagDigits)
	nameRoom  = len("{00}") + len(semel.Digest{})
)

// tagOf returns the number of a digest's hash tag.
func tagOf(d *semel.Digest) int { return int(binary.BigEndian.Uint16(d[:2]) >> 6) }

// appendTag appends the prefix and a hash tag.
func (s *Store) appendTag(b []byte, tag int) []byte {
	b = append(b, s.opts.Prefix...)
	return append(b, '{', tagDigits[tag>>5], tagDigits[tag&31], '}')
}

func (s *Store) appendRecordKey(b []byte, d *semel.Digest) []byte {
	return append(s.appendTag(b, tagOf(d)), d[:]...)
}

func (s *Store) recordKey(d *semel.Digest) string {
	var room [64]byte
	return string(s.appendRecordKey(room[:0], d))
}

// nameLength returns the length of the name of a record.
func (s *Store) nameLength() int { return len(s.opts.Prefix) + nameRoom }

// counterKey returns the name of the token counter of a group of keys.
func (s *Store) counterKey(group int) string {
	return string(append(s.appendTag(nil, group), "token"...))
}

// digestOf returns the digest in the name of a record.
func (s *Store) digestOf(name string) (d semel.Digest, ok bool) {
	if len(name) != s.nameLength() {
		return d, false
	}
	copy(d[:], name[len(name)-len(d):])
	return d, s.recordKey(&d) == name
}

// ring describes the sets of the compact form. All stores of a prefix agree on
// it. A set holds the keys that were done in one slice of time. The name of the
// set is the place of the slice in a ring. The ring has a place for each slice of the window, a
// place for the current slice, and an empty place. So a set has expired before its name is used
// again.
type ring struct {
	window time.Duration
	slices int
	subs   uint32 // sets of one slice and one hash tag
}

// length returns the length of a slice, in whole milliseconds.
func (r *ring) length() time.Duration {
	n := time.Duration(r.slices) * time.Millisecond
	return (r.window + n - 1) / n * time.Millisecond
}

func (r *ring) places() int { return r.slices + 2 }

// fits reports whether a done key with this window may take the compact form.
func (r *ring) fits(window time.Duration) bool { return r != nil && window == r.window }

// appendSetKeys appends the names of all sets that may hold a digest.
func (s *Store) appendSetKeys(keys []string, d *semel.Digest) []string {
	var room [64]byte
	b := s.appendTag(room[:0], tagOf(d))
	b = strconv.AppendUint(b, uint64(binary.BigEndian.Uint32(d[4:8])%s.ring.subs), 36)
	b = append(b, '.')
	for place := range s.ring.places() {
		keys = append(keys, string(strconv.AppendInt(b, int64(place), 10)))
	}
	return keys
}

// member returns the member that represents a digest in a set. It is half of
// the digest as an integer, so that the server packs the set.
func member(d *semel.Digest) string {
	return strconv.FormatInt(int64(binary.BigEndian.Uint64(d[8:])), 10)
}

// escapeGlob escapes a prefix for a pattern of SCAN.
func escapeGlob(s string) string {
	b := make([]byte, 0, len(s)+8)
	for i := range len(s) {
		switch s[i] {
		case '*', '?', '[', ']', '\\', '^', '-':
			b = append(b, '\\')
		}
		b = append(b, s[i])
	}
	return string(b)
}
