package pgstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// maxStatementBytes is the approximate number of result bytes in one statement.
const maxStatementBytes = 16 << 20

// Complete implements [semel.Store]. It blocks for one statement, whose commit is
// durable when Complete returns.
func (s *Store) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	return s.finish(ctx, &completion{reqs, answers, s.opts.MaxResult}, len(reqs), len(answers))
}

// Release implements [semel.Store]. It blocks for one statement.
func (s *Store) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	return s.finish(ctx, &release{reqs, answers}, len(reqs), len(answers))
}

// Extend implements [semel.Store]. It blocks for one statement. An Unknown record
// is not extended. Its holder may complete or release it.
func (s *Store) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	return s.finish(ctx, &extension{reqs, answers}, len(reqs), len(answers))
}

// verb is one call that changes records under a token.
type verb interface {
	name() string
	statement(*statements) string
	// held returns the key and token of a request, or the error if the request is
	// invalid.
	held(i int) (semel.Key, semel.Token, error)
	// size returns the approximate size of a request in bytes.
	size(i int) int
	// columns returns the parameters after keys and tokens.
	columns(which []int) []any
	// changed reads the answer to one request from a row of the statement.
	changed(i int, until time.Time)
	// refused answers a request with an error; nil means none.
	refused(i int, err error)
	// repeats reports whether a row shows that the request already had its effect.
	repeats(i int, r *row, now time.Time) bool
}

// held is a request for a key with a token.
type held struct {
	key   semel.Digest
	token semel.Token
	i     int
	done  bool
}

func (s *Store) finish(ctx context.Context, v verb, requests, answers int) error {
	if err := s.enter(ctx, v.name(), requests, answers); err != nil {
		return err
	}
	defer s.leave()
	if err := s.onPool().finish(ctx, v, requests); err != nil {
		return fmt.Errorf("pgstore: %s: %w", v.name(), err)
	}
	return nil
}

// finish decides the requests of one call. Requests for the same key go into
// separate statements, in the order of the call.
func (s session) finish(ctx context.Context, v verb, n int) error {
	memo := s.hasher.memo()
	waiting := make([]held, 0, n)
	for i := range n {
		key, token, err := v.held(i)
		if err == nil {
			err = s.hasher.check(key)
		}
		if v.refused(i, err); err == nil {
			waiting = append(waiting, held{key: memo.Key(key), token: token, i: i})
		}
	}
	slices.SortFunc(waiting, func(a, b held) int { return cmp.Or(bytes.Compare(a.key[:], b.key[:]), cmp.Compare(a.i, b.i)) })
	for len(waiting) > 0 {
		var now, later []held
		bytes := 0
		for i, h := range waiting {
			if i > 0 && waiting[i-1].key == h.key || len(now) == maxStatement || bytes > maxStatementBytes {
				later = append(later, h)
				continue
			}
			now = append(now, h)
			bytes += v.size(h.i)
		}
		if err := s.finishSome(ctx, v, now); err != nil {
			return err
		}
		waiting = later
	}
	return nil
}

// finishSome decides requests for different keys, in order. The statement decides
// those that hold their keys. The others are decided by the present rows.
func (s session) finishSome(ctx context.Context, v verb, some []held) error {
	left, err := s.finishHeld(ctx, v, some)
	if err != nil || len(left) == 0 {
		return err
	}
	rows, now, err := s.rows(ctx, keysOf(left), false)
	if err == nil {
		explain(v, left, rows, now)
	}
	return err
}

// finishHeld decides the requests that hold their keys, and returns the others.
func (s session) finishHeld(ctx context.Context, v verb, some []held) ([]held, error) {
	keys := make(pgtype.FlatArray[[16]byte], len(some))
	tokens := make(pgtype.FlatArray[int64], len(some))
	which := make([]int, len(some))
	for i, h := range some {
		keys[i], tokens[i], which[i] = h.key, int64(h.token), h.i
	}
	changed, err := collect(ctx, s, v.statement(&s.sql), append([]any{keys, tokens}, v.columns(which)...), func(rows pgx.CollectableRow) (r row, err error) {
		err = rows.Scan((*[16]byte)(&r.key), &r.until)
		return r, err
	})
	if err != nil {
		return nil, err
	}
	for i := range changed {
		if n := findHeld(some, changed[i].key); n >= 0 {
			v.changed(some[n].i, changed[i].until.Time)
			some[n].done = true
		}
	}
	return slices.DeleteFunc(some, func(h held) bool { return h.done }), nil
}

func keysOf(some []held) pgtype.FlatArray[[16]byte] {
	keys := make(pgtype.FlatArray[[16]byte], len(some))
	for i, h := range some {
		keys[i] = h.key
	}
	return keys
}

// findHeld returns the index of a key in a sorted list, or -1.
func findHeld(some []held, key semel.Digest) int {
	i, ok := slices.BinarySearchFunc(some, key, func(h held, k semel.Digest) int { return bytes.Compare(h.key[:], k[:]) })
	if !ok {
		return -1
	}
	return i
}

// explain answers requests whose tokens held nothing, by the rows of their keys.
func explain(v verb, refused []held, rows []row, now time.Time) {
	for i := range rows {
		r, h := &rows[i], refused[findHeld(refused, rows[i].key)]
		if v.repeats(h.i, r, now) {
			continue
		}
		key, token, _ := v.held(h.i)
		stale := &semel.StaleTokenError{Key: key, Token: token, State: r.state(now)}
		if stale.State != semel.Absent {
			stale.Current = r.fence()
		}
		v.refused(h.i, stale)
	}
}

type completion struct {
	reqs      []semel.CompleteRequest
	answers   []error
	maxResult int64
}

func (c *completion) name() string                   { return "complete" }
func (c *completion) statement(s *statements) string { return s.complete }
func (c *completion) size(i int) int                 { return len(c.reqs[i].Result.Data) }
func (c *completion) changed(int, time.Time)         {}
func (c *completion) refused(i int, err error)       { c.answers[i] = err }

func (c *completion) held(i int) (semel.Key, semel.Token, error) {
	r := &c.reqs[i]
	return r.Key, r.Token, r.Validate(c.maxResult)
}

func (c *completion) columns(which []int) []any {
	spans := make(pgtype.FlatArray[pgtype.Int8], len(which))
	results := make(pgtype.FlatArray[[]byte], len(which))
	for n, i := range which {
		spans[n], results[n] = microseconds(c.reqs[i].Window), encodeResult(c.reqs[i].Result)
	}
	return []any{spans, results}
}

// repeats recognises a repetition by the token that completed the key; the row
// keeps it.
func (c *completion) repeats(i int, r *row, now time.Time) bool {
	return r.state(now) == semel.Done && r.fence() != 0 && r.fence() == c.reqs[i].Token
}

type release struct {
	reqs    []semel.ReleaseRequest
	answers []error
}

func (c *release) name() string                      { return "release" }
func (c *release) statement(s *statements) string    { return s.release }
func (c *release) size(int) int                      { return 0 }
func (c *release) changed(int, time.Time)            {}
func (c *release) refused(i int, err error)          { c.answers[i] = err }
func (c *release) repeats(int, *row, time.Time) bool { return false }

func (c *release) held(i int) (semel.Key, semel.Token, error) {
	r := &c.reqs[i]
	return r.Key, r.Token, r.Validate()
}

func (c *release) columns(which []int) []any {
	unknown := make(pgtype.FlatArray[bool], len(which))
	for n, i := range which {
		unknown[n] = c.reqs[i].Unknown
	}
	return []any{unknown}
}

type extension struct {
	reqs    []semel.ExtendRequest
	answers []semel.ExtendAnswer
}

func (c *extension) name() string                      { return "extend" }
func (c *extension) statement(s *statements) string    { return s.extend }
func (c *extension) size(int) int                      { return 0 }
func (c *extension) repeats(int, *row, time.Time) bool { return false }

func (c *extension) changed(i int, until time.Time) {
	c.answers[i] = semel.ExtendAnswer{LeaseEnd: until}
}
func (c *extension) refused(i int, err error) { c.answers[i] = semel.ExtendAnswer{Err: err} }

func (c *extension) held(i int) (semel.Key, semel.Token, error) {
	r := &c.reqs[i]
	return r.Key, r.Token, r.Validate()
}

func (c *extension) columns(which []int) []any {
	spans := make(pgtype.FlatArray[pgtype.Int8], len(which))
	for n, i := range which {
		spans[n] = microseconds(c.reqs[i].Lease)
	}
	return []any{spans}
}
