package pgstore

import (
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func TestDoctorTellsWhatHoldsCleanUpBack(t *testing.T) {
	t.Parallel()
	generations := &examination{Store: &Store{opts: Options{Generation: 24 * time.Hour}}}
	for _, c := range []struct {
		phase phase
		lasts time.Duration
		want  semel.Severity
	}{{2, 30 * time.Hour, semel.Fine}, {2, 50 * time.Hour, semel.Notice}, {3, time.Minute, semel.Fine}, {3, 2 * time.Hour, semel.Notice}} {
		generations.findings = nil
		generations.judgeGeneration(c.phase, c.lasts)
		if got := generations.findings[0]; got.Severity != c.want {
			t.Errorf("phase %d for %v: %+v, want %s", c.phase, c.lasts, got, c.want)
		}
	}
	times := &examination{Store: &Store{hasher: hasher{times: &messageTime{age: 28 * time.Hour, slots: 32}}}}
	for behind, want := range map[time.Duration]semel.Severity{-time.Minute: semel.Fine, time.Hour: semel.Fine, 3 * time.Hour: semel.Notice} {
		times.findings = nil
		times.judgeFloor(behind)
		if got := times.findings[0]; got.Severity != want {
			t.Errorf("%v behind: %+v, want %s", behind, got, want)
		}
	}
}

func TestDoctorExaminesEveryForm(t *testing.T) {
	t.Parallel()
	for form, subject := range map[Cleanup]string{CleanupGenerations: "generation", CleanupMessageTime: "oldest message"} {
		address := shared.Database(t)
		migrated(t, address, &MigrateOptions{Cleanup: form})
		s, err := New(t.Context(), pool(t, address), nil)
		if err != nil {
			t.Fatal(err)
		}
		if form == CleanupMessageTime {
			if f := finding(t, s, subject); f.Severity != semel.Fine || f.Found != "of any age: no clean-up has run yet" {
				t.Errorf("before the first clean-up: %+v", f)
			}
		}
		purged(t, s) // raises the floor, which begins at zero
		findings, err := s.Examine(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]semel.Severity{}
		for _, f := range findings {
			seen[f.Subject] = f.Severity
		}
		for _, want := range []string{subject, "truncate"} {
			if severity, ok := seen[want]; !ok || severity != semel.Fine {
				t.Errorf("%s: %q is %s, seen: %t", form, want, severity, ok)
			}
		}
	}
}
