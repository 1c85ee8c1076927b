package brokertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// outcomes counts the acknowledgements that a source got for its messages.
type outcomes struct {
	pipeline.Source
	// positions: a message whose lease ends on a slow machine, so that it comes twice, is
	// known by its position and counts once.
	positions bool

	mu             sync.Mutex
	seen           map[position]bool
	parked, others int
	reached        func() // called when enough are acknowledged
	enough         int
}

// Ack implements pipeline.Source.
func (s *outcomes) Ack(ctx context.Context, items []*pipeline.Item) error {
	if err := s.Source.Ack(ctx, items); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range items {
		at := positionOf(it)
		switch {
		case s.positions && s.seen[at]:
		case it.Parked != "":
			s.parked++
		default:
			s.others++
		}
		s.seen[at] = true
	}
	if s.parked+s.others >= s.enough {
		s.reached()
	}
	return nil
}

// parking runs pipelines that park messages.
type parking struct {
	testing.TB
	store   semel.Store
	open    func(ctx context.Context) pipeline.Source
	letters func() pipeline.DeadLetterStore
	repeats bool // the source has the trait Repeats; known when run returns
}

// run runs a pipeline with a key rule and a handler until n messages are acknowledged.
// It returns how many were acknowledged as parked, and how many as anything else.
func (p *parking) run(ctx context.Context, rule string, n int, handler func(ctx context.Context, m pipeline.Delivery) (semel.Result, error)) (parked, others int) {
	p.Helper()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	parsed, err := key.ParseRule(rule)
	if err != nil {
		p.Fatal(err)
	}
	session, err := pipeline.NewTwoPhase(p.store, pipeline.NewHandler(handler), nil)
	if err != nil {
		p.Fatal(err)
	}
	source := &outcomes{Source: p.open(ctx), seen: map[position]bool{}, enough: n, reached: cancel}
	p.repeats, source.positions = source.Traits().Repeats, source.Traits().Positions
	runner, err := pipeline.NewRunner(source, session, &pipeline.Options{
		Name: "parking", Key: parsed, Scope: "ledger", DeadLetters: p.letters(), Failure: failure(), Shutdown: Patience,
	})
	if err != nil {
		p.Fatal(err)
	}
	if err := runner.Run(ctx); err != nil {
		p.Errorf("the pipeline: %v", err)
	}
	if got := source.parked + source.others; got < n {
		p.Errorf("%d messages were acknowledged before the suite stopped to wait, want %d", got, n)
	}
	return source.parked, source.others
}

// refuses is the handler of a target that refuses every message.
func refuses(context.Context, pipeline.Delivery) (semel.Result, error) {
	return semel.Result{}, semel.Permanent(errPermanent)
}

// check parks copies of one message, for which produce is called: some because their
// target refuses them, and some because the key rule finds nothing. Then the target and
// the rule are repaired, and one more copy must have its effect. Each copy has an entry of its
// own, unless it may be a repetition: then all copies that failed in one way share one.
func (p *parking) check(ctx context.Context, produce func(copies int)) {
	p.Helper()
	const copies = 3
	entries := 0
	for _, rule := range []string{".id", ".absent"} {
		produce(copies)
		parked, others := p.run(ctx, rule, copies, refuses)
		want := copies
		if entries += parked; p.repeats { // senders may also have repeated a parked message
			want, entries = max(copies, parked), entries-parked+1
		}
		if got := p.entries(ctx); parked != want || others != 0 || len(got) != entries {
			p.Errorf("by the rule %s, %d of %d copies are acknowledged as parked, and %d as something else; the dead-letter store has %d entries, want %d", rule, parked, copies, others, len(got), entries)
		}
	}
	effects := 0
	produce(1)
	if parked, _ := p.run(ctx, ".id", 1, func(context.Context, pipeline.Delivery) (semel.Result, error) {
		effects++
		return semel.Result{}, nil
	}); parked != 0 || effects != 1 {
		p.Errorf("a message whose earlier copies are parked had %d effects, want 1; it was parked %d times", effects, parked)
	}
	if got := p.entries(ctx); len(got) != entries {
		p.Errorf("after the effect of another copy, %d of %d messages are parked", len(got), entries)
	}
}

// entries returns the ids in the dead-letter store, which are distinct.
func (p *parking) entries(ctx context.Context) (ids []string) {
	p.Helper()
	if err := p.letters().List(ctx, "parking", func(m *pipeline.Parked) bool {
		ids = append(ids, m.ID)
		return true
	}); err != nil {
		p.Errorf("list: %v", err)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// parksEach has the source deliver messages with the same bytes and the same id.
func (e *sourceEnv) parksEach() {
	ctx, cancel := e.context()
	defer cancel()
	letters, err := pipeline.OpenDeadLetterDir(e.TempDir())
	if err != nil {
		e.Fatal(err)
	}
	p := parking{
		TB: e.watched, store: e.store, letters: func() pipeline.DeadLetterStore { return letters },
		open: func(ctx context.Context) pipeline.Source {
			return e.open(ctx).Source
		},
	}
	first := newNumbered("copied", 0, 0, 10)
	p.check(ctx, func(copies int) {
		list := make([]Numbered, copies)
		for i := range list {
			list[i] = first
			list[i].Place = e.next[0] // the place of a message, not of its copy in the body
			e.next[0]++
		}
		if err := e.place.Produce(ctx, list); err != nil {
			e.Fatalf("produce: %v", err)
		}
	})
}

// parksEach has a queue in memory deliver copies of one message.
func (e deadLetterEnv) parksEach() {
	queue := newMemoryQueue(1)
	env := newEnv(e.watched, 0, 0, 1)
	first := newNumbered("copied", 0, 0, 10)
	p := parking{
		TB: e.watched, store: env.store, letters: e.letters,
		open: func(context.Context) pipeline.Source { return queue.open() },
	}
	ctx, cancel := env.context()
	defer cancel()
	p.check(ctx, func(copies int) {
		for range copies {
			m := first
			m.Place = env.next[0]
			env.next[0]++
			e.must(queue.produce(ctx, []Numbered{m}))
		}
	})
}

// outlastsOutage ends pipelines whose target is unavailable, again and again. Each end
// is a delivery without an acknowledgement. When the target is back, each message has its
// effect, or was parked before the server gave it up.
func (e *sourceEnv) outlastsOutage() {
	if e.harness.NewLimited != nil {
		e.place = e.harness.NewLimited(e.watched)
		e.place.Partitions = max(e.place.Partitions, 1)
		e.next = make([]int, e.place.Partitions)
	}
	ctx, cancel := e.context()
	defer cancel()
	var list []Numbered
	for n := range 12 {
		partition := n % e.place.Partitions
		list = append(list, newNumbered(fmt.Sprint("o-", n), partition, e.next[partition], 10))
		e.next[partition]++
	}
	e.ledger.expect(list)
	defer e.produce(ctx, list)()
	opts := pipeline.Options{Workers: 2, MaxItems: 5} // the rest is not read
	for n := 0; n < 8 && e.ledger.acknowledged() < len(list); n++ {
		down := newScript(rand.New(rand.NewPCG(e.random.Uint64(), 3)))
		down.kind = func(*rand.Rand) plan { return plan{unavailable, -1} }
		e.script = down
		round, end := context.WithTimeout(ctx, 10*time.Second)
		runner, _ := e.runner(ctx, opts)
		go func() {
			defer end()
			for !down.hasMet(unavailable) && e.ledger.acknowledged() < len(list) && round.Err() == nil {
				_ = retry.Sleep(round, time.Millisecond)
			}
			_ = retry.Sleep(round, quiet/4) // so that more messages come
		}()
		e.end(round, runner)
		end()
	}
	e.script = newScript(rand.New(rand.NewPCG(e.random.Uint64(), 4)))
	if e.ledger.acknowledged() < len(list) {
		e.runUntilSettled(opts)
	}
	e.ledger.check(false)
	if e.harness.NewLimited != nil && !e.ledger.hasParked(string(pipeline.ReasonDeliveries)) {
		e.Error("the server limits deliveries, and no message was parked for that: the case proves nothing")
	}
}
