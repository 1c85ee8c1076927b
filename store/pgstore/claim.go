package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// maxStatement is the maximum number of keys that one statement decides. A larger
// call takes several statements, each with its own commit.
const maxStatement = 4096

// maxRounds is how often a call returns to a key that others change concurrently,
// before it gives up.
const maxRounds = 100

// Claim implements [semel.Store]. If all keys are new, it blocks for one
// statement, whose commit is durable when Claim returns. Otherwise it also reads
// the known keys and changes those whose lease or window has ended.
//
// If another transaction is about to write a key, Claim waits for up to
// Options.LockWait.
func (s *Store) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if err := s.enter(ctx, "claim", len(reqs), len(answers)); err != nil {
		return err
	}
	defer s.leave()
	if err := s.onPool().claim(ctx, reqs, answers); err != nil {
		return fmt.Errorf("pgstore: claim: %w", err)
	}
	return nil
}

// session is where statements are sent. Each statement goes to any pool
// connection and is its own transaction, or all go into one transaction.
type session struct {
	*Store
	q querier
	// alone means that each statement is its own transaction, so that it may be
	// sent again after a rollback.
	alone bool
	// lockWait is the lock_timeout of each statement.
	lockWait string
	// patience limits the wait for the answer to each statement. It is 0 in a
	// transaction of the caller, who may have set a longer lock_timeout.
	patience time.Duration
}

func (s *Store) onPool() session {
	return session{Store: s, q: pooled{s.pool}, alone: true, lockWait: s.wait, patience: s.patience}
}

// scanning is onPool for statements that may read a whole table.
func (s *Store) scanning() session {
	on := s.onPool()
	on.patience *= scanFactor
	return on
}

func lockTimeout(d time.Duration) string { return fmt.Sprintf("%dms", max(d.Milliseconds(), 1)) }

// run sends a statement and repeats it if that is allowed.
func (s session) run(ctx context.Context, send func(context.Context) error) error {
	if s.alone {
		return s.repeat(ctx, func() error { return within(ctx, s.patience, send) })
	}
	return rolledBack(within(ctx, s.patience, send))
}

// asked holds the requests of one call for one key, in the order of the call.
type asked struct {
	key   semel.Digest
	which []int // requests without an answer so far
}

// claims is one call of claim.
type claims struct {
	session
	reqs    []semel.ClaimRequest
	answers []semel.ClaimAnswer
	owners  digest.Owners
}

// claim decides the requests of one call. Requests for the same key are decided
// in order: the first by the table, the others by the resulting row.
func (s session) claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	c := s.claims(reqs, answers)
	all := c.sorted()
	for part := range slices.Chunk(all, maxStatement) {
		if err := c.decide(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

func (s session) claims(reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) *claims {
	s.plans.grew(len(reqs))
	return &claims{s, reqs, answers, digest.Owners{Hasher: s.hasher.Hasher}}
}

// sorted returns the keys of valid requests in order, and answers the invalid
// ones.
func (c *claims) sorted() []asked {
	memo := c.hasher.memo()
	all := make([]asked, 0, len(c.reqs))
	which := make([]int, len(c.reqs))
	for i := range c.reqs {
		c.answers[i] = semel.ClaimAnswer{}
		if err := cmp.Or(c.reqs[i].Validate(), c.hasher.check(c.reqs[i].Key)); err != nil {
			c.answers[i].Err = err
			continue
		}
		which[i] = i
		all = append(all, asked{memo.Key(c.reqs[i].Key), which[i : i+1 : i+1]})
	}
	slices.SortFunc(all, func(a, b asked) int {
		return cmp.Or(bytes.Compare(a.key[:], b.key[:]), cmp.Compare(a.which[0], b.which[0]))
	})
	return fold(all)
}

// fold joins neighbours with the same key.
func fold(all []asked) []asked {
	if len(all) == 0 {
		return all
	}
	kept := all[:1]
	for _, a := range all[1:] {
		if last := &kept[len(kept)-1]; last.key == a.key {
			last.which = append(last.which, a.which...)
		} else {
			kept = append(kept, a)
		}
	}
	return kept
}

// find returns the entry of a key in a sorted list.
func find(all []asked, key semel.Digest) *asked {
	i, ok := slices.BinarySearchFunc(all, key, func(a asked, k semel.Digest) int { return bytes.Compare(a.key[:], k[:]) })
	if !ok {
		return nil
	}
	return &all[i]
}

// openTransaction is the holder's name for a key that an open transaction has
// claimed. What that transaction wrote cannot be read before it commits.
const openTransaction = "a transaction that has not committed"

// decide answers all requests for some keys. If another transaction holds one of
// them for longer than the lock timeout, the other keys must not wait for it.
// decide then tries ever smaller parts, until that key is alone and in flight.
func (c *claims) decide(ctx context.Context, keys []asked) error {
	keys, err := c.rounds(ctx, keys)
	switch {
	case err == nil || !c.alone || stateOf(err) != lockNotAvailable:
		return err
	case len(keys) == 1:
		for _, i := range keys[0].which {
			c.answers[i].Decision, c.answers[i].Holder = semel.InFlight, openTransaction
		}
		return nil
	}
	part := *c
	part.lockWait = lockTimeout(c.opts.LockWait / 8)
	half := len(keys) / 2
	if err := part.decide(ctx, keys[:half]); err != nil {
		return err
	}
	return part.decide(ctx, keys[half:])
}

// rounds answers requests. It returns the keys whose requests it did not answer
// because of an error. One round is enough unless others change the same keys
// concurrently.
func (c *claims) rounds(ctx context.Context, keys []asked) ([]asked, error) {
	lookFirst := c.known.mostly()
	for range maxRounds {
		if !lookFirst {
			if err := c.insert(ctx, keys); err != nil {
				return keys, err
			}
			keys = open(keys)
		}
		if len(keys) == 0 {
			return nil, nil
		}
		changes, err := c.read(ctx, keys, lookFirst)
		lookFirst = false
		if err == nil && len(changes) > 0 {
			err = c.put(ctx, keys, changes)
		}
		keys = open(keys)
		if err != nil || len(keys) == 0 {
			return keys, err
		}
	}
	return keys, fmt.Errorf("%d keys changed %d times under a claim: %w", len(keys), maxRounds, semel.ErrStoreUnavailable)
}

// open returns the keys with unanswered requests.
func open(keys []asked) []asked {
	return slices.DeleteFunc(keys, func(k asked) bool { return len(k.which) == 0 })
}

// share estimates the share of claimed keys that already have a row. If most have
// one, reading first saves the attempt to insert. If most have none, the attempt
// alone is enough. A wrong guess costs one statement.
type share struct {
	// in 1/1024; each observation moves it by an eighth of the difference
	parts atomic.Int32
}

const wholeShare = 1024

func (s *share) mostly() bool { return s.parts.Load() > wholeShare/2 }

// saw records one statement: known of all keys had a row.
func (s *share) saw(known, all int) {
	old := s.parts.Load()
	s.parts.Store(old + (int32(wholeShare*known/all)-old)/8)
}

// insert creates the rows of keys without a row, for the first request of each.
func (c *claims) insert(ctx context.Context, keys []asked) error {
	if all, err := c.insertOptimistically(ctx, keys); all || err != nil {
		return err
	}
	p := c.params(keys)
	args := c.withOptional([]any{p.keys, p.spans, p.fingerprints, p.owners, p.deadlines, p.makers}, keys)
	made, err := collect(ctx, c.session, c.sql.insert, args, func(rows pgx.CollectableRow) (r row, err error) {
		err = rows.Scan((*[16]byte)(&r.key), &r.token, &r.seen)
		return r, err
	})
	if err == nil {
		c.known.saw(len(keys)-len(made), len(keys))
		if len(keys) >= c.leastOptimistic {
			c.optimism.saw(len(made) == len(keys))
		}
	}
	for i := range made {
		if k := find(keys, made[i].key); k != nil {
			r := c.newRow(k.key, &c.reqs[k.which[0]], made[i].seen.Time)
			r.token = made[i].token
			c.grant(k, &r)
			c.settle(k, &r, r.seen.Time)
		}
	}
	return err
}

// collect sends a statement and returns its scanned rows. It returns nothing
// unless the whole statement is committed: a statement that fails midway has
// already sent rows.
func collect[T any](ctx context.Context, s session, sql string, args []any, scan pgx.RowToFunc[T]) ([]T, error) {
	var all []T
	args = append([]any{s.lockWait}, args...)
	err := s.run(ctx, func(ctx context.Context) error {
		rows, err := s.query(ctx, s.q, sql, args...)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, scan)
		return err
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// grant answers the first request for a key with its new row.
func (c *claims) grant(k *asked, r *row) {
	a := &c.answers[k.which[0]]
	a.Decision, a.Claim = semel.Fresh, r.claim()
	k.which = k.which[1:]
}

// settle answers requests for a key by its row at a server time, up to the first
// request that must change the row.
func (c *claims) settle(k *asked, r *row, now time.Time) {
	for len(k.which) > 0 {
		req, a := &c.reqs[k.which[0]], &c.answers[k.which[0]]
		if !c.hasher.outside(r, req, a, now) && !c.answer(r, req, a, now) {
			return
		}
		k.which = k.which[1:]
	}
}

// read reads the rows of keys and answers what it can. It returns the row changes
// that must be made first. A key without a row stays open, unless it is late.
func (c *claims) read(ctx context.Context, keys []asked, first bool) ([]change, error) {
	rows, now, err := c.rows(ctx, digestsOf(keys), false)
	if err != nil {
		return nil, err
	}
	var changes []change
	known := 0
	for i := range rows {
		r, k := &rows[i], find(keys, rows[i].key)
		c.settle(k, r, now)
		if r.until.Valid {
			known++
			if len(k.which) > 0 {
				changes = append(changes, c.changed(r, &c.reqs[k.which[0]], now))
			}
		}
	}
	if first {
		c.known.saw(known, len(keys))
	}
	return changes, nil
}

// rows reads the rows of different keys at one server time, for people with their
// origins. It returns one entry for each key, in any order, even for keys without a
// row.
func (s session) rows(ctx context.Context, keys pgtype.FlatArray[[16]byte], forPeople bool) ([]row, time.Time, error) {
	var now time.Time
	sql, has := s.sql.read, columns{ids: s.has.ids}
	if forPeople {
		sql, has = s.sql.look, s.has
	}
	rows, err := collect(ctx, s, sql, []any{keys}, func(rows pgx.CollectableRow) (r row, err error) {
		err = scanRow(rows, &r, &now, has)
		return r, err
	})
	return rows, now, err
}

// put changes rows that are still as they were read, and answers the resulting
// requests. The others stay open.
func (c *claims) put(ctx context.Context, keys []asked, changes []change) error {
	var p putParams
	for i := range changes {
		p.add(&changes[i])
	}
	type place struct {
		row
		now time.Time
	}
	args := p.args()
	if c.has.origins {
		args = append(args, p.origins)
	}
	made, err := collect(ctx, c.session, c.sql.put, args, func(rows pgx.CollectableRow) (m place, err error) {
		err = rows.Scan((*[16]byte)(&m.key), &m.token, &m.until, &m.seen, &m.now)
		return m, err
	})
	for _, m := range made {
		i := slices.IndexFunc(changes, func(ch change) bool { return ch.was.key == m.key })
		r, k := changes[i].next, find(keys, m.key)
		r.token, r.until, r.seen = m.token, m.until, m.seen
		c.grant(k, &r)
		c.settle(k, &r, m.now)
	}
	return err
}

// params are the columns of the insert statement, for the first request of each
// key.
type params struct {
	keys         pgtype.FlatArray[[16]byte]
	spans        pgtype.FlatArray[pgtype.Int8]
	fingerprints pgtype.FlatArray[pgtype.Int8]
	owners       pgtype.FlatArray[[]byte]
	deadlines    pgtype.FlatArray[pgtype.Timestamptz]
	makers       pgtype.FlatArray[pgtype.Int8] // empty if none exist
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

// makersOf returns the column of makers, empty if none exist.
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

// withOptional adds the optional columns of the first requests of keys.
func (c *claims) withOptional(args []any, keys []asked) []any {
	if c.has.ids {
		scopes, ids := c.readable(keys)
		args = append(args, scopes, ids)
	}
	if c.has.origins {
		args = append(args, c.originsOf(keys))
	}
	return args
}

// originsOf returns the column of origins, empty if none exist.
func (c *claims) originsOf(keys []asked) pgtype.FlatArray[[]byte] {
	origins := pgtype.FlatArray[[]byte]{}
	for i := range keys {
		origin := c.reqs[keys[i].which[0]].Origin
		if origin != "" && len(origins) == 0 {
			origins = make(pgtype.FlatArray[[]byte], len(keys))
		}
		if len(origins) > 0 {
			origins[i] = encodeOrigin(origin)
		}
	}
	return origins
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
	origins      pgtype.FlatArray[[]byte]
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
	p.origins = append(p.origins, c.next.origin)
}

func (p *putParams) args() []any {
	return []any{p.keys, p.spans, p.fingerprints, p.owners, p.attempts, p.seen, p.keep, p.wasTokens, p.wasUntil, p.wasOwned, p.makers}
}
