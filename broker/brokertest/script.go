package brokertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// answer is what an attempt meets.
type answer uint8

const (
	fine answer = iota
	again
	permanent
	panics
	slow
	unavailable
)

var (
	errRetry       = errors.New("not now")
	errPermanent   = errors.New("never")
	errUnavailable = errors.New("nobody there")
)

// script says what each attempt at a key meets. It is drawn when a key is met
// first, and the same for all its messages.
type script struct {
	mu     sync.Mutex
	random *rand.Rand
	plans  map[string]*plan
	kind   func(random *rand.Rand) plan
	met    map[answer]int
}

// plan is what the attempts at one key meet: first, as often as times says, and
// then nothing. With times below 0 it is for ever.
type plan struct {
	first answer
	times int
}

func newScript(random *rand.Rand) *script {
	return &script{random: random, plans: map[string]*plan{}, kind: anyPlan, met: map[answer]int{}}
}

func anyPlan(random *rand.Rand) plan {
	switch n := random.IntN(100); {
	case n < 70:
		return plan{}
	case n < 80:
		return plan{again, 1 + random.IntN(2)}
	case n < 83:
		return plan{again, -1}
	case n < 88:
		return plan{permanent, -1}
	case n < 93:
		return plan{panics, 1}
	case n < 97:
		return plan{slow, 1}
	}
	return plan{unavailable, 1}
}

// next returns the answer that the next attempt at a key meets.
func (s *script) next(id string) answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.plans[id]
	if p == nil {
		drawn := s.kind(s.random)
		p = &drawn
		s.plans[id] = p
	}
	if p.times == 0 {
		s.met[fine]++
		return fine
	}
	p.times--
	s.met[p.first]++
	return p.first
}

// hasMet reports whether an attempt has met an answer.
func (s *script) hasMet(a answer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.met[a] > 0
}

// attempt does what comes next, and returns nil if the effect is to happen.
func (s *script) attempt(ctx context.Context, id string) error {
	switch s.next(id) {
	case again:
		return errRetry
	case permanent:
		return semel.Permanent(errPermanent)
	case panics:
		panic("the effect panics")
	case unavailable:
		return pipeline.Unavailable(errUnavailable, 0)
	case slow:
		return retry.Sleep(ctx, 5*time.Millisecond)
	}
	return nil
}

// failure is the policy of the suite's pipelines: quick, and with more attempts
// than any script needs that succeeds.
func failure() pipeline.Failure {
	return pipeline.Failure{Attempts: 4, From: time.Millisecond, To: 4 * time.Millisecond}
}

// parker notes in the ledger what is parked.
type parker struct{ *ledger }

// Park implements pipeline.Parker.
func (p parker) Park(_ context.Context, list []pipeline.Parked) error {
	for i := range list {
		if m, ok := p.knows(list[i].Message.Body); ok {
			p.park(m, string(list[i].Reason))
		}
	}
	return nil
}
