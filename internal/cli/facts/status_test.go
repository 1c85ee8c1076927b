package facts

import (
	"slices"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/admin"
)

// TestAPipelineThatIsNotSeenHasNoNumbers has one next to an idle one.
func TestAPipelineThatIsNotSeenHasNoNumbers(t *testing.T) {
	t.Parallel()
	for state, want := range map[admin.State][]string{admin.StateNotSeen: {"-", "-"}, admin.StateReady: {"0/s", "0"}} {
		p := &admin.PipelineStatus{State: state}
		if got := []string{Rate(p), InFlight(p)}; !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", state, got, want)
		}
	}
}

// TestOldAnswersHaveTheirAge has parts that said some time ago what they are, and counts of then.
func TestOldAnswersHaveTheirAge(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago, three := now.Add(-time.Minute), int64(3)
	s := &admin.Status{
		Time: now,
		Pipelines: []admin.PipelineStatus{
			{Name: "a", State: admin.StateReady, Answered: ago, Waiting: &three, WaitingMeasured: ago},
			{Name: "b", State: admin.StateNotReady, Reason: "the server is down", Answered: ago},
			{Name: "c", State: admin.StateReady, Answered: now.Add(-time.Second), Waiting: &three, WaitingMeasured: now},
		},
		Service: &admin.ServiceStatus{Name: "proxy", State: admin.StateReady, Answered: ago},
		Stores:  []admin.StoreStatus{{Name: "db", State: admin.StateNotReady, Reason: "no answer for 3 s", Answered: ago}, {Name: "files", State: admin.StateReady, Answered: ago}},
	}
	var got []string
	for _, d := range Details(s, "c.yaml") {
		got = append(got, d.Text)
	}
	want := []string{
		"a was ready 1 min 0 s ago, and has not answered yet",
		"b is not ready: the server is down (its last answer was 1 min 0 s ago)",
		"proxy was ready 1 min 0 s ago, and has not answered yet",
		"store db is not ready: no answer for 3 s (its last answer was 1 min 0 s ago)",
		"store files was ready 1 min 0 s ago, and has not answered yet",
		"a has 3 parked messages (1 min 0 s ago)", "c has 3 parked messages",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if a, c := Waiting(s, &s.Pipelines[0]), Waiting(s, &s.Pipelines[2]); a != "3 (1 min 0 s ago)" || c != "3" {
		t.Errorf("parked: %q and %q", a, c)
	}
}

// TestTheLastCleanUpIsInWords has stores whose process deletes expired keys, and one whose process does not.
func TestTheLastCleanUpIsInWords(t *testing.T) {
	t.Parallel()
	now := &admin.Status{Time: time.Now()}
	ago := now.Time.Add(-2 * time.Minute)
	for want, c := range map[string]*admin.CleanUp{
		"": nil, "not yet": {}, "2 min 0 s ago, 1,234 keys deleted": {At: ago, Keys: 1234},
		"2 min 0 s ago: it ended early: the log has the error": {At: ago, Keys: 3, Error: "it ended early: the log has the error"},
	} {
		if got := CleanUp(now, &admin.StoreStatus{CleanUp: c}); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestTheTimeThatIsLeftHasOneUnitBelowAnHour formats estimates.
func TestTheTimeThatIsLeftHasOneUnitBelowAnHour(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[float64]string{38: "38 s", 363: "6 min", 1620: "27 min", 3500: "58 min", 9300: "2 h 35 min"} {
		if got := about(seconds); got != want {
			t.Errorf("%v s: %q, want %q", seconds, got, want)
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
