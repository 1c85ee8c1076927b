package logstore

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"time"

	"github.com/semel-dev/semel"
)

// An entry is the part of a record that concerns one key. It starts with the
// digest and a metadata word:
//
//	bit 0      a check of the token or owner follows (4 bytes)
//	bit 1      half a fingerprint follows (8 bytes)
//	bit 2      the entry is rich
//	bits 3-31  when it expires: ticks after the segment's base, or tickNever
//
// In a rich entry bits 3-7 are its kind and bits 8-31 the length of its body in
// words. A separate checksum precedes the body, because the store returns a
// result long after it verified the record.
const (
	flagCheck = 1 << 0
	flagPrint = 1 << 1
	flagRich  = 1 << 2
	metaShift = 3
	kindMask  = 31
	wordShift = 8

	tickNever = 1<<29 - 1

	entryHead   = 20             // digest and metadata
	compactMost = entryHead + 12 // with check and fingerprint
	richHead    = entryHead + 4  // with checksum
)

// tickNanos is the resolution of expiry times: 250 ms.
const tickNanos = 250_000_000

// never is the expiry of a key that is kept forever.
const never = math.MaxInt64

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// entryKind is the kind of an entry.
type entryKind uint8

const (
	kindDone    entryKind = 1 // the key is done
	kindClaim   entryKind = 2 // the key is durably claimed, or unknown
	kindRemoval entryKind = 3 // the key is removed
	kindValue   entryKind = 4 // a named value; the digest is zero
	lastKind              = kindValue
)

// entry is a decoded entry.
type entry struct {
	digest  semel.Digest
	kind    entryKind
	expires int64  // expiry of a done key, in nanoseconds since the epoch, or never
	check   uint32 // of the token or owner that completed the key; 0 means none
	print   uint64 // first half of the fingerprint; 0 means none
	rich    *rich  // nil in a compact entry
	size    int    // bytes in the log
	off     int    // offset in its segment; set by walk
}

// result returns the result that a done entry stores.
func (e *entry) result() semel.Result {
	if e.rich == nil || e.rich.resultKind == semel.NoResult {
		return semel.Result{}
	}
	return semel.Result{Kind: e.rich.resultKind, Data: e.rich.data}
}

// token returns the token that completed an entry, if it is known.
func (e *entry) token() semel.Token {
	if e.rich == nil {
		return 0
	}
	return e.rich.token
}

// fill sets the fields of a done key's record, except for the result.
func (e *entry) fill(r *semel.Record) {
	r.Digest, r.State, r.Expires = e.digest, semel.Done, timeOf(e.expires)
	if e.rich == nil {
		r.Fingerprint = wholeOf(e.print)
		return
	}
	r.Key, r.Origin, r.Token, r.Attempt = e.rich.key, e.rich.origin, e.rich.token, int(e.rich.attempt)
	r.Fingerprint, r.FirstSeen = e.rich.fingerprint, timeOf(e.rich.first)
	r.Result.Kind, r.ResultSize = e.rich.resultKind, len(e.rich.data)
}

// compactSize returns the length of a compact entry from its metadata.
func compactSize(meta uint32) int {
	return entryHead + int(meta&flagCheck)<<2 + int(meta&flagPrint)<<2
}

// entrySize returns the length of an entry from its metadata.
func entrySize(meta uint32) int {
	if meta&flagRich != 0 {
		return richHead + int(meta>>wordShift)*4
	}
	return compactSize(meta)
}

// expiryTick returns the tick at which a window that starts now ends. It rounds
// up, so that a key is never forgotten early.
func expiryTick(now int64, window int64) int64 {
	if window > never-now-tickNanos {
		return never
	}
	return (now + window + tickNanos - 1) / tickNanos
}

// tickTime returns the time of a tick in nanoseconds.
func tickTime(tick int64) int64 {
	if tick > never/tickNanos {
		return never
	}
	return tick * tickNanos
}

// after returns now plus d, capped at never.
func after(now, d int64) int64 {
	if d > never-now {
		return never
	}
	return now + d
}

// timeOf converts a time of the store's clock. never becomes the zero time.
func timeOf(nanos int64) time.Time {
	if nanos == math.MaxInt64 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// encodeCompact encodes a done entry that has only an expiry, a check and half
// a fingerprint. It returns false if the expiry does not fit.
func encodeCompact(b *[compactMost]byte, d *semel.Digest, tick, base int64, check uint32, print uint64) (int, bool) {
	relative := uint64(tickNever)
	if tick != never {
		if relative = uint64(max(tick-base, 0)); relative >= tickNever {
			return 0, false
		}
	}
	meta := uint32(relative) << metaShift
	*(*semel.Digest)(b[:16]) = *d
	n := entryHead
	if check != 0 {
		meta |= flagCheck
		binary.LittleEndian.PutUint32(b[n:], check)
		n += 4
	}
	if print != 0 {
		meta |= flagPrint
		binary.LittleEndian.PutUint64(b[n:], print)
		n += 8
	}
	binary.LittleEndian.PutUint32(b[16:], meta)
	return n, true
}

// decodeEntry decodes the entry at the start of b. b must contain a rich entry
// completely. It returns false if b does not start with a valid entry.
func decodeEntry(b []byte, base int64) (entry, bool) {
	if len(b) < entryHead {
		return entry{}, false
	}
	meta := binary.LittleEndian.Uint32(b[16:])
	e := entry{digest: semel.Digest(b[:16]), size: entrySize(meta)}
	if e.size > len(b) {
		return e, false
	}
	if meta&flagRich != 0 {
		return decodeRichEntry(e, meta, b[:e.size])
	}
	e.kind = kindDone
	e.expires = never
	if tick := int64(meta >> metaShift); tick != tickNever {
		e.expires = tickTime(base + tick)
	}
	rest := b[entryHead:e.size]
	if meta&flagCheck != 0 {
		e.check = binary.LittleEndian.Uint32(rest)
		rest = rest[4:]
	}
	if meta&flagPrint != 0 {
		e.print = binary.LittleEndian.Uint64(rest)
	}
	return e, true
}

func decodeRichEntry(e entry, meta uint32, b []byte) (entry, bool) {
	e.kind = entryKind(meta >> metaShift & kindMask)
	if meta&(flagCheck|flagPrint) != 0 || e.kind < kindDone || e.kind > lastKind {
		return e, false
	}
	sum := crc32.Update(crc32.Checksum(b[:entryHead], castagnoli), castagnoli, b[richHead:])
	if sum != binary.LittleEndian.Uint32(b[entryHead:]) {
		return e, false
	}
	r := new(rich)
	if !r.decode(b[richHead:]) {
		return e, false
	}
	switch e.kind {
	case kindDone:
		r.origin, r.holder = r.holder, ""
	case kindClaim:
		r.origin, r.data = string(r.data), nil
	}
	e.rich = r
	e.expires = r.until
	e.check = uint32(r.nonce) // of an owner, if there was no token
	if r.token != 0 {
		e.check = checkOf(uint64(r.token))
	}
	e.print = half(r.fingerprint)
	return e, true
}

// checkOf reduces a token to the check of a compact entry. 0 stays 0. For an
// owner, see op.checkOfOwner.
func checkOf(token uint64) uint32 {
	if token == 0 {
		return 0
	}
	// Tokens differ in their low bits and, from bit 40, in the count of opens.
	return max(uint32(token)^uint32(token>>32)*0x9e3779b1, 1)
}

// wholeOf returns a fingerprint from its first half. The second half is zero.
func wholeOf(print uint64) (f semel.Fingerprint) {
	binary.LittleEndian.PutUint64(f[:8], print)
	return f
}

// half returns the half of a fingerprint that compact entries keep.
func half(f semel.Fingerprint) uint64 { return binary.LittleEndian.Uint64(f[:8]) }

// rich is the body of a rich entry. All kinds share one form: a field that a
// kind does not use is empty and takes one byte. The origin is in a field that its
// kind does not use otherwise: in the holder of a done key, in the data of a claim.
type rich struct {
	token       semel.Token
	nonce       uint64
	attempt     uint32
	unknown     bool
	retry       bool  // a claim without Hold
	kept        bool  // a claim with Hold whose lease outlives its process
	first       int64 // time of the first claim
	until       int64 // lease end of a claim, or expiry of a done key
	fingerprint semel.Fingerprint
	resultKind  semel.ResultKind
	holder      string // or the name of a value
	key         semel.Key
	data        []byte // result or value
	origin      string
}

// The first byte of a claim's body. A program that does not know a state takes the
// key for unknown when it opens the store.
const (
	stateUnknown = 1
	stateRetry   = 2
	stateKept    = 3
)

// size returns an upper bound of the encoded length.
func (r *rich) size() int {
	const fixed = richHead + 6*binary.MaxVarintLen64 + 16 + 2 + 4*binary.MaxVarintLen32 + 4
	return fixed + len(r.holder) + len(r.key.Scope) + len(r.key.ID) + len(r.data) + len(r.origin)
}

// encode appends the complete entry to b.
func (r *rich) encode(b []byte, d *semel.Digest, kind entryKind) []byte {
	start := len(b)
	b = append(b, d[:]...)
	b = append(b, make([]byte, richHead-16)...)
	var state byte
	switch {
	case r.unknown:
		state = stateUnknown
	case r.retry:
		state = stateRetry
	case r.kept:
		state = stateKept
	}
	b = append(b, state, byte(r.resultKind))
	b = binary.AppendUvarint(b, uint64(r.token))
	b = binary.AppendUvarint(b, r.nonce)
	b = binary.AppendUvarint(b, uint64(r.attempt))
	b = binary.AppendVarint(b, r.first)
	b = binary.AppendVarint(b, r.until)
	b = append(b, r.fingerprint[:]...)
	holder, data := r.holder, r.data
	switch kind {
	case kindDone:
		holder = r.origin
	case kindClaim:
		data = []byte(r.origin)
	}
	for _, s := range [...]string{holder, r.key.Scope, r.key.ID} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	b = binary.AppendUvarint(b, uint64(len(data)))
	b = append(b, data...)
	for (len(b)-start)%4 != 0 {
		b = append(b, 0)
	}
	e := b[start:]
	meta := flagRich | uint32(kind)<<metaShift | uint32(len(e)-richHead)/4<<wordShift
	binary.LittleEndian.PutUint32(e[16:], meta)
	sum := crc32.Update(crc32.Checksum(e[:entryHead], castagnoli), castagnoli, e[richHead:])
	binary.LittleEndian.PutUint32(e[entryHead:], sum)
	return b
}

// decode decodes a body. It copies the strings and the data out of b.
func (r *rich) decode(b []byte) bool {
	d := decoder{rest: b}
	state := d.byte()
	r.unknown, r.retry, r.kept = state == stateUnknown, state == stateRetry, state == stateKept
	r.resultKind = semel.ResultKind(d.byte())
	r.token = semel.Token(d.uvarint())
	r.nonce = d.uvarint()
	r.attempt = uint32(d.uvarint())
	r.first = d.varint()
	r.until = d.varint()
	copy(r.fingerprint[:], d.bytes(16))
	r.holder = string(d.bytes(d.uvarint()))
	r.key.Scope = string(d.bytes(d.uvarint()))
	r.key.ID = string(d.bytes(d.uvarint()))
	data := d.bytes(d.uvarint())
	r.data = append(make([]byte, 0, len(data)), data...)
	return !d.bad && len(d.rest) < 4
}

// decoder reads fields. After the first missing field it returns zeros.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) byte() byte {
	b := d.bytes(1)
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

func (d *decoder) bytes(n uint64) []byte {
	if d.bad || n > uint64(len(d.rest)) {
		d.bad = true
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	return d.took(v, n)
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.rest)
	d.took(0, n)
	return v
}

func (d *decoder) took(v uint64, n int) uint64 {
	if n <= 0 || d.bad {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}
