package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafkaio"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/postgres"
	"github.com/semel-dev/semel/pipeline"
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
	writeFile(t, filepath.Join(dir, "in.jsonl"), "")
	return writeFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores:
  db: { postgres: { dsn: %q } }
  keys: { embedded: { path: keys } }
  cache: { memory: {} }
admin: { listen: "off" }
pipelines:
  hooks:
    source: { file: { paths: [in.jsonl], state: state, follow: true } }
    key: { id: .id }
    on_failure: { attempts: 2, backoff: { from: 1ms, to: 1ms } }
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

// TestRetryTellsWhoSettledAMessageBeforeIt has an operator skip a message while a
// retry waits for it. The keys are in memory, so that no pipeline processes it.
func TestRetryTellsWhoSettledAMessageBeforeIt(t *testing.T) {
	t.Parallel()
	for place, parked := range parkedPlaces() {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			w := newTarget(t)
			file := fateConfig(t, databaseFor(t, true), fmt.Sprintf(`
    store: cache
    sink: { webhook: { url: %q, allow_private: true } }
    parked: %s
`, w.URL, parked))
			park(t, file, asideFor("one", "m1", time.Hour))
			// It was settled before, and parked again under the same id.
			run(t, "", "parked", "skip", "one", "--reason", "the first time", "--config", file).check(t, exitDone)
			park(t, file, asideFor("one", "m1", time.Hour), asideFor("two", "m2", time.Hour))
			retried := make(chan outcome, 1)
			go func() { retried <- run(t, "", "parked", "retry", "--all", "--wait", "5m", "--config", file) }()
			for !asides(t, file)["m1"].Queued || !asides(t, file)["m2"].Queued {
				if t.Context().Err() != nil || len(retried) > 0 {
					t.Fatal("the messages are not queued")
				}
			}
			run(t, "", "parked", "skip", "one", "--reason", "no", "--config", file).check(t, exitDone)
			takeAway(t, file, "two")
			got := <-retried
			want := []string{"m1: settled by another: skipped by " + actor(), "m2: settled by another: the audit log does not say by whom"}
			if said := outcomes(t, got.stdout); got.status != exitDone || !slices.Equal(said, want) || w.seen() != "" {
				t.Errorf("%+v, want %q; the target saw %q", got, want, w.seen())
			}
		})
	}
}

// TestRetryProcessesTheRestWhereAnOperatorTookOneOut has an operator skip one of
// two messages while a retry waits for a process that runs the pipeline. There is
// none, and the skip must not be mistaken for one.
func TestRetryProcessesTheRestWhereAnOperatorTookOneOut(t *testing.T) {
	t.Parallel()
	for place, parked := range parkedPlaces() {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			w := newTarget(t)
			file := fateConfig(t, databaseFor(t, true), fmt.Sprintf(`
    store: db
    sink: { webhook: { url: %q, allow_private: true } }
    parked: %s
`, w.URL, parked))
			park(t, file, asideFor("one", "m1", time.Hour), asideFor("two", "m2", time.Hour))
			retried := make(chan outcome, 1)
			go func() { retried <- run(t, "", "parked", "retry", "--all", "--wait", "30s", "--config", file) }()
			for !asides(t, file)["m2"].Queued && len(retried) == 0 {
			}
			run(t, "", "parked", "skip", "--key", "m1", "--reason", "no", "--config", file).check(t, exitDone)
			got := <-retried
			if said := outcomes(t, got.stdout); got.status != exitDone || !slices.Contains(said, "m2: redriven") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// takeAway removes a message without an audit log entry, as by hand.
func takeAway(t *testing.T, file, id string) {
	t.Helper()
	conf, err := kind.All().Read(file, noEnv)
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
	execute(t, store.Spec.(*postgres.Store).DSN.Reveal(), "DELETE FROM semel_parked WHERE id = '"+id+"'")
}

// TestRetryTellsOfAnEffectThatASkipCameTooLateFor skips a message while the
// pipeline delivers it.
func TestRetryTellsOfAnEffectThatASkipCameTooLateFor(t *testing.T) {
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
			file := fateConfig(t, databaseFor(t, true), fmt.Sprintf(`
    store: db
    lease: 2m
    sink: { webhook: { url: %q, allow_private: true, timeout: 1m } }
    parked: %s
`, target.URL, parked))
			park(t, file, asideFor("one", "m1", time.Hour))
			retried := make(chan outcome, 1)
			go func() { retried <- run(t, "", "parked", "retry", "one", "--wait", "5m", "--config", file) }()
			<-begun
			run(t, "", "parked", "skip", "one", "--reason", "no", "--config", file).check(t, exitDone)
			close(end)
			got := <-retried
			if want := "m1: redriven: skipped by " + actor() + " meanwhile"; got.status != exitDone || !slices.Equal(outcomes(t, got.stdout), []string{want}) {
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
			conf, err := kind.All().Read(file, noEnv)
			if err != nil {
				t.Fatal(err)
			}
			store, _ := conf.Store("db")
			var n int
			queryRow(t, store.Spec.(*postgres.Store).DSN.Reveal(), &n, "SELECT count(*) FROM effects")
			return n
		}, []string{"m1: done before", "m1: redriven"}},
		"one checkpoint": {"store: keys\n    sink: { file: { path: out.jsonl } }\n    #%s", func(t *testing.T, file string, _ *target) int {
			t.Helper()
			return strings.Count(readFile(t, filepath.Join(filepath.Dir(file), "out.jsonl")), "m1")
		}, []string{"m1: done before", "m1: redriven"}},
	}
	for place, parked := range parkedPlaces() {
		for name, session := range sessions {
			t.Run(place+", "+name, func(t *testing.T) {
				t.Parallel()
				w := newTarget(t)
				dsn := databaseFor(t, true)
				execute(t, dsn, "CREATE TABLE effects (id text)")
				file := fateConfig(t, dsn, fmt.Sprintf("    "+session.settings, w.URL)+"\n    parked: "+parked)
				park(t, file, asideFor("one", "m1", time.Hour), asideFor("two", "m1", time.Hour))
				got := run(t, "", "parked", "retry", "--all", "--wait", "5m", "--config", file)
				if said := outcomes(t, got.stdout); got.status != exitDone || !slices.Equal(said, session.want) {
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

// settlesLate is a dead-letter store in which a pipeline settles a message just
// after somebody read the audit log.
type settlesLate struct {
	pipeline.DeadLetterStore
	settle func() error
}

func (s settlesLate) Settled(ctx context.Context, after int64, fn func(pipeline.Settlement) bool) error {
	err := s.DeadLetterStore.Settled(ctx, after, fn)
	return errors.Join(err, s.settle())
}

// TestRetryTellsNothingWrongOfAMessageThatIsSettledAtTheEndOfItsWait has a pipeline
// redrive a message while retry finds out what became of it.
func TestRetryTellsNothingWrongOfAMessageThatIsSettledAtTheEndOfItsWait(t *testing.T) {
	t.Parallel()
	conf, err := kind.All().Read(parkedConfig(t, newTarget(t), "keys: { memory: {} }", "keys", "parked: { path: aside }"), noEnv)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := pipeline.OpenDeadLetterDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := asideFor("one", "m1", time.Hour)
	if err := errors.Join(dir.Park(t.Context(), []pipeline.Parked{m}), dir.Queue(t.Context(), []string{m.ID})); err != nil {
		t.Fatal(err)
	}
	letters := settlesLate{dir, sync.OnceValue(func() error {
		return dir.Settle(t.Context(), &m, pipeline.Settlement{How: pipeline.HowRedriven, Delivered: true, Actor: "host/1"})
	})}
	var stdout strings.Builder
	r := &retry{
		parkedFlags: &parkedFlags{app: &app{stdout: &stdout, stderr: io.Discard, redact: strings.Clone}},
		deadLetters: deadLetters{conf.Pipelines[0], letters}, list: []*pipeline.Parked{&m},
	}
	for _, want := range []string{"m1: queued: whoever runs the pipeline redrives it", "m1: redriven"} {
		stdout.Reset()
		if _, err := r.tell(t.Context()); err != nil || !slices.Equal(outcomes(t, stdout.String()), []string{want}) {
			t.Errorf("%v, %q, want %q", err, stdout.String(), want)
		}
		if err := letters.settle(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRetryTellsWhoSettledAMessageInATopic skips a message between the moment at
// which a retry lists it and the one at which it writes it back.
func TestRetryTellsWhoSettledAMessageInATopic(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "events", "dead"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	addr := cluster.ListenAddrs()[0]
	w := newTarget(t, "m1")
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), fmt.Sprintf(`
stores: { keys: { embedded: { path: keys } } }
admin: { listen: "off" }
pipelines:
  hooks:
    source: { kafka: { brokers: [%q], topics: [events], group: hooks-once } }
    key: { id: .id }
    store: keys
    sink: { webhook: { url: %q, allow_private: true } }
    on_failure: { attempts: 1 }
    parked: { topic: dead }
`, addr, w.URL))
	if err := produceTo(t, addr, &kgo.Record{Topic: "events", Value: []byte(`{"id":"m1"}`)}); err != nil {
		t.Fatal(err)
	}
	k := &kafkaTopics{T: t, addr: addr}
	stop := background(t, "run", file)
	k.becomes("a message is parked", func() bool { return len(asides(t, file)) == 1 })
	stop().check(t, exitDone, `"ended"`)

	conf, err := kind.All().Read(file, noEnv)
	if err != nil {
		t.Fatal(err)
	}
	var stdout strings.Builder
	f := &parkedFlags{app: &app{stdout: &stdout, stderr: io.Discard, patience: time.Minute, redact: strings.Clone}, conf: conf, chosen: conf.Pipelines}
	err = f.withDeadLetters(t.Context(), func(stores []deadLetters) error {
		list, err := f.chosenOn(t.Context(), stores, nil)
		if err != nil {
			return err
		}
		run(t, "", "parked", "skip", "--all", "--reason", "no", "--config", file).check(t, exitDone)
		r := &retry{parkedFlags: f, deadLetters: stores[0], list: list[0], wait: time.Minute}
		return r.giveBack(t.Context(), r.letters.(*kafkaio.DeadLetterTopic))
	})
	if want := []string{"m1: settled by another: skipped by " + actor()}; err != nil || !slices.Equal(outcomes(t, stdout.String()), want) {
		t.Errorf("%v, %q, want %q", err, stdout.String(), want)
	}
}

// execute runs a statement in a database.
func execute(t *testing.T, address, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}
