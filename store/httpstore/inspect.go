package httpstore

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/internal/storeapi"
)

// Look implements semel.Inspector.
func (s *Store) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	if len(keys) != len(records) {
		return errLengths
	}
	for _, k := range keys {
		if err := k.Validate(); err != nil {
			return err
		}
	}
	if len(keys) == 0 {
		return s.usable(ctx)
	}
	for begin := 0; begin < len(keys); {
		end, size := begin, 0
		for ; end < len(keys) && end-begin < s.limits.MaxBatch; end++ {
			if size += 6*(len(keys[end].ID)+len(keys[end].Scope)) + 128; end > begin && int64(size) > s.limits.MaxBody {
				break
			}
		}
		items := make([]any, end-begin)
		for i := range items {
			items[i] = wireOf(keys[begin+i])
		}
		if err := s.lookup(ctx, items, records[begin:end]); err != nil {
			return err
		}
		begin = end
	}
	return nil
}

func (s *Store) lookup(ctx context.Context, items []any, records []semel.Record) error {
	var said storeapi.Items
	if _, err := s.call(ctx, http.MethodPost, "lookup", map[string]any{"items": items}, &said); err != nil {
		return err
	}
	if len(said.Items) != len(records) {
		return fmt.Errorf("httpstore: %d answers to %d keys: %w", len(said.Items), len(records), semel.ErrStoreUnavailable)
	}
	for i, text := range said.Items {
		var line struct {
			storeapi.Record
			storeapi.Refused
		}
		err := json.Unmarshal(text, &line)
		if err == nil && i > 0 && full(line.Error) { // the first one always has room
			return s.lookup(ctx, items[i:], records[i:])
		}
		if err == nil && line.Error != nil {
			return fmt.Errorf("httpstore: look up: %w", line.Error.Err(semel.Key{}, 0))
		}
		if err == nil {
			records[i], err = recordOf(&line.Record)
		}
		if err != nil {
			return fmt.Errorf("httpstore: read a record: %w: %w", err, semel.ErrStoreUnavailable)
		}
	}
	return nil
}

// recordOf reads a record.
func recordOf(line *storeapi.Record) (r semel.Record, err error) {
	read := func(target *time.Time, text string) {
		at, wrong := readTime(text)
		err = errors.Join(err, wrong)
		*target = at
	}
	r = semel.Record{State: storeapi.ParseState(line.State), Attempt: line.Attempts, Holder: line.Holder, Orphaned: line.Orphaned, Origin: line.Origin}
	if line.OriginBase64 != nil {
		r.Origin = string(line.OriginBase64)
	}
	if r.State == semel.Done {
		r.Holder = "" // a store keeps none of a done record
	}
	read(&r.FirstSeen, line.FirstSeen)
	read(&r.LeaseEnd, line.LeaseEnd)
	if line.Expires != "forever" {
		read(&r.Expires, line.Expires)
	}
	if line.Token != "" {
		var wrong error
		r.Token, wrong = storeapi.ParseToken(line.Token)
		err = errors.Join(err, wrong)
	}
	for target, text := range map[*[16]byte]string{(*[16]byte)(&r.Digest): line.Digest, (*[16]byte)(&r.Fingerprint): line.Fingerprint} {
		if _, wrong := hex.Decode(target[:], []byte(text)); wrong != nil || len(text) > 32 {
			err = errors.Join(err, fmt.Errorf("%q: not 32 hexadecimal digits", text))
		}
	}
	switch {
	case line.Scope != nil:
		r.Key.Scope = *line.Scope
	default:
		r.Key.Scope = string(line.ScopeBase64)
	}
	r.Key.ID = string(line.IDBase64)
	if line.ID != nil {
		var wrong error
		r.Key.ID, wrong = jsonid.NewParser().ID(line.ID)
		err = errors.Join(err, wrong)
	}
	if line.Result != "" {
		r.Result = resultOf(line.Result, line.ResultText, line.ResultBase64)
		if line.ResultSize != nil {
			r.ResultSize = *line.ResultSize
		}
	}
	return r, err
}

// usable returns the error of a call that asks for nothing.
func (s *Store) usable(ctx context.Context) error {
	return s.batch(ctx, 0, nil, nil)
}

// List implements semel.Inspector. The server walks its store once for each page.
func (s *Store) List(ctx context.Context, opts semel.ListOptions) iter.Seq2[semel.Record, error] {
	return func(yield func(semel.Record, error) bool) {
		request := map[string]any{"limit": s.limits.MaxBatch}
		if opts.Scope != nil {
			w := wireOf(semel.Key{Scope: *opts.Scope})
			if w.Scope != nil {
				request["scope"] = *w.Scope
			} else {
				request["scope_base64"] = w.ScopeBase64
			}
		}
		if opts.State != semel.Absent {
			request["state"] = opts.State.String()
		}
		for {
			var said storeapi.Items
			if _, err := s.call(ctx, http.MethodPost, "list", request, &said); err != nil {
				yield(semel.Record{}, err)
				return
			}
			for _, text := range said.Items {
				var line storeapi.Record
				err := json.Unmarshal(text, &line)
				var r semel.Record
				if err == nil {
					r, err = recordOf(&line)
				}
				if err != nil {
					yield(semel.Record{}, fmt.Errorf("httpstore: read a record: %w: %w", err, semel.ErrStoreUnavailable))
					return
				}
				if !yield(r, nil) {
					return
				}
			}
			if said.Cursor == "" {
				return
			}
			request["cursor"] = said.Cursor
		}
	}
}

// Count implements semel.Inspector.
func (s *Store) Count(ctx context.Context) (semel.Counts, error) {
	var said storeapi.Items
	if _, err := s.call(ctx, http.MethodPost, "list", map[string]any{"limit": 1, "counts": true}, &said); err != nil {
		return semel.Counts{}, err
	}
	if said.Counts == nil {
		return semel.Counts{}, fmt.Errorf("httpstore: the server counts nothing: %w", errors.ErrUnsupported)
	}
	var err error
	number := func(text string) int64 {
		n, wrong := strconv.ParseInt(text, 10, 64)
		err = errors.Join(err, wrong)
		return n
	}
	c := said.Counts
	counts := semel.Counts{
		Claimed: number(c.Claimed), Done: number(c.Done), Unknown: number(c.Unknown), MemoryBytes: number(c.MemoryBytes), DiskBytes: number(c.DiskBytes),
		Oldest: time.Duration(number(c.OldestMS)) * time.Millisecond,
	}
	return counts, err
}

// record returns the record of a key or digest, whose members item has.
func (s *Store) record(ctx context.Context, item any) (semel.Record, error) {
	records := make([]semel.Record, 1)
	err := s.lookup(ctx, []any{item}, records)
	return records[0], err
}

// wireDecision is a decision of an operator.
type wireDecision struct {
	*wireKey
	Digest string           `json:"digest,omitempty"`
	As     string           `json:"as,omitempty"`
	Reason string           `json:"reason"`
	Result *storeapi.Result `json:"result,omitempty"`
	Window string           `json:"window,omitempty"`
	Expect *wireExpect      `json:"expect,omitempty"`
}

type wireExpect struct {
	State string `json:"state"`
	Token string `json:"token,omitempty"`
}

// wireDigest is a digest in a request.
type wireDigest struct {
	Digest string `json:"digest"`
}

// Resolve implements semel.Resolver.
func (s *Store) Resolve(ctx context.Context, req semel.ResolveRequest) error {
	if err := req.Validate(s.traits.MaxResult); err != nil {
		return err
	}
	w := wireOf(req.Key)
	return s.resolve(ctx, w, wireDecision{wireKey: &w}, &req)
}

// resolve settles the record of an item. The record is looked up first, so that a repetition
// can tell its own change from that of another.
func (s *Store) resolve(ctx context.Context, item any, d wireDecision, req *semel.ResolveRequest) error {
	record, err := s.record(ctx, item)
	switch {
	case err != nil:
		return err
	case record.State != semel.Unknown:
		return fmt.Errorf("httpstore: it is %s: %w", record.State, semel.ErrNotUnknown)
	}
	d.As, d.Reason, d.Expect = req.As.String(), s.opts.Reason, expect(&record)
	if req.As == semel.Done {
		d.Result, d.Window = wireResult(req.Result), windowText(req.Window)
	}
	repeated, err := s.call(ctx, http.MethodPost, "resolve", d, new(storeapi.Settled))
	if err == nil || semel.Classify(err) != semel.ClassPermanent {
		return err
	}
	if now, wrong := s.record(ctx, item); repeated && wrong == nil && now.State == req.As {
		return nil
	}
	if errors.Is(err, errors.ErrUnsupported) || errors.Is(err, semel.ErrResultTooLarge) {
		return err
	}
	return fmt.Errorf("%w: %w", semel.ErrNotUnknown, err)
}

// Remove implements semel.Resolver.
func (s *Store) Remove(ctx context.Context, key semel.Key) (bool, error) {
	if err := key.Validate(); err != nil {
		return false, err
	}
	w := wireOf(key)
	return s.remove(ctx, w, wireDecision{wireKey: &w})
}

// remove removes the record of an item as it is now, so that a repetition does not remove
// the one of a later holder. If the record changes in between, it is looked up again.
func (s *Store) remove(ctx context.Context, item any, d wireDecision) (bool, error) {
	d.Reason = s.opts.Reason
	for {
		record, err := s.record(ctx, item)
		if err != nil || record.State == semel.Absent {
			return false, err
		}
		d.Expect = expect(&record)
		var said storeapi.Settled
		repeated, err := s.call(ctx, http.MethodPost, "remove", d, &said)
		switch {
		case errors.Is(err, errChanged) && repeated: // an earlier attempt removed it
			return true, nil
		case errors.Is(err, errChanged):
			continue
		case err != nil:
			return false, err
		}
		return repeated || said.Removed != nil && *said.Removed, nil
	}
}

// expect returns what a record must still be when it is changed.
func expect(r *semel.Record) *wireExpect {
	e := &wireExpect{State: r.State.String()}
	if r.Token != 0 {
		e.Token = storeapi.FormatToken(r.Token)
	}
	return e
}

// LookDigest implements semel.DigestResolver.
func (s *Store) LookDigest(ctx context.Context, d semel.Digest) (semel.Record, error) {
	return s.record(ctx, wireDigest{d.String()})
}

// ResolveDigest implements semel.DigestResolver.
func (s *Store) ResolveDigest(ctx context.Context, d semel.Digest, req semel.ResolveRequest) error {
	req.Key = semel.Key{ID: d.String()}
	if err := req.Validate(s.traits.MaxResult); err != nil {
		return err
	}
	return s.resolve(ctx, wireDigest{d.String()}, wireDecision{Digest: d.String()}, &req)
}

// RemoveDigest implements semel.DigestResolver.
func (s *Store) RemoveDigest(ctx context.Context, d semel.Digest) (bool, error) {
	return s.remove(ctx, wireDigest{d.String()}, wireDecision{Digest: d.String()})
}
