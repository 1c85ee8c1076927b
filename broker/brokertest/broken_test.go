package brokertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/trytest"
)

// sourceBug is what a broken source does.
type sourceBug string

const (
	acksEarly       sourceBug = "forgets messages when they are read"
	loses           sourceBug = "loses a message"
	losesReturned   sourceBug = "loses what is returned"
	losesInRestart  sourceBug = "loses what was read when its server is restarted"
	reorders        sourceBug = "reorders a partition"
	forgetsAcks     sourceBug = "forgets acknowledgements when it is closed"
	acksTheRest     sourceBug = "takes an acknowledgement for those before it as well"
	changesBody     sourceBug = "changes a body"
	ignoresContext  sourceBug = "does not end with its context"
	leavesGoroutine sourceBug = "leaves goroutines behind"
	sameOrigin      sourceBug = "gives all messages one origin"
	countsByName    sourceBug = "has the positions of an earlier place of the same name"
	sharesPositions sourceBug = "gives two messages one position"
	changesPosition sourceBug = "gives each delivery another position"
	claimsPositions sourceBug = "has no identities, and says that it has positions"
	deniesPositions sourceBug = "has identities, and says that it has no positions"
	hidesPositions  sourceBug = "is not tried with a place that was made again"
)

// faultySource is a source in memory with a bug.
type faultySource struct {
	*queueSource
	bug   sourceBug
	mu    sync.Mutex
	given []*pipeline.Item
	// losing: the next message is lost.
	losing bool
}

// Read implements pipeline.Source.
func (s *faultySource) Read(ctx context.Context) ([]*pipeline.Item, error) {
	if s.bug == ignoresContext && ctx.Done() != nil {
		inner, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		items, err := s.queueSource.Read(inner)
		if err != nil {
			return nil, nil
		}
		return items, nil
	}
	if s.bug == leavesGoroutine {
		for range 10 {
			go func() { select {} }()
		}
	}
	items, err := s.queueSource.Read(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given = append(s.given, items...)
	switch {
	case len(items) == 0:
	case slices.Contains([]sourceBug{countsByName, sharesPositions, changesPosition, claimsPositions, sameOrigin}, s.bug):
		for _, it := range items {
			s.misplace(&it.Message.Origin)
		}
	case s.losing:
		s.losing = false
		items = items[1:]
	case s.bug == acksEarly:
		_ = s.queueSource.Ack(ctx, items)
	case s.bug == loses && len(items) > 3:
		items = slices.Delete(items, 1, 2)
	case s.bug == changesBody:
		items[0].Message.Body = append([]byte{' '}, items[0].Message.Body...)
	case s.bug == reorders && len(items) > 10:
		slices.Reverse(items)
	}
	return items, err
}

// misplace gives a message a wrong origin.
func (s *faultySource) misplace(o *semel.Origin) {
	switch s.bug {
	case countsByName:
		o.Identity = o.Source
	case sharesPositions:
		o.Offset /= 2
	case changesPosition:
		o.Identity = strconv.FormatUint(rand.Uint64(), 36)
	case claimsPositions:
		o.Identity = ""
	case sameOrigin:
		*o = semel.Origin{Source: "queue"}
	}
}

// Traits implements pipeline.Source.
func (s *faultySource) Traits() pipeline.SourceTraits {
	traits := s.queueSource.Traits()
	traits.Positions = s.bug != deniesPositions
	return traits
}

// Ack implements pipeline.Source.
func (s *faultySource) Ack(ctx context.Context, items []*pipeline.Item) error {
	switch s.bug {
	case forgetsAcks:
		return nil
	case acksTheRest:
		s.mu.Lock()
		defer s.mu.Unlock()
		last := 0
		for i, it := range s.given {
			if slices.Contains(items, it) {
				last = i + 1
			}
		}
		return s.queueSource.Ack(ctx, s.given[:last])
	}
	return s.queueSource.Ack(ctx, items)
}

// Return implements pipeline.Source.
func (s *faultySource) Return(ctx context.Context, items []*pipeline.Item, delay time.Duration) error {
	if s.bug == losesReturned {
		return s.queueSource.Ack(ctx, items)
	}
	return s.queueSource.Return(ctx, items, delay)
}

// lose has the next message lost.
func (s *faultySource) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.losing = true
}

func TestSuiteCatchesBrokenSources(t *testing.T) {
	t.Parallel()
	const positions = "a position is a key, or there are no positions"
	for b, caught := range map[sourceBug][]string{
		acksEarly:       {"settled messages are not redelivered, unsettled ones are"},
		loses:           {"every message is settled, and each key has its effect once"},
		losesReturned:   {"returned messages are redelivered"},
		reorders:        {"every message is settled, and each key has its effect once", "the order of a partition holds while messages fail"},
		forgetsAcks:     {"every message is settled, and each key has its effect once", "settled messages are not redelivered, unsettled ones are"},
		acksTheRest:     {"settled messages are not redelivered, unsettled ones are"},
		changesBody:     {"every message is settled, and each key has its effect once"},
		losesInRestart:  {"the server is restarted in the middle"},
		ignoresContext:  {"Read ends with its context, and Close ends everything"},
		countsByName:    {positions},
		sharesPositions: {positions},
		changesPosition: {positions},
		claimsPositions: {positions},
		deniesPositions: {positions},
		hidesPositions:  {positions},
		leavesGoroutine: {"every message is settled, and each key has its effect once"},
		sameOrigin:      {"each parked message has its own entry"},
	} {
		for _, name := range caught {
			t.Run(fmt.Sprintf("%s/%s", b, name), func(t *testing.T) {
				h := SourceHarness{
					New:      func(tb testing.TB) SourcePlace { return newFaultySource(tb, b, nil) },
					Messages: 200, patience: time.Second,
				}
				if failures := tryCase(t, sourceCases(), name, func(tb testing.TB) *sourceEnv { return newSourceEnv(tb, h) }); len(failures) == 0 {
					t.Errorf("a source that %s passes", b)
				}
			})
		}
	}
}

func TestSuiteRestartsTheServerOncePerRound(t *testing.T) {
	t.Parallel()
	restarted := 0
	h := SourceHarness{New: func(tb testing.TB) SourcePlace { return newFaultySource(tb, "", &restarted) }}
	failures := tryCase(t, sourceCases(), "the server is restarted in the middle", func(tb testing.TB) *sourceEnv { return newSourceEnv(tb, h) })
	want := 3
	if testing.Short() {
		want = 1
	}
	if len(failures) > 0 || restarted != want {
		t.Errorf("%d restarts, want %d; %v", restarted, want, failures)
	}
}

// sinkBug is what a broken sink does.
type sinkBug string

const (
	reportsEarly   sinkBug = "reports what it has not done"
	doesTwice      sinkBug = "does an effect twice"
	doesAndFails   sinkBug = "does an effect and reports a failure"
	mixesOrder     sinkBug = "delivers a batch backwards"
	doesWhenEnded  sinkBug = "reports success after its context has ended, and does nothing"
	leavesGoingOn  sinkBug = "leaves goroutines behind"
	mangles        sinkBug = "changes a body"
	skipsBehindNot sinkBug = "goes on in a group behind a failure"
)

// faultySink is a sink in memory with a bug.
type faultySink struct {
	bug sinkBug

	mu      sync.Mutex
	random  *rand.Rand
	effects [][]byte
}

func newFaultySink(b sinkBug) SinkTarget {
	s := &faultySink{bug: b, random: rand.New(rand.NewPCG(1, 2))}
	return SinkTarget{
		Sink:    func(context.Context) (pipeline.Sink, error) { return s, nil },
		Effects: func(context.Context) ([][]byte, error) { return slices.Clone(s.effects), nil },
		Restart: func(context.Context) error { return nil },
	}
}

// Traits implements pipeline.Sink.
func (s *faultySink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Ordered: true} }

// Close implements pipeline.Sink.
func (s *faultySink) Close(context.Context) error { return nil }

// Deliver implements pipeline.Sink.
func (s *faultySink) Deliver(ctx context.Context, items []*pipeline.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bug == mixesOrder {
		items = slices.Clone(items)
		slices.Reverse(items)
	}
	if s.bug == leavesGoingOn {
		go func() { select {} }()
	}
	var failed uint64
	for _, it := range items {
		rare := s.random.IntN(20) == 0
		switch {
		case ctx.Err() != nil:
			if s.bug != doesWhenEnded {
				it.Err = context.Cause(ctx)
			}
			continue
		case failed != 0 && it.Group == failed && s.bug != skipsBehindNot:
			it.Err = pipeline.ErrBehind
			continue
		case rare && s.bug == reportsEarly:
			continue
		case rare && s.bug == doesAndFails:
			it.Err = errRetry
		case rare && s.bug == doesTwice:
			s.effects = append(s.effects, it.Message.Body)
		case rare:
			it.Err, failed = errRetry, it.Group
			continue
		case s.bug == mangles:
			s.effects = append(s.effects, append(slices.Clone(it.Message.Body), ' '))
			continue
		}
		s.effects = append(s.effects, it.Message.Body)
		it.Result = semel.Result{}
	}
}

func TestSuiteCatchesBrokenSinks(t *testing.T) {
	t.Parallel()
	const all, order = "every message is settled, and each key has its effect once", "the order of a partition holds while messages fail"
	for b, name := range map[sinkBug]string{
		reportsEarly: all, doesTwice: all, doesAndFails: all, leavesGoingOn: all, mangles: all,
		mixesOrder: order, skipsBehindNot: order,
		doesWhenEnded: "an ended context is no success",
	} {
		t.Run(string(b), func(t *testing.T) {
			h := SinkHarness{New: func(testing.TB) SinkTarget { return newFaultySink(b) }, Messages: 300, patience: 2 * time.Second}
			if failures := tryCase(t, sinkCases(), name, func(tb testing.TB) *sinkEnv { return newSinkEnv(tb, h) }); len(failures) == 0 {
				t.Errorf("a sink that %s passes", b)
			}
		})
	}
}

// tryCase runs one case and returns how it failed.
func tryCase[E any](t *testing.T, cases []testCase[E], name string, env func(tb testing.TB) E) []string {
	t.Helper()
	i := slices.IndexFunc(cases, func(c testCase[E]) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no case %q", name)
	}
	failures := trytest.Run(t, func(tb testing.TB) { cases[i].check(env(tb)) })
	if slices.ContainsFunc(failures, func(failure string) bool { return strings.HasPrefix(failure, "panic:") }) {
		t.Errorf("the suite panicked: %q", failures)
	}
	return failures
}
