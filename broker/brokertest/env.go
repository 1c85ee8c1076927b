package brokertest

import (
	"cmp"
	"context"
	"math/rand/v2"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
)

// env is what the cases for sources and the cases for sinks have in common.
type env struct {
	*watched
	messages int
	random   *rand.Rand
	ledger   *ledger
	script   *script
	store    semel.Store
	next     []int  // of each partition, the place of the next message
	label    string // of the goroutines that the case starts, and that these start
	labelled context.Context
}

func newEnv(w *watched, most time.Duration, messages, partitions int) env {
	w.Helper()
	store, err := memstore.New(nil)
	if err != nil {
		w.Fatal(err)
	}
	w.patience = cmp.Or(most, Patience)
	e := env{watched: w, messages: cmp.Or(messages, 600), random: newRandom(w), ledger: newLedger(w), store: store, next: make([]int, partitions)}
	e.ledger.patience = w.patience
	e.script = newScript(rand.New(rand.NewPCG(e.random.Uint64(), 1)))
	e.label = strconv.FormatUint(rand.Uint64(), 36)
	e.labelled = pprof.WithLabels(w.Context(), pprof.Labels("case", e.label))
	pprof.SetGoroutineLabels(e.labelled)
	return e
}

// byHarness returns a function of the harness, without the label for the goroutines that
// it starts: those of a client with which a harness fills a queue end with the test.
func (e *env) byHarness(call func(context.Context) error) func(context.Context) error {
	if call == nil {
		return nil
	}
	return func(ctx context.Context) error {
		pprof.SetGoroutineLabels(context.Background())
		defer pprof.SetGoroutineLabels(e.labelled)
		return call(ctx)
	}
}

// context returns a context that ends when nothing has happened for the suite's patience.
func (e *env) context() (context.Context, context.CancelFunc) { return e.ledger.context() }

// complete sets the options that all pipelines of the suite have.
func (e *env) complete(opts *pipeline.Options) {
	e.Helper()
	rule, err := key.ParseRule(".id")
	if err != nil {
		e.Fatal(err)
	}
	opts.Key, opts.Failure, opts.DeadLetters = rule, failure(), parker{e.ledger}
	opts.Scope, opts.Shutdown = "ledger", e.patience
}

// restarting has a server restarted three times while messages are produced and
// under way. The function that it returns waits for the end.
func (e *env) restarting(ctx context.Context, list []Numbered, restart func(context.Context) error, produce func([]Numbered) (wait func())) (wait func()) {
	times := 3
	if testing.Short() {
		times = 1
	}
	part := len(list) / (times + 1)
	var running sync.WaitGroup
	running.Go(func() {
		for n := range times {
			goal := e.ledger.acknowledged() + 1
			wait := produce(list[n*part : (n+1)*part])
			e.ledger.reach(ctx, goal)
			// The other messages are not produced yet, so the pipeline has not ended.
			if err := e.ledger.during(restart); err != nil {
				e.Errorf("restart %d: %v", n+1, err)
			}
			wait()
		}
		produce(list[times*part:])()
	})
	return running.Wait
}

// allEnded waits until the goroutines have ended that the case started. Parallel tests start
// and end others all the time, so those of the case have a label.
func (e *env) allEnded() {
	e.Helper()
	// Those of the case itself and of Produce, and some that are about to end.
	const stray = 4
	for deadline := time.Now().Add(min(e.patience, time.Minute)); ; {
		running, stacks := e.running()
		if running <= stray {
			return
		}
		if time.Now().After(deadline) {
			e.Errorf("%d goroutines that the case started still run:\n%s", running, stacks)
			return
		}
		_ = retry.Sleep(e.Context(), 10*time.Millisecond)
	}
}

// running returns how many goroutines with the label of the case run, and where.
func (e *env) running() (n int, stacks string) {
	e.Helper()
	var profile, ours strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		e.Fatal(err)
	}
	// Behind a first line, a paragraph says how many goroutines have a stack, their labels, and the stack.
	_, paragraphs, _ := strings.Cut(profile.String(), "\n")
	for stack := range strings.SplitSeq(paragraphs, "\n\n") {
		if !strings.Contains(stack, strconv.Quote(e.label)) {
			continue
		}
		count, _, _ := strings.Cut(stack, " @ ")
		same, err := strconv.Atoi(count)
		if err != nil {
			e.Fatalf("a goroutine profile of another form: %v in %q", err, stack)
		}
		n += same
		ours.WriteString(stack + "\n\n")
	}
	if n == 0 {
		e.Fatal("the goroutine profile lacks the goroutine of the case")
	}
	return n, ours.String()
}
