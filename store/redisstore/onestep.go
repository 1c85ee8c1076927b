package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// inOneStep reports whether a call needs no script: each request records its
// key as done, and the decision needs neither the server's time nor the compact
// form.
func (s *Store) inOneStep(reqs []semel.ClaimRequest) bool {
	if !s.setGet || s.ring != nil {
		return false
	}
	for i := range reqs {
		if !reqs[i].Done || !reqs[i].Time.IsZero() {
			return false
		}
	}
	return true
}

// claimInOneStep decides requests by SET with NX and GET. The command writes
// the record if the key has none, and otherwise returns the existing record.
// The script decides the remaining requests: for a claimed key, whose lease
// ends by the server's time, and on a full server.
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

// sent is a request on its way through a pipeline of SETs.
type sent struct {
	at  int // its place in the call
	end int // where its record ends in the joined text
}

// setPipeline sends one pipeline and returns the places of the requests that it
// did not decide.
func (s *Store) setPipeline(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) (left []int, err error) {
	list, all := s.packOneStep(reqs, answers)
	if len(list) == 0 {
		return nil, nil
	}
	n := s.nameLength()
	record := func(j int) string {
		start := n
		if j > 0 {
			start += list[j-1].end
		}
		return all[start:list[j].end]
	}
	commands := make([]rueidis.Completed, len(list), len(list)+2)
	var lasts lifetime
	start := 0
	for j, to := range list {
		set := s.client.B().Arbitrary("SET").Keys(all[start : start+n])
		if window := reqs[to.at].Window; window == semel.Forever {
			commands[j] = set.Args(record(j), "NX", "GET").Build()
		} else {
			commands[j] = set.Args(record(j), "NX", "GET", "PX", lasts.millis(window)).Build()
		}
		start = to.end
	}
	for j, result := range s.do(ctx, commands) {
		i := list[j].at
		kept, refusal := result.ToString()
		switch {
		case rueidis.IsRedisNil(refusal):
			answers[i].Decision, answers[i].Claim.Attempt = semel.Fresh, 1
		case refusal == nil && kept == record(j):
			// This request wrote the record before, and its answer was lost.
			answers[i].Decision = semel.Fresh
		case refusal != nil:
			// A full server refuses the command before it looks up the key. The
			// script looks up the key first.
			switch e := storeError("claim", refusal); {
			case isFull(e):
				left = append(left, i)
			case errors.Is(e, semel.ErrCorrupt):
				answers[i].Err = damaged("claim", reqs[i].Key)
			default:
				err = graver(err, e)
			}
		case !readKept(&reqs[i], kept, &answers[i]):
			left = append(left, i)
		}
	}
	return left, err
}

// packOneStep returns the valid requests, and one text that joins their names
// and records. One text is much cheaper than two texts for each request.
func (s *Store) packOneStep(reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) ([]sent, string) {
	memo := s.digests()
	owners := digest.Owners{Hasher: memo.Hasher}
	list := make([]sent, 0, len(reqs))
	var all strings.Builder
	all.Grow(len(reqs) * (s.nameLength() + oneStepPlain))
	var room [128]byte
	for i := range reqs {
		req := &reqs[i]
		answers[i] = semel.ClaimAnswer{}
		if err := req.Validate(); err != nil {
			answers[i].Err = err
			continue
		}
		d := memo.Key(req.Key)
		owner := distinct(req.Owner)
		b := s.appendRecordKey(room[:0], &d)
		b = appendOneStep(b, owners.Of(&owner), req.Window, req.Fingerprint, s.ids(req))
		all.Write(b)
		list = append(list, sent{i, all.Len()})
	}
	return list, all.String()
}

// lifetime converts windows to milliseconds. The requests of one call nearly
// always have the same window.
type lifetime struct {
	window time.Duration
	text   string
}

func (l *lifetime) millis(window time.Duration) string {
	if l.text == "" || l.window != window {
		l.window, l.text = window, strconv.FormatUint(windowMillis(window), 10)
	}
	return l.text
}

// readKept decides on an existing record. It returns false if the decision
// depends on the time.
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
