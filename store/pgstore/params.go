package pgstore

import "github.com/jackc/pgx/v5/pgtype"

// params are the columns of the insert statement, for the first request of each
// key.
type params struct {
	keys         pgtype.FlatArray[[16]byte]
	spans        pgtype.FlatArray[pgtype.Int8]
	fingerprints pgtype.FlatArray[pgtype.Int8]
	owners       pgtype.FlatArray[[]byte]
	deadlines    pgtype.FlatArray[pgtype.Timestamptz]
	makers       pgtype.FlatArray[pgtype.Int8] // empty if there are none
}

func (c *claims) params(keys []asked) *params {
	p := &params{
		keys:         digestsOf(keys),
		spans:        make([]pgtype.Int8, len(keys)),
		fingerprints: make([]pgtype.Int8, len(keys)),
		owners:       make([][]byte, len(keys)),
		deadlines:    make([]pgtype.Timestamptz, len(keys)),
	}
	for i := range keys {
		req := &c.reqs[keys[i].which[0]]
		p.spans[i] = spanOf(req)
		p.fingerprints[i] = fingerprint(req.Fingerprint)
		p.deadlines[i] = c.hasher.deadline(req)
		if !req.Done {
			p.owners[i] = encodeOwner(req.Owner, req.Hold)
		}
	}
	p.makers = c.makersOf(keys)
	return p
}

// makersOf returns the column of makers, empty if there are none.
func (c *claims) makersOf(keys []asked) pgtype.FlatArray[pgtype.Int8] {
	makers := pgtype.FlatArray[pgtype.Int8]{}
	for i := range keys {
		maker := c.maker(&c.reqs[keys[i].which[0]])
		if maker.Valid && len(makers) == 0 {
			makers = make(pgtype.FlatArray[pgtype.Int8], len(keys))
		}
		if len(makers) > 0 {
			makers[i] = maker
		}
	}
	return makers
}

// readable returns the columns of readable keys.
func (c *claims) readable(keys []asked) (scopes, ids pgtype.FlatArray[[]byte]) {
	scopes, ids = make([][]byte, len(keys)), make([][]byte, len(keys))
	for i := range keys {
		key := c.reqs[keys[i].which[0]].Key
		scopes[i], ids[i] = []byte(key.Scope), []byte(key.ID)
	}
	return scopes, ids
}

func digestsOf(keys []asked) pgtype.FlatArray[[16]byte] {
	digests := make(pgtype.FlatArray[[16]byte], len(keys))
	for i := range keys {
		digests[i] = keys[i].key
	}
	return digests
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
	makers       pgtype.FlatArray[pgtype.Int8]
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
	p.makers = append(p.makers, c.next.token)
}

func (p *putParams) args() []any {
	return []any{p.keys, p.spans, p.fingerprints, p.owners, p.attempts, p.seen, p.keep, p.wasTokens, p.wasUntil, p.wasOwned, p.makers}
}
