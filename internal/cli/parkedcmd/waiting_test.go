package parkedcmd_test

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// retryUntilItSays retries a message that no target takes until this is on stderr. It waits longer
// each time: a machine that stands still has no time for a try.
func retryUntilItSays(t *testing.T, text, key string, wait time.Duration, file string) (got programtest.Outcome) {
	t.Helper()
	for ; wait < 2*time.Minute; wait *= 2 {
		if got = programtest.Run(t, "", "parked", "retry", "--key", key, "--wait", wait.String(), "--config", file); strings.Contains(got.Stderr, text) {
			break
		}
	}
	return got
}

// TestRetrySaysWhyItWaits retries a message while its target answers 503: first while a process
// runs the pipeline, and then alone.
func TestRetrySaysWhyItWaits(t *testing.T) {
	t.Parallel()
	var status atomic.Int32
	status.Store(http.StatusBadRequest)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "of m1", int(status.Load()))
	}))
	t.Cleanup(server.Close)
	file := parkedConfig(t, &target{Server: server}, "keys: { embedded: { path: keys } }", "keys", "parked: { path: aside }")
	programtest.Run(t, "", "run", file, "--quiet").Check(t, term.ExitDone)
	ids := programtest.Run(t, "", "__complete", "parked", "show", "--config", file, "")
	if ids.Status != term.ExitDone || strings.Count(ids.Stdout, "\thooks: permanent\n") != 5 || strings.Count(ids.Stdout, "\thooks: key-missing\n") != 1 {
		t.Errorf("the ids for a shell: %+v", ids)
	}
	following := programtest.WriteFile(t, filepath.Join(filepath.Dir(file), "follow.yaml"), strings.Replace(programtest.ReadFile(t, file), "in.jsonl]", "in.jsonl], follow: true", 1))
	stop := programtest.Background(t, "run", following)

	status.Store(http.StatusServiceUnavailable)
	down := server.URL + " answered 503 Service Unavailable"
	got := retryUntilItSays(t, "waiting: ", "m1", 7*time.Second, following)
	got.Check(t, term.ExitFailed, "waiting: hooks is paused: ", down+": is the service up?")
	if !strings.Contains(got.Stdout, "m1: queued: hooks is paused: ") {
		t.Errorf("%+v", got)
	}
	// While an attempt is under way, the next one has no time.
	for deadline := time.Now().Add(time.Minute); !strings.Contains(got.Stdout, down+": is the service up?; next attempt in "); got = programtest.Run(t, "", "status", following) {
		if time.Now().After(deadline) {
			t.Fatalf("the status after a minute: %+v", got)
		}
		<-time.After(50 * time.Millisecond)
	}
	if got.Status != term.ExitFound || !strings.Contains(got.Stdout, "hooks is not ready: the sink has not worked since ") || strings.Contains(got.Stdout, "of m1") {
		t.Errorf("%+v", got)
	}
	status.Store(http.StatusOK)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(got.Stdout, "which is over: "); got = programtest.Run(t, "", "status", following) {
		if time.Now().After(deadline) {
			t.Fatalf("a minute after the trouble: %s", got.Stdout)
		}
		<-time.After(50 * time.Millisecond)
	}
	if !strings.Contains(got.Stdout, down+"\n") || strings.Contains(got.Stdout, "is the service up") {
		t.Errorf("trouble that is over has a remedy: %s", got.Stdout)
	}
	stop().Check(t, term.ExitDone, "running")

	status.Store(http.StatusServiceUnavailable)
	got = retryUntilItSays(t, "waiting: ", "m2", 2*time.Second, file)
	got.Check(t, term.ExitFailed, "waiting: the sink of hooks does not work: "+"webhook "+server.URL, "answered 503 Service Unavailable: of m1: is the service up?; next attempt in ")
}
