package tiered

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
)

// The pauses of Wait grow from the first to the longest.
const (
	firstPause   = 10 * time.Millisecond
	longestPause = time.Second
)

// below makes one call of the durable store about claims. Under Pass, it
// answers requests for claims that were never made, which passed reports.
func below[Req, Ans any](
	ctx context.Context, s *Store, verb string, reqs []Req, answers []Ans,
	call func(context.Context, []Req, []Ans) error, passed func(*Req) (Ans, bool),
) error {
	if len(reqs) != len(answers) {
		return lengthError(verb, len(reqs), len(answers))
	}
	made, place := reqs, []int(nil)
	if s.opts.OnOutage == Pass {
		made = nil
		for i := range reqs {
			if a, ok := passed(&reqs[i]); ok {
				answers[i] = a
				continue
			}
			made, place = append(made, reqs[i]), append(place, i)
		}
		if len(made) == 0 && len(reqs) > 0 {
			return nil
		}
	}
	if len(made) == len(reqs) {
		return wrap(verb, s.ask(ctx, false, func() error { return call(ctx, reqs, answers) }))
	}
	got := make([]Ans, len(made))
	err := s.ask(ctx, false, func() error { return call(ctx, made, got) })
	for j, i := range place {
		answers[i] = got[j]
	}
	return wrap(verb, err)
}

// ask makes one call of the durable store. Under Wait, it repeats the call
// until the store answers or the caller's context ends. Every call may be
// repeated after a lost answer. trial is set for the first claim after a pause
// of Pass.
func (s *Store) ask(ctx context.Context, trial bool, call func() error) error {
	var unknown error
	for n := 0; ; n++ {
		err := call()
		switch {
		case !silent(err):
			if s.outage.down.Load() {
				s.outage.leave(true, nil)
			}
			return err
		case ctx.Err() != nil:
			s.outage.abandon(trial, 0, err)
			return errors.Join(err, unknown)
		}
		s.outage.leave(true, err)
		if s.opts.OnOutage != Wait || errors.Is(err, semel.ErrStoreFailed) {
			return err
		}
		if semel.Classify(err) == semel.ClassUnknown {
			// A later refusal does not undo changes that this call may have
			// made.
			unknown = semel.ErrOutcomeUnknown
		}
		if ended := retry.Sleep(ctx, retry.Backoff(n, firstPause, longestPause)); ended != nil {
			return fmt.Errorf("stopped waiting for the durable store: %w", errors.Join(err, unknown, ended))
		}
	}
}

// silent reports whether an error means that the durable store did not answer.
func silent(err error) bool {
	return errors.Is(err, semel.ErrStoreUnavailable) || semel.Classify(err) == semel.ClassUnknown
}

// pass answers claims that the durable store did not answer. Later calls
// recognise them by token 0. A target that compares tokens is more likely to
// reject token 0 than to store it.
func (s *Store) pass(reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, err error) {
	var keys int
	for i := range reqs {
		a := &answers[i]
		if a.Decision != semel.Undecided || a.Err != nil {
			continue
		}
		if a.Err = reqs[i].Validate(); a.Err != nil {
			continue
		}
		keys++
		*a = semel.ClaimAnswer{Decision: semel.Fresh, Claim: semel.Claim{Attempt: 1}}
		if !reqs[i].Done {
			a.Claim.LeaseEnd = s.clock.Now().Add(reqs[i].Lease)
		}
	}
	s.passed.Add(int64(keys))
	if keys > 0 {
		s.outage.tell(Event{Kind: EventPassed, Keys: keys, Err: err})
	}
}
