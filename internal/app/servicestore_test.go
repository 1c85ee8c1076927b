package app

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
)

// A store that fails under a service is logged immediately, counted afterwards, and reported
// when it works again.
func TestTheLogNamesAStoreThatFailsUnderAService(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &storeFaults{
			log:    slog.New(slog.NewTextHandler(&log, nil)),
			advise: func(err error) error { return fmt.Errorf("%w: start it", err) },
		}
		lines := func() []string {
			defer log.Reset()
			return strings.Split(strings.TrimSpace(log.String()), "\n")
		}
		down := semel.Event{Kind: semel.EventStoreError, Err: errors.New("connection refused")}
		works := semel.Event{Kind: semel.EventDecided}
		f.Observe(works)
		for _, err := range []error{semel.ErrInvalidKey, semel.ErrStaleToken} {
			f.Observe(semel.Event{Kind: semel.EventStoreError, Err: err})
		}
		f.Observe(down)
		if got := lines(); len(got) != 1 || !strings.Contains(got[0], "level=ERROR") || !strings.Contains(got[0], "connection refused: start it") || !strings.Contains(got[0], "failures=1") {
			t.Errorf("the first failure: %q", got)
		}
		for range 340 {
			f.Observe(down)
			f.Observe(works)
			time.Sleep(20 * time.Millisecond)
		}
		if got := lines(); got[0] != "" {
			t.Errorf("in the next 7 s: %q", got)
		}
		time.Sleep(4 * time.Second)
		f.Observe(down)
		if got := lines(); len(got) != 1 || !strings.Contains(got[0], "failures=341") {
			t.Errorf("after 10 s: %q", got)
		}
		time.Sleep(11 * time.Second)
		f.Observe(works)
		f.Observe(works)
		if got := lines(); len(got) != 1 || !strings.Contains(got[0], "works again") {
			t.Errorf("at the end: %q", got)
		}
	})
}
