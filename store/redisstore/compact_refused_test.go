package redisstore

import (
	"errors"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestCompactFormIsRefusedBetweenItsWrites takes one of the commands of the
// compact form from the user. A server whose disk fails refuses in the same way
// in the middle of a script. A caller that repeats its request must not be
// answered that its own key is a duplicate, and an acknowledged key must last.
func TestCompactFormIsRefusedBetweenItsWrites(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	user := func(rules ...string) { do(t, server.Addr(), append([]string{"ACL", "SETUSER", "u"}, rules...)...) }
	user("on", ">pw", "~*", "+@all")
	client := connect(t, "redis://u:pw@"+server.Addr(), nil)
	form := compactForm()
	form.Grace = 10 * time.Second
	s, err := New(t.Context(), client, &Options{Compact: form})
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"set", "sadd", "pexpireat"} {
		want := map[string]semel.Class{"set": semel.ClassUnknown, "sadd": semel.ClassUnknown, "pexpireat": semel.ClassNone}[command]
		one, two := done(ask("one step "+command, 1)), ask("two steps "+command, 2)
		one.Window, two.Window = form.Window, form.Window
		token := wantDecision(t, s, semel.Fresh, two).Claim.Token

		user("-" + command)
		err := s.Claim(t.Context(), []semel.ClaimRequest{one}, make([]semel.ClaimAnswer, 1))
		if got := semel.Classify(err); got != want {
			t.Errorf("a claim with Done, without %s: %s, %v; want it %s", command, got, err, want)
		}
		err = s.Complete(t.Context(), []semel.CompleteRequest{{Key: two.Key, Token: token, Window: form.Window}}, make([]error, 1))
		if got := semel.Classify(err); got != want {
			t.Errorf("a completion without %s: %s, %v; want it %s", command, got, err, want)
		}
		user("+" + command)

		for range 2 {
			wantDecision(t, s, semel.Fresh, one)
			if err := complete(t, s, two.Key, token, form.Window); err != nil {
				t.Errorf("a completion that is repeated, after %s was refused: %v", command, err)
			}
		}
		for _, req := range []semel.ClaimRequest{one, two} {
			memo := s.digests()
			d := memo.Key(req.Key)
			do(t, server.Addr(), "DEL", s.recordKey(&d)) // the end of its lifetime
			req.Owner.Nonce += 10
			wantDecision(t, s, semel.Duplicate, req)
			sets := 0
			for _, name := range s.appendSetKeys(nil, &d) {
				if n := do(t, server.Addr(), "PTTL", name).(int64); n != -2 {
					if sets++; n < 0 && command != "pexpireat" {
						t.Errorf("without %s a set was left that does not end", command)
					}
				}
			}
			if sets != 1 {
				t.Errorf("%s is in %d sets, want one", req.Key, sets)
			}
		}
	}
}

// TestForeignSetRefusesItsKeysAlone uses the names of a bucket's sets for
// another type. Claimed keys of the bucket can still be completed, and stay
// done.
func TestForeignSetRefusesItsKeysAlone(t *testing.T) {
	t.Parallel()
	form := compactForm()
	s := newStore(t, &Options{Compact: form})
	held, other := ask("held", 1), ask("other", 2)
	memo := s.digests()
	d := memo.Key(held.Key)
	sets := s.appendSetKeys(nil, &d)
	for o := memo.Key(other.Key); s.appendSetKeys(nil, &o)[0] == sets[0]; o = memo.Key(other.Key) {
		other.Key.ID += "s" // both had the same sets by chance
	}
	token := wantDecision(t, s, semel.Fresh, held).Claim.Token
	for _, name := range sets {
		command(t, s, "SET", name, "somebody else's")
	}
	for range 2 {
		if err := complete(t, s, held.Key, token, form.Window); err != nil {
			t.Errorf("the completion of a key that was claimed: %v", err)
		}
		if ms, err := command(t, s, "PTTL", s.recordKey(&d)).AsInt64(); err != nil || ms < form.Window.Milliseconds()/2 {
			t.Errorf("its record stays for %d ms (%v), want the window", ms, err)
		}
	}
	wantDecision(t, s, semel.Duplicate, ask("held", 3))
	records := make([]semel.Record, 1)
	if err := s.Look(t.Context(), []semel.Key{held.Key}, records); err != nil || records[0].State != semel.Done {
		t.Errorf("look shows it %s, %v", records[0].State, err)
	}
	if was, err := s.Remove(t.Context(), held.Key); err != nil || !was {
		t.Errorf("remove: %t, %v", was, err)
	}

	inOneStep := done(ask("held", 4))
	inOneStep.Window = form.Window
	for _, req := range []semel.ClaimRequest{ask("held", 5), inOneStep} {
		answers := claim(t, s, other, req, other)
		if !errors.Is(answers[1].Err, semel.ErrCorrupt) || answers[1].Decision != semel.Undecided {
			t.Errorf("a key that may be in the sets is answered %s, %v", answers[1].Decision, answers[1].Err)
		}
		if answers[0].Decision != semel.Fresh || answers[2].Decision != semel.Fresh {
			t.Errorf("the other key is answered %s, %v", answers[0].Decision, answers[0].Err)
		}
	}
	if err := complete(t, s, held.Key, token, form.Window); !errors.Is(err, semel.ErrCorrupt) {
		t.Errorf("the completion of a key that may be in the sets: %v", err)
	}
	if err := s.Look(t.Context(), []semel.Key{held.Key}, records); !errors.Is(err, semel.ErrCorrupt) {
		t.Errorf("look of a key that may be in the sets: %v", err)
	}

	command(t, s, append([]string{"DEL"}, sets...)...)
	wantDecision(t, s, semel.Fresh, inOneStep)
}
