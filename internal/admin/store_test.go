package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
)

// serve answers about a store through the socket in its directory.
func serve(t *testing.T, h *host) (*logstore.Store, *Store) {
	t.Helper()
	store, err := logstore.Open(t.TempDir(), &logstore.Options{KeepIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := ListenIn(store.Dir())
	if err != nil {
		t.Fatal(err)
	}
	h.store = func(string) (semel.Store, error) { return store, nil }
	server := onlyOwner(h)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	client, err := Dial(t.Context(), store.Dir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(client.Close(), server.Close(), store.Close()); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		if _, err := Dial(context.Background(), store.Dir()); err == nil {
			t.Error("the socket is still there")
		}
	})
	return store, client.Store("")
}

// hold makes keys unknown.
func hold(t *testing.T, store semel.Store, keys ...semel.Key) {
	t.Helper()
	for _, k := range keys {
		claims := []semel.ClaimRequest{{Key: k, Owner: semel.Owner{Name: "h", Nonce: 1}, Lease: time.Minute, Window: time.Hour, Hold: true}}
		answers := make([]semel.ClaimAnswer, 1)
		if err := store.Claim(t.Context(), claims, answers); err != nil || answers[0].Decision != semel.Fresh {
			t.Fatalf("%+v %v", answers, err)
		}
		errs := make([]error, 1)
		if err := store.Release(t.Context(), []semel.ReleaseRequest{{Key: k, Token: answers[0].Claim.Token, Unknown: true}}, errs); err != nil || errs[0] != nil {
			t.Fatal(err, errs)
		}
	}
}

func TestAdminClientAnswersLikeTheStore(t *testing.T) {
	t.Parallel()
	store, asked := serve(t, &host{Process: &Process{Redact: strings.Clone}, changes: true})
	odd := semel.Key{Scope: "\xff", ID: "\x00\xfe\"\n"} // no JSON text can have these bytes
	keys := []semel.Key{odd, {ID: "b"}, {Scope: "s", ID: "c"}, {Scope: "s", ID: "absent"}}
	hold(t, store, keys[:3]...)
	same := func() {
		t.Helper()
		want, got := make([]semel.Record, len(keys)), make([]semel.Record, len(keys))
		if err := errors.Join(store.Look(t.Context(), keys, want), asked.Look(t.Context(), keys, got)); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			if jsonOf(t, want[i]) != jsonOf(t, got[i]) || got[i].Key != want[i].Key {
				t.Errorf("%v: %+v, want %+v", keys[i], got[i], want[i])
			}
			byDigest, err := asked.LookDigest(t.Context(), want[i].Digest)
			if err != nil || byDigest.State != want[i].State {
				t.Errorf("%v by its digest: %+v %v", keys[i], byDigest, err)
			}
		}
		for _, scope := range []*string{nil, &odd.Scope, new(string)} {
			listed := map[semel.Key]semel.State{}
			for r, err := range store.List(t.Context(), semel.ListOptions{Scope: scope}) {
				if err != nil {
					t.Fatal(err)
				}
				listed[r.Key] = r.State
			}
			n := 0
			for r, err := range asked.List(t.Context(), semel.ListOptions{Scope: scope}) {
				if n++; err != nil || listed[r.Key] != r.State {
					t.Errorf("%+v %v", r, err)
				}
			}
			if n != len(listed) {
				t.Errorf("%d records, want %d", n, len(listed))
			}
		}
		counts, err := asked.Count(t.Context())
		if own, ownErr := store.Count(t.Context()); err != nil || ownErr != nil || counts.Done != own.Done || counts.Unknown != own.Unknown {
			t.Errorf("%+v, want %+v", counts, own)
		}
	}
	same()
	ctx := t.Context()
	if err := asked.Resolve(ctx, semel.ResolveRequest{Key: odd, As: semel.Done, Result: semel.Result{Kind: semel.Value, Data: []byte("\xff")}, Window: time.Hour}); err != nil {
		t.Error(err)
	}
	same()
	if err := asked.Resolve(ctx, semel.ResolveRequest{Key: odd, As: semel.Done, Window: time.Hour}); !errors.Is(err, semel.ErrNotUnknown) {
		t.Errorf("%v", err)
	}
	if err := asked.Resolve(ctx, semel.ResolveRequest{Key: keys[1], As: semel.Claimed, Window: time.Hour}); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("%v", err)
	}
	for _, want := range []bool{true, false} {
		if found, err := asked.Remove(ctx, odd); found != want || err != nil {
			t.Errorf("%t %v, want %t", found, err, want)
		}
	}
	claims := []semel.ClaimRequest{{Key: odd, Owner: semel.Owner{Name: "o", Nonce: 7}, Window: time.Hour, Done: true}, {Window: time.Hour, Done: true}}
	answers := make([]semel.ClaimAnswer, 2)
	if err := asked.Claim(ctx, claims, answers); err != nil || answers[0].Decision != semel.Fresh || !errors.Is(answers[1].Err, semel.ErrInvalidKey) {
		t.Errorf("%+v %v", answers, err)
	}
	same()
	if err := asked.Claim(ctx, []semel.ClaimRequest{{Key: odd, Lease: time.Second, Window: time.Hour}}, answers[:1]); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("a claim that another process cannot renew: %v", err)
	}
	for _, line := range []string{`{"a":1}`, `{"a":2}`, `{"a":3}`} {
		if err := asked.Audit(ctx, []byte(line)); err != nil {
			t.Error(err)
		}
	}
	if lines, err := asked.AuditTail(ctx, 2); err != nil || string(bytes.Join(lines, nil)) != `{"a":2}{"a":3}` {
		t.Errorf("%q %v", lines, err)
	}
}

// TestTheAuditLogOfParkedMessagesIsRead asks for the log of one pipeline, and for that of another, which has none.
func TestTheAuditLogOfParkedMessagesIsRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	letters, err := pipeline.OpenDeadLetterDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	const line = `{"verb":"parked retry","reason":"the bank is back"}`
	if err := errors.Join(letters.Audit(t.Context(), []byte(line)), letters.Close()); err != nil {
		t.Fatal(err)
	}
	_, asked := serve(t, &host{Process: &Process{Redact: strings.Clone, Parked: func(_ context.Context, name string) (pipeline.DeadLetters, bool, error) {
		if name != "p" {
			return nil, false, nil
		}
		letters, err := pipeline.OpenDeadLetterDir(dir)
		return letters, true, err
	}}})
	for name, want := range map[string]string{"p": line, "q": ""} {
		if lines, err := asked.client.Parked(name).AuditTail(t.Context(), 10); err != nil || string(bytes.Join(lines, nil)) != want {
			t.Errorf("%s: %q %v", name, lines, err)
		}
	}
}

// jsonOf is what two equal records have in common.
func jsonOf(t *testing.T, r semel.Record) string {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestAdminServerRefusesChangesByDefault(t *testing.T) {
	t.Parallel()
	store, asked := serve(t, &host{Process: &Process{Redact: strings.Clone}})
	k := semel.Key{ID: "k"}
	hold(t, store, k)
	done := []semel.ClaimRequest{{Key: semel.Key{ID: "n"}, Window: time.Hour, Done: true}}
	_, removed := asked.Remove(t.Context(), k)
	_, removedDigest := asked.RemoveDigest(t.Context(), semel.Digest{})
	_, purged := asked.Purge(t.Context())
	for what, err := range map[string]error{
		"Remove": removed, "RemoveDigest": removedDigest, "Purge": purged,
		"Resolve":       asked.Resolve(t.Context(), semel.ResolveRequest{Key: k, As: semel.Absent}),
		"ResolveDigest": asked.ResolveDigest(t.Context(), semel.Digest{}, semel.ResolveRequest{As: semel.Absent}),
		"Audit":         asked.Audit(t.Context(), []byte(`{"a":1}`)),
		"Claim":         asked.Claim(t.Context(), done, make([]semel.ClaimAnswer, 1)),
	} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	counts, err := store.Count(t.Context())
	if err != nil || counts.Unknown != 1 || counts.Done != 0 {
		t.Errorf("%+v %v", counts, err)
	}
}
