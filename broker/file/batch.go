package file

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// batch is a batch in progress. It has the items of its last part that the store
// decides, and the requests for them.
type batch struct {
	session   *Session
	joined    []joined
	before    *unit // unit of the previous part; or nil
	err       error // error of all later items
	items     []*pipeline.Item
	digests   []semel.Digest
	prints    []uint64
	keys      []semel.Key
	origins   []string
	bodies    [][]byte // that are written, if a FilterMap changes them
	traced    bool     // one of the origins is not empty
	bytes     int      // upper bound of the record's size
	decisions []semel.Decision
}

// joined is a part of a batch, and the unit that it is in.
type joined struct {
	unit  *unit
	items []*pipeline.Item
}

// clear drops the references of a finished batch.
func (b *batch) clear() {
	clear(b.joined)
	b.joined, b.before, b.err = b.joined[:0], nil, nil
	b.next()
}

// next prepares for the next part.
func (b *batch) next() {
	clear(b.items)
	clear(b.keys)
	clear(b.origins)
	clear(b.bodies)
	b.items, b.digests, b.prints, b.keys, b.bytes = b.items[:0], b.digests[:0], b.prints[:0], b.keys[:0], 0
	b.origins, b.traced, b.bodies = b.origins[:0], false, b.bodies[:0]
}

// Process implements pipeline.Session.
func (s *Session) Process(ctx context.Context, items []*pipeline.Item) {
	s.Begin(ctx, items, nil).Wait()
}

// Begin implements pipeline.PipelinedSession.
func (s *Session) Begin(ctx context.Context, items []*pipeline.Item, after pipeline.Batch) pipeline.Batch {
	b, _ := s.batches.Get().(*batch)
	if b == nil {
		b = &batch{session: s}
	}
	if before, ok := after.(*batch); ok {
		b.before = before.before
		if before.err != nil {
			b.err = pipeline.ErrBehind
		}
	}
	for left := items; len(left) > 0; {
		n := s.partOf(left)
		if b.err == nil {
			b.err = s.part(ctx, b, left[:n])
		} else {
			for _, it := range left {
				it.Decision, it.Result, it.Err, it.Token = semel.Undecided, semel.Result{}, b.err, 0
			}
			n = len(left)
		}
		left = left[n:]
	}
	return b
}

// partOf returns how many of the items are decided together. Their keys fit into
// a unit.
func (s *Session) partOf(items []*pipeline.Item) int {
	bytes := 0
	for n, it := range items[:min(len(items), s.most)] {
		if bytes += s.store.TxKeyBytes(it.Call.Key, it.Call.Origin); bytes > maxUnitBytes && n > 0 {
			return n
		}
	}
	return min(len(items), s.most)
}

// Done implements pipeline.Batch.
func (b *batch) Done() bool {
	if len(b.joined) == 0 {
		return true
	}
	u := b.before
	select {
	case <-u.done:
		return true
	default:
	}
	b.session.mu.Lock()
	defer b.session.mu.Unlock()
	return u.wrote != nil && u.wrote.Done()
}

// Wait implements pipeline.Batch.
func (b *batch) Wait() {
	for _, j := range b.joined {
		if err := b.session.await(j.unit); err != nil {
			fail(j.items, err)
		}
	}
	b.clear()
	b.session.batches.Put(b)
}

// part decides a part of a batch and lets it join a unit. The error applies to
// all later items.
func (s *Session) part(ctx context.Context, b *batch, items []*pipeline.Item) error {
	b.sort(ctx, s, items)
	u, err := s.join(ctx, b, items)
	if err != nil {
		fail(items, err)
		return err
	}
	b.before = u
	b.joined = append(b.joined, joined{u, items})
	if slices.ContainsFunc(items, waits) {
		return pipeline.ErrBehind
	}
	return nil
}

// fail sets the outcome of items that were not committed.
func fail(items []*pipeline.Item, err error) {
	for _, it := range items {
		if it.Err == nil || it.Decision == semel.Duplicate {
			it.Err = err
		}
	}
}

// waits reports whether later items must not be delivered before this one.
func waits(it *pipeline.Item) bool { return it.Decision == semel.InFlight }

// sort selects the items that the store decides. Other items get their errors.
func (b *batch) sort(ctx context.Context, s *Session, items []*pipeline.Item) {
	b.next()
	var late, failed []*pipeline.Item
	var blocked uint64 // a group with an item that failed; its items stand together
	now := time.Now()
	for _, it := range items {
		it.Decision, it.Result, it.Err, it.Token = semel.Undecided, semel.Result{}, nil, 0
		if blocked != 0 && it.Group == blocked {
			it.Err = pipeline.ErrBehind
			continue
		}
		body := it.Message.Body
		if s.change != nil {
			it.Attempt = it.Tries + 1
			var pass bool
			if body, pass, it.Err = s.change.Call(ctx, pipeline.DeliveryOf(it)); it.Err != nil {
				failed, blocked = append(failed, it), it.Group
				continue
			}
			it.Filtered = !pass
		}
		if !s.isLine(it) && bytes.IndexByte(body, '\n') >= 0 && !json.Valid(body) {
			it.Err, blocked = errNoLine, it.Group
			continue
		}
		if !s.late && !it.Call.Time.IsZero() && now.Sub(it.Call.Time) > s.windowOf(it) {
			late = append(late, it)
			continue
		}
		if s.change != nil {
			b.bodies = append(b.bodies, body)
		}
		b.items = append(b.items, it)
		d := it.Digest
		if d == (semel.Digest{}) { // Prepare was not called
			d = s.store.Digester(it.Call.Key.Scope).String(it.Call.Key.ID)
		}
		b.digests = append(b.digests, d)
		b.prints = append(b.prints, half(it.Call.Fingerprint))
		b.keys = append(b.keys, it.Call.Key)
		b.origins = append(b.origins, it.Call.Origin)
		b.traced = b.traced || it.Call.Origin != ""
		b.bytes += s.store.TxKeyBytes(it.Call.Key, it.Call.Origin)
	}
	b.decisions = slices.Grow(b.decisions[:0], len(b.items))[:len(b.items)]
	clear(b.decisions)
	if len(late) > 0 {
		s.judgeUnclaimed(ctx, late, func(it *pipeline.Item) {
			it.Decision, it.Err = semel.Late, fmt.Errorf("%s: %w", it.Call.Key, semel.ErrLate)
		})
	}
	if len(failed) > 0 {
		s.judgeUnclaimed(ctx, failed, func(it *pipeline.Item) { it.Decision = semel.Fresh })
	}
}

// isLine reports whether the body of an item is known to have no line end, and is
// written as it is.
func (s *Session) isLine(it *pipeline.Item) bool {
	l, read := it.Ref.(*life)
	return read && l.lines && s.change == nil && !it.Unwrapped()
}

// Prepare implements pipeline.PipelinedSession.
func (s *Session) Prepare(items []*pipeline.Item) {
	scope := ""
	digester := s.store.Digester(scope)
	for _, it := range items {
		if it.Call.Key.Scope != scope {
			scope = it.Call.Key.Scope
			digester = s.store.Digester(scope)
		}
		it.Digest = digester.String(it.Call.Key.ID)
	}
}

// judgeUnclaimed decides messages whose keys must not be claimed: they are late, or their
// FilterMap failed. absent sets the outcome of those without a record.
func (s *Session) judgeUnclaimed(ctx context.Context, items []*pipeline.Item, absent func(*pipeline.Item)) {
	keys := make([]semel.Key, len(items))
	for i, it := range items {
		keys[i] = it.Call.Key
	}
	records := make([]semel.Record, len(items))
	err := s.store.Look(ctx, keys, records)
	for i, it := range items {
		switch {
		case err != nil:
			it.Err = &pipeline.StoreError{Err: fmt.Errorf("file: %w", err)}
		case records[i].State == semel.Done && it.Call.Fingerprint.Matches(records[i].Fingerprint):
			it.Decision, it.Err = semel.Duplicate, nil
		case records[i].State == semel.Done:
			it.Decision, it.Err = semel.Mismatch, fmt.Errorf("%s: %w", it.Call.Key, semel.ErrMismatch)
		default:
			absent(it)
		}
	}
}

// half is the part of a fingerprint that the store compares.
func half(f semel.Fingerprint) uint64 { return binary.LittleEndian.Uint64(f[:8]) }
