package redisstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// sentinelStore opens a store under Sentinels.
func sentinelStore(t *testing.T, s *services.RedisSentinel) (*Client, *Store) {
	t.Helper()
	client := connect(t, "redis://"+strings.Join(s.Addrs(), ","), &ClientOptions{Master: services.MasterName})
	store, err := New(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	return client, store
}

// waitForFailover waits until the Sentinels name the replica as the master. Sentinels that
// stood still for two seconds do nothing for half a minute.
func waitForFailover(t *testing.T, s *services.RedisSentinel) {
	t.Helper()
	eventually(t, func() bool {
		current, err := s.Current(t.Context())
		return err == nil && current == s.Replica
	}, "the replica is the master")
}

func TestWorkContinuesThroughAFailover(t *testing.T) {
	t.Parallel()
	s := servicestest.StartRedisSentinel(t, nil)
	_, store := sentinelStore(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w := newWork(t, store, 3000)
	end := w.start(ctx, w.further) // the replica may lack many of the older ones
	w.waitFor(ctx, 500)
	if err := s.KillMaster(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitForFailover(t, s)
	end()
	w.wantFailures()
	// Effects that the replica had not received when its master died may happen
	// twice. That is the work in flight, here one key for each worker and a few
	// more.
	if second := w.check(); second > 100 {
		t.Errorf("%d effects happened twice in a failover to a replica that was close behind", second)
	}
	if role := do(t, s.Replica.Addr(), "ROLE").([]any)[0]; role != "master" {
		t.Errorf("the old replica is a %v", role)
	}
}

// TestWorkContinuesThroughAPlannedFailover demotes the running master. Connections
// stay, and the demoted master refuses their commands.
func TestWorkContinuesThroughAPlannedFailover(t *testing.T) {
	t.Parallel()
	s := servicestest.StartRedisSentinel(t, nil)
	_, store := sentinelStore(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	w := newWork(t, store, 3000)
	end := w.start(ctx, w.further)
	go end() // it does not wait for the failover: the old master may grant claims for long
	w.waitFor(ctx, 500)
	do(t, s.Sentinels[0].Addr(), "SENTINEL", "FAILOVER", services.MasterName)
	waitForFailover(t, s)
	eventually(t, func() bool {
		// Sentinel closes the connections of a demoted master, also this one.
		role, err := services.RedisDo(ctx, s.Master.Addr(), "ROLE")
		return err == nil && role.([]any)[0] == "slave"
	}, "the old master is a replica")
	end()
	// The old master granted claims until it was demoted. The new master was
	// already detached and has never seen these claims.
	if second := w.check(); second > 100 {
		t.Errorf("%d effects happened twice", second)
	}
	key := semel.Key{Scope: "after", ID: "1"}
	if answer, err := askFor(ctx, store, request(key)); err != nil || answer.Decision != semel.Fresh {
		t.Errorf("after the failover: %v, %v; want a fresh claim", answer.Decision, err)
	}
	current := connect(t, s.Replica.URL(), nil)
	direct, err := New(ctx, current, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := stateOf(t, direct, key); got != semel.Claimed {
		t.Errorf("the new master has the key %v: the client still talks to the old one", got)
	}
}

// TestFailoverToADetachedReplicaLosesUnreplicatedKeys measures the cost of
// asynchronous replication. Exactly the keys that the replica missed have their
// effect again. No key is wrongly called a duplicate, and none is lost.
func TestFailoverToADetachedReplicaLosesUnreplicatedKeys(t *testing.T) {
	t.Parallel()
	s := servicestest.StartRedisSentinel(t, nil)
	_, store := sentinelStore(t, s)
	ctx := t.Context()
	completed := func(keys []semel.Key) {
		for _, key := range keys {
			answer, err := askFor(ctx, store, request(key))
			if err != nil || answer.Decision != semel.Fresh {
				t.Fatalf("%s: %v, %v; want it fresh", key, answer.Decision, err)
			}
			if err := finish(ctx, store, key, answer.Claim.Token); err != nil {
				t.Fatal(err)
			}
		}
	}
	const before, after = 100, 30
	replicated, missed := idsFrom("replicated", 0, before), idsFrom("missed", 0, after)
	completed(replicated)
	eventually(t, func() bool {
		return do(t, s.Master.Addr(), "DBSIZE") == do(t, s.Replica.Addr(), "DBSIZE")
	}, "the replica has all")
	if err := s.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	completed(missed)
	if err := s.KillMaster(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitForFailover(t, s)

	forgotten := 0
	count := func(keys []semel.Key) {
		for _, key := range keys {
			eventually(t, func() bool {
				req := request(key)
				answer, err := askFor(ctx, store, req)
				if err == nil && answer.Decision == semel.Fresh {
					forgotten++
				}
				return err == nil
			}, "the new master answers")
		}
	}
	count(replicated)
	if forgotten != 0 {
		t.Errorf("%d of %d keys that the replica had are forgotten", forgotten, before)
	}
	forgotten = 0
	count(missed)
	if forgotten != after {
		t.Errorf("%d of %d keys that the replica missed are forgotten: the fault did not happen", forgotten, after)
	}
}

func TestFencingTokensGrowAcrossAFailoverThatLosesThem(t *testing.T) {
	t.Parallel()
	s := servicestest.StartRedisSentinel(t, nil)
	_, store := sentinelStore(t, s)
	key := semel.Key{Scope: "fenced", ID: "1"}
	if err := s.Detach(t.Context()); err != nil {
		t.Fatal(err)
	}
	old, err := askFor(t.Context(), store, request(key))
	if err != nil || old.Decision != semel.Fresh {
		t.Fatalf("%v, %v; want it fresh", old.Decision, err)
	}
	if err := s.KillMaster(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitForFailover(t, s)
	var now semel.ClaimAnswer
	eventually(t, func() bool {
		now, err = askFor(t.Context(), store, request(key))
		return err == nil
	}, "the new master answers")
	if now.Decision != semel.Fresh || now.Claim.Token <= old.Claim.Token {
		t.Errorf("the claim after the failover is %v with token %d; want fresh, with more than %d", now.Decision, now.Claim.Token, old.Claim.Token)
	}
	if err := finish(t.Context(), store, key, old.Claim.Token); semel.Classify(err) != semel.ClassPermanent {
		t.Errorf("the old holder completes: %v; want its token refused", err)
	}
}
