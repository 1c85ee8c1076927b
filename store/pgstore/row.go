package pgstore

import (
	"encoding/binary"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// row is the table's row of a key at one server time.
type row struct {
	key         semel.Digest
	until       pgtype.Timestamptz // not valid if there is no row
	seen        pgtype.Timestamptz
	token       pgtype.Int8 // below 0, it identifies the owner that made the key done in one step
	fingerprint pgtype.Int8
	attempt     pgtype.Int4
	owned       bool
	hold        bool
	owner       semel.Owner
	result      []byte // nil if null
	scope, id   []byte // nil without readable keys
	origin      []byte // nil if null or not read
}

// state is derived from the row, so that time alone can change it. See the
// comment in internal/pgschema/migrations/0001_keys.sql.
func (r *row) state(now time.Time) semel.State {
	switch ended := r.endsBy(now); {
	case r.owned && r.hold && ended:
		return semel.Unknown
	case r.owned:
		return semel.Claimed
	case ended:
		return semel.Absent
	}
	return semel.Done
}

// endsBy reports whether the lease or window of the row is over, or there is no
// row. Positive infinity means forever; negative infinity means released.
func (r *row) endsBy(now time.Time) bool {
	switch {
	case !r.until.Valid || r.until.InfinityModifier == pgtype.NegativeInfinity:
		return true
	case r.until.InfinityModifier == pgtype.Infinity:
		return false
	}
	return !r.until.Time.After(now)
}

// claim returns the claim of a Claimed or Unknown row, and the remaining fields
// of other rows.
func (r *row) claim() semel.Claim {
	c := semel.Claim{Token: r.fence(), Attempt: r.attempts()}
	if r.owned {
		c.LeaseEnd = r.until.Time
	}
	return c
}

// made reports whether a known owner made the key done in one step.
func (r *row) made() bool { return r.token.Int64 < 0 }

// fence returns the fencing token; 0 means none.
func (r *row) fence() semel.Token {
	if r.made() {
		return 0
	}
	return semel.Token(r.token.Int64)
}

// attempts returns the number of claims of the record.
func (r *row) attempts() int {
	if !r.attempt.Valid {
		return 1
	}
	return int(r.attempt.Int32)
}

// mismatches reports whether the row has another payload's fingerprint.
func (r *row) mismatches(f semel.Fingerprint) bool {
	return r.fingerprint.Valid && !f.IsZero() && r.fingerprint != fingerprint(f)
}

// record returns the row as a semel.Record.
func (r *row) record(now time.Time) semel.Record {
	state := r.state(now)
	if state == semel.Absent {
		return semel.Record{}
	}
	shown := semel.Record{
		Key: semel.Key{Scope: string(r.scope), ID: string(r.id)}, Digest: r.key,
		State: state, Token: r.fence(), Attempt: r.attempts(), Holder: r.owner.Name, Origin: string(r.origin), FirstSeen: r.seen.Time,
	}
	if r.fingerprint.Valid {
		binary.BigEndian.PutUint64(shown.Fingerprint[:], uint64(r.fingerprint.Int64))
	}
	if r.owned {
		shown.LeaseEnd = r.until.Time
	} else {
		shown.Expires = r.until.Time // zero if it is infinite
	}
	shown.Result = decodeResult(r.result)
	shown.ResultSize = len(shown.Result.Data)
	return shown
}

// scanRow reads the current row of rows, the server's time, and the additional
// columns in more.
func scanRow(rows pgx.CollectableRow, r *row, now *time.Time, has columns, more ...any) error {
	var owner []byte
	targets := []any{(*[16]byte)(&r.key), &r.until, &r.seen, &r.token, &r.fingerprint, &r.attempt, &owner, &r.result, now}
	if has.ids {
		targets = append(targets, &r.scope, &r.id)
	}
	if has.origins {
		targets = append(targets, &r.origin)
	}
	if err := rows.Scan(append(targets, more...)...); err != nil {
		return err
	}
	r.owned, r.hold, r.owner = decodeOwner(owner)
	return nil
}

// ownerHead is the number of bytes before the name.
const ownerHead = 1 + 8

func encodeOwner(o semel.Owner, hold bool) []byte {
	b := make([]byte, ownerHead, ownerHead+len(o.Name))
	if hold {
		b[0] = 1
	}
	binary.BigEndian.PutUint64(b[1:], o.Nonce)
	return append(b, o.Name...)
}

func decodeOwner(b []byte) (owned, hold bool, o semel.Owner) {
	if len(b) < ownerHead {
		return b != nil, false, o
	}
	return true, b[0] == 1, semel.Owner{Name: string(b[ownerHead:]), Nonce: binary.BigEndian.Uint64(b[1:])}
}

// encodeOrigin returns nil for no origin.
func encodeOrigin(origin string) []byte {
	if origin == "" {
		return nil
	}
	return []byte(origin)
}

// encodeResult returns nil for no result.
func encodeResult(r semel.Result) []byte {
	if r.Kind == semel.NoResult && len(r.Data) == 0 {
		return nil
	}
	b := make([]byte, 1, 1+len(r.Data))
	b[0] = byte(r.Kind)
	return append(b, r.Data...)
}

func decodeResult(b []byte) semel.Result {
	if len(b) == 0 {
		return semel.Result{}
	}
	return semel.Result{Kind: semel.ResultKind(b[0]), Data: b[1:]}
}

// fingerprint keeps the first half. The zero fingerprint becomes null.
func fingerprint(f semel.Fingerprint) pgtype.Int8 {
	if f.IsZero() {
		return pgtype.Int8{}
	}
	return pgtype.Int8{Int64: int64(binary.BigEndian.Uint64(f[:8])), Valid: true}
}

// microseconds rounds up, so that nothing ends early. Null means forever.
func microseconds(d time.Duration) pgtype.Int8 {
	if d == semel.Forever {
		return pgtype.Int8{}
	}
	us := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		us++
	}
	return pgtype.Int8{Int64: us, Valid: true}
}

// deadline returns the server time from which a message without a record is late,
// or null if it never is.
func deadline(r *semel.ClaimRequest) pgtype.Timestamptz {
	if r.Time.IsZero() || r.Window == semel.Forever {
		return pgtype.Timestamptz{}
	}
	return timestamp(r.Time.Add(r.Window))
}

// timestamp returns a deadline. Times beyond the range of PostgreSQL are set to
// its limit.
func timestamp(at time.Time) pgtype.Timestamptz {
	switch {
	case at.Year() < -4000:
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	case at.Year() > 200000:
		return pgtype.Timestamptz{}
	}
	return pgtype.Timestamptz{Time: at, Valid: true}
}

// answer decides a request by a row. If the row must change for the request,
// answer returns false and answers nothing; see changed.
func (c *claims) answer(r *row, req *semel.ClaimRequest, a *semel.ClaimAnswer, now time.Time) bool {
	state := r.state(now)
	switch {
	case state == semel.Absent && req.Late(now):
		a.Decision = semel.Late
	case state == semel.Absent:
		return false
	case r.mismatches(req.Fingerprint):
		a.Decision, a.Claim = semel.Mismatch, r.claim()
	case state == semel.Done && r.made() && r.token == c.maker(req):
		a.Decision = semel.Fresh // this same claim, whose answer was lost: without an attempt
	case state == semel.Done:
		a.Decision, a.Result = semel.Duplicate, decodeResult(r.result)
	case state == semel.Unknown:
		a.Decision, a.Claim, a.Holder = semel.OutcomeUnknown, r.claim(), r.owner.Name
	case r.repeats(req):
		// An earlier request in the same call already has its lease.
		if r.endsBy(later(now, microseconds(req.Lease)).Time.Add(-1)) {
			return false
		}
		a.Decision, a.Claim = semel.Fresh, r.claim()
	case !r.endsBy(now):
		a.Decision, a.Claim, a.Holder = semel.InFlight, r.claim(), r.owner.Name
	default:
		return false
	}
	return true
}

// repeats reports whether a request is a repetition of the claim in the row.
func (r *row) repeats(req *semel.ClaimRequest) bool {
	return r.owned && !req.Done && req.Owner == r.owner && req.Owner != semel.Owner{}
}

// maker identifies the owner that makes a key done in one step, so that a
// repeated claim is recognised. It is below 0, which is never a token. It is null
// for a claim without an owner. It is also null in a transaction: there the
// effect commits with the claim, so that a repetition after the commit is a
// duplicate.
func (c *claims) maker(req *semel.ClaimRequest) pgtype.Int8 {
	if !req.Done || !c.alone || req.Owner == (semel.Owner{}) {
		return pgtype.Int8{}
	}
	d := c.owners.Of(&req.Owner)
	return pgtype.Int8{Int64: int64(binary.BigEndian.Uint64(d[:]) | 1<<63), Valid: true}
}

// change is a row that goes to a new owner: the row as read, and as it will be
// except for its token and times.
type change struct {
	was, next row
	span      pgtype.Int8 // time until the end of the lease or window
	keep      bool        // a repeated claim: the row keeps its token
}

// changed returns how a row must change for a request that answer left open.
func (c *claims) changed(r *row, req *semel.ClaimRequest, now time.Time) change {
	ch := change{was: *r, next: c.newRow(r.key, req, now), span: spanOf(req)}
	if r.state(now) == semel.Absent {
		ch.next.seen = pgtype.Timestamptz{} // the record starts again
		return ch
	}
	ch.next.seen = r.seen
	ch.next.attempt = pgtype.Int4{Int32: int32(r.attempts() + 1), Valid: true}
	if !ch.next.fingerprint.Valid {
		// A take-over without a fingerprint must not make the key valid for another
		// payload.
		ch.next.fingerprint = r.fingerprint
	}
	if r.repeats(req) {
		ch.keep, ch.next.hold, ch.next.attempt = true, r.hold, r.attempt
	}
	return ch
}

// spanOf returns how long the row of a request lasts.
func spanOf(req *semel.ClaimRequest) pgtype.Int8 {
	if req.Done {
		return microseconds(req.Window)
	}
	return microseconds(req.Lease)
}

// newRow returns the row that an insert at a server time creates, except for the
// token of a claim.
func (c *claims) newRow(key semel.Digest, req *semel.ClaimRequest, now time.Time) row {
	r := row{key: key, seen: moment(now), until: later(now, spanOf(req)), token: c.maker(req), fingerprint: fingerprint(req.Fingerprint), origin: encodeOrigin(req.Origin)}
	if !req.Done {
		r.owned, r.hold, r.owner = true, req.Hold, req.Owner
	}
	return r
}

func moment(t time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: t, Valid: true} }

// later adds a span as the server does.
func later(now time.Time, span pgtype.Int8) pgtype.Timestamptz {
	if !span.Valid {
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	}
	return moment(now.Add(time.Duration(span.Int64) * time.Microsecond))
}
