package observe_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/eventreason"
	"github.com/semel-dev/semel/observe"
	"github.com/semel-dev/semel/pipeline"
)

// written has the lines of a log.
type written struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *written) lines(t *testing.T) (lines []map[string]any) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.text.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		lines = append(lines, m)
	}
	return lines
}

func newLog(t *testing.T, level slog.Level, opts *observe.LogOptions) (*observe.Log, *written) {
	t.Helper()
	w := &written{}
	l, err := observe.NewLog(slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})), opts)
	if err != nil {
		t.Fatal(err)
	}
	return l, w
}

func parked(id, body string) pipeline.Event {
	it := &pipeline.Item{Message: semel.Message{Body: []byte(body)}}
	it.Call.Key = semel.Key{Scope: "orders", ID: id}
	return pipeline.Event{Kind: pipeline.EventParked, Count: 1, Reason: "permanent", Err: errors.New("answered 400"), Item: it}
}

func TestAMessageThatWasParkedBeforeIsLoggedAtLevelDebug(t *testing.T) {
	t.Parallel()
	l, w := newLog(t, slog.LevelDebug, nil)
	again := parked("x", "")
	again.Reason, again.Err = string(pipeline.ReasonParkedBefore), nil
	l.ObservePipeline(parked("x", ""))
	l.ObservePipeline(again)
	if lines := w.lines(t); len(lines) != 2 || lines[0]["level"] != "WARN" || lines[1]["level"] != "DEBUG" || lines[1]["reason"] != "parked before" {
		t.Errorf("%v", lines)
	}
}

func TestManyParkedMessagesAreLoggedInAFewLinesAndACount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, w := newLog(t, slog.LevelInfo, nil)
		for range 10_000 {
			l.ObservePipeline(parked("x", "secret body"))
		}
		late := parked("y", "")
		late.Reason = "late"
		l.ObservePipeline(late)
		if n := len(w.lines(t)); n != 11 {
			t.Errorf("%d lines of 10,001 messages, want 10 and one of another reason", n)
		}
		time.Sleep(11 * time.Second)
		lines := w.lines(t)
		if len(lines) != 12 || lines[11]["count"] != 9990.0 || lines[11]["summed"] != true || lines[11]["reason"] != "permanent" || lines[11]["level"] != "WARN" {
			t.Errorf("after the interval: %v", lines[len(lines)-1])
		}
		l.ObservePipeline(parked("x", "")) // written again
		if n := len(w.lines(t)); n != 13 {
			t.Errorf("%d lines after another message, want 13", n)
		}
		if strings.Contains(w.text.String(), "secret body") {
			t.Error("a body was logged")
		}
		l.Close()
	})
}

func TestCloseWritesTheCounts(t *testing.T) {
	t.Parallel()
	l, w := newLog(t, slog.LevelInfo, &observe.LogOptions{Burst: 1, Interval: time.Hour})
	for range 5 {
		l.ObservePipeline(parked("x", ""))
	}
	l.Close()
	l.Close()
	if lines := w.lines(t); len(lines) != 2 || lines[1]["count"] != 4.0 {
		t.Errorf("%v", lines)
	}
}

func TestFailedEffectsAreInTheDebugLog(t *testing.T) {
	t.Parallel()
	l, w := newLog(t, slog.LevelDebug, nil)
	l.Observe(semel.Event{Kind: semel.EventReleased, Attempt: 2, Err: semel.ErrPanic})
	l.Observe(semel.Event{Kind: semel.EventReleased, Attempt: 2}) // given back without an error
	l.Close()
	lines := w.lines(t)
	if len(lines) != 1 || lines[0]["msg"] != "released" || lines[0]["level"] != "DEBUG" || lines[0]["error"] != semel.ErrPanic.Error() {
		t.Errorf("%v", lines)
	}
}

func TestLogNamesKeysInWarningsOnly(t *testing.T) {
	t.Parallel()
	l, w := newLog(t, slog.LevelDebug, nil)
	retried := parked("k-77", "")
	retried.Kind, retried.Reason = pipeline.EventRetried, "failed"
	l.ObservePipeline(retried)
	retried.Reason, retried.Elapsed = eventreason.Held, 5*time.Second
	l.ObservePipeline(retried)
	key := semel.Key{Scope: "orders", ID: "k-77"}
	for kind := semel.EventDecided; kind <= semel.EventWindowMeasured; kind++ {
		l.Observe(semel.Event{Kind: kind, Key: key, Attempt: 2, Err: errors.New("of the store")})
	}
	warnings := 0
	for _, line := range w.lines(t) {
		_, has := line["key"]
		if warning := line["level"] == "WARN"; has != warning {
			t.Errorf("%v", line)
		} else if warning {
			warnings++
		}
	}
	if warnings != 4 {
		t.Errorf("%d warnings, want took_over, lease_lost, completion_refused, and one of a message that waits for another holder", warnings)
	}
	l.Close()
}

func TestDroppedDuplicatesAreLoggedByTheirShare(t *testing.T) {
	t.Parallel()
	items := make([]*pipeline.Item, 1000)
	for i := range items {
		items[i] = &pipeline.Item{Message: semel.Message{Body: []byte("secret body"), Origin: semel.Origin{Source: "orders", Partition: 2, Offset: int64(i)}}}
		items[i].Call.Key = semel.Key{Scope: "s", ID: "k-77"}
	}
	decided := func(l *observe.Log, d semel.Decision) {
		l.ObservePipeline(pipeline.Event{Kind: pipeline.EventDecided, Count: len(items), Decision: d, Items: items})
	}
	for _, c := range []struct {
		level       slog.Level
		share       float64
		least, most int // lines
	}{
		{slog.LevelInfo, 0, 0, 0},
		{slog.LevelInfo, 1, 1000, 1000},
		{slog.LevelWarn, 1, 0, 0},
		{slog.LevelInfo, 0.5, 300, 700}, // 12 standard deviations
		{slog.LevelDebug, 0, 1000, 1000},
	} {
		l, w := newLog(t, c.level, &observe.LogOptions{Duplicates: c.share})
		decided(l, semel.Duplicate)
		decided(l, semel.Late)
		lines := w.lines(t)
		if len(lines) < c.least || len(lines) > c.most || strings.Contains(w.text.String(), "secret body") {
			t.Errorf("%+v: %d lines", c, len(lines))
		}
		for _, line := range lines {
			place, _ := line["origin"].(map[string]any)
			if line["msg"] != "duplicate" || line["scope"] != "s" || line["key"] != "k-77" || place["source"] != "orders" || place["partition"] != 2.0 || place["offset"] == nil {
				t.Fatalf("%v", line)
			}
		}
		l.Close()
	}
}

func TestKeysCanBeCopiedFromTheLog(t *testing.T) {
	t.Parallel()
	l, w := newLog(t, slog.LevelInfo, nil)
	for _, id := range []string{"e-10", "größe 7", "a\nb", "\xff"} {
		l.ObservePipeline(parked(id, ""))
	}
	l.Close()
	for i, want := range []string{"e-10", "größe 7", `"a\nb"`, `"\xff"`} {
		if line := w.lines(t)[i]; line["scope"] != "orders" || line["key"] != want {
			t.Errorf("scope %v, key %v, want %s", line["scope"], line["key"], want)
		}
	}
}

func TestErrorsAreOnOneLine(t *testing.T) {
	t.Parallel()
	l, w := newLog(t, slog.LevelInfo, nil)
	l.ObservePipeline(pipeline.Event{Kind: pipeline.EventPaused, Reason: "sink", Err: errors.New("failed:\n\ta: refused\n\ta: refused\n\tb: refused"), Attempt: 1, Next: 2 * time.Second})
	l.Close()
	line := w.lines(t)[0]
	if line["attempt"] != 1.0 || line["next"] != 2e9 {
		t.Errorf("attempt and next of a pause: %v", line)
	}
	if got := line["error"]; got != "failed: a: refused; b: refused" {
		t.Errorf("%v", got)
	}
}

func TestErrorsAreRedactedBeforeTheyAreShortened(t *testing.T) {
	t.Parallel()
	l, w := newLog(t, slog.LevelInfo, &observe.LogOptions{Redact: func(text string) string { return strings.ReplaceAll(text, "hunter2", "***") }})
	l.ObservePipeline(pipeline.Event{Kind: pipeline.EventPaused, Reason: "sink", Err: errors.New(strings.Repeat("é", 255) + "hunter2" + strings.Repeat("x", 9000))})
	l.Close()
	text, _ := w.lines(t)[0]["error"].(string)
	if len(text) > 520 || strings.Contains(text, "hun") || !strings.HasSuffix(text, "…") || strings.Contains(text, "\uFFFD") {
		t.Errorf("%d bytes: %s", len(text), text)
	}
}

func TestLogOptionsAreChecked(t *testing.T) {
	t.Parallel()
	_, err := observe.NewLog(nil, &observe.LogOptions{Burst: -1, Interval: -1, Duplicates: math.NaN()})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatal(err)
	}
	for _, want := range []string{"the log is nil", "Burst", "Interval", "Duplicates"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}

// counts is an observer that counts events and their keys.
type counts struct{ calls, events int }

func (c *counts) ObservePipeline(pipeline.Event) {}
func (c *counts) Observe(e semel.Event)          { c.calls, c.events = c.calls+1, c.events+max(e.Count, 1) }

func TestAllPassesBatchEventsToEachObserver(t *testing.T) {
	t.Parallel()
	one, two := &counts{}, &counts{}
	log, _ := newLog(t, slog.LevelInfo, nil)
	defer log.Close()
	all := observe.All(one, log, two)
	all.Observe(semel.Event{Kind: semel.EventCompleted, Count: 7})
	all.Observe(semel.Event{Kind: semel.EventCompleted})
	for _, c := range []*counts{one, two} {
		if c.calls != 2 || c.events != 8 {
			t.Errorf("%d calls with %d events, want 2 with 8", c.calls, c.events)
		}
	}
}

func TestAllPassesEventsToEachObserver(t *testing.T) {
	t.Parallel()
	one, first := newLog(t, slog.LevelInfo, nil)
	two, second := newLog(t, slog.LevelInfo, nil)
	both := observe.All(one, two)
	both.ObservePipeline(parked("x", ""))
	both.Observe(semel.Event{Kind: semel.EventLeaseLost})
	for _, w := range []*written{first, second} {
		if n := len(w.lines(t)); n != 2 {
			t.Errorf("%d lines, want 2", n)
		}
	}
	one.Close()
	two.Close()
}

func TestAStallIsReported(t *testing.T) {
	t.Parallel()
	l, w := newLog(t, slog.LevelInfo, nil)
	defer l.Close()
	it := &pipeline.Item{Message: semel.Message{Origin: semel.Origin{Source: "orders", Partition: 2, Offset: 17}}}
	l.ObservePipeline(pipeline.Event{Kind: pipeline.EventStalled, Count: 3000, Elapsed: 20*time.Second + 12, Reason: "delivery to the sink", Err: errors.New("refused"), Item: it})
	l.ObservePipeline(pipeline.Event{Kind: pipeline.EventMoves, Elapsed: 61 * time.Second})
	l.ObservePipeline(pipeline.Event{Kind: pipeline.EventResumed, Reason: "sink", Elapsed: 68*time.Second + 12})
	lines := w.lines(t)
	if len(lines) != 3 {
		t.Fatalf("%v", lines)
	}
	for i, want := range []map[string]any{
		{"level": "WARN", "msg": "stalled", "for": "20s", "in_flight": 3000.0, "oldest": "orders/2/17", "waiting_for": "delivery to the sink", "error": "refused"},
		{"level": "INFO", "msg": "moves_again", "stalled_for": "1m1s"},
		{"level": "INFO", "msg": "resumed", "elapsed": float64(68 * time.Second)},
	} {
		for name, value := range want {
			if lines[i][name] != value {
				t.Errorf("%s: %v, want %v", name, lines[i][name], value)
			}
		}
	}
}

// TestDifferingDuplicatesAreLoggedInOneLine has more of them than a burst may have.
func TestDifferingDuplicatesAreLoggedInOneLine(t *testing.T) {
	t.Parallel()
	l, w := newLog(t, slog.LevelInfo, &observe.LogOptions{Burst: 1, Interval: time.Hour})
	for range 3 {
		e := parked("7", "secret")
		e.Kind, e.Count = pipeline.EventDiffering, 4
		l.ObservePipeline(e)
	}
	l.Close()
	text := w.text.String()
	if n := strings.Count(text, "differing"); n != 1 || !strings.Contains(text, "the key may be too coarse") || !strings.Contains(text, "orders") || strings.Contains(text, "secret") {
		t.Errorf("%d lines: %s", n, text)
	}
}
