package redisstore

import (
	"context"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// expiring is a server on which a name expires right after a certain command
// reads it.
type expiring struct {
	rueidis.Client
	after string
}

func (e expiring) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	results := make([]rueidis.RedisResult, len(multi))
	for i, command := range multi {
		words := append([]string(nil), command.Commands()...) // the client reuses its own slice
		results[i] = e.Client.Do(ctx, command)
		if words[0] == e.after {
			e.Client.Do(ctx, e.Client.B().Del().Key(words[1]).Build())
		}
	}
	return results
}

// A walk reads a name with several commands, and the name may expire in
// between.
func TestWalkSkipsKeysThatExpireWhileItReads(t *testing.T) {
	t.Parallel()
	for _, after := range []string{"GETRANGE", "STRLEN"} {
		s := newStore(t, nil)
		wantDecision(t, s, semel.Fresh, done(ask("soon", 1)))
		memo := s.digests()
		d := memo.Key(ask("soon", 1).Key)
		p, err := s.readRecords(t.Context(), expiring{s.client, after}, []string{s.recordKey(&d)})
		if err != nil || len(p.records) != 0 {
			t.Errorf("after %s: %+v, %v; want no record", after, p, err)
		}
	}
	s := newStore(t, &Options{Compact: &Compact{Window: time.Hour}})
	wantDecision(t, s, semel.Fresh, done(ask("soon", 1)))
	memo := s.digests()
	d := memo.Key(ask("soon", 1).Key)
	p, err := s.readSets(t.Context(), expiring{s.client, "SCARD"}, s.appendSetKeys(nil, &d))
	if err != nil || len(p.sets) != 0 {
		t.Errorf("after SCARD: %+v, %v; want no set", p, err)
	}
}

func TestKeysOfAVersionWithoutScopeRulesAreFound(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*Options{"plain": {}, "compact": {Compact: &Compact{Window: time.Hour}}} {
		s := newStore(t, opts)
		check := func(when string, want bool) {
			t.Helper()
			late := time.Now().Add(time.Minute) // the server may be slow, and has the names of other tests
			if got, err := s.keysWithoutRule(t.Context(), late); got != want || err != nil {
				t.Errorf("%s, %s: %t, %v", name, when, got, err)
			}
		}
		check("an empty store", false)
		a := wantDecision(t, s, semel.Fresh, ask("given back", 1))
		errs := make([]error, 1)
		if err := s.Release(t.Context(), []semel.ReleaseRequest{{Key: ask("given back", 1).Key, Token: a.Claim.Token}}, errs); err != nil || errs[0] != nil {
			t.Fatal(err, errs)
		}
		check("no key is left", false)
		wantDecision(t, s, semel.Fresh, done(ask("x", 2)))
		check("a key", true)
		if _, err := s.BindScope(t.Context(), "another", ".id"); err != nil {
			t.Fatal(err)
		}
		check("a scope is bound", false)
	}
}
