package brokertest

import (
	"bytes"
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
	"github.com/semel-dev/semel/broker/header"
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

	// These are bugs of netSource.
	noSecondLook    sourceBug = "does not look again for what a lost answer had"
	opensOnce       sourceBug = "ends with its first connection"
	strandsVanished sourceBug = "leaves messages with a consumer that vanished"
	hidesServer     sourceBug = "has a server that the suite cannot stand before"
	tellsNoTime     sourceBug = "tells no time"
	tellsOldTime    sourceBug = "takes milliseconds for seconds"
	tellsNoHeaders  sourceBug = "tells no headers"
	cutsHeaders     sourceBug = "cuts the values of headers"
	tellsNoOrigin   sourceBug = "does not name where a message is from"
	newPartitions   sourceBug = "gives each message a partition of its own"
	refusesNone     sourceBug = "refuses to acknowledge nothing"
	ackHangs        sourceBug = "does not return from an acknowledgement"
	closeHangs      sourceBug = "does not return from Close"
	hidesAckErrors  sourceBug = "acknowledges once, and returns no error whatever happens"
	saysAlone       sourceBug = "says that it reads alone, and shares"
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

// inVain is the patience of a case that waits until it is over. A slow machine that stands still
// for some seconds must not end the case earlier.
const inVain = 4 * time.Second

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
					Messages: 200, Patience: time.Second,
				}
				if failures := tryCase(t, sourceCases(), name, func(w *watched) *sourceEnv { return newSourceEnv(w, h) }); len(failures) == 0 {
					t.Errorf("a source that %s passes", b)
				}
			})
		}
	}
}

// TestSuiteCatchesBrokenSourcesOfAServer says for each bug which case catches it, and which
// words the failure has.
func TestSuiteCatchesBrokenSourcesOfAServer(t *testing.T) {
	t.Parallel()
	const tells, all = "a message arrives with its time, its headers and its origin", "every message is settled, and each key has its effect once"
	for b, c := range map[sourceBug]struct {
		caught, says string
		waits        bool // until the patience is over
	}{
		noSecondLook:    {"messages come again after a lost answer", "did not come again in 4s", true},
		opensOnce:       {"messages come again after a lost answer", "read: the connection was lost", false},
		strandsVanished: {"another consumer gets the messages of one that vanished", "did not come to another one in 4s", true},
		hidesServer:     {"another consumer gets the messages of one that vanished", "set Server and OpenAt", false},
		tellsNoTime:     {tells, "has the time 0001", false},
		tellsOldTime:    {tells, "has the time 5", false},
		tellsNoHeaders:  {tells, "with the header suite-text", false},
		cutsHeaders:     {tells, "with the header suite-text", false},
		tellsNoOrigin:   {tells, "no Origin.Source", false},
		newPartitions:   {"the order of a partition holds while messages fail", "out of order", false},
		refusesNone:     {"Read ends with its context, and Close ends everything", "acknowledge nothing", false},
		ackHangs:        {all, "Ack of the source does not return", true},
		hidesAckErrors:  {"an acknowledgement that fails is reported, or made good", "return the error of the server", false},
		saysAlone:       {"two consumers share the messages, or there is one", "two consumers have messages", true},
		closeHangs:      {"Read ends with its context, and Close ends everything", "Close of the source does not return", true},
	} {
		t.Run(string(b), func(t *testing.T) {
			t.Parallel()
			h := SourceHarness{New: func(tb testing.TB) SourcePlace { return netPlace(tb, b) }, Messages: 150, Alone: b == saysAlone}
			if c.waits {
				h.Patience = inVain
			}
			failures := tryCase(t, sourceCases(), c.caught, func(w *watched) *sourceEnv { return newSourceEnv(w, h) })
			if !slices.ContainsFunc(failures, func(failure string) bool { return strings.Contains(failure, c.says) }) {
				t.Errorf("a source that %s fails with %q, want %q", b, failures, c.says)
			}
		})
	}
}

// TestClientsOfAHarnessMayOutliveACase fills the queue with clients that have goroutines.
func TestClientsOfAHarnessMayOutliveACase(t *testing.T) {
	t.Parallel()
	h := SourceHarness{Messages: 100, New: func(tb testing.TB) SourcePlace {
		place := newFaultySource(tb, "", nil)
		produce := place.Produce
		place.Produce = func(ctx context.Context, list []Numbered) error {
			for range 10 {
				go func() { <-tb.Context().Done() }() // which ends with the test
			}
			return produce(ctx, list)
		}
		return place
	}}
	if failures := tryCase(t, sourceCases(), "every message is settled, and each key has its effect once", func(w *watched) *sourceEnv { return newSourceEnv(w, h) }); len(failures) > 0 {
		t.Errorf("%q", failures)
	}
}

func TestSuiteRestartsTheServerOncePerRound(t *testing.T) {
	t.Parallel()
	restarted := 0
	h := SourceHarness{New: func(tb testing.TB) SourcePlace { return newFaultySource(tb, "", &restarted) }}
	failures := tryCase(t, sourceCases(), "the server is restarted in the middle", func(w *watched) *sourceEnv { return newSourceEnv(w, h) })
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
	reportsEarly     sinkBug = "reports what it has not done"
	doesTwice        sinkBug = "does an effect twice"
	doesAndFails     sinkBug = "does an effect and reports a failure"
	mixesOrder       sinkBug = "delivers a batch backwards"
	doesWhenEnded    sinkBug = "reports success after its context has ended, and does nothing"
	leavesGoingOn    sinkBug = "leaves goroutines behind"
	mangles          sinkBug = "changes a body"
	leavesOutHeaders sinkBug = "delivers no headers"
	skipsBehindNot   sinkBug = "continues in a group behind a failure"
	keepsBytes       sinkBug = "keeps the bytes of a message without copying them"

	// These are bugs of netSink.
	reversesGroups        sinkBug = "delivers a group backwards"
	claimsOrdered         sinkBug = "says Ordered, and continues behind a message that was refused"
	retriesRefused        sinkBug = "tries again a message that is refused permanently"
	ignoresRefusal        sinkBug = "does not read a refusal"
	unavailableForRefused sinkBug = "takes a refusal for an outage"
	permanentWhenAway     sinkBug = "gives a message up because its server is away"
	plainWhenAway         sinkBug = "counts an outage as an attempt"
	unavailableForLost    sinkBug = "says that nothing was delivered when an answer is lost"
	retriesLost           sinkBug = "says that a delivery failed when an answer is lost"
	successForLost        sinkBug = "reports success when it cannot connect"
	repeatsLost           sinkBug = "repeats a delivery whose answer is lost"
	sinkCloseHangs        sinkBug = "does not return from Close"
)

// faultySink is a sink in memory with a bug.
type faultySink struct {
	bug sinkBug

	mu      sync.Mutex
	random  *rand.Rand
	effects []Effect
}

func newFaultySink(b sinkBug) SinkTarget {
	s := &faultySink{bug: b, random: rand.New(rand.NewPCG(1, 2))}
	return SinkTarget{
		Sink:    func(context.Context) (pipeline.Sink, error) { return s, nil },
		Effects: func(context.Context) ([]Effect, error) { return slices.Clone(s.effects), nil },
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
			s.effects = append(s.effects, Effect{Body: bytes.Clone(it.Message.Body)})
		case rare:
			it.Err, failed = errRetry, it.Group
			continue
		case s.bug == mangles:
			s.effects = append(s.effects, Effect{Body: append(slices.Clone(it.Message.Body), ' ')})
			continue
		}
		effect := Effect{Body: it.Message.Body}
		if s.bug != keepsBytes {
			effect.Body = bytes.Clone(effect.Body)
		}
		if s.bug != leavesOutHeaders {
			effect.Headers = header.Output(it, "")
		}
		s.effects = append(s.effects, effect)
		it.Result = semel.Result{}
	}
}

func TestSuiteCatchesBrokenSinks(t *testing.T) {
	t.Parallel()
	const all, order = "every message is settled, and each key has its effect once", "the order of a partition holds while messages fail"
	for b, name := range map[sinkBug]string{
		reportsEarly: all, doesTwice: all, doesAndFails: all, leavesGoingOn: all, mangles: all,
		mixesOrder: order, skipsBehindNot: order,
		leavesOutHeaders: "headers of a message and its key arrive",
		doesWhenEnded:    "an ended context is no success",
		keepsBytes:       "a group is delivered in its order",
	} {
		t.Run(string(b), func(t *testing.T) {
			h := SinkHarness{New: func(testing.TB) SinkTarget { return newFaultySink(b) }, Messages: 300, Patience: 2 * time.Second}
			if failures := tryCase(t, sinkCases(), name, func(w *watched) *sinkEnv { return newSinkEnv(w, h) }); len(failures) == 0 {
				t.Errorf("a sink that %s passes", b)
			}
		})
	}
}

// TestSuiteCatchesBrokenSinksOfAServer says for each bug which case catches it, and which
// words the failure has.
func TestSuiteCatchesBrokenSinksOfAServer(t *testing.T) {
	t.Parallel()
	const refused, away, lost = "a message that the target refuses is permanent, and holds up its group alone", "a target that cannot be reached is unavailable", "after a lost answer the outcome is unknown"
	for b, c := range map[sinkBug]struct{ caught, says string }{
		reversesGroups:        {"a group is delivered in its order", "out of order"},
		claimsOrdered:         {refused, "asks for pipeline.ErrBehind"},
		retriesRefused:        {refused, "want a semel.Permanent"},
		ignoresRefusal:        {refused, "has the error <nil>, want a semel.Permanent"},
		unavailableForRefused: {refused, "want a semel.Permanent"},
		permanentWhenAway:     {away, "would be parked"},
		plainWhenAway:         {away, "each try would count"},
		unavailableForLost:    {lost, "wrap semel.ErrOutcomeUnknown"},
		retriesLost:           {lost, "wrap semel.ErrOutcomeUnknown"},
		successForLost:        {away, "want a pipeline.Unavailable"},
		repeatsLost:           {lost, "the effect is there 2 times"},
		sinkCloseHangs:        {"a group is delivered in its order", "Close of the sink does not return"},
	} {
		t.Run(string(b), func(t *testing.T) {
			t.Parallel()
			h := SinkHarness{New: func(tb testing.TB) SinkTarget { return netTarget(tb, b) }, Messages: 150}
			if b == sinkCloseHangs { // the others fail before the patience is over
				h.Patience = inVain
			}
			failures := tryCase(t, sinkCases(), c.caught, func(w *watched) *sinkEnv { return newSinkEnv(w, h) })
			if !slices.ContainsFunc(failures, func(failure string) bool { return strings.Contains(failure, c.says) }) {
				t.Errorf("a sink that %s fails with %q, want %q", b, failures, c.says)
			}
		})
	}
}

// tryCase runs one case and returns how it failed.
func tryCase[E any](t *testing.T, cases []testCase[E], name string, env func(w *watched) E) []string {
	t.Helper()
	i := slices.IndexFunc(cases, func(c testCase[E]) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("there is no case %q", name)
	}
	failures := trytest.Run(t, func(tb testing.TB) { watch(tb, func(w *watched) { cases[i].check(env(w)) }) })
	if slices.ContainsFunc(failures, func(failure string) bool { return strings.HasPrefix(failure, "panic:") }) {
		t.Errorf("the suite panicked: %q", failures)
	}
	return failures
}

// TestHarnessThatDeniesHeadersFails is the counterpart of the sink that drops them.
func TestHarnessThatDeniesHeadersFails(t *testing.T) {
	t.Parallel()
	h := SinkHarness{New: func(testing.TB) SinkTarget { return newFaultySink("") }, Messages: 300, NoHeaders: true}
	if failures := tryCase(t, sinkCases(), "headers of a message and its key arrive", func(w *watched) *sinkEnv { return newSinkEnv(w, h) }); len(failures) != 1 || !strings.Contains(failures[0], "says NoHeaders") {
		t.Error(failures)
	}
}
