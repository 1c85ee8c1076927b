package measure

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Bind returns a function that adds to a counter, puts a value into a histogram or sets a
// gauge, with these values of its labels. A counter exists with the value 0 from then on,
// and a gauge from its first value. The function is safe for concurrent use.
type Bind func(id ID, labels ...string) func(float64)

// words are the instruments of one label with a fixed list of values.
type words struct {
	names []string
	add   []func(float64) // one more than names: the last is that of Other
}

// bind binds an instrument for each name and for Other as its last label.
func bind(b Bind, id ID, names []string, labels ...string) words {
	w := words{names: names}
	for _, name := range append(slices.Clone(names), Other) {
		w.add = append(w.add, b(id, append(slices.Clone(labels), name)...))
	}
	return w
}

// count adds n for a word. "" is the first word of the list.
func (w *words) count(word string, n float64) {
	i := 0
	if word != "" {
		if i = slices.Index(w.names, word); i < 0 {
			i = len(w.names)
		}
	}
	w.add[i](n)
}

// Guard counts the events of a guard.
type Guard struct {
	told      atomic.Bool // a decision came from a guard
	decisions [semel.Superseded + 1]words
	found     words // duplicates
	failed    words // store calls
	claim, check, effect,
	released, takenOver, lost, refused,
	processed, passed, window, oldest func(float64)
}

// NewGuard binds the instruments of a guard. The pipeline may be "".
func NewGuard(b Bind, pipeline, store string) *Guard {
	g := &Guard{
		found:     bind(b, DuplicatesDetected, reasons(semel.Duplicate), pipeline, store),
		failed:    bind(b, StoreErrors, []string{semel.ClassUnknown.String(), semel.ClassRetryable.String(), semel.ClassPermanent.String()}, pipeline, store),
		claim:     b(ClaimDuration, pipeline, store),
		check:     b(CheckDuration, pipeline, store),
		effect:    b(EffectDuration, pipeline, store),
		released:  b(ClaimsReleased, pipeline, store),
		takenOver: b(TakenOver, pipeline, store),
		lost:      b(LeaseLost, pipeline, store),
		refused:   b(LateCompleteRefused, pipeline, store),
		processed: b(EventsProcessed, pipeline, store),
		passed:    b(FailOpenMessages, pipeline, store),
		window:    b(WindowConfigured, pipeline, store),
		oldest:    b(WindowEffective, store),
	}
	for d := range g.decisions {
		d := semel.Decision(d)
		g.decisions[d] = bind(b, Decisions, reasons(d), pipeline, store, d.String())
	}
	return g
}

// Observe implements semel.Observer.
func (g *Guard) Observe(e semel.Event) {
	many := max(e.Count, 1)
	n := float64(many)
	switch e.Kind {
	case semel.EventDecided:
		if !g.told.Load() {
			g.told.Store(true)
		}
		g.decided(e.Decision, e.Reason, n)
		if elapsed := e.Elapsed.Seconds(); elapsed > 0 { // 0 means that no store was asked
			put(g.claim, elapsed, many)
			put(g.check, elapsed, many)
		}
	case semel.EventCompleted:
		put(g.effect, e.Elapsed.Seconds(), many)
		g.processed(n)
	case semel.EventReleased:
		g.released(n)
	case semel.EventTookOver:
		g.takenOver(n)
	case semel.EventLeaseLost:
		g.lost(n)
	case semel.EventCompletionRefused:
		g.refused(n)
	case semel.EventStoreError:
		g.failed.count(semel.Classify(e.Err).String(), n)
	case semel.EventWindowMeasured:
		g.Window(e.Window)
		g.oldest(e.Elapsed.Seconds())
	}
}

// put puts a value into a histogram many times.
func put(into func(float64), value float64, many int) {
	for range many {
		into(value)
	}
}

func (g *Guard) decided(d semel.Decision, reason string, n float64) {
	if int(d) >= len(g.decisions) {
		d, reason = semel.Undecided, Other
	}
	g.decisions[d].count(reason, n)
	if d == semel.Duplicate {
		g.found.count(reason, n)
	}
}

// Window sets the configured window.
func (g *Guard) Window(d time.Duration) {
	if d > 0 && d != semel.Forever {
		g.window(d.Seconds())
	}
}

// Pipeline counts the events of a pipeline.
type Pipeline struct {
	*Guard
	delivered, retried, parked, dropped, pauses words
	paused                                      [3]func(float64)
	read, bytes, filtered, delivery, settled, settling,
	returned, changes, standby, stalled func(float64)
}

// NewPipeline binds the instruments of a pipeline and of its guard.
func NewPipeline(b Bind, name, store string) *Pipeline {
	p := &Pipeline{
		Guard:     NewGuard(b, name, store),
		delivered: words{[]string{"ok"}, []func(float64){b(MessagesDelivered, name, "ok"), b(MessagesDelivered, name, "error")}},
		retried:   bind(b, MessagesRetried, retryReasons(), name),
		parked:    bind(b, Parked, parkReasons(), name),
		dropped:   bind(b, Dropped, parkReasons(), name),
		pauses:    bind(b, Pauses, pauseReasons(), name),
		read:      b(MessagesRead, name),
		bytes:     b(ReadBytes, name),
		filtered:  b(MessagesFiltered, name),
		delivery:  b(DeliveryDuration, name),
		settled:   b(MessagesSettled, name),
		settling:  b(SettleDuration, name),
		returned:  b(MessagesReturned, name),
		changes:   b(SourceChanges, name),
		standby:   b(StandbyLag, name),
		stalled:   b(Stalled, name),
	}
	for i, reason := range pausing() {
		p.paused[i] = b(Paused, name, reason)
		p.paused[i](0)
	}
	p.stalled(0)
	b(Running, name)(0)
	return p
}

func number(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// ObservePipeline implements pipeline.Observer.
func (p *Pipeline) ObservePipeline(e pipeline.Event) {
	n := float64(e.Count)
	switch e.Kind {
	case pipeline.EventRead:
		p.read(n)
		p.bytes(float64(e.Bytes))
	case pipeline.EventDecided:
		// If a guard reports decisions, it has reported each key before the
		// pipeline.
		if !p.told.Load() {
			p.decided(e.Decision, e.Reason, n)
		}
	case pipeline.EventDelivered:
		p.delivery(e.Elapsed.Seconds())
		if e.Err != nil {
			p.delivered.count(Other, n)
			return
		}
		p.delivered.count("ok", n)
		if !p.told.Load() {
			p.processed(n)
		}
	case pipeline.EventFiltered:
		p.filtered(n)
	case pipeline.EventSettled:
		p.settled(n)
		p.settling(e.Elapsed.Seconds())
	case pipeline.EventRetried:
		p.retried.count(e.Reason, n)
	case pipeline.EventParked:
		if e.Reason != string(pipeline.ReasonParkedBefore) { // it was counted
			p.parked.count(e.Reason, n)
		}
	case pipeline.EventDropped:
		p.dropped.count(e.Reason, n)
	case pipeline.EventReturned:
		p.returned(n)
	case pipeline.EventPaused:
		p.pauses.count(e.Reason, 1)
		p.pause(e.Reason, true)
	case pipeline.EventResumed:
		p.pause(e.Reason, false)
	case pipeline.EventFailedOpen:
		p.passed(n)
	case pipeline.EventSourceChanged:
		p.changes(1)
	case pipeline.EventStandby:
		p.standby(n)
	case pipeline.EventStalled, pipeline.EventMoves:
		p.stalled(number(e.Kind == pipeline.EventStalled))
	}
}

func (p *Pipeline) pause(reason string, is bool) {
	if i := slices.Index(pausing(), reason); i >= 0 {
		p.paused[i](number(is))
	}
}
