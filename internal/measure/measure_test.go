package measure

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/eventreason"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
)

// ledger keeps the values of all instruments.
type ledger struct {
	mu     sync.Mutex
	values map[string]float64
}

func newLedger() *ledger { return &ledger{values: map[string]float64{}} }

func (l *ledger) Bind(id ID, labels ...string) func(float64) {
	i := Table()[id]
	if len(labels) != len(i.Labels) {
		panic(fmt.Sprintf("%s has the labels %q, not %q", i.Name, i.Labels, labels))
	}
	series := i.Name + "{" + strings.Join(labels, "|") + "}"
	l.mu.Lock()
	defer l.mu.Unlock()
	if i.Kind == Counter {
		l.values[series] += 0
	}
	return func(v float64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch i.Kind {
		case Counter:
			l.values[series] += v
		case Histogram:
			l.values[series]++
		default:
			l.values[series] = v
		}
	}
}

func (l *ledger) check(t *testing.T, series string, want float64) {
	t.Helper()
	if got, there := l.values[series]; !there || got != want {
		t.Errorf("%s is %v (there: %t), want %v", series, got, there, want)
	}
}

func TestMetricTableIsComplete(t *testing.T) {
	t.Parallel()
	table := Table()
	if len(table) != int(CheckDuration)+1 {
		t.Fatalf("%d instruments, want %d", len(table), CheckDuration+1)
	}
	form := regexp.MustCompile(`^dedup(\.[a-z_]+)+$`)
	seen := map[string]bool{}
	for _, i := range table {
		if !form.MatchString(i.Name) || seen[i.Prometheus()] || !strings.HasSuffix(i.Help, ".") || i.Unit == "" {
			t.Errorf("%+v", i)
		}
		seen[i.Prometheus()] = true
		for _, label := range i.Labels {
			switch label {
			case "pipeline", "store", "decision", "reason", "class", "state", "medium", "layer", "outcome", "source", "partition", "shard", "owner", "table":
			default:
				t.Errorf("%s has the label %s", i.Name, label)
			}
		}
	}
	for name, want := range map[string]ID{
		"dedup_decisions_total": Decisions, "dedup_claim_duration_seconds": ClaimDuration, "dedup_store_bytes": StoreBytes,
		"dedup_read_bytes_total": ReadBytes, "dedup_window_effective_seconds": WindowEffective, "dedup_keys": Keys,
	} {
		if got := table[want].Prometheus(); got != name {
			t.Errorf("%s is called %s in Prometheus, want %s", table[want].Name, got, name)
		}
	}
}

func TestADecisionReportedByGuardAndPipelineIsCountedOnce(t *testing.T) {
	t.Parallel()
	l := newLedger()
	p := NewPipeline(l.Bind, "p", "s")
	p.Observe(semel.Event{Kind: semel.EventDecided, Decision: semel.Fresh, Reason: "no record", Elapsed: time.Millisecond})
	p.Observe(semel.Event{Kind: semel.EventCompleted, Elapsed: time.Second})
	p.ObservePipeline(pipeline.Event{Kind: pipeline.EventDecided, Decision: semel.Fresh, Count: 1})
	p.ObservePipeline(pipeline.Event{Kind: pipeline.EventDelivered, Count: 1})
	l.check(t, "dedup.decisions{p|s|fresh|no record}", 1)
	l.check(t, "dedup.events.processed{p|s}", 1)
	l.check(t, "dedup.messages.delivered{p|ok}", 1)

	alone := NewPipeline(l.Bind, "alone", "s")
	alone.ObservePipeline(pipeline.Event{Kind: pipeline.EventDecided, Decision: semel.Duplicate, Count: 7})
	alone.ObservePipeline(pipeline.Event{Kind: pipeline.EventDelivered, Count: 3})
	alone.ObservePipeline(pipeline.Event{Kind: pipeline.EventDelivered, Count: 2, Err: errors.New("no")})
	l.check(t, "dedup.decisions{alone|s|duplicate|completed before}", 7)
	l.check(t, "dedup.duplicates.detected{alone|s|completed before}", 7)
	l.check(t, "dedup.events.processed{alone|s}", 3)
	l.check(t, "dedup.messages.delivered{alone|error}", 2)
}

func TestBatchEventCountsAsManyMessages(t *testing.T) {
	t.Parallel()
	l := newLedger()
	p := NewPipeline(l.Bind, "p", "s")
	p.Observe(semel.Event{Kind: semel.EventDecided, Count: 5, Decision: semel.Fresh, Reason: "no record", Elapsed: time.Millisecond})
	p.Observe(semel.Event{Kind: semel.EventCompleted, Count: 4, Elapsed: time.Second})
	l.check(t, "dedup.decisions{p|s|fresh|no record}", 5)
	l.check(t, "dedup.claim.duration{p|s}", 5)
	l.check(t, "dedup.effect.duration{p|s}", 4)
	l.check(t, "dedup.events.processed{p|s}", 4)
}

func TestEveryEventKindIsCounted(t *testing.T) {
	t.Parallel()
	l := newLedger()
	p := NewPipeline(l.Bind, "p", "s")
	for kind, series := range map[semel.EventKind]string{
		semel.EventCompleted: "dedup.effect.duration{p|s}", semel.EventReleased: "dedup.claims.released{p|s}",
		semel.EventTookOver: "dedup.claims.taken_over{p|s}", semel.EventLeaseLost: "dedup.lease.lost{p|s}",
		semel.EventCompletionRefused: "dedup.late_complete.refused{p|s}", semel.EventStoreError: "dedup.store.errors{p|s|unknown outcome}",
		semel.EventDecided: "dedup.decisions{p|s|undecided|no answer}",
	} {
		p.Observe(semel.Event{Kind: kind, Err: errors.New("of any kind")})
		l.check(t, series, 1)
	}
	for kind, series := range map[pipeline.EventKind]string{
		pipeline.EventRead: "dedup.messages.read{p}", pipeline.EventSettled: "dedup.messages.settled{p}",
		pipeline.EventRetried: "dedup.messages.retried{p|failed}", pipeline.EventParked: "dedup.parked{p|unnamed}",
		pipeline.EventDropped: "dedup.dropped{p|unnamed}", pipeline.EventReturned: "dedup.messages.returned{p}",
		pipeline.EventFailedOpen: "dedup.failopen.messages{p|s}",
	} {
		p.ObservePipeline(pipeline.Event{Kind: kind, Count: 4})
		l.check(t, series, 4)
	}
	p.ObservePipeline(pipeline.Event{Kind: pipeline.EventParked, Count: 3, Reason: string(pipeline.ReasonParkedBefore)})
	l.check(t, "dedup.parked{p|unnamed}", 4)
	p.ObservePipeline(pipeline.Event{Kind: pipeline.EventRetried, Count: 2, Reason: eventreason.Held})
	l.check(t, "dedup.messages.retried{p|in flight elsewhere}", 2)
	p.ObservePipeline(pipeline.Event{Kind: pipeline.EventSourceChanged, Count: 4, Reason: "4 partitions given"})
	l.check(t, "dedup.source.changes{p}", 1)
	p.ObservePipeline(pipeline.Event{Kind: pipeline.EventStandby, Count: 4})
	l.check(t, "dedup.standby.lag{p}", 4)
	p.ObservePipeline(pipeline.Event{Kind: pipeline.EventPaused, Reason: "store"})
	l.check(t, "dedup.paused{p|store}", 1)
	l.check(t, "dedup.pauses{p|store}", 1)
	p.ObservePipeline(pipeline.Event{Kind: pipeline.EventResumed, Reason: "store"})
	l.check(t, "dedup.paused{p|store}", 0)
	l.check(t, "dedup.paused{p|sink}", 0)
	p.Observe(semel.Event{Kind: semel.EventWindowMeasured, Window: time.Hour, Elapsed: time.Minute})
	l.check(t, "dedup.window.configured{p|s}", 3600)
	l.check(t, "dedup.window.effective{s}", 60)
	p.Window(semel.Forever)
	l.check(t, "dedup.window.configured{p|s}", 3600)
	// Unknown events of later versions must not cause a failure.
	p.Observe(semel.Event{Kind: 200, Decision: 200})
	p.Observe(semel.Event{Kind: semel.EventDecided, Decision: 200, Reason: "of later"})
	l.check(t, "dedup.decisions{p|s|undecided|other}", 1)
	p.ObservePipeline(pipeline.Event{Kind: 200})
}

// The lists must have exactly the words that are reported.
func TestListedReasonsAreExactlyThoseThatGuardsReport(t *testing.T) {
	t.Parallel()
	l := newLedger()
	store := &answering{}
	guard, err := semel.NewGuard(store, &semel.GuardOptions{Observer: NewGuard(l.Bind, "", "s")})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []semel.ClaimAnswer{
		{Decision: semel.Fresh, Claim: semel.Claim{Attempt: 1}}, {Decision: semel.Fresh, Claim: semel.Claim{Attempt: 2}},
		{Decision: semel.Duplicate}, {Decision: semel.Duplicate, Result: semel.Result{Kind: semel.Failed}},
		{Decision: semel.Duplicate, Result: semel.Result{Kind: semel.NotKept}}, {Decision: semel.InFlight},
		{Decision: semel.Mismatch}, {Decision: semel.OutcomeUnknown}, {Decision: semel.Late}, {},
	} {
		_, _ = guard.Settle(t.Context(), &semel.Call{Key: semel.Key{ID: "x"}}, &a, 0)
	}
	for series, n := range l.values {
		if strings.HasPrefix(series, "dedup.decisions") && strings.HasSuffix(series, "|other}") && n > 0 {
			t.Errorf("%s is %v: a reason has no place in the table", series, n)
		}
	}
	l.check(t, "dedup.decisions{|s|fresh|an earlier attempt has no outcome}", 1)
	l.check(t, "dedup.claims.taken_over{|s}", 1)
	l.check(t, "dedup.decisions{|s|duplicate|failed permanently before}", 1)
}

// A lease that its holder ended because the effect timed out is no lease that expired, and
// the outcome of the effect is as unknown.
func TestARetryAfterATimeOutCountsAsTakenOver(t *testing.T) {
	t.Parallel()
	l := newLedger()
	store, err := memstore.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	guard, err := semel.NewGuard(store, &semel.GuardOptions{Observer: NewGuard(l.Bind, "p", "s"), Wait: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	key, ended := semel.Key{ID: "x"}, context.DeadlineExceeded
	for range 2 {
		_, err := guard.Do(t.Context(), key, func(context.Context, semel.Claim) ([]byte, error) { return nil, ended })
		if !errors.Is(err, ended) {
			t.Fatal(err)
		}
		ended = nil
	}
	l.check(t, "dedup.claims.released{p|s}", 1)
	l.check(t, "dedup.claims.taken_over{p|s}", 1)
	l.check(t, "dedup.decisions{p|s|fresh|an earlier attempt has no outcome}", 1)
	for series := range l.values {
		if strings.Contains(series, "expired") {
			t.Errorf("%s: no lease expired", series)
		}
	}
}

// answering is a store that does nothing.
type answering struct{ semel.Store }

func (*answering) Traits() semel.Traits { return semel.Traits{} }
