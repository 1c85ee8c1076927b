package parkedcmd

import (
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/file"
	"github.com/semel-dev/semel/pipeline"
)

// TestRetryLeavesMessagesOlderThanTheWindowByTheirTimes has keys that expire by
// message time. A message that was parked today may be from last month.
func TestRetryLeavesMessagesOlderThanTheWindowByTheirTimes(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	now := time.Now()
	for name, one := range map[string]struct {
		time           string
		aside, message time.Duration // ages; 0 means none
		want           string        // "" means that it is redriven
	}{
		"event, of long ago":          {"event", time.Hour, 8 * day, "older"},
		"event, of today":             {"event", time.Hour, 2 * time.Hour, ""},
		"event, parked long ago":      {"event", 8 * day, 7 * time.Hour, "parked longer ago"},
		"event, without a time":       {"event", time.Hour, 0, ""},
		"event, not known when":       {"event", 0, 8 * day, "older"},
		"processing, of long ago":     {"processing", time.Hour, 8 * day, ""},
		"processing, parked long ago": {"processing", 8 * day, 9 * day, "parked longer ago"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ago := func(age time.Duration) time.Time {
				if age == 0 {
					return time.Time{}
				}
				return now.Add(-age)
			}
			m := &pipeline.Parked{ID: "dead/0/1", Pipeline: "orders", At: ago(one.aside), Message: semel.Message{Time: ago(one.message)}}
			var stdout strings.Builder
			r := &retry{
				parkedFlags: &parkedFlags{App: &term.App{Kinds: kind.All(), Stdout: &stdout, Redact: func(text string) string { return text }}}, list: []*pipeline.Parked{m},
				deadLetters: deadLetters{spec: &config.Pipeline{Name: "orders", Window: 7 * day, Sink: &file.Sink{}, Transaction: config.Transaction{Time: one.time}}},
			}
			rest, err := r.leave(now, false)
			if one.want == "" {
				if err != nil || len(rest) != 1 {
					t.Errorf("%v, and %d are left", err, len(rest))
				}
				return
			}
			if len(rest) != 0 || err == nil || !strings.Contains(err.Error(), one.want+" than keys are remembered (7d)") || !strings.Contains(stdout.String(), one.want+" than its key is remembered: 7d") {
				t.Errorf("%v, %s and %d are left", err, stdout.String(), len(rest))
			}
		})
	}
}
