package redisstore

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// inOneStep reports whether a call can do without a script: each request
// records its key as done, and neither the server's time nor the compact form
// nor another scheme's marks count.
func (s *Store) inOneStep(reqs []semel.ClaimRequest) bool {
	if !s.setGet || s.ring != nil || s.opts.LegacyPrefix != "" {
		return false
	}
	for i := range reqs {
		if !reqs[i].Done || !reqs[i].Time.IsZero() {
			return false
		}
	}
	return true
}

// claimInOneStep decides requests by SET with NX and GET, which writes the
// record if the key has none and else answers with the one that is there. What
// that does not decide is left to the script: a key that somebody holds, whose
// lease ends by the server's time, and a server that is full.
func (s *Store) claimInOneStep(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	for len(reqs) > 0 {
		n := min(len(reqs), maxPipeline)
		left, err := s.setPipeline(ctx, reqs[:n], answers[:n])
		if err == nil && left != nil {
			err = s.claim(ctx, reqs[:n], answers[:n], left)
		}
		if err != nil {
			return err
		}
		reqs, answers = reqs[n:], answers[n:]
	}
	return nil
}

// setPipeline sends one pipeline and returns the places of the requests that
// are not decided.
func (s *Store) setPipeline(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) (left []int, err error) {
	memo := s.digests()
	n := len(s.opts.Prefix) + nameRoom
	// The names and records of all are one string: they are the most of what
	// such a call would allocate.
	room := make([]byte, 0, len(reqs)*(n+oneStepPlain))
	ends := make([]int, 0, len(reqs))
	places := make([]int, 0, len(reqs))
	for i := range reqs {
		req := &reqs[i]
		answers[i] = semel.ClaimAnswer{}
		if err := req.Validate(); err != nil {
			answers[i].Err = err
			continue
		}
		d := memo.Key(req.Key)
		room = s.appendRecordKey(room, &d)
		owner := distinct(req.Owner)
		room = appendOneStep(room, ownerDigest(memo.Hasher, &owner), req.Window, req.Fingerprint, s.ids(&req.Key))
		ends, places = append(ends, len(room)), append(places, i)
	}
	if len(places) == 0 {
		return nil, nil
	}
	all, start := string(room), 0
	commands := make([]rueidis.Completed, len(places), len(places)+2)
	records := make([]string, len(places))
	for j, i := range places {
		records[j] = all[start+n : ends[j]]
		set := s.client.B().Set().Key(all[start : start+n]).Value(records[j]).Nx().Get()
		if millis := windowMillis(reqs[i].Window); millis > 0 {
			commands[j] = set.PxMilliseconds(int64(millis)).Build()
		} else {
			commands[j] = set.Build()
		}
		start = ends[j]
	}
	for j, result := range s.do(ctx, commands) {
		i := places[j]
		kept, refusal := result.ToString()
		switch {
		case rueidis.IsRedisNil(refusal), refusal == nil && kept == records[j]:
			// Written now, or before the answer to the same request was lost.
			answers[i].Decision, answers[i].Claim.Attempt = semel.Fresh, 1
		case refusal != nil:
			// A full server refuses the command before it looks whether the
			// key is there; the script looks first.
			if e := storeError("claim", refusal); isFull(e) {
				left = append(left, i)
			} else if err == nil {
				err = e
			}
		case !readKept(&reqs[i], kept, &answers[i]):
			left = append(left, i)
		}
	}
	return left, err
}

// readKept decides on a record that was there before. It reports false if the
// time decides.
func readKept(req *semel.ClaimRequest, kept string, to *semel.ClaimAnswer) bool {
	r, ok := decode(kept)
	switch {
	case !ok:
		to.Err = damaged("claim", req.Key)
	case r.publicState() != semel.Done:
		return false
	case !r.print.Matches(req.Fingerprint):
		to.Decision, to.Claim = semel.Mismatch, claimOf(kept)
	default:
		to.Decision, to.Result = semel.Duplicate, r.result
	}
	return true
}
