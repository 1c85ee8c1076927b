package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/observe"
	"github.com/semel-dev/semel/store/tiered"
)

func TestManyParkedMessagesAreLoggedInFewLines(t *testing.T) {
	t.Parallel()
	var flood []string
	for i := range 300 {
		flood = append(flood, fmt.Sprintf(`{"secret body":%d}`, i))
	}
	began := time.Now()
	l := start(t, input(10, flood...), "")
	waitFor(t, "both pipelines", func() bool {
		text := l.scrape(t)
		return value(text, `dedup_parked_total{pipeline="orders",reason="key-missing"}`) == 300 && value(text, `dedup_parked_total{pipeline="lines",reason="key-missing"}`) == 300 &&
			strings.Count(l.log.String(), `"msg":"parked"`) >= 20 // a line is written after it is counted
	})
	text := l.log.String()
	intervals := 1 + int(time.Since(began)/(10*time.Second))
	if n := strings.Count(text, `"msg":"parked"`); n < 20 || n > 30*(1+intervals) {
		t.Errorf("%d lines of 600 messages, want 10 for each pipeline and interval", n)
	}
	if strings.Contains(text, "secret body") {
		t.Error("a body was logged")
	}
}

func TestEventsOfLayersAreLogged(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "semel.yaml")
	if err := os.WriteFile(name, []byte("stores: { mem: { memory: {} }, disk: { embedded: { path: ./d } }, stack: { tiered: { layers: [mem, disk], sees_every_writer: true } } }"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := kind.All().Read(name, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	text := &shown{}
	d := &daemon{file: file, log: slog.New(slog.NewJSONHandler(text, nil))}
	if d.metrics, err = newMetrics(); err != nil {
		t.Fatal(err)
	}
	if d.lines, err = observe.NewLog(d.log, nil); err != nil {
		t.Fatal(err)
	}
	defer d.lines.Close()
	d.showLayers("stack")
	d.showLayers("mem")
	shows := func(series string, want float64) {
		t.Helper()
		answer := httptest.NewRecorder()
		d.metrics.handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if got := value(answer.Body.String(), series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	const mem, passed = `dedup_layer_down{layer="mem",store="stack"}`, `dedup_failopen_messages_total{pipeline="",store="stack"}`
	shows(mem, 0)
	shows(`dedup_layer_down{layer="durable",store="stack"}`, 0)
	shows(passed, 0)
	d.layer("stack", tiered.Event{Kind: tiered.EventDown, Layer: "mem", Err: errors.New("gone")})
	shows(mem, 1)
	d.layer("stack", tiered.Event{Kind: tiered.EventUp, Layer: "mem"})
	shows(mem, 0)
	for range 1000 {
		d.layer("stack", tiered.Event{Kind: tiered.EventPassed, Layer: durable, Keys: 3, Err: errors.New("gone")})
	}
	shows(passed, 3000)
	if n := strings.Count(text.String(), `"msg":"failed_open"`); n > 20 {
		t.Errorf("%d lines of 1,000 calls", n)
	}
}
