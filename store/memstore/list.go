package memstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/table"
)

// errStopped means that the caller of a listing wants no more records.
var errStopped = errors.New("stopped")

// listPage is the number of records that a listing copies under one lock.
const listPage = 256

func (s *Store) listShard(ctx context.Context, i byte, filter semel.ListOptions, yield func(semel.Record, error) bool) error {
	if filter.Scope == nil && (filter.State == semel.Absent || filter.State == semel.Done) {
		if err := s.listCompact(ctx, i, yield); err != nil {
			return err
		}
	}
	page := make([]semel.Record, 0, listPage)
	for from, more := uint32(0), true; more; from += listPage {
		now, sh, err := s.lockForList(ctx, i)
		if err != nil {
			return err
		}
		page, more = sh.page(page[:0], from, filter, now), from+listPage < sh.records.top
		s.unlock(sh)
		for _, r := range page {
			if !yield(r, nil) {
				return errStopped
			}
		}
	}
	return nil
}

func (s *Store) listCompact(ctx context.Context, i byte, yield func(semel.Record, error) bool) error {
	var page []table.Entry[struct{}]
	for from, more := uint64(0), true; more; {
		now, sh, err := s.lockForList(ctx, i)
		if err != nil {
			return err
		}
		page, from, more = sh.done.Page(page[:0], i, from, now.tick)
		s.unlock(sh)
		for _, e := range page {
			if !yield(s.showCompact(e.Digest, e.Expiry), nil) {
				return errStopped
			}
		}
	}
	return nil
}

func (s *Store) lockForList(ctx context.Context, i byte) (moment, *shard, error) {
	if err := s.enter(ctx, "list", 0, 0); err != nil {
		return moment{}, nil, err
	}
	now := s.moment()
	if sh := s.lock(i); sh != nil {
		return now, sh, nil
	}
	return moment{}, nil, fmt.Errorf("memstore: list: %w", semel.ErrClosed)
}

// page appends the records that a filter selects, from a position on, without
// the data of their results.
func (sh *shard) page(page []semel.Record, from uint32, filter semel.ListOptions, now moment) []semel.Record {
	for n := from; n < min(from+listPage, sh.records.top); n++ {
		r := sh.records.at(n)
		if r.state == semel.Absent || r.goneAt(now.nanos) {
			continue
		}
		shown := r.show(now.nanos)
		shown.Result.Data = nil
		if filter.Selects(&shown) {
			page = append(page, shown)
		}
	}
	return page
}
