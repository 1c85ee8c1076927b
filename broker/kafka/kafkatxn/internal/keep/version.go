package keep

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"
)

// MaxVersion is the length of the longest version that is a text.
const MaxVersion = 32

// Kinds of versions.
const (
	number = 'n'
	moment = 't'
	other  = 'x'
)

// ParseVersion reads a version: a whole number of 64 bits, a time as in RFC 3339, or
// another text of at most MaxVersion bytes. Newer versions have greater numbers, later
// times, or texts whose bytes sort behind.
func ParseVersion(text []byte) ([]byte, error) {
	if n, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return binary.BigEndian.AppendUint64([]byte{number}, uint64(n)^1<<63), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, string(text)); err == nil {
		sorted := binary.BigEndian.AppendUint64([]byte{moment}, uint64(t.Unix())^1<<63)
		return binary.BigEndian.AppendUint32(sorted, uint32(t.Nanosecond())), nil
	}
	if len(text) > MaxVersion {
		return nil, fmt.Errorf("the version %s has %d bytes, and a text has at most %d", shorten(text), len(text), MaxVersion)
	}
	return append([]byte{other}, text...), nil
}

// Newer reports whether a version is newer than another one of the same key. Numbers,
// times and other texts cannot be compared with each other.
func Newer(version, than []byte) (bool, error) {
	if len(than) > 0 && version[0] != than[0] {
		names := map[byte]string{number: "a number", moment: "a time", other: "another text"}
		return false, fmt.Errorf("its version is %s, and that of an earlier record of the key is %s: they cannot be compared", names[version[0]], names[than[0]])
	}
	return bytes.Compare(version, than) > 0, nil
}

// shorten returns a text for a message.
func shorten(text []byte) string {
	const most = 40
	if len(text) > most {
		return strconv.Quote(string(text[:most])) + "..."
	}
	return strconv.Quote(string(text))
}
