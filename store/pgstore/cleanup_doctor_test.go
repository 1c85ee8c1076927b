package pgstore

import (
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func TestDoctorTellsWhatHoldsCleanUpBack(t *testing.T) {
	t.Parallel()
	times := &examination{Store: &Store{hasher: hasher{times: &messageTime{age: 28 * time.Hour, slots: 32}}}}
	for behind, want := range map[time.Duration]semel.Severity{-time.Minute: semel.Fine, time.Hour: semel.Fine, 3 * time.Hour: semel.Notice} {
		times.findings = nil
		times.judgeFloor(behind)
		if got := times.findings[0]; got.Severity != want {
			t.Errorf("%v behind: %+v, want %s", behind, got, want)
		}
	}
}

func TestDoctorExaminesCleanUpByMessageTime(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	migrated(t, address, &MigrateOptions{Cleanup: CleanupMessageTime})
	s, err := New(t.Context(), pool(t, address), nil)
	if err != nil {
		t.Fatal(err)
	}
	if f := finding(t, s, "oldest message"); f.Severity != semel.Fine || f.Found != "of any age: no clean-up has run yet" {
		t.Errorf("before the first clean-up: %+v", f)
	}
	purged(t, s) // raises the floor, which begins at zero
	for _, subject := range []string{"oldest message", "truncate"} {
		if f := finding(t, s, subject); f.Severity != semel.Fine {
			t.Errorf("%+v", f)
		}
	}
}
