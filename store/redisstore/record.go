package redisstore

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

// A record is the string value of a key. Numbers are little-endian, times are
// microseconds of the server's clock; record.lua has the same layout.
//
//	byte  claimed, held, unknown       done                   done in one step
//	0     'c', 'h', 'u'                'd'                    'o'
//	1     attempt, 4 bytes             attempt                owner, 8 bytes
//	5     token, 8                     token, 0 if resolved
//	9                                                         window, 8; 0: forever
//	13    first seen, 8                first seen
//	17                                                        fingerprint, 8 *
//	21    lease end, 8                 fingerprint
//	25                                                        ids *
//	29    fingerprint, 8; 0: none      ids
//	33                                 kind of the result, 1, and result
//	37    ids, owner
//
// What is marked * may be missing at the end. The owner of a claim is its nonce
// and its name, that of a key done in one step a digest of both. Ids are the
// readable scope and id if the store keeps them, and else 4 bytes of 0. Names
// and ids have their length, 4 bytes, before them.
const (
	stateClaimed = 'c'
	stateHeld    = 'h'
	stateUnknown = 'u'
	stateDone    = 'd'
	stateOneStep = 'o'
)

// How long a record is at least, up to the part whose length varies.
const (
	claimHeader   = 37
	doneHeader    = 29
	oneStepPlain  = 17
	oneStepPrints = 25
	// tokenEnd and leaseEndEnd are where these fields end.
	tokenEnd    = 13
	leaseEndEnd = 29
)

// oneStepState is stateOneStep to begin a record with.
const oneStepState = "o"

// appendOwner appends the owner of a claim.
func appendOwner(b []byte, owner *semel.Owner) []byte {
	b = binary.LittleEndian.AppendUint64(b, owner.Nonce)
	return appendString(b, owner.Name)
}

// appendIDs appends the readable key, or that there is none.
func appendIDs(b []byte, ids *semel.Key) []byte {
	if ids == nil {
		return binary.LittleEndian.AppendUint32(b, 0)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(8+len(ids.Scope)+len(ids.ID)))
	b = appendString(b, ids.Scope)
	return appendString(b, ids.ID)
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// appendOneStep appends the record of a key that is done in one step.
func appendOneStep(b []byte, owner [8]byte, window time.Duration, print semel.Fingerprint, ids *semel.Key) []byte {
	b = append(b, oneStepState...)
	b = append(b, owner[:]...)
	var micros uint64
	if window != semel.Forever {
		micros = uint64(window.Microseconds())
	}
	b = binary.LittleEndian.AppendUint64(b, micros)
	if !print.IsZero() || ids != nil {
		b = append(b, print[:8]...)
	}
	if ids != nil {
		b = appendIDs(b, ids)
	}
	return b
}

// record is a decoded record.
type record struct {
	state     byte
	attempt   int
	token     semel.Token
	firstSeen int64
	print     semel.Fingerprint
	leaseEnd  int64
	holder    string
	key       semel.Key
	result    semel.Result
	owner     [8]byte       // of a key done in one step
	window    time.Duration // likewise; 0 is forever
}

// decode reads a record. It reports false if it is not one.
func decode(rec string) (r record, ok bool) {
	if rec == "" {
		return record{}, false
	}
	switch r.state = rec[0]; r.state {
	case stateClaimed, stateHeld, stateUnknown:
		return r, r.decodeClaim(rec)
	case stateDone:
		return r, r.decodeDone(rec)
	case stateOneStep:
		return r, r.decodeOneStep(rec)
	}
	return record{}, false
}

// decodeHeader reads what claims and what is done have at fixed places.
func (r *record) decodeHeader(rec string) bool {
	done := rec[0] == stateDone
	if len(rec) < doneHeader || !done && len(rec) < claimHeader {
		return false
	}
	r.attempt = int(binary.LittleEndian.Uint32([]byte(rec[1:5])))
	r.token = semel.Token(uint64At(rec, 5))
	r.firstSeen = int64(uint64At(rec, 13))
	if done {
		copy(r.print[:8], rec[21:])
		return true
	}
	r.leaseEnd = int64(uint64At(rec, 21))
	copy(r.print[:8], rec[29:])
	return true
}

func (r *record) decodeClaim(rec string) bool {
	if !r.decodeHeader(rec) {
		return false
	}
	rest, ok := r.decodeIDs(rec[claimHeader:])
	if !ok || len(rest) < 8 {
		return false
	}
	r.holder, _, ok = cutString(rest[8:])
	return ok
}

func (r *record) decodeDone(rec string) bool {
	if len(rec) == 1 {
		return true // the compact form, which has no record
	}
	if !r.decodeHeader(rec) {
		return false
	}
	rest, ok := r.decodeIDs(rec[doneHeader:])
	if !ok || rest == "" {
		return false
	}
	r.result.Kind = semel.ResultKind(rest[0])
	if len(rest) > 1 {
		r.result.Data = []byte(rest[1:])
	}
	return true
}

func (r *record) decodeOneStep(rec string) bool {
	if len(rec) < oneStepPlain {
		return false
	}
	r.attempt = 1
	copy(r.owner[:], rec[1:9])
	r.window = time.Duration(uint64At(rec, 9)) * time.Microsecond
	if len(rec) < oneStepPrints {
		return len(rec) == oneStepPlain
	}
	copy(r.print[:8], rec[17:25])
	if len(rec) == oneStepPrints {
		return true
	}
	_, ok := r.decodeIDs(rec[oneStepPrints:])
	return ok
}

// decodeIDs reads the readable key and returns what follows.
func (r *record) decodeIDs(rest string) (string, bool) {
	ids, rest, ok := cutString(rest)
	if !ok || ids == "" {
		return rest, ok
	}
	if r.key.Scope, ids, ok = cutString(ids); !ok {
		return rest, false
	}
	r.key.ID, _, ok = cutString(ids)
	// A record may be as large as its result; the key must not hold all of it.
	r.key.Scope, r.key.ID = strings.Clone(r.key.Scope), strings.Clone(r.key.ID)
	return rest, ok
}

// cutString cuts a string off that has its length before it.
func cutString(s string) (value, rest string, ok bool) {
	if len(s) < 4 {
		return "", "", false
	}
	n := int64(binary.LittleEndian.Uint32([]byte(s[:4])))
	if n > int64(len(s)-4) {
		return "", "", false
	}
	return s[4 : 4+n], s[4+n:], true
}

func uint64At(s string, at int) uint64 {
	return binary.LittleEndian.Uint64([]byte(s[at : at+8]))
}

// claim is what the record says of the present claim.
func (r *record) claim() semel.Claim {
	return semel.Claim{Token: r.token, Attempt: r.attempt, LeaseEnd: instant(r.leaseEnd)}
}

// publicState is the state in the words of the contract. The server has made
// what is held and whose lease is over unknown.
func (r *record) publicState() semel.State {
	switch r.state {
	case stateClaimed, stateHeld:
		return semel.Claimed
	case stateUnknown:
		return semel.Unknown
	case stateDone, stateOneStep:
		return semel.Done
	}
	return semel.Absent
}

// show returns the record in the form for users. lasts is how many
// milliseconds it will be there, from now on, or less than 0 without end.
func (r *record) show(now, lasts int64) semel.Record {
	shown := semel.Record{
		Key:         r.key,
		State:       r.publicState(),
		Token:       r.token,
		Attempt:     r.attempt,
		Holder:      r.holder,
		Fingerprint: r.print,
		FirstSeen:   instant(r.firstSeen),
		LeaseEnd:    instant(r.leaseEnd),
		Result:      r.result,
		ResultSize:  len(r.result.Data),
	}
	if shown.State == semel.Done && lasts >= 0 {
		shown.Expires = instant(now + lasts*1000)
		if r.window > 0 {
			shown.FirstSeen = shown.Expires.Add(-r.window)
		}
	}
	return shown
}

// instant converts microseconds to a time, and 0 to none.
func instant(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}

// maxMicros bounds what a script counts in microseconds: beyond twice that its
// numbers are no whole numbers any more. It is more than a hundred years.
const maxMicros = 1 << 52

// microsUp converts a duration above 0 to microseconds, never shorter.
func microsUp(d time.Duration) uint64 {
	return uint64(min(int64((d-1)/time.Microsecond)+1, maxMicros))
}

// windowMillis converts a window to the milliseconds that the server keeps a
// key, never shorter; 0 is for ever.
func windowMillis(window time.Duration) uint64 {
	if window == semel.Forever {
		return 0
	}
	return uint64((window-1)/time.Millisecond) + 1
}

// latest is a moment in microseconds that does not come.
const latest = 2 * maxMicros

// lateAfter is the moment in microseconds after which a message is late; 0 is
// never.
func lateAfter(req *semel.ClaimRequest) uint64 {
	if req.Time.IsZero() || req.Window == semel.Forever {
		return 0
	}
	end := req.Time.Add(req.Window)
	if end.Unix() > latest/1_000_000 {
		return latest
	}
	return uint64(max(end.UnixMicro(), 1))
}
