package parkedcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/internal/kind/file"
	"github.com/semel-dev/semel/pipeline"
)

// settlesLate is a dead-letter store in which a pipeline settles a message just
// after another process read the audit log.
type settlesLate struct {
	pipeline.DeadLetterStore
	settle func() error
}

func (s settlesLate) Settled(ctx context.Context, after int64, fn func(pipeline.Settlement) bool) error {
	err := s.DeadLetterStore.Settled(ctx, after, fn)
	return errors.Join(err, s.settle())
}

// TestRetryReportsAMessageThatIsSettledAtTheEndOfItsWait has a pipeline
// redrive a message while retry finds out what became of it.
func TestRetryReportsAMessageThatIsSettledAtTheEndOfItsWait(t *testing.T) {
	t.Parallel()
	dir, err := pipeline.OpenDeadLetterDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	m := pipeline.Parked{ID: "one", Pipeline: "hooks", Key: semel.Key{Scope: "hooks", ID: "m1"}, Reason: pipeline.ReasonAttempts, At: time.Now().Add(-time.Hour)}
	if err := errors.Join(dir.Park(t.Context(), []pipeline.Parked{m}), dir.Queue(t.Context(), []string{m.ID})); err != nil {
		t.Fatal(err)
	}
	letters := settlesLate{dir, sync.OnceValue(func() error {
		return dir.Settle(t.Context(), &m, pipeline.Settlement{How: pipeline.HowRedriven, Delivered: true, Actor: "host/1"})
	})}
	var stdout strings.Builder
	r := &retry{
		parkedFlags: &parkedFlags{App: &term.App{Stdout: &stdout, Stderr: io.Discard, Redact: strings.Clone}},
		deadLetters: deadLetters{&config.Pipeline{Name: "hooks", Sink: &file.Sink{}}, letters}, list: []*pipeline.Parked{&m},
	}
	for _, want := range []string{"one  hooks  m1: queued: the process that runs the pipeline redrives it\n", "one  hooks  m1: redriven\n"} {
		stdout.Reset()
		if _, err := r.tell(t.Context()); err != nil || stdout.String() != want {
			t.Errorf("%v, %q, want %q", err, stdout.String(), want)
		}
		if err := letters.settle(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestRetryTellsWhoSettledAMessageInATopic skips a message after a retry has listed it and before
// the retry writes it back.
func TestRetryTellsWhoSettledAMessageInATopic(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "events", "dead"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	addr := cluster.ListenAddrs()[0]
	name := filepath.Join(t.TempDir(), "c.yaml")
	text := fmt.Sprintf(`
stores: { keys: { embedded: { path: keys } } }
pipelines:
  hooks:
    source: { kafka: { brokers: [%q], topics: [events], group: hooks-once } }
    key: { id: .id }
    store: keys
    sink: { webhook: { url: "http://127.0.0.1:1", allow_private: true } }
    parked: { topic: dead }
`, addr)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	conf, err := kind.All().Read(name, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	parker, err := conf.Pipelines[0].Source.(config.Topics).OpenParker(t.Context(), conf.Pipelines[0])
	if err != nil {
		t.Fatal(err)
	}
	defer parker.Close()
	m := pipeline.Parked{
		Pipeline: "hooks", Key: semel.Key{Scope: "hooks", ID: "m1"}, Reason: pipeline.ReasonAttempts, Attempts: 1, Error: "refused",
		Message: semel.Message{Body: []byte(`{"id":"m1"}`), Origin: semel.Origin{Source: "events"}},
	}
	if err := parker.Park(t.Context(), []pipeline.Parked{m}); err != nil {
		t.Fatal(err)
	}
	var stdout strings.Builder
	use := func(out io.Writer, use func(f *parkedFlags, s deadLetters, list []*pipeline.Parked) error) error {
		f := &parkedFlags{App: &term.App{Stdout: out, Stderr: io.Discard, Patience: time.Minute, Redact: strings.Clone}, conf: conf, chosen: conf.Pipelines}
		return f.withDeadLetters(t.Context(), func(stores []deadLetters) error {
			list, err := f.chosenOn(t.Context(), stores, nil)
			if err != nil {
				return err
			}
			return use(f, stores[0], list[0])
		})
	}
	err = use(&stdout, func(f *parkedFlags, s deadLetters, list []*pipeline.Parked) error {
		err := use(io.Discard, func(f *parkedFlags, s deadLetters, list []*pipeline.Parked) error {
			return f.takeOut(t.Context(), s, list[0], facts.Skipped, "no")
		})
		if err != nil {
			return err
		}
		r := &retry{parkedFlags: f, deadLetters: s, list: list, wait: time.Minute}
		return r.giveBack(t.Context(), s.letters.(*kafka.DeadLetterTopic))
	})
	if want := "dead/0/0  hooks  m1: settled by another: skipped by " + keyrecord.Actor() + "\n"; err != nil || stdout.String() != want {
		t.Errorf("%v, %q, want %q", err, stdout.String(), want)
	}
}
