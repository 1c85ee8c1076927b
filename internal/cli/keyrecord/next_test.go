package keyrecord

import (
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
)

func TestTheNextDeliveryFollowsFromTheRecord(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		record semel.Record
		want   string
	}{
		{semel.Record{State: semel.Claimed, Holder: "worker-7", LeaseEnd: now.Add(time.Minute)}, "it waits: worker-7 holds the key until 2026-01-02 03:05:05 UTC and may extend that; after 5s it goes back"},
		{semel.Record{State: semel.Claimed, Attempt: 2, LeaseEnd: now}, "it is processed, as attempt 3: the lease of the last one ended"},
		{semel.Record{State: semel.Done, Result: semel.Result{Kind: semel.Failed}, Expires: now}, "a duplicate of a message that failed permanently: it is acknowledged without effect, and gets the stored error, until 2026-01-02 03:04:05 UTC"},
		{semel.Record{}, "it was forgotten after its window of 7d"},
	} {
		if got := NextDelivery(&c.record, &config.Pipeline{Window: 7 * 24 * time.Hour}, now); !strings.Contains(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
