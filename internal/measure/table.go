package measure

import (
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/eventreason"
	"github.com/semel-dev/semel/pipeline"
)

// ID names an instrument.
type ID int

// These are the instruments. Table describes each of them.
const (
	Decisions ID = iota
	ClaimDuration
	EffectDuration
	ClaimsReleased
	TakenOver
	LeaseLost
	LateCompleteRefused
	StoreErrors
	FailOpenMessages
	WindowConfigured

	WindowEffective
	Keys
	StoreBytes
	StoreMeasured
	LayerDown
	BloomFill
	BloomFalsePositives
	CleanupPasses
	CleanupKeys
	CleanupLast

	Running
	MessagesRead
	ReadBytes
	MessagesDelivered
	MessagesFiltered
	DeliveryDuration
	MessagesSettled
	SettleDuration
	MessagesRetried
	MessagesReturned
	Parked
	Dropped
	Pauses
	Paused
	Stalled
	SourceChanges
	InFlightMessages
	InFlightBytes
	SourceLagMessages
	SourceLagBytes
	ParkedWaiting
	LossRatio
	StandbyLag

	// Those of one kind of source: see OfSource.
	OutboxOldest
	OutboxOwner
	OutboxSlotRetained
	OutboxSlotSafe
	WindowsOpen
	KeepOpen
	StateBytes
	TableRows
	TableLag
	StateLag

	DuplicatesDetected
	EventsProcessed
	CheckDuration
)

// Kind is the kind of an instrument.
type Kind uint8

const (
	// Counter only grows.
	Counter Kind = iota
	// Histogram counts values by their size.
	Histogram
	// Gauge has one current value.
	Gauge
)

// String returns the name of the kind in Prometheus.
func (k Kind) String() string { return [...]string{"counter", "histogram", "gauge"}[k] }

// Instrument is one metric.
type Instrument struct {
	// Name is the name without unit. Sources use it for their gauges.
	Name string
	Kind Kind
	// Unit is s, By, or the counted thing in braces.
	Unit   string
	Labels []string
	Help   string
}

// Prometheus returns the name in Prometheus.
func (i *Instrument) Prometheus() string {
	name := strings.ReplaceAll(i.Name, ".", "_")
	switch {
	case i.Unit == "s":
		name += "_seconds"
	case i.Unit == "By" && !strings.HasSuffix(name, "_bytes"):
		name += "_bytes"
	}
	if i.Kind == Counter {
		name += "_total"
	}
	return name
}

// Bounds are the upper bounds of a histogram's buckets, in seconds.
func (i *Instrument) Bounds() []float64 {
	switch i.Name {
	case "dedup.claim.duration", "dedup.check.duration":
		return []float64{.00001, .000025, .00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}
	}
	return []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
}

// Table returns all instruments, each at the index of its ID.
func Table() []Instrument {
	var (
		guard = []string{"pipeline", "store"}
		store = []string{"store"}
		pipe  = []string{"pipeline"}
	)
	with := func(labels []string, more ...string) []string { return slices.Concat(labels, more) }
	return []Instrument{
		Decisions:           {"dedup.decisions", Counter, "{message}", with(guard, "decision", "reason"), "Messages by the decision about their key, and its reason."},
		ClaimDuration:       {"dedup.claim.duration", Histogram, "s", guard, "How long the store took to answer a claim."},
		EffectDuration:      {"dedup.effect.duration", Histogram, "s", guard, "Time of an effect, from the answer to its claim to the beginning of its completion."},
		ClaimsReleased:      {"dedup.claims.released", Counter, "{claim}", guard, "Claims that were released after an error."},
		TakenOver:           {"dedup.claims.taken_over", Counter, "{claim}", guard, "Claims that took over a key after an attempt without a known outcome: its process died or hung, or its effect timed out or panicked. The effect may have happened before."},
		LeaseLost:           {"dedup.lease.lost", Counter, "{claim}", guard, "Leases that were lost while the effect ran."},
		LateCompleteRefused: {"dedup.late_complete.refused", Counter, "{claim}", guard, "Effects that ended after another claim had taken over their key."},
		StoreErrors:         {"dedup.store.errors", Counter, "{key}", with(guard, "class"), "Keys whose store call failed, by class of the error: retryable, permanent, unknown outcome."},
		FailOpenMessages:    {"dedup.failopen.messages", Counter, "{message}", guard, "Messages that were delivered without a decision, because the store did not answer."},
		WindowConfigured:    {"dedup.window.configured", Gauge, "s", guard, "Configured window of keys; no value if keys are kept forever."},

		WindowEffective:     {"dedup.window.effective", Gauge, "s", store, "Age of the oldest key that the store still knows."},
		Keys:                {"dedup.keys", Gauge, "{key}", with(store, "state"), "Keys in the store, by state: claimed, done, unknown. Done keys may include expired ones."},
		StoreBytes:          {"dedup.store.bytes", Gauge, "By", with(store, "medium"), "Size of the keys, in memory and on disk."},
		StoreMeasured:       {"dedup.store.measured.timestamp", Gauge, "s", store, "When the store was last measured, in Unix time."},
		LayerDown:           {"dedup.layer.down", Gauge, "1", with(store, "layer"), "1 while a stack skips a layer because it does not answer."},
		BloomFill:           {"dedup.bloom.fill", Gauge, "1", with(store, "layer"), "Share of the bits that are set in a filter of a stack, between 0 and 1."},
		BloomFalsePositives: {"dedup.bloom.false_positives", Counter, "{key}", with(store, "layer"), "Keys that a filter of a stack reported as maybe known and that the durable store did not have."},
		CleanupPasses:       {"dedup.cleanup.passes", Counter, "{pass}", with(store, "outcome"), "Clean-ups of expired keys that this process made."},
		CleanupKeys:         {"dedup.cleanup.keys", Counter, "{key}", store, "Expired keys that this process deleted."},
		CleanupLast:         {"dedup.cleanup.timestamp", Gauge, "s", store, "When this process last cleaned up, or started to wait for its turn, in Unix time."},

		Running:           {"dedup.running", Gauge, "1", pipe, "1 while the pipeline runs; 0 while it waits for its servers, and after it has ended or failed."},
		MessagesRead:      {"dedup.messages.read", Counter, "{message}", pipe, "Messages that were read from the source."},
		ReadBytes:         {"dedup.read.bytes", Counter, "By", pipe, "Bytes of the messages that were read from the source."},
		MessagesDelivered: {"dedup.messages.delivered", Counter, "{message}", with(pipe, "outcome"), "Deliveries to the sink, by outcome: ok, error."},
		MessagesFiltered:  {"dedup.messages.filtered", Counter, "{message}", pipe, "New messages that the pipeline's filter left out. Their keys are remembered."},
		DeliveryDuration:  {"dedup.delivery.duration", Histogram, "s", pipe, "Time to decide, deliver and commit a batch."},
		MessagesSettled:   {"dedup.messages.settled", Counter, "{message}", pipe, "Messages that were acknowledged to the source."},
		SettleDuration:    {"dedup.settle.duration", Histogram, "s", pipe, "Time from reading to acknowledgement, of the oldest message of each batch."},
		MessagesRetried:   {"dedup.messages.retried", Counter, "{message}", with(pipe, "reason"), "Messages that failed and are retried. A message that waits long for a claimed key counts once."},
		MessagesReturned:  {"dedup.messages.returned", Counter, "{message}", pipe, "Messages that were returned to the source."},
		Parked:            {"dedup.parked", Counter, "{message}", with(pipe, "reason"), "Messages that were parked."},
		Dropped:           {"dedup.dropped", Counter, "{message}", with(pipe, "reason"), "Messages that were dropped because the configuration says so."},
		Pauses:            {"dedup.pauses", Counter, "{pause}", with(pipe, "reason"), "How often the pipeline paused: the sink or the store did not answer, a partition could not be read, or a message could not be parked or acknowledged."},
		Paused:            {"dedup.paused", Gauge, "1", with(pipe, "reason"), "1 while the pipeline is paused because the sink or the store does not answer, or a partition of the source cannot be read."},
		Stalled:           {"dedup.stalled", Gauge, "1", pipe, "1 while the pipeline has work and has settled no message for ten seconds."},
		SourceChanges:     {"dedup.source.changes", Counter, "{change}", pipe, "How often the source connected, lost its connection, or was assigned or lost partitions."},
		InFlightMessages:  {"dedup.in_flight.messages", Gauge, "{message}", pipe, "Messages that were read and are not yet settled."},
		InFlightBytes:     {"dedup.in_flight.bytes", Gauge, "By", pipe, "Approximate bytes of the messages that were read and are not yet settled."},
		SourceLagMessages: {"dedup.source.lag.messages", Gauge, "{message}", with(pipe, "source", "partition"), "Messages at the source that are not yet settled, for each partition of this process."},
		SourceLagBytes:    {"dedup.source.lag.bytes", Gauge, "By", with(pipe, "source", "partition"), "Bytes at the source that are not yet settled, for sources that count bytes."},
		ParkedWaiting:     {"dedup.parked.waiting", Gauge, "{message}", pipe, "Messages that are parked and not yet redriven, skipped or marked as done."},
		LossRatio:         {"dedup.loss.ratio", Gauge, "1", pipe, "Share of new messages that a pipeline with only a filter drops now, between 0 and 1."},
		StandbyLag:        {"dedup.standby.lag", Gauge, "{record}", pipe, "Changelog records that this process's standby copies have not yet read."},

		OutboxOldest:       {"dedup.outbox.oldest", Gauge, "s", with(pipe, "shard"), "How long the oldest row of a shard of the outbox has waited; 0 if none waits."},
		WindowsOpen:        {"dedup.windows.open", Gauge, "{window}", with(pipe, "source", "partition"), "Windows of an aggregate that are open, of all group keys in a partition."},
		StateBytes:         {"dedup.state.bytes", Gauge, "By", with(pipe, "source", "partition"), "Size of the open windows of a partition, or of what key.keep holds, as in the topic GROUP-state."},
		StateLag:           {"dedup.state.lag", Gauge, "s", with(pipe, "source", "partition"), "How far behind the clock the time is up to which windows of a partition are closed, or held messages have taken effect."},
		OutboxOwner:        {"dedup.outbox.owner", Gauge, "1", with(pipe, "shard", "owner"), "Epoch in which a relay owns a shard of the outbox; no value if none does."},
		OutboxSlotRetained: {"dedup.outbox.slot.retained", Gauge, "By", with(pipe, "state"), "Write-ahead log that the server keeps for the replication slot of an outbox, with the wal_status of the slot."},
		OutboxSlotSafe:     {"dedup.outbox.slot.safe", Gauge, "By", pipe, "Write-ahead log that the server may still write before it invalidates the slot; no value if max_slot_wal_keep_size does not limit that."},
		KeepOpen:           {"dedup.keep.open", Gauge, "{message}", with(pipe, "source", "partition"), "Messages of a partition that key.keep holds, or newest versions that it remembers."},
		TableRows:          {"dedup.table.rows", Gauge, "{row}", with(pipe, "table"), "Rows of a table that this process has in memory."},
		TableLag:           {"dedup.table.lag", Gauge, "{record}", with(pipe, "table"), "Offsets of a table's topic that this process has not yet read."},

		DuplicatesDetected: {"dedup.duplicates.detected", Counter, "{message}", with(guard, "reason"), "The same as dedup_decisions_total with the decision duplicate."},
		EventsProcessed:    {"dedup.events.processed", Counter, "{message}", guard, "Completed effects: the count of dedup_effect_duration_seconds, or of deliveries if keys and effects commit together."},
		CheckDuration:      {"dedup.check.duration", Histogram, "s", guard, "The same as dedup_claim_duration_seconds."},
	}
}

// Other stands for all reasons outside the list.
const Other = "other"

// reasons returns the reasons of [semel.Event] and of pipeline events, for each
// decision. The first one stands for an empty reason.
func reasons(d semel.Decision) []string {
	switch d {
	case semel.Fresh:
		return []string{"no record", "an earlier attempt has no outcome", "read again"}
	case semel.Duplicate:
		return []string{"completed before", "completed before, result not kept", "failed permanently before", "read again", eventreason.Maybe}
	case semel.InFlight:
		return []string{"held by another"}
	case semel.Mismatch:
		return []string{"other payload"}
	case semel.OutcomeUnknown:
		return []string{"outcome of an earlier attempt unknown"}
	case semel.Late:
		return []string{"older than the window"}
	case semel.Superseded:
		return []string{"another one is kept"}
	}
	return []string{"no answer"}
}

func parkReasons() []string {
	names := []string{"unnamed"}
	for _, reason := range pipeline.Reasons() {
		names = append(names, string(reason))
	}
	return append(names, string(pipeline.ReasonExpired))
}

func retryReasons() []string { return []string{"failed", "lease lost", eventreason.Held} }

// pausing returns the reasons of pauses that have a gauge.
func pausing() []string { return []string{"sink", "source", "store"} }

func pauseReasons() []string {
	return append(pausing(), "parking", "acknowledging", "state directory")
}
