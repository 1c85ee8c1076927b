package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/pipeline"
)

// asked is a pipeline that counts the questions whether it can work.
type asked struct {
	mu    sync.Mutex // guards the fields below
	times int
	err   error
}

// Run implements config.Runnable.
func (a *asked) Run(context.Context) error { return nil }

// Ready implements config.Runnable.
func (a *asked) Ready(context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.times++
	return a.err
}

// Lag implements config.Runnable.
func (*asked) Lag(context.Context) ([]pipeline.Lag, error) { return nil, errors.ErrUnsupported }

// Gauges implements config.Runnable.
func (*asked) Gauges(context.Context) ([]pipeline.Gauge, error) { return nil, errors.ErrUnsupported }

// set sets the error of further questions.
func (a *asked) set(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// count returns how often it was asked since the last call of count.
func (a *asked) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.times
	a.times = 0
	return n
}

// TestAnIdlePipelineIsRarelyAskedWhetherItWorks lets a pipeline be idle for two days,
// and then lets its server end.
func TestAnIdlePipelineIsRarelyAskedWhetherItWorks(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "semel.yaml")
	const config = `
stores: { keys: { memory: {} } }
pipelines: { copy: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { file: { path: out } } } }`
	if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := kind.All().Read(name, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		p, of := &asked{}, newReadiness(file, file.Pipelines[0])
		stop := of.watch(t.Context(), p, slog.New(slog.NewTextHandler(&text, nil)))
		defer stop()
		after := func(d time.Duration) int {
			p.count()
			time.Sleep(d)
			synctest.Wait()
			return p.count()
		}
		if n := after(11 * time.Second); n != 5 {
			t.Errorf("asked %d times at the start", n)
		}
		after(2 * time.Hour)
		if n := after(24 * time.Hour); n != 24*6 {
			t.Errorf("asked %d times a day", n)
		}
		p.set(&pipeline.StoreError{Err: &net.DNSError{Err: "no such host", Name: "db.example", IsNotFound: true}})
		const cause = "store: no such host: db.example"
		if err := of.answer(t.Context(), p); err == nil || !strings.Contains(err.Error(), cause) {
			t.Errorf("a probe gets %v", err)
		}
		synctest.Wait()
		if !strings.Contains(text.String(), "not ready") || !strings.Contains(text.String(), cause) {
			t.Errorf("the log does not say what the probe met: %s", text.String())
		}
		if n := after(11 * time.Second); n != 5 {
			t.Errorf("asked %d times while it cannot work", n)
		}
		p.set(nil)
		after(3 * time.Second)
		if !strings.Contains(text.String(), "msg=ready") {
			t.Errorf("the log does not say that it works again: %s", text.String())
		}
	})
}

func TestAProbeNamesSinkAndStoreOnOneLine(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "semel.yaml")
	const config = `
stores: { keys: { memory: {} } }
pipelines: { copy: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { webhook: { url: "https://example.com" } } } }`
	if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := kind.All().Read(name, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	down := func(host string) error { return &net.DNSError{Err: "no such host", Name: host, IsNotFound: true} }
	both := errors.Join(pipeline.Unavailable(down("sink.example"), 0), &pipeline.StoreError{Err: down("store.example")})
	d := &daemon{file: file}
	const want = "sink: no such host: sink.example: check the name in sink.webhook.url; store: no such host: store.example: check the name of the host"
	if got := d.why(newReadiness(file, file.Pipelines[0]).explain(both)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
