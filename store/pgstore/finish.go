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
	return s.finish(ctx, len(reqs), len(answers), &verb{
		name: "complete", sql: s.sql.complete,
		held: func(i int) (semel.Key, semel.Token, error) {
			return reqs[i].Key, reqs[i].Token, reqs[i].Validate(s.opts.MaxResult)
		},
		size: func(i int) int { return len(reqs[i].Result.Data) },
		columns: func(which []int) []any {
			spans := make(pgtype.FlatArray[pgtype.Int8], len(which))
			results := make(pgtype.FlatArray[[]byte], len(which))
			for n, i := range which {
				spans[n], results[n] = microseconds(reqs[i].Window), encodeResult(reqs[i].Result)
			}
			return []any{spans, results}
		},
		changed: func(int, time.Time) {},
		refused: func(i int, err error) { answers[i] = err },
		// A row keeps the token that completed its key.
		repeats: func(i int, r *row, now time.Time) bool {
			return r.state(now) == semel.Done && r.fence() != 0 && r.fence() == reqs[i].Token
		},
	})
}

// Release implements [semel.Store]. It blocks for one statement.
func (s *Store) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	return s.finish(ctx, len(reqs), len(answers), &verb{
		name: "release", sql: s.sql.release,
		held: func(i int) (semel.Key, semel.Token, error) {
			return reqs[i].Key, reqs[i].Token, reqs[i].Validate()
		},
		size: func(int) int { return 0 },
		columns: func(which []int) []any {
			unknown := make(pgtype.FlatArray[bool], len(which))
			for n, i := range which {
				unknown[n] = reqs[i].Unknown
			}
			return []any{unknown}
		},
		changed: func(int, time.Time) {},
		refused: func(i int, err error) { answers[i] = err },
		repeats: func(int, *row, time.Time) bool { return false },
	})
}

// Extend implements [semel.Store]. It blocks for one statement. An Unknown record
// is not extended. Its holder may complete or release it.
func (s *Store) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	return s.finish(ctx, len(reqs), len(answers), &verb{
		name: "extend", sql: s.sql.extend,
		held: func(i int) (semel.Key, semel.Token, error) {
			return reqs[i].Key, reqs[i].Token, reqs[i].Validate()
		},
		size: func(int) int { return 0 },
		columns: func(which []int) []any {
			spans := make(pgtype.FlatArray[pgtype.Int8], len(which))
			for n, i := range which {
				spans[n] = microseconds(reqs[i].Lease)
			}
			return []any{spans}
		},
		changed: func(i int, until time.Time) { answers[i] = semel.ExtendAnswer{LeaseEnd: until} },
		refused: func(i int, err error) { answers[i] = semel.ExtendAnswer{Err: err} },
		repeats: func(int, *row, time.Time) bool { return false },
	})
}

// verb is one call that changes records under a token.
type verb struct {
	name, sql string
	// held returns the key and token of a request, or the error if the request is
	// invalid.
	held func(i int) (semel.Key, semel.Token, error)
	// size returns the approximate size of a request in bytes.
	size func(i int) int
	// columns returns the parameters after keys and tokens.
	columns func(which []int) []any
	// changed reads the answer to one request from a row of the statement.
	changed func(i int, until time.Time)
	// refused answers a request with an error; nil means none.
	refused func(i int, err error)
	// repeats reports whether a row shows that the request already had its effect.
	repeats func(i int, r *row, now time.Time) bool
}

// held is a request for a key with a token.
type held struct {
	key   semel.Digest
	token semel.Token
	i     int
	done  bool
}

func (s *Store) finish(ctx context.Context, requests, answers int, v *verb) error {
	if err := s.enter(ctx, v.name, requests, answers); err != nil {
		return err
	}
	defer s.leave()
	if err := s.onPool().finish(ctx, v, requests); err != nil {
		return fmt.Errorf("pgstore: %s: %w", v.name, err)
	}
	return nil
}

// finish decides the requests of one call. Requests for the same key go into
// separate statements, in the order of the call.
func (s session) finish(ctx context.Context, v *verb, n int) error {
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
func (s session) finishSome(ctx context.Context, v *verb, some []held) error {
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
func (s session) finishHeld(ctx context.Context, v *verb, some []held) ([]held, error) {
	keys := make(pgtype.FlatArray[[16]byte], len(some))
	tokens := make(pgtype.FlatArray[int64], len(some))
	which := make([]int, len(some))
	for i, h := range some {
		keys[i], tokens[i], which[i] = h.key, int64(h.token), h.i
	}
	changed, err := collect(ctx, s, v.sql, append([]any{keys, tokens}, v.columns(which)...), func(rows pgx.CollectableRow) (r row, err error) {
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
func explain(v *verb, refused []held, rows []row, now time.Time) {
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
