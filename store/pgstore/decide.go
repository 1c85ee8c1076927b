package pgstore

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// answer decides a request by a row. It returns false, and answers nothing, if
// the row must be changed for it: see changed.
func (r *row) answer(req *semel.ClaimRequest, a *semel.ClaimAnswer, now time.Time) bool {
	state := r.state(now)
	switch {
	case state == semel.Absent && req.Late(now):
		a.Decision = semel.Late
	case state == semel.Absent:
		return false
	case r.mismatches(req.Fingerprint):
		a.Decision, a.Claim = semel.Mismatch, r.claim()
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

// change is a row that goes to a new owner: the row as it was read, and as it
// shall be but for its token and times.
type change struct {
	was, next row
	span      pgtype.Int8 // until the end of the lease or window
	keep      bool        // the claim repeats itself: the row keeps its token
}

// changed returns how a row must change for a request that answer left open.
func (r *row) changed(req *semel.ClaimRequest, now time.Time) change {
	c := change{was: *r, next: newRow(r.key, req, now), span: spanOf(req)}
	if r.state(now) == semel.Absent {
		c.next.seen = pgtype.Timestamptz{} // the record begins anew
		return c
	}
	c.next.seen = r.seen
	c.next.attempt = pgtype.Int4{Int32: int32(r.attempts() + 1), Valid: true}
	if !c.next.fingerprint.Valid {
		// A take-over without fingerprint does not make the key fit for
		// another payload.
		c.next.fingerprint = r.fingerprint
	}
	if r.repeats(req) {
		c.keep, c.next.hold, c.next.attempt = true, r.hold, r.attempt
	}
	return c
}

// spanOf is how long the row of a request lasts.
func spanOf(req *semel.ClaimRequest) pgtype.Int8 {
	if req.Done {
		return microseconds(req.Window)
	}
	return microseconds(req.Lease)
}

// newRow is the row that an insert at a moment of the server makes, but for its
// token.
func newRow(key semel.Digest, req *semel.ClaimRequest, now time.Time) row {
	r := row{key: key, seen: moment(now), until: later(now, spanOf(req)), fingerprint: fingerprint(req.Fingerprint)}
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
