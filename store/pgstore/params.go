package pgstore

import (
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// params are the columns of the insert statement.
type params struct {
	hasher       hasher
	keys         pgtype.FlatArray[[16]byte]
	spans        pgtype.FlatArray[pgtype.Int8]
	fingerprints pgtype.FlatArray[pgtype.Int8]
	owners       pgtype.FlatArray[[]byte]
	deadlines    pgtype.FlatArray[pgtype.Timestamptz]
	readable     bool
	scopes, ids  pgtype.FlatArray[[]byte]
}

func newParams(h hasher, n int, readable bool) *params {
	p := &params{
		hasher:       h,
		keys:         make([][16]byte, 0, n),
		spans:        make([]pgtype.Int8, 0, n),
		fingerprints: make([]pgtype.Int8, 0, n),
		owners:       make([][]byte, 0, n),
		deadlines:    make([]pgtype.Timestamptz, 0, n),
		readable:     readable,
	}
	if readable {
		p.scopes, p.ids = make([][]byte, 0, n), make([][]byte, 0, n)
	}
	return p
}

func (p *params) add(key *semel.Digest, req *semel.ClaimRequest) {
	p.keys = append(p.keys, *key)
	p.fingerprints = append(p.fingerprints, fingerprint(req.Fingerprint))
	p.deadlines = append(p.deadlines, p.hasher.deadline(req))
	p.spans = append(p.spans, spanOf(req))
	var owner []byte
	if !req.Done {
		owner = encodeOwner(req.Owner, req.Hold)
	}
	p.owners = append(p.owners, owner)
	if p.readable {
		p.scopes, p.ids = append(p.scopes, []byte(req.Key.Scope)), append(p.ids, []byte(req.Key.ID))
	}
}

func (p *params) args() []any {
	args := []any{p.keys, p.spans, p.fingerprints, p.owners, p.deadlines}
	if p.readable {
		args = append(args, p.scopes, p.ids)
	}
	return args
}

// putParams are the columns of the put statement.
type putParams struct {
	keys         pgtype.FlatArray[[16]byte]
	spans        pgtype.FlatArray[pgtype.Int8]
	fingerprints pgtype.FlatArray[pgtype.Int8]
	owners       pgtype.FlatArray[[]byte]
	attempts     pgtype.FlatArray[pgtype.Int4]
	seen         pgtype.FlatArray[pgtype.Timestamptz]
	keep         pgtype.FlatArray[bool]
	wasTokens    pgtype.FlatArray[pgtype.Int8]
	wasUntil     pgtype.FlatArray[pgtype.Timestamptz]
	wasOwned     pgtype.FlatArray[bool]
}

func (p *putParams) add(c *change) {
	p.keys = append(p.keys, c.was.key)
	p.fingerprints = append(p.fingerprints, c.next.fingerprint)
	p.attempts = append(p.attempts, c.next.attempt)
	p.seen = append(p.seen, c.next.seen)
	p.keep = append(p.keep, c.keep)
	p.spans = append(p.spans, c.span)
	var owner []byte
	if c.next.owned {
		owner = encodeOwner(c.next.owner, c.next.hold)
	}
	p.owners = append(p.owners, owner)
	p.wasTokens = append(p.wasTokens, c.was.token)
	p.wasUntil = append(p.wasUntil, c.was.until)
	p.wasOwned = append(p.wasOwned, c.was.owned)
}

func (p *putParams) args() []any {
	return []any{p.keys, p.spans, p.fingerprints, p.owners, p.attempts, p.seen, p.keep, p.wasTokens, p.wasUntil, p.wasOwned}
}
