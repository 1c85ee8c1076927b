package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// expiryEvery is the longest pause between two looks for expired messages.
	expiryEvery = 10 * time.Minute
	// expiryRetry is the pause after a look that failed.
	expiryRetry = time.Minute
	// expiryBatch is how many messages a look settles before it lists again.
	expiryBatch = 1000
)

// expiry settles messages that have been parked for too long. The goroutine that reads
// the queued messages runs it.
type expiry struct {
	age     time.Duration
	observe func(Event)
	next    time.Time // of the next look
	failed  time.Time // when the look began to fail, or zero
}

// run settles the expired messages if a look is due. If the dead-letter store does not
// answer, it reports a pause with the reason "parking" and looks again later.
func (x *expiry) run(ctx context.Context, s *redriven) {
	now := time.Now()
	if x == nil || now.Before(x.next) {
		return
	}
	err := x.look(ctx, s, now.Add(-x.age))
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if x.failed.IsZero() {
			x.failed = now
		}
		x.next = now.Add(expiryRetry)
		x.observe(Event{Kind: EventPaused, Reason: "parking", Err: fmt.Errorf("delete expired parked messages: %w", err), Next: expiryRetry})
	default:
		if !x.failed.IsZero() {
			x.observe(Event{Kind: EventResumed, Reason: "parking", Elapsed: now.Sub(x.failed)})
		}
		x.next, x.failed = now.Add(min(expiryEvery, max(x.age/10, time.Second))), time.Time{}
	}
}

// look settles the messages that were parked before a time. Queued messages stay: an
// operator wants them to be processed.
func (x *expiry) look(ctx context.Context, s *redriven, before time.Time) error {
	for {
		var expired []*Parked
		err := s.letters.List(ctx, s.pipeline, func(p *Parked) bool {
			if old := p.At.Before(before); !old || len(expired) == expiryBatch {
				return false // List begins with the oldest
			}
			if !p.Queued {
				expired = append(expired, p)
			}
			return true
		})
		if err != nil && !errors.Is(err, ErrUnreadable) { // an operator moves unreadable entries away
			return err
		}
		for _, p := range expired {
			how := Settlement{How: HowExpired, Actor: s.actor, Reason: fmt.Sprintf("parked for longer than %v", x.age)}
			if err := s.letters.Settle(ctx, p, how); errors.Is(err, ErrNotParked) {
				continue // another process settled it
			} else if err != nil {
				return err
			}
			it := &Item{Partition: s.partition, Message: p.Message}
			it.Call.Key = p.Key
			x.observe(Event{
				Kind: EventDropped, Count: 1, Reason: string(ReasonExpired), Item: it,
				Err: fmt.Errorf("parked since %s for the reason %s: %s", p.At.UTC().Format(time.RFC3339), p.Reason, p.Error),
			})
		}
		if len(expired) < expiryBatch {
			return nil
		}
	}
}
