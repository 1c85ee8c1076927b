package facts

import (
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
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
