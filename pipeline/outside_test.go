package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/pipeline"
)

// outsideSession is a session of a user of the package. It uses only exported names. It
// claims, delivers and completes one item after the other. It keeps the claim of a failed
// message until the next try, and repeats a claim whose answer was lost.
type outsideSession struct {
	store semel.Store
	sink  pipeline.Sink
	name  string
}

const outsideLease = 30 * time.Second

// outsideClaim is the claim that the session holds for an item.
type outsideClaim struct {
	request semel.ClaimRequest
	claim   semel.Claim // Token is 0 while the answer is not known
	done    bool        // the effect happened, with this result
	result  semel.Result
}

var _ pipeline.Session = (*outsideSession)(nil)

func (s *outsideSession) Traits() pipeline.SinkTraits     { return s.sink.Traits() }
func (s *outsideSession) Close(ctx context.Context) error { return s.sink.Close(ctx) }

func (s *outsideSession) Process(ctx context.Context, items []*pipeline.Item) {
	behind := map[uint64]bool{}
	for _, it := range items {
		it.Decision, it.Result, it.Err = semel.Undecided, semel.Result{}, nil
		if behind[it.Group] {
			it.Err = pipeline.ErrBehind
			continue
		}
		s.process(ctx, it)
		behind[it.Group] = it.Err != nil
	}
}

func (s *outsideSession) process(ctx context.Context, it *pipeline.Item) {
	if it.Err = s.claim(ctx, it); it.Err != nil || it.Decision != semel.Fresh {
		return
	}
	c := it.Held.(*outsideClaim)
	it.Attempt, it.Token = c.claim.Attempt+it.Tries, c.claim.Token
	if !c.done {
		s.deliver(ctx, it, c)
		if it.Err != nil {
			return
		}
		c.done, c.result = true, it.Result
	}
	err := s.complete(ctx, c)
	it.Result = c.result
	switch {
	case errors.Is(err, semel.ErrStaleToken):
		it.Held, it.Err = nil, semel.ErrLeaseLost
	case err != nil:
		it.Err = &pipeline.StoreError{Err: fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, err)}
	default:
		it.Held = nil
	}
}

// claim asks for an item's key, unless the session holds it.
func (s *outsideSession) claim(ctx context.Context, it *pipeline.Item) error {
	c, _ := it.Held.(*outsideClaim)
	if c != nil && c.claim.Token != 0 {
		err := s.extend(ctx, c)
		if err == nil || c.done {
			it.Decision = semel.Fresh
			return nil
		}
		if !errors.Is(err, semel.ErrStaleToken) {
			return &pipeline.StoreError{Err: err}
		}
		c = nil
	}
	if c == nil {
		owner := semel.Owner{Name: s.name, Nonce: rand.Uint64()}
		c = &outsideClaim{request: semel.ClaimRequest{Key: it.Call.Key, Owner: owner, Lease: outsideLease, Window: time.Hour}}
		it.Held = c
	}
	answers := make([]semel.ClaimAnswer, 1)
	err := s.store.Claim(ctx, []semel.ClaimRequest{c.request}, answers)
	a := &answers[0]
	if it.Decision = a.Decision; a.Decision == semel.Undecided {
		return &pipeline.StoreError{Err: errors.Join(a.Err, err)} // the next try repeats the claim with the same owner
	}
	if a.Decision == semel.Fresh {
		c.claim = a.Claim
		return nil
	}
	it.Held, it.Result = nil, a.Result
	switch a.Decision {
	case semel.Duplicate:
		return nil
	case semel.InFlight:
		return &semel.InFlightError{Key: it.Call.Key, Holder: a.Holder, LeaseEnd: a.Claim.LeaseEnd}
	}
	return semel.ErrOutcomeUnknown
}

// deliver delivers an item and extends its lease during the delivery.
func (s *outsideSession) deliver(ctx context.Context, it *pipeline.Item, c *outsideClaim) {
	ctx, lose := context.WithCancelCause(ctx)
	var extending sync.WaitGroup
	extending.Go(func() {
		for {
			if nap(ctx, outsideLease/6); ctx.Err() != nil {
				return
			}
			if err := s.extend(ctx, c); errors.Is(err, semel.ErrStaleToken) {
				lose(semel.ErrLeaseLost)
			}
		}
	})
	s.sink.Deliver(ctx, []*pipeline.Item{it})
	lose(nil)
	extending.Wait()
}

func (s *outsideSession) extend(ctx context.Context, c *outsideClaim) error {
	answers := make([]semel.ExtendAnswer, 1)
	err := s.store.Extend(ctx, []semel.ExtendRequest{{Key: c.request.Key, Token: c.claim.Token, Lease: outsideLease}}, answers)
	return errors.Join(err, answers[0].Err)
}

// complete repeats a completion for as long as a lease, even if ctx has ended.
func (s *outsideSession) complete(ctx context.Context, c *outsideClaim) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outsideLease)
	defer cancel()
	for {
		answers := make([]error, 1)
		err := s.store.Complete(ctx, []semel.CompleteRequest{{Key: c.request.Key, Token: c.claim.Token, Result: c.result, Window: time.Hour}}, answers)
		if err = errors.Join(err, answers[0]); err == nil || errors.Is(err, semel.ErrStaleToken) || ctx.Err() != nil {
			return err
		}
		nap(ctx, 100*time.Millisecond)
	}
}

// BindScope implements pipeline.Session.
func (s *outsideSession) BindScope(ctx context.Context, scope string, owner semel.ScopeOwner) error {
	return semel.BindScope(ctx, s.store, scope, owner)
}

// Abandon implements pipeline.Session. A claim that cannot be released ends with its
// lease.
func (s *outsideSession) Abandon(ctx context.Context, items []*pipeline.Item) {
	for _, it := range items {
		c, _ := it.Held.(*outsideClaim)
		it.Held = nil
		if c == nil || c.done {
			continue
		}
		if c.claim.Token == 0 {
			answers := make([]semel.ClaimAnswer, 1)
			_ = s.store.Claim(ctx, []semel.ClaimRequest{c.request}, answers)
			if answers[0].Decision != semel.Fresh {
				continue
			}
			c.claim = answers[0].Claim
		}
		_ = s.store.Release(ctx, []semel.ReleaseRequest{{Key: c.request.Key, Token: c.claim.Token}}, make([]error, 1))
	}
}

// effectsSink keeps the bodies of the items that it delivered.
type effectsSink struct {
	mu     sync.Mutex
	bodies [][]byte
}

func (s *effectsSink) Traits() pipeline.SinkTraits {
	return pipeline.SinkTraits{Parallel: 4, Ordered: true}
}
func (s *effectsSink) Close(context.Context) error { return nil }

func (s *effectsSink) Deliver(ctx context.Context, items []*pipeline.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range items {
		if it.Err = ctx.Err(); it.Err == nil {
			s.bodies = append(s.bodies, bytes.Clone(it.Message.Body))
		}
	}
}

func TestSessionOfAnotherModulePassesTheSuite(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T, semel.Store, pipeline.Sink) pipeline.Session{
		"outside": func(_ *testing.T, store semel.Store, sink pipeline.Sink) pipeline.Session {
			return &outsideSession{store: store, sink: sink, name: "outside"}
		},
		"TwoPhase": func(t *testing.T, store semel.Store, sink pipeline.Sink) pipeline.Session {
			s, err := pipeline.NewTwoPhase(store, sink, nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.RunSink(t, brokertest.SinkHarness{
				Messages: 300, NoHeaders: true,
				New: func(testing.TB) brokertest.SinkTarget {
					store, sink := newStore(t), &effectsSink{}
					return brokertest.SinkTarget{
						Session: func(context.Context) (pipeline.Session, error) { return open(t, store, sink), nil },
						Effects: func(context.Context) (list []brokertest.Effect, _ error) {
							sink.mu.Lock()
							defer sink.mu.Unlock()
							for _, body := range sink.bodies {
								list = append(list, brokertest.Effect{Body: body})
							}
							return list, nil
						},
					}
				},
			})
		})
	}
}

// TestClaimsOfASessionFromOutsideAreAbandonedWithTheirPartition: when the source loses a
// partition, the claims of messages that wait for their next try are released.
func TestClaimsOfASessionFromOutsideAreAbandonedWithTheirPartition(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"outside", "TwoPhase"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.source.endless = true
				r.opts.Failure = pipeline.Failure{From: time.Hour, To: time.Hour}
				r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
					return semel.Result{}, errors.New("try again")
				}
				if name == "outside" {
					r.session = func(sink pipeline.Sink) pipeline.Session {
						return &outsideSession{store: r.store, sink: sink, name: name}
					}
				}
				r.add(1, "a", "")
				ctx, cancel := context.WithCancel(t.Context())
				end := r.start(ctx)
				synctest.Wait()
				if a := r.claim("a", time.Second); a.Decision != semel.InFlight {
					t.Errorf("between two tries: %v", a.Decision)
				}
				if err := r.partition.Close(t.Context()); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if a := r.claim("a", time.Second); a.Decision != semel.Fresh {
					t.Errorf("with its partition closed: %v", a.Decision)
				}
				cancel()
				if err := end(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
