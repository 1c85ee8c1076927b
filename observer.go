package semel

import (
	"context"
	"time"
)

// Observer receives the decisions and incidents of a Guard. The Guard calls
// Observe from the goroutine that does the work, so Observe is called
// concurrently. It must be safe for concurrent use and must not block.
type Observer interface {
	Observe(Event)
}

// ObserverFunc adapts a function to an Observer.
type ObserverFunc func(Event)

// Observe calls f.
func (f ObserverFunc) Observe(e Event) { f(e) }

// Tracer is an Observer that also follows the steps of a guard's work, for instance
// to make spans. If GuardOptions.Observer is a Tracer, the guard calls it too.
type Tracer interface {
	Observer
	// BeginStep is called before a step for this many keys, in the goroutine that
	// does it. The step runs under the returned context. The guard calls end when
	// the step is over. decision is the decision of a claim if all keys have the
	// same one, and otherwise Undecided. err is the first error, or nil; it may
	// quote a message. BeginStep and end must not block.
	BeginStep(ctx context.Context, step Step, keys int) (_ context.Context, end func(decision Decision, err error))
}

// Step is a part of a guard's work.
type Step uint8

const (
	// StepClaim: the store decides keys.
	StepClaim Step = iota + 1
	// StepEffect: the effect runs. Its context is the one that BeginStep returned.
	StepEffect
	// StepComplete: the store marks keys as done.
	StepComplete
	// StepPark: a pipeline parks messages.
	StepPark
)

// String returns the step's name in traces.
func (s Step) String() string {
	names := [...]string{"", "claim", "effect", "complete", "park"}
	if int(s) < len(names) {
		return names[s]
	}
	return "invalid"
}

// EventKind is the kind of an Event.
type EventKind uint8

const (
	// EventDecided: a claim was answered. Decision, Reason, Attempt and Elapsed
	// (the claim's latency) are set.
	EventDecided EventKind = iota + 1
	// EventCompleted: a key was marked done. Elapsed is how long the effects of its batch
	// took, without the claim before and the completion after them.
	EventCompleted
	// EventReleased: a claim was given back after an error. Err is the error.
	EventReleased
	// EventTookOver: this claim replaced a lease that ended without completion. Its
	// holder died or hung, or gave the claim back after an effect that timed out or
	// panicked. The effect may have happened. Attempt is above 1.
	EventTookOver
	// EventLeaseLost: a heartbeat found that the lease was lost while the effect
	// ran.
	EventLeaseLost
	// EventCompletionRefused: the effect completed too late; the token was stale.
	// Err is the store's answer.
	EventCompletionRefused
	// EventStoreError: a store call failed. Err is the store's error.
	EventStoreError
	// EventWindowMeasured: Window is the window that the guard promises. Elapsed is
	// the age of the oldest record in the store.
	EventWindowMeasured
)

// String returns the kind's name as used in logs.
func (k EventKind) String() string {
	names := [...]string{"", "decided", "completed", "released", "took_over", "lease_lost", "completion_refused", "store_error", "window_measured"}
	if int(k) < len(names) {
		return names[k]
	}
	return "invalid"
}

// Event is one report of a Guard. Fields that do not belong to its Kind are zero.
// Never use a key as a metric label.
type Event struct {
	Kind EventKind
	Key  Key
	// Count is above 1 if the event stands for that many keys of one batch: keys
	// that were claimed for the first time, or completed. Key is then empty.
	Count    int
	Decision Decision
	// Reason is one of a few fixed texts that explain the decision.
	Reason  string
	Attempt int
	Elapsed time.Duration
	Window  time.Duration
	Err     error
}

// of returns the event for this many keys.
func (e Event) of(count int) Event {
	if count > 1 {
		e.Key, e.Count = Key{}, count
	}
	return e
}

// decided returns the event for an answer.
func decided(key Key, a *ClaimAnswer, elapsed time.Duration) Event {
	return Event{Kind: EventDecided, Key: key, Decision: a.Decision, Reason: reason(a), Attempt: a.Claim.Attempt, Elapsed: elapsed, Err: a.Err}
}

// reason returns the fixed text that explains a decision.
func reason(a *ClaimAnswer) string {
	switch a.Decision {
	case Fresh:
		if a.Claim.Attempt > 1 {
			return "an earlier attempt has no outcome"
		}
		return "no record"
	case Duplicate:
		switch a.Result.Kind {
		case Failed:
			return "failed permanently before"
		case NotKept:
			return "completed before, result not kept"
		}
		return "completed before"
	case InFlight:
		return "held by another"
	case Mismatch:
		return "other payload"
	case OutcomeUnknown:
		return "outcome of an earlier attempt unknown"
	case Late:
		return "older than the window"
	}
	return "no answer"
}
