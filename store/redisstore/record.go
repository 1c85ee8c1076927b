package redisstore

import (
	"encoding/binary"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

// A record is the string value of a key. Numbers are little-endian, and times
// are microseconds of the server's clock. record.lua has the same layout.
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
// Fields marked * may be missing at the end. The owner of a claim is its nonce
// and its name. The owner of a key done in one step is a digest of both. Ids
// are the readable scope and id if the store keeps them, and the origin if the
// claim has one. Without both they are 4 bytes of 0. Names, origins and ids follow
// their length of 4 bytes.
const (
	stateClaimed = 'c'
	stateHeld    = 'h'
	stateUnknown = 'u'
	stateDone    = 'd'
	stateOneStep = 'o'
)

// These are the least lengths of a record, up to the fields of variable length.
const (
	claimHeader   = 37
	doneHeader    = 29
	oneStepPlain  = 17
	oneStepPrints = 25
	// tokenEnd and leaseEndEnd are the offsets at which these fields end.
	tokenEnd    = 13
	leaseEndEnd = 29
)

// oneStepState is stateOneStep as the start of a record.
const oneStepState = "o"

// appendOwner appends the owner of a claim.
func appendOwner(b []byte, owner *semel.Owner) []byte {
	b = binary.LittleEndian.AppendUint64(b, owner.Nonce)
	return appendString(b, owner.Name)
}

// ids is the part of a record for people. Both fields may be empty.
type ids struct {
	key    semel.Key
	origin string
}

// appendIDs appends the ids, or a length of 0 without any.
func appendIDs(b []byte, of ids) []byte {
	if of == (ids{}) {
		return binary.LittleEndian.AppendUint32(b, 0)
	}
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = appendString(b, of.key.Scope)
	b = appendString(b, of.key.ID)
	if of.origin != "" {
		b = appendString(b, of.origin)
	}
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start-4))
	return b
}

func appendString(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

// appendOneStep appends the record of a key that is done in one step.
func appendOneStep(b []byte, owner [8]byte, window time.Duration, print semel.Fingerprint, of ids) []byte {
	b = append(b, oneStepState...)
	b = append(b, owner[:]...)
	var micros uint64
	if window != semel.Forever {
		micros = uint64(window.Microseconds())
	}
	b = binary.LittleEndian.AppendUint64(b, micros)
	if !print.IsZero() || of != (ids{}) {
		b = append(b, print[:8]...)
	}
	if of != (ids{}) {
		b = appendIDs(b, of)
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
	ids       ids
	result    semel.Result
	owner     [8]byte       // only of a key done in one step
	window    time.Duration // only of a key done in one step; 0 is forever
}

// decode reads a record. It returns false if the text is not a record.
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

// decodeHeader reads the fields that are at fixed places in claims and done
// keys.
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
	holder, _, ok := cutString(rest[8:])
	// The answers of a call are one string. The clone keeps the holder from holding
	// all of it in memory.
	r.holder = strings.Clone(holder)
	return ok
}

func (r *record) decodeDone(rec string) bool {
	if len(rec) == 1 {
		return true // a key in the compact form, which has no record
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

// decodeIDs reads the readable key and the origin, and returns the rest.
func (r *record) decodeIDs(rest string) (string, bool) {
	text, rest, ok := cutString(rest)
	if !ok || text == "" {
		return rest, ok
	}
	// A record may be as large as its result. The clone keeps the ids from holding
	// all of it in memory.
	text = strings.Clone(text)
	if r.ids.key.Scope, text, ok = cutString(text); !ok {
		return rest, false
	}
	if r.ids.key.ID, text, ok = cutString(text); ok && text != "" {
		r.ids.origin, _, ok = cutString(text)
	}
	return rest, ok
}

// cutString cuts off a string that follows its length.
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

// claim returns the current claim of the record.
func (r *record) claim() semel.Claim {
	return semel.Claim{Token: r.token, Attempt: r.attempt, LeaseEnd: instant(r.leaseEnd)}
}

// publicState returns the state in the terms of the contract. The scripts
// already report a held record as unknown when its lease has ended.
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

// show returns the record in its public form. lasts is the remaining lifetime
// in milliseconds, or less than 0 without an end.
func (r *record) show(now, lasts int64) semel.Record {
	shown := semel.Record{
		Key:         r.ids.key,
		Origin:      r.ids.origin,
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

// instant converts microseconds to a time, and 0 to the zero time.
func instant(micros int64) time.Time {
	if micros == 0 {
		return time.Time{}
	}
	return time.UnixMicro(micros)
}

// maxMicros bounds the microseconds that a script adds up. Beyond twice that
// value the numbers of a script are no longer integers. It is more than a
// hundred years.
const maxMicros = 1 << 52

// microsUp converts a duration above 0 to microseconds, rounded up.
func microsUp(d time.Duration) uint64 {
	return uint64(min(int64((d-1)/time.Microsecond)+1, maxMicros))
}

// windowMillis converts a window to the milliseconds for which the server keeps
// a key, rounded up. 0 is forever.
func windowMillis(window time.Duration) uint64 {
	if window == semel.Forever {
		return 0
	}
	return uint64((window-1)/time.Millisecond) + 1
}

// latest is a moment in microseconds that never comes.
const latest = 2 * maxMicros

// lateAfter returns the moment in microseconds after which a message is late. 0
// is never.
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
