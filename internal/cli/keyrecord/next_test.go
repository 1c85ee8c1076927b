package keyrecord

import (
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// TestTheNextDeliveryFollowsFromThePipeline says of an unknown key and of one without a record what
// the policies of its pipeline make of the next delivery.
func TestTheNextDeliveryFollowsFromThePipeline(t *testing.T) {
	t.Parallel()
	week := 7 * 24 * time.Hour
	for _, c := range []struct {
		state semel.State
		p     *config.Pipeline
		want  string
	}{
		{semel.Unknown, nil, "it is not processed (a pipeline parks it, a request gets 409): its effect may have happened"},
		{semel.Unknown, &config.Pipeline{OnFailure: pipeline.Failure{Then: pipeline.Stop}}, "the pipeline stops at it: its effect may have happened"},
		{semel.Unknown, &config.Pipeline{OnFailure: pipeline.Failure{Then: pipeline.Drop}}, "it is parked: its effect may have happened"},
		{semel.Absent, &config.Pipeline{OnLate: "drop", Window: week}, "it is processed, unless it is late, which means that its own time is older than the window of 7d (on_late: drop): the store"},
		{semel.Absent, &config.Pipeline{OnLate: "run", Window: week}, "it is processed: the store has no record of the key"},
	} {
		if got := NextDelivery(&semel.Record{State: c.state}, c.p, time.Now()); !strings.HasPrefix(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	if got := LateAgain(&config.Pipeline{OnLate: "drop", Window: week}); !strings.Contains(got, "it is dropped again as late (on_late: drop)") {
		t.Error(got)
	}
}

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
		{semel.Record{State: semel.Unknown}, "it is parked: its effect may have happened"},
		{semel.Record{}, "or it was forgotten after its window of 7d"},
	} {
		if got := NextDelivery(&c.record, &config.Pipeline{Window: 7 * 24 * time.Hour}, now); !strings.Contains(got, c.want) {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
