package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// Look implements [semel.Looker]. It blocks for one statement.
func (s *Store) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	if err := s.enter("look", len(keys), len(records)); err != nil {
		return err
	}
	defer s.leave()
	memo := s.hasher.memo()
	digests := make(pgtype.FlatArray[[16]byte], len(keys))
	for i, key := range keys {
		if err := cmp.Or(key.Validate(), s.hasher.check(key)); err != nil {
			return fmt.Errorf("pgstore: look: %w", err)
		}
		digests[i] = memo.Key(key)
	}
	rows, now, err := s.onPool().rows(ctx, digests)
	if err != nil {
		return fmt.Errorf("pgstore: look: %w", err)
	}
	found := make(map[semel.Digest]*row, len(rows))
	for i := range rows {
		found[rows[i].key] = &rows[i]
	}
	for i, key := range keys {
		records[i] = found[digests[i]].record(now)
		if records[i].State != semel.Absent {
			records[i].Key = key
		}
	}
	return nil
}

// listPage is how many rows a listing reads at once.
const listPage = 1000

// List implements [semel.Lister]. It reads page after page in the order of
// digests, and holds nothing open between them. Readable keys are there only
// with [Options].KeepIDs, and a filter by scope selects from them.
func (s *Store) List(ctx context.Context, filter semel.Filter) iter.Seq2[semel.Record, error] {
	return func(yield func(semel.Record, error) bool) {
		var last semel.Digest
		for first := true; ; first = false {
			page, err := s.listed(ctx, filter, last, first)
			if err != nil {
				yield(semel.Record{}, fmt.Errorf("pgstore: list: %w", err))
				return
			}
			for _, r := range page {
				if !yield(r, nil) {
					return
				}
			}
			if len(page) < listPage {
				return
			}
			last = page[len(page)-1].Digest
		}
	}
}

// listed reads one page.
func (s *Store) listed(ctx context.Context, filter semel.Filter, last semel.Digest, first bool) ([]semel.Record, error) {
	if err := s.enter("list", 0, 0); err != nil {
		return nil, err
	}
	defer s.leave()
	args := []any{[16]byte(last), first, int(filter.State), listPage}
	switch {
	case s.opts.KeepIDs && filter.Scope != nil:
		args = append(args, []byte(*filter.Scope))
	case s.opts.KeepIDs:
		args = append(args, nil)
	case filter.Scope != nil:
		return nil, nil
	}
	return collect(ctx, s.onPool(), s.sql.list, args, s.listedRow)
}

func (s *Store) listedRow(rows pgx.CollectableRow) (semel.Record, error) {
	var r row
	var now time.Time
	var size pgtype.Int4
	if err := scanRow(rows, &r, &now, s.opts.KeepIDs, &size); err != nil {
		return semel.Record{}, err
	}
	shown := r.record(now)
	shown.Result.Data, shown.ResultSize = nil, int(max(size.Int32-1, 0))
	return shown, nil
}

// Resolve implements [semel.Resolver]. It blocks for one statement.
func (s *Store) Resolve(ctx context.Context, key semel.Key, as semel.State, result semel.Result, window time.Duration) error {
	if err := s.enter("resolve", 0, 0); err != nil {
		return err
	}
	defer s.leave()
	if err := cmp.Or(key.Validate(), s.hasher.check(key)); err != nil {
		return err
	}
	if as != semel.Absent && as != semel.Done {
		return fmt.Errorf("pgstore: resolve as %s: %w", as, semel.ErrInvalidRequest)
	}
	if as == semel.Absent {
		result, window = semel.Result{}, semel.Forever
	}
	check := semel.CompleteRequest{Key: key, Result: result, Window: window}
	if err := check.Validate(s.opts.MaxResult); err != nil {
		return err
	}
	digest := [16]byte(s.hasher.Key(key))
	resolved, err := collect(ctx, s.onPool(), s.sql.resolve,
		[]any{digest, microseconds(window), encodeResult(result), as == semel.Done}, pgx.RowTo[bool])
	if err == nil && len(resolved) == 0 {
		err = semel.ErrNotUnknown
	}
	if err != nil {
		return fmt.Errorf("pgstore: resolve %s: %w", key, err)
	}
	return nil
}

// Remove implements [semel.Resolver]. It blocks for one statement.
func (s *Store) Remove(ctx context.Context, key semel.Key) (bool, error) {
	if err := s.enter("remove", 0, 0); err != nil {
		return false, err
	}
	defer s.leave()
	if err := cmp.Or(key.Validate(), s.hasher.check(key)); err != nil {
		return false, err
	}
	live, err := collect(ctx, s.onPool(), s.sql.remove, []any{[16]byte(s.hasher.Key(key))}, pgx.RowTo[bool])
	if err != nil {
		return false, fmt.Errorf("pgstore: remove %s: %w", key, err)
	}
	return slices.Contains(live, true), nil
}
