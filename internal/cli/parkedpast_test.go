package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/file"
	"github.com/semel-dev/semel/pipeline"
)

// asideFor returns a message that was parked this long ago.
func asideFor(id, key string, age time.Duration) pipeline.Parked {
	return pipeline.Parked{
		ID: id, Pipeline: "hooks", Key: semel.Key{Scope: "hooks", ID: key}, Reason: "attempts", Error: "no answer",
		At: time.Now().Add(-age), Message: semel.Message{Body: fmt.Appendf(nil, `{"id":%q}`, key)},
	}
}

func TestRetryLeavesWhatWasPutAsideBeforeTheWindow(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	w := newTarget(t)
	file := parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	retry := func(words ...string) outcome {
		t.Helper()
		return run(t, "", append([]string{"parked", "retry", "--config", file}, words...)...)
	}
	park(t, file, asideFor("old", "m2", 8*day), asideFor("young", "m3", 6*day))
	const left = "old  hooks  m2: not redriven: put aside longer ago than its key is remembered, which is 7d\n"

	got := retry("--all")
	got.check(t, exitFailed, "hooks: not redriven: 1 of 2 messages, put aside longer ago than keys are remembered (7d)", "--past-window redrives them all the same, semel parked done and skip settle them")
	if !strings.Contains(got.stdout, left) || !strings.Contains(got.stdout, "young  hooks  m3: redriven\n") || w.seen() != "m31" {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}
	if got = retry("old", "--json"); got.status != exitFailed || !strings.Contains(got.stdout, `"id":"old","outcome":"not redriven","reason":"put aside longer ago`) || w.seen() != "m31" {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}
	if got = retry("--all", "--dry-run"); got.status != exitDone || got.stdout != left {
		t.Errorf("%+v", got)
	}
	if got = retry("--all", "--past-window", "--dry-run"); got.status != exitDone || !strings.Contains(got.stdout, "old  hooks  m2: it is processed") {
		t.Errorf("%+v", got)
	}
	if got = retry("--all", "--past-window"); got.status != exitDone || got.stdout != "old  hooks  m2: redriven\n" || w.seen() != "m31 m21" {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}

	file = parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }\n    window: forever")
	park(t, file, asideFor("old", "m4", 800*day))
	if got = retry("--all"); got.status != exitDone || got.stdout != "old  hooks  m4: redriven\n" {
		t.Errorf("a key that is never forgotten: %+v", got)
	}
}

// TestRetryLeavesWhatIsOlderThanKeysByTheirOwnTimes has keys that expire by
// message time. A message that was parked today may be from last month.
func TestRetryLeavesWhatIsOlderThanKeysByTheirOwnTimes(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	now := time.Now()
	for name, one := range map[string]struct {
		time           string
		aside, message time.Duration // ages; 0 means none
		want           string        // "" means that it is redriven
	}{
		"event, of long ago":             {"event", time.Hour, 8 * day, "older"},
		"event, of today":                {"event", time.Hour, 2 * time.Hour, ""},
		"event, put aside long ago":      {"event", 8 * day, 7 * time.Hour, "put aside longer ago"},
		"event, without a time":          {"event", time.Hour, 0, ""},
		"event, not known when":          {"event", 0, 8 * day, "older"},
		"processing, of long ago":        {"processing", time.Hour, 8 * day, ""},
		"processing, put aside long ago": {"processing", 8 * day, 9 * day, "put aside longer ago"},
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
				parkedFlags: &parkedFlags{app: &app{kinds: kind.All(), stdout: &stdout, redact: func(text string) string { return text }}}, list: []*pipeline.Parked{m},
				deadLetters: deadLetters{spec: &config.Pipeline{Name: "orders", Window: 7 * day, Sink: &file.Sink{}, Transaction: config.Transaction{Time: one.time}}},
			}
			rest, err := r.leave(now, false)
			if one.want == "" {
				if err != nil || len(rest) != 1 {
					t.Errorf("%v, and %d are left", err, len(rest))
				}
				return
			}
			if len(rest) != 0 || err == nil || !strings.Contains(err.Error(), one.want+" than keys are remembered (7d)") || !strings.Contains(stdout.String(), one.want+" than its key is remembered, which is 7d") {
				t.Errorf("%v, %s and %d are left", err, stdout.String(), len(rest))
			}
		})
	}
}
