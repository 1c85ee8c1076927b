package parkedcmd_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/postgres"
	"github.com/semel-dev/semel/test/programtest"
)

// parkedPlaces are the settings of the places in which parked messages wait for a
// redrive. Messages in a Kafka topic are written back instead; see
// TestRetryTellsWhoSettledAMessageInATopic.
func parkedPlaces() map[string]string {
	return map[string]string{"directory": "{ path: aside }", "database": "{ store: db }"}
}

// fateConfig writes a configuration with one pipeline, hooks, that has these
// settings.
func fateConfig(t *testing.T, dsn, settings string) string {
	t.Helper()
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "")
	return programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores:
  db: { postgres: { dsn: %q } }
  keys: { embedded: { path: keys } }
  cache: { memory: {} }
admin: { listen: "off" }
pipelines:
  hooks:
    source: { file: { paths: [in.jsonl], state: state, follow: true } }
    key: { id: .id }
    on_failure: { attempts: 2, backoff: 1ms }
%s
`, dsn, settings))
}

// outcomes returns the output of a retry, without the id at the start of each
// line.
func outcomes(t *testing.T, stdout string) (list []string) {
	t.Helper()
	for line := range strings.Lines(stdout) {
		_, said, ok := strings.Cut(strings.TrimSpace(line), "  hooks  ")
		if !ok {
			t.Fatalf("not an outcome: %q", line)
		}
		list = append(list, said)
	}
	slices.Sort(list)
	return list
}

// TestRetryNamesWhoSettledAMessageFirst has an operator skip a message while a
// retry waits for it. The keys are in memory, so that no pipeline processes it.
func TestRetryNamesWhoSettledAMessageFirst(t *testing.T) {
	t.Parallel()
	for place, parked := range parkedPlaces() {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			w := newTarget(t)
			file := fateConfig(t, programtest.NewDatabase(t, true), fmt.Sprintf(`
    store: cache
    sink: { webhook: { url: %q, allow_private: true } }
    parked: %s
`, w.URL, parked))
			park(t, file, asideFor("one", "m1", time.Hour))
			// It was settled before, and parked again under the same id.
			programtest.Run(t, "", "parked", "skip", "one", "--reason", "the first time", "--config", file).Check(t, term.ExitDone)
			park(t, file, asideFor("one", "m1", time.Hour), asideFor("two", "m2", time.Hour))
			retried := make(chan programtest.Outcome, 1)
			go func() {
				retried <- programtest.Run(t, "", "parked", "retry", "--all", "--wait", "5m", "--config", file)
			}()
			for !asides(t, file)["m1"].Queued || !asides(t, file)["m2"].Queued {
				if t.Context().Err() != nil || len(retried) > 0 {
					t.Fatal("the messages are not queued")
				}
				<-time.After(20 * time.Millisecond)
			}
			programtest.Run(t, "", "parked", "skip", "one", "--reason", "no", "--config", file).Check(t, term.ExitDone)
			takeAway(t, file, "two")
			got := <-retried
			want := []string{"m1: settled by another: skipped by " + keyrecord.Actor(), "m2: settled by another: the audit log does not name the operator"}
			if said := outcomes(t, got.Stdout); got.Status != term.ExitDone || !slices.Equal(said, want) || w.seen() != "" {
				t.Errorf("%+v, want %q; the target saw %q", got, want, w.seen())
			}
		})
	}
}

// TestRetryContinuesWhenAnOperatorSkipsAMessage has an operator skip one of
// two messages while a retry waits for a process that runs the pipeline. There is
// none, and the skip must not be mistaken for one.
func TestRetryContinuesWhenAnOperatorSkipsAMessage(t *testing.T) {
	t.Parallel()
	for place, parked := range parkedPlaces() {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			// A retry waits for three seconds. An operator who stands still for as long is too late.
			for late := time.Now().Add(5 * time.Minute); !skippedDuringARetry(t, parked) && !t.Failed(); {
				if time.Now().After(late) {
					t.Fatal("every retry ended before the skip")
				}
			}
		})
	}
}

// skippedDuringARetry reports whether the skip came before the retry processed its message.
func skippedDuringARetry(t *testing.T, parked string) bool {
	t.Helper()
	w := newTarget(t)
	file := fateConfig(t, programtest.NewDatabase(t, true), fmt.Sprintf(`
    store: db
    sink: { webhook: { url: %q, allow_private: true } }
    parked: %s
`, w.URL, parked))
	park(t, file, asideFor("one", "m1", time.Hour), asideFor("two", "m2", time.Hour))
	retried := make(chan programtest.Outcome, 1)
	go func() {
		retried <- programtest.Run(t, "", "parked", "retry", "--all", "--wait", "1m", "--config", file)
	}()
	for !asides(t, file)["m2"].Queued && len(retried) == 0 {
		<-time.After(20 * time.Millisecond)
	}
	skipped := programtest.Run(t, "", "parked", "skip", "--key", "m1", "--reason", "no", "--config", file)
	got := <-retried
	said := outcomes(t, got.Stdout)
	if got.Status != term.ExitDone || !slices.Contains(said, "m2: redriven") {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(skipped.Stdout, ": skipped") {
		return false
	}
	skipped.Check(t, term.ExitDone)
	return true
}

// takeAway removes a message without an audit log entry, as by hand.
func takeAway(t *testing.T, file, id string) {
	t.Helper()
	conf, err := kind.All().Read(file, programtest.NoEnv)
	if err != nil {
		t.Fatal(err)
	}
	if path := conf.Pipelines[0].Parked.Path; path != "" {
		if err := os.Remove(filepath.Join(path, "hooks", id+".json")); err != nil {
			t.Fatal(err)
		}
		return
	}
	store, _ := conf.Store("db")
	programtest.Exec(t, store.Spec.(*postgres.Store).DSN.Reveal(), "DELETE FROM semel_parked WHERE id = '"+id+"'")
}

// TestRetryReportsAnEffectThatASkipCameTooLateFor skips a message while the
// pipeline delivers it.
func TestRetryReportsAnEffectThatASkipCameTooLateFor(t *testing.T) {
	t.Parallel()
	for place, parked := range parkedPlaces() {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			begun, end := make(chan struct{}), make(chan struct{})
			target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				close(begun)
				<-end
			}))
			defer target.Close()
			file := fateConfig(t, programtest.NewDatabase(t, true), fmt.Sprintf(`
    store: db
    lease: 2m
    sink: { webhook: { url: %q, allow_private: true, timeout: 1m } }
    parked: %s
`, target.URL, parked))
			park(t, file, asideFor("one", "m1", time.Hour))
			retried := make(chan programtest.Outcome, 1)
			go func() { retried <- programtest.Run(t, "", "parked", "retry", "one", "--wait", "5m", "--config", file) }()
			<-begun
			programtest.Run(t, "", "parked", "skip", "one", "--reason", "no", "--config", file).Check(t, term.ExitDone)
			close(end)
			got := <-retried
			if want := "m1: redriven: skipped by " + keyrecord.Actor() + " meanwhile"; got.Status != term.ExitDone || !slices.Equal(outcomes(t, got.Stdout), []string{want}) {
				t.Errorf("%+v, want %q", got, want)
			}
		})
	}
}

// TestRetryTellsCopiesOfOneKeyApart retries two parked copies of one key
// together, in every place and with every commit mode.
func TestRetryTellsCopiesOfOneKeyApart(t *testing.T) {
	t.Parallel()
	sessions := map[string]struct {
		settings string
		effects  func(t *testing.T, file string, w *target) int
		want     []string
	}{
		"claims in PostgreSQL": {"store: db\n    sink: { webhook: { url: %q, allow_private: true } }", seenBy, []string{"m1: done before", "m1: redriven"}},
		"claims in a file":     {"store: keys\n    sink: { webhook: { url: %q, allow_private: true } }", seenBy, []string{"m1: done before", "m1: redriven"}},
		"what is observed":     {"store: db\n    observe: true\n    sink: { webhook: { url: %q, allow_private: true } }", seenBy, []string{"m1: redriven", "m1: redriven"}},
		"one transaction": {"store: db\n    sink: { postgres: { store: db, table: effects, columns: { id: .id } } }\n    #%s", func(t *testing.T, file string, _ *target) int {
			t.Helper()
			conf, err := kind.All().Read(file, programtest.NoEnv)
			if err != nil {
				t.Fatal(err)
			}
			store, _ := conf.Store("db")
			var n int
			programtest.QueryRow(t, store.Spec.(*postgres.Store).DSN.Reveal(), &n, "SELECT count(*) FROM effects")
			return n
		}, []string{"m1: done before", "m1: redriven"}},
		"one checkpoint": {"store: keys\n    sink: { file: { path: out.jsonl } }\n    #%s", func(t *testing.T, file string, _ *target) int {
			t.Helper()
			return strings.Count(programtest.ReadFile(t, filepath.Join(filepath.Dir(file), "out.jsonl")), "m1")
		}, []string{"m1: done before", "m1: redriven"}},
	}
	for place, parked := range parkedPlaces() {
		for name, session := range sessions {
			t.Run(place+", "+name, func(t *testing.T) {
				t.Parallel()
				w := newTarget(t)
				dsn := programtest.NewDatabase(t, true)
				programtest.Exec(t, dsn, "CREATE TABLE effects (id text)")
				file := fateConfig(t, dsn, fmt.Sprintf("    "+session.settings, w.URL)+"\n    parked: "+parked)
				park(t, file, asideFor("one", "m1", time.Hour), asideFor("two", "m1", time.Hour))
				got := programtest.Run(t, "", "parked", "retry", "--all", "--wait", "5m", "--config", file)
				if said := outcomes(t, got.Stdout); got.Status != term.ExitDone || !slices.Equal(said, session.want) {
					t.Errorf("%+v, want %q", got, session.want)
				}
				want := strings.Count(strings.Join(session.want, "\n"), ": redriven")
				if n := session.effects(t, file, w); n != want {
					t.Errorf("%d effects, and %d are said to be redriven", n, want)
				}
			})
		}
	}
}

func seenBy(_ *testing.T, _ string, w *target) int { return len(strings.Fields(w.seen())) }
