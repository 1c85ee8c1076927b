package pipeline

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
)

// failing is a dead-letter store that cannot settle for a while.
type failing struct {
	DeadLetterStore
	left int
}

func (f *failing) Settle(ctx context.Context, p *Parked, how Settlement) error {
	if f.left--; f.left >= 0 {
		return errors.New("the disk is full")
	}
	return f.DeadLetterStore.Settle(ctx, p, how)
}

func TestParkedMessagesExpire(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	letters, err := OpenDeadLetterDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for id, age := range map[string]time.Duration{"old": 25 * time.Hour, "queued": 25 * time.Hour, "young": 23 * time.Hour} {
			p := Parked{ID: id, Pipeline: "p", Key: semel.Key{Scope: "p", ID: id}, Reason: ReasonPermanent, Error: "refused", At: now.Add(-age)}
			if err := letters.Park(t.Context(), []Parked{p}); err != nil {
				t.Fatal(err)
			}
		}
		if err := letters.Park(t.Context(), []Parked{{ID: "other", Pipeline: "q", At: now.Add(-48 * time.Hour)}}); err != nil {
			t.Fatal(err)
		}
		if err := letters.Queue(t.Context(), []string{"queued"}); err != nil {
			t.Fatal(err)
		}
		var events []Event
		s := newRedriven(&failing{letters, 1}, "p", false)
		s.expiry = &expiry{age: 24 * time.Hour, observe: func(e Event) { events = append(events, e) }}
		look := func() int {
			events = nil
			s.expiry.run(t.Context(), s)
			return len(events)
		}
		if look() != 1 || events[0].Kind != EventPaused || events[0].Reason != "parking" || events[0].Err == nil {
			t.Fatalf("a look that failed: %+v", events)
		}
		if look() != 0 {
			t.Errorf("it looks again without a pause: %+v", events)
		}
		time.Sleep(expiryRetry)
		if look() != 2 || events[0].Kind != EventDropped || events[0].Reason != "expired" || events[0].Item.Call.Key.ID != "old" || events[1].Kind != EventResumed {
			t.Fatalf("%+v", events)
		}
		for id, want := range map[string]error{"old": ErrNotParked, "queued": nil, "young": nil, "other": nil} {
			if _, err := letters.Get(t.Context(), id); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", id, err, want)
			}
		}
		time.Sleep(time.Hour)
		if look() != 1 || events[0].Item.Call.Key.ID != "young" {
			t.Errorf("an hour later: %+v", events)
		}
	})
	log, err := os.ReadFile(filepath.Join(dir, auditName))
	if err != nil || bytes.Count(log, []byte(`"how":"expired"`)) != 2 || !bytes.Contains(log, []byte(`"reason":"parked for longer than 24h0m0s"`)) {
		t.Errorf("%s, %v", log, err)
	}
}
