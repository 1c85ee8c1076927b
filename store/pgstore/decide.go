package pgstore

import (
	"encoding/binary"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// answer decides a request by a row. It returns false, and answers nothing, if
// the row must be changed for it: see changed.
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
		a.Decision = semel.Fresh // this very claim, whose answer was lost: without attempt
	case state == semel.Done:
		a.Decision, a.Result = semel.Duplicate, decodeResult(r.result)
	case state == semel.Unknown:
		a.Decision, a.Claim, a.Holder = semel.InDoubt, r.claim(), r.owner.Name
	case r.repeats(req):
		// One in the same call has its lease already.
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

// repeats reports whether a request is the claim that the row has, sent again.
func (r *row) repeats(req *semel.ClaimRequest) bool {
	return r.owned && !req.Done && req.Owner == r.owner && req.Owner != semel.Owner{}
}

// maker is what is kept of who makes a key done in one step, so that a claim that
// repeats itself is recognised: a number below 0, which is no token. It is null
// for a claim without an owner. It is null in a transaction, too: there the effect
// commits with the claim, so that a repetition after the commit is a duplicate.
func (c *claims) maker(req *semel.ClaimRequest) pgtype.Int8 {
	if !req.Done || !c.alone || req.Owner == (semel.Owner{}) {
		return pgtype.Int8{}
	}
	d := c.owners.Of(&req.Owner)
	return pgtype.Int8{Int64: int64(binary.BigEndian.Uint64(d[:]) | 1<<63), Valid: true}
}

// change is a row that goes to a new owner: the row as it was read, and as it
// shall be but for its token and times.
type change struct {
	was, next row
	span      pgtype.Int8 // until the end of the lease or window
	keep      bool        // the claim repeats itself: the row keeps its token
}

// changed returns how a row must change for a request that answer left open.
func (c *claims) changed(r *row, req *semel.ClaimRequest, now time.Time) change {
	ch := change{was: *r, next: c.newRow(r.key, req, now), span: spanOf(req)}
	if r.state(now) == semel.Absent {
		ch.next.seen = pgtype.Timestamptz{} // the record begins anew
		return ch
	}
	ch.next.seen = r.seen
	ch.next.attempt = pgtype.Int4{Int32: int32(r.attempts() + 1), Valid: true}
	if !ch.next.fingerprint.Valid {
		// A take-over without fingerprint does not make the key fit for
		// another payload.
		ch.next.fingerprint = r.fingerprint
	}
	if r.repeats(req) {
		ch.keep, ch.next.hold, ch.next.attempt = true, r.hold, r.attempt
	}
	return ch
}

// spanOf is how long the row of a request lasts.
func spanOf(req *semel.ClaimRequest) pgtype.Int8 {
	if req.Done {
		return microseconds(req.Window)
	}
	return microseconds(req.Lease)
}

// newRow is the row that an insert at a moment of the server makes, but for the
// token of a claim.
func (c *claims) newRow(key semel.Digest, req *semel.ClaimRequest, now time.Time) row {
	r := row{key: key, seen: moment(now), until: later(now, spanOf(req)), token: c.maker(req), fingerprint: fingerprint(req.Fingerprint)}
	if !req.Done {
		r.owned, r.hold, r.owner = true, req.Hold, req.Owner
	}
	return r
}

func moment(t time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: t, Valid: true} }

// later adds what the server adds.
func later(now time.Time, span pgtype.Int8) pgtype.Timestamptz {
	if !span.Valid {
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	}
	return moment(now.Add(time.Duration(span.Int64) * time.Microsecond))
}
