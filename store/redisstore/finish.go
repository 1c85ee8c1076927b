package redisstore

import (
	"context"
	"encoding/binary"

	"github.com/semel-dev/semel"
)

// Complete implements [semel.Store]. It blocks for one round trip. A repeated
// completion of a key in the compact form is recognised for [Compact].Grace.
// After that it gets a [*semel.StaleTokenError] which says that the key is
// done.
func (s *Store) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	if err := s.enter(ctx, "complete", len(reqs), len(answers)); err != nil {
		return err
	}
	packed := newRequests(len(reqs), completeRoom)
	packed.terms = completeTerms
	memo := s.digests()
	for i := range reqs {
		req := &reqs[i]
		if answers[i] = req.Validate(s.opts.MaxResult); answers[i] == nil {
			packed.packed = s.appendComplete(packed.packed, req)
			packed.add(i, memo.Key(req.Key))
		}
	}
	return s.run(ctx, s.scripts.complete, packed, func(at int, answer string) error {
		return readChange("complete", reqs[at].Key, reqs[at].Token, answer, &answers[at])
	})
}

// completeRoom is how many bytes a request for complete.lua has without a result.
const completeRoom = 18

// completeTerms is the length of the terms of a request for complete.lua: window and
// whether the compact form is possible.
const completeTerms = 9

// appendComplete packs a request for complete.lua.
func (s *Store) appendComplete(b []byte, req *semel.CompleteRequest) []byte {
	b = binary.LittleEndian.AppendUint64(b, windowMillis(req.Window))
	b = appendBool(b, s.ring.fits(req.Window) && req.Result.Kind == semel.NoResult && len(req.Result.Data) == 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(req.Token))
	b = append(b, byte(req.Result.Kind))
	return append(b, req.Result.Data...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// Release implements [semel.Store]. It blocks for one round trip. A repeated
// release is not recognised and gets a [*semel.StaleTokenError].
func (s *Store) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	if err := s.enter(ctx, "release", len(reqs), len(answers)); err != nil {
		return err
	}
	packed := newRequests(len(reqs), 9)
	memo := s.digests()
	for i := range reqs {
		req := &reqs[i]
		if answers[i] = req.Validate(); answers[i] == nil {
			packed.packed = appendBool(binary.LittleEndian.AppendUint64(packed.packed, uint64(req.Token)), req.Unknown)
			packed.add(i, memo.Key(req.Key))
		}
	}
	return s.run(ctx, s.scripts.release, packed, func(at int, answer string) error {
		return readChange("release", reqs[at].Key, reqs[at].Token, answer, &answers[at])
	})
}

// Extend implements [semel.Store]. It blocks for one round trip. An unknown
// record cannot be extended, but its holder may complete or release it.
func (s *Store) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	if err := s.enter(ctx, "extend", len(reqs), len(answers)); err != nil {
		return err
	}
	packed := newRequests(len(reqs), 16)
	memo := s.digests()
	for i := range reqs {
		req := &reqs[i]
		answers[i] = semel.ExtendAnswer{Err: req.Validate()}
		if answers[i].Err == nil {
			packed.packed = binary.LittleEndian.AppendUint64(packed.packed, uint64(req.Token))
			packed.packed = binary.LittleEndian.AppendUint64(packed.packed, microsUp(req.Lease))
			packed.add(i, memo.Key(req.Key))
		}
	}
	return s.run(ctx, s.scripts.extend, packed, func(at int, answer string) error {
		if answer[0] == 'K' && len(answer) == 9 {
			answers[at].LeaseEnd = instant(int64(uint64At(answer, 1)))
			return nil
		}
		return readChange("extend", reqs[at].Key, reqs[at].Token, answer, &answers[at].Err)
	})
}

// readChange reads the answer to a change of one record.
func readChange(verb string, key semel.Key, token semel.Token, answer string, to *error) error {
	switch answer[0] {
	case 'K':
		return nil
	case 'S':
		stale := &semel.StaleTokenError{Key: key, Token: token}
		if rec := answer[1:]; rec != "" {
			r := record{state: rec[0]}
			stale.State, stale.Current = r.publicState(), claimOf(rec).Token
		}
		*to = stale
		return nil
	case 'C':
		*to = damaged(verb, key)
		return nil
	case 'X':
		err := refused(verb, answer[1:])
		if !isFull(err) {
			return err
		}
		*to = err
		return nil
	}
	return storeError(verb, errBadAnswer)
}
