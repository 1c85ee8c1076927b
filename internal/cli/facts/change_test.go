package facts

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/store/memstore"
)

func TestServersDropAnIDFromItsLastDeliveryOn(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	drops := config.Drops{Server: "S", For: 5 * time.Minute}
	done := func(seen, expires time.Duration) *semel.Record {
		return &semel.Record{State: semel.Done, FirstSeen: now.Add(seen), Expires: now.Add(expires)}
	}
	for name, c := range map[string]struct {
		record *semel.Record
		want   string
	}{
		"done three minutes ago":            {done(-time.Hour, 57*time.Minute), "2026-05-01 12:02:01 UTC"},
		"done ten minutes ago":              {done(-time.Hour, 50*time.Minute), ""},
		"done with another window":          {done(-time.Minute, 50*time.Minute), "2026-05-01 12:05:01 UTC"},
		"done for ever":                     {&semel.Record{State: semel.Done, FirstSeen: now.Add(-time.Hour)}, "2026-05-01 12:05:01 UTC"},
		"unknown, so perhaps done just now": {&semel.Record{State: semel.Unknown, FirstSeen: now.Add(-time.Hour)}, "2026-05-01 12:05:01 UTC"},
	} {
		if got, _ := dropsUntil(drops, completed(c.record, time.Hour), now); got != c.want {
			t.Errorf("%s: until %q, want %q", name, got, c.want)
		}
	}
	if got, why := dropsUntil(config.Drops{}, now, now); got != "" || why != "" {
		t.Errorf("a server that drops nothing: %q, %q", got, why)
	}
}

// slowLog is an audit log that takes its first line so slowly that something else happens first.
type slowLog struct {
	lines     int
	meanwhile func()
}

func (l *slowLog) Audit(context.Context, []byte) error {
	if l.lines++; l.lines == 1 {
		l.meanwhile()
	}
	return nil
}

// TestARecordThatChangedIsNotForgotten removes a done key, while another operator releases the
// key and a message claims it.
func TestARecordThatChangedIsNotForgotten(t *testing.T) {
	t.Parallel()
	key, by := semel.Key{Scope: "orders", ID: "a"}, keyrecord.By{Actor: "ops", Reason: "test"}
	for _, changes := range []bool{true, false} {
		store, err := memstore.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		claim := func(r semel.ClaimRequest) {
			answers := make([]semel.ClaimAnswer, 1)
			r.Key, r.Window = key, time.Hour
			if err := store.Claim(t.Context(), []semel.ClaimRequest{r}, answers); err != nil || answers[0].Decision != semel.Fresh {
				t.Fatal(answers[0], err)
			}
		}
		claim(semel.ClaimRequest{Owner: semel.Owner{Name: "first", Nonce: 1}, Done: true})
		log := &slowLog{meanwhile: func() {
			if !changes {
				return
			}
			if removed, err := store.Remove(t.Context(), key); err != nil || !removed {
				t.Fatal(removed, err)
			}
			claim(semel.ClaimRequest{Owner: semel.Owner{Name: "second", Nonce: 2}, Lease: time.Minute})
		}}
		hands := &Hands{store, log, store, store}
		shown, err := hands.Again(t.Context(), &semel.Record{Key: key})
		if err != nil || shown.State != semel.Done {
			t.Fatal(shown, err)
		}
		err = hands.Forget(t.Context(), by, shown)
		now, lookErr := hands.Again(t.Context(), shown)
		if lookErr != nil {
			t.Fatal(lookErr)
		}
		want := semel.Absent
		if changes {
			want = semel.Claimed
		}
		if errors.Is(err, ErrChanged) != changes || now.State != want || log.lines != 2 {
			t.Errorf("changed: %v: %v; the key is %s; %d lines of the audit log", changes, err, now.State, log.lines)
		}
	}
}
