package parkedcmd_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/programtest"
)

// asideFor returns a message that was parked this long ago.
func asideFor(id, key string, age time.Duration) pipeline.Parked {
	return pipeline.Parked{
		ID: id, Pipeline: "hooks", Key: semel.Key{Scope: "hooks", ID: key}, Reason: "attempts", Error: "no answer",
		At: time.Now().Add(-age), Message: semel.Message{Body: fmt.Appendf(nil, `{"id":%q}`, key)},
	}
}

func TestRetryLeavesMessagesParkedBeforeTheWindow(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	w := newTarget(t)
	file := parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	retry := func(words ...string) programtest.Outcome {
		t.Helper()
		return programtest.Run(t, "", append([]string{"parked", "retry", "--config", file}, words...)...)
	}
	park(t, file, asideFor("old", "m2", 8*day), asideFor("young", "m3", 6*day))
	const left = "old  hooks  m2: not redriven: parked longer ago than its key is remembered: 7d\n"

	got := retry("--all")
	got.Check(t, term.ExitFailed, "hooks: not redriven: 1 of 2 messages, parked longer ago than keys are remembered (7d)", "--past-window redrives these messages; semel parked done and skip settle them")
	if !strings.Contains(got.Stdout, left) || !strings.Contains(got.Stdout, "young  hooks  m3: redriven\n") || w.seen() != "m31" {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}
	if got = retry("old", "--json"); got.Status != term.ExitFailed || !strings.Contains(got.Stdout, `"id":"old","outcome":"not redriven","reason":"parked longer ago`) || w.seen() != "m31" {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}
	if got = retry("--all", "--dry-run"); got.Status != term.ExitDone || got.Stdout != left {
		t.Errorf("%+v", got)
	}
	if got = retry("--all", "--past-window", "--dry-run"); got.Status != term.ExitDone || !strings.Contains(got.Stdout, "old  hooks  m2: it is processed") {
		t.Errorf("%+v", got)
	}
	if got = retry("--all", "--past-window"); got.Status != term.ExitDone || got.Stdout != "old  hooks  m2: redriven\n" || w.seen() != "m31 m21" {
		t.Errorf("%+v, the target saw %s", got, w.seen())
	}

	file = parkedConfig(t, w, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }\n    window: forever")
	park(t, file, asideFor("old", "m4", 800*day))
	if got = retry("--all"); got.Status != term.ExitDone || got.Stdout != "old  hooks  m4: redriven\n" {
		t.Errorf("a key that is never forgotten: %+v", got)
	}
}
