package facts

import (
	"slices"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/admin"
)

// TestAPipelineThatIsNotSeenHasNoNumbers has one beside an idle one.
func TestAPipelineThatIsNotSeenHasNoNumbers(t *testing.T) {
	t.Parallel()
	for state, want := range map[admin.State][]string{admin.StateNotSeen: {"-", "-"}, admin.StateReady: {"0/s", "0"}} {
		p := &admin.PipelineStatus{State: state}
		if got := []string{Rate(p), InFlight(p)}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", state, got, want)
		}
	}
}

// TestUnknownKeysComeBeforeParkedMessages lists what needs a person in the order of settling.
func TestUnknownKeysComeBeforeParkedMessages(t *testing.T) {
	t.Parallel()
	eight, twelve, at := int64(8), int64(12), time.Now()
	now := &admin.Status{
		Time:      at,
		Pipelines: []admin.PipelineStatus{{Name: "calls", State: admin.StateReady, Waiting: &twelve, LastError: &admin.LastError{At: at, Event: "store_error", Cause: "unavailable"}}},
		Stores:    []admin.StoreStatus{{Name: "db", State: admin.StateReady, Unknown: &eight}},
	}
	var got []string
	for _, d := range Details(now, "c.yaml") {
		got = append(got, d.Text)
	}
	if want := []string{"calls failed last 0.0 s ago: the store failed: unavailable: the log has the error", "store db has 8 unknown keys", "calls has 12 parked messages"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
