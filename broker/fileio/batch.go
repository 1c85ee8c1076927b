package fileio

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// batch has the items of a part of a batch that the store decides, and what it is
// asked with.
type batch struct {
	joined    []joined // the parts before
	items     []*pipeline.Item
	digests   []semel.Digest
	prints    []uint64
	decisions []semel.Decision
}

// joined is a part of a batch, and the unit that it is in.
type joined struct {
	unit  *unit
	items []*pipeline.Item
}

// clear lets go of what was remembered of a batch.
func (b *batch) clear() {
	clear(b.joined)
	b.joined = b.joined[:0]
	b.next()
}

// next makes room for the next part.
func (b *batch) next() {
	clear(b.items)
	b.items, b.digests, b.prints = b.items[:0], b.digests[:0], b.prints[:0]
}

// sort takes the items that the store is to decide. Others get their errors.
func (b *batch) sort(ctx context.Context, s *Session, items []*pipeline.Item) {
	b.next()
	var late []*pipeline.Item
	now := time.Now()
	scope := ""
	digester := s.store.Digester(scope)
	for _, it := range items {
		it.Decision, it.Result, it.Err, it.Token = semel.Undecided, semel.Result{}, nil, 0
		if bytes.IndexByte(it.Message.Body, '\n') >= 0 && !json.Valid(it.Message.Body) {
			it.Err = errNoLine
			continue
		}
		if !s.late && !it.Call.Time.IsZero() && now.Sub(it.Call.Time) > s.windowOf(it) {
			late = append(late, it)
			continue
		}
		if it.Call.Key.Scope != scope {
			scope = it.Call.Key.Scope
			digester = s.store.Digester(scope)
		}
		b.items = append(b.items, it)
		b.digests = append(b.digests, digester.String(it.Call.Key.ID))
		b.prints = append(b.prints, half(it.Call.Fingerprint))
	}
	b.decisions = append(b.decisions[:0], make([]semel.Decision, len(b.items))...)
	if len(late) > 0 {
		s.judgeLate(ctx, late)
	}
}

// judgeLate decides messages that are older than their window: those of which no
// record is left are late.
func (s *Session) judgeLate(ctx context.Context, items []*pipeline.Item) {
	keys := make([]semel.Key, len(items))
	for i, it := range items {
		keys[i] = it.Call.Key
	}
	records := make([]semel.Record, len(items))
	err := s.store.Look(ctx, keys, records)
	for i, it := range items {
		switch {
		case err != nil:
			it.Err = &pipeline.StoreError{Err: fmt.Errorf("fileio: %w", err)}
		case records[i].State == semel.Done && it.Call.Fingerprint.Matches(records[i].Fingerprint):
			it.Decision = semel.Duplicate
		case records[i].State == semel.Done:
			it.Decision, it.Err = semel.Mismatch, fmt.Errorf("%s: %w", it.Call.Key, semel.ErrMismatch)
		default:
			it.Decision, it.Err = semel.Late, fmt.Errorf("%s: %w", it.Call.Key, semel.ErrLate)
		}
	}
}

// half is the part of a fingerprint that the store compares.
func half(f semel.Fingerprint) uint64 { return binary.LittleEndian.Uint64(f[:8]) }
