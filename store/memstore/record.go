package memstore

import (
	"github.com/semel-dev/semel"
)

// record is the full form of a key in the store.
type record struct {
	digest      semel.Digest
	token       semel.Token
	nonce       uint64
	holder      string
	fingerprint semel.Fingerprint
	// leaseEnd is 0 unless the record is claimed or unknown.
	leaseEnd  int64
	firstSeen int64
	// expires is the end of the window of a done record, and otherwise never.
	// The attempt count must not be forgotten while the outcome is open.
	expires int64
	// text has what only some records have: scope and id, if they are kept, with the
	// lengths below; the origin; the data of the result. One text keeps the garbage
	// collector's work small.
	text    []byte
	attempt int32
	// next is 1 more than the number of the next free record.
	next      uint32
	scopeLen  uint32
	idLen     uint32
	originLen uint16
	// state is Absent for a free record. A record with hold and an ended lease
	// counts as Unknown, although its state is Claimed: see stateAt.
	state semel.State
	kind  semel.ResultKind
	hold  bool
	// oneStep: the holder made the key done in one step.
	oneStep bool
}

func (r *record) stateAt(now int64) semel.State {
	if r.state == semel.Claimed && r.hold && r.leaseEnd <= now {
		return semel.Unknown
	}
	return r.state
}

// goneAt reports whether the record has expired.
func (r *record) goneAt(now int64) bool { return r.expires <= now }

func (r *record) claim() semel.Claim {
	return semel.Claim{Token: r.token, Attempt: int(r.attempt), LeaseEnd: instant(r.leaseEnd)}
}

// head is the length of the text before the data of the result.
func (r *record) head() int { return int(r.scopeLen) + int(r.idLen) + int(r.originLen) }

// key returns the readable key, which is empty if it was not kept.
func (r *record) key() semel.Key {
	return semel.Key{Scope: string(r.text[:r.scopeLen]), ID: string(r.text[r.scopeLen : r.scopeLen+r.idLen])}
}

// origin returns where the delivery came from that has the key, or nothing.
func (r *record) origin() []byte { return r.text[r.scopeLen+r.idLen : r.head()] }

func (r *record) result() semel.Result {
	if data := r.text[r.head():]; len(data) > 0 || r.kind == semel.Value {
		return semel.Result{Kind: r.kind, Data: data}
	}
	return semel.Result{Kind: r.kind}
}

// show returns the record in its public form, with the data of the result.
func (r *record) show(now int64) semel.Record {
	shown := semel.Record{
		Key:         r.key(),
		Digest:      r.digest,
		State:       r.stateAt(now),
		Token:       r.token,
		Attempt:     int(r.attempt),
		Holder:      r.holder,
		Origin:      string(r.origin()),
		Fingerprint: r.fingerprint,
		FirstSeen:   instant(r.firstSeen),
		LeaseEnd:    instant(r.leaseEnd),
		Result:      r.result(),
	}
	if r.state == semel.Done && r.expires != never {
		shown.Expires = instant(r.expires)
	}
	shown.ResultSize = len(shown.Result.Data)
	return shown
}

// slab holds records by number, and reuses the numbers of free records. It
// grows by a few records at a time and never moves one.
type slab struct {
	chunks []*[slabChunk]record
	// top is the number of records that were ever in use.
	top  uint32
	live int
	// free is 1 more than the first free number, or 0.
	free uint32
	// hand is the number that the next insertion examines for expiry.
	hand uint32
}

const (
	slabChunk = 16
	// slabKept is the number of free records that an empty slab keeps.
	slabKept = 1024
)

func (s *slab) at(n uint32) *record { return &s.chunks[n/slabChunk][n%slabChunk] }

func (s *slab) alloc() (n uint32, r *record) {
	s.live++
	if s.free != 0 {
		n = s.free - 1
		r = s.at(n)
		s.free, r.next = r.next, 0
		return n, r
	}
	n = s.top
	if int(n/slabChunk) == len(s.chunks) {
		s.chunks = append(s.chunks, new([slabChunk]record))
	}
	s.top++
	return n, s.at(n)
}

func (s *slab) release(n uint32) {
	s.live--
	if s.live == 0 && s.top > slabKept {
		s.shrink() // frees the memory of a burst
		return
	}
	*s.at(n) = record{next: s.free}
	s.free = n + 1
}

// shrink frees the memory of an empty slab.
func (s *slab) shrink() {
	if s.live == 0 {
		*s = slab{}
	}
}
