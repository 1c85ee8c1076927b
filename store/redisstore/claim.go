package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// These are the flags of a request in claim.lua.
const (
	flagDone = 1 << iota
	flagHold
	flagCompact
)

// Claim implements [semel.Store]. It blocks for one round trip.
func (s *Store) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if err := s.enter(ctx, "claim", len(reqs), len(answers)); err != nil {
		return err
	}
	if s.inOneStep(reqs) {
		return s.claimInOneStep(ctx, reqs, answers)
	}
	return s.claim(ctx, reqs, answers, nil)
}

// claim decides requests by script. If places is not nil, it decides only the
// requests at these places.
func (s *Store) claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, places []int) error {
	n := len(reqs)
	if places != nil {
		n = len(places)
	}
	packed := newRequests(n, claimRoom)
	packed.terms = claimTerms
	memo := s.digests()
	owners := digest.Owners{Hasher: memo.Hasher}
	earliest := uint64(latest)
	for j := range n {
		i := j
		if places != nil {
			i = places[j]
		}
		answers[i] = semel.ClaimAnswer{}
		if err := reqs[i].Validate(); err != nil {
			answers[i].Err = err
			continue
		}
		late := lateAfter(&reqs[i])
		if late > 0 {
			earliest = min(earliest, late)
		}
		packed.packed = s.appendClaim(packed.packed, &reqs[i], late, &owners)
		packed.add(i, memo.Key(reqs[i].Key))
	}
	packed.more = binary.LittleEndian.AppendUint64(nil, earliest)
	return s.run(ctx, s.scripts.claim, packed, func(at int, answer string) error {
		return readClaim(&reqs[at], answer, &answers[at])
	})
}

// distinct returns the owner to record. Two requests without an owner count as
// two different callers.
func distinct(owner semel.Owner) semel.Owner {
	if owner == (semel.Owner{}) {
		owner.Nonce = rand.Uint64()
	}
	return owner
}

// claimRoom is about how many bytes a request for claim.lua has.
const claimRoom = 64

// claimTerms is the length of the terms of a request for claim.lua: flags and lease.
const claimTerms = 9

// appendClaim packs a request for claim.lua.
func (s *Store) appendClaim(b []byte, req *semel.ClaimRequest, late uint64, owners *digest.Owners) []byte {
	owner := distinct(req.Owner)
	var flags byte
	var span uint64
	if req.Done {
		flags |= flagDone
		if s.ring.fits(req.Window) && req.Fingerprint.IsZero() {
			flags |= flagCompact
		}
		span = windowMillis(req.Window)
	} else {
		span = microsUp(req.Lease)
	}
	if req.Hold {
		flags |= flagHold
	}
	b = append(b, flags)
	b = binary.LittleEndian.AppendUint64(b, span)
	b = binary.LittleEndian.AppendUint64(b, late)
	b = append(b, req.Fingerprint[:8]...)
	if req.Done {
		return appendOneStep(b, owners.Of(&owner), req.Window, req.Fingerprint, s.ids(req))
	}
	return appendOwner(appendIDs(b, s.ids(req)), &owner)
}

var errBadAnswer = errors.New("unexpected answer of the script")

// readClaim reads an answer of claim.lua. The answer is a letter for the
// decision, followed by the record behind it or by the start of that record.
func readClaim(req *semel.ClaimRequest, answer string, to *semel.ClaimAnswer) error {
	kind, rec := answer[0], answer[1:]
	switch kind {
	case 'X':
		// A full server refuses single keys. Any other error is the error of
		// the whole call.
		err := refused("claim", rec)
		if !isFull(err) {
			return err
		}
		to.Err = err
	case 'C':
		to.Err = damaged("claim", req.Key)
	case 'L':
		to.Decision = semel.Late
	case 'M':
		to.Decision, to.Claim = semel.Mismatch, claimOf(rec)
	case 'F':
		return readGranted(req, rec, to)
	case 'D', 'I', 'U':
		if rec == "" && kind == 'D' { // the compact form
			to.Decision = semel.Duplicate
			return nil
		}
		r, ok := decode(rec)
		if !ok {
			to.Err = damaged("claim", req.Key)
			return nil
		}
		readPresent(kind, &r, to)
	default:
		return storeError("claim", errBadAnswer)
	}
	return nil
}

// readGranted reads the claim or, for a key done in one step, the attempt.
func readGranted(req *semel.ClaimRequest, rec string, to *semel.ClaimAnswer) error {
	switch {
	case req.Done && len(rec) == 4:
		to.Claim.Attempt = int(binary.LittleEndian.Uint32([]byte(rec)))
	case !req.Done && len(rec) == leaseEndEnd:
		to.Claim = claimOf(rec)
	default:
		return storeError("claim", errBadAnswer)
	}
	to.Decision = semel.Fresh
	return nil
}

// readPresent fills in the record that prevents a claim.
func readPresent(kind byte, r *record, to *semel.ClaimAnswer) {
	if kind == 'D' {
		to.Decision, to.Result = semel.Duplicate, r.result
		return
	}
	to.Decision, to.Claim, to.Holder = semel.InFlight, r.claim(), r.holder
	if kind == 'U' {
		to.Decision = semel.OutcomeUnknown
	}
}

// claimOf reads the claim from the start of a record.
func claimOf(rec string) (c semel.Claim) {
	if len(rec) < tokenEnd || rec[0] == stateOneStep {
		return c
	}
	c.Attempt = int(binary.LittleEndian.Uint32([]byte(rec[1:5])))
	c.Token = semel.Token(uint64At(rec, 5))
	if rec[0] != stateDone && len(rec) >= leaseEndEnd {
		c.LeaseEnd = instant(int64(uint64At(rec, 21)))
	}
	return c
}
