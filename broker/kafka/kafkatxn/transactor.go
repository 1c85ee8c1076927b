package kafkatxn

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/operator"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/tables"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/coarse"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/pipeline"
)

// Transactor moves records from topics to a topic so that each key takes effect once,
// for readers of the output with read_committed. Outputs, changelog and offsets are one
// transaction. The local state changes after the commit is known. If the result of a
// commit is unknown, the Transactor reads everything again from the brokers.
type Transactor struct {
	chain  *operator.Plan // what happens to a record
	source source         // where records come from
	inputs []string
	// decided are the topics whose records sessions decide, and changelogs hold their states.
	decided    []string
	changelogs changelogs
	windows    keys.Windowing
	header     []byte // the start of keys.HeaderOrigins; nil if the inputs are decided

	client      []kgo.Opt
	compression kgo.CompressionCodec
	reset       kafka.Reset
	sameKeys    bool // KeyOptions.SameScope
	member      Member
	state       StateOptions
	limits      Limits
	timeouts    Timeouts
	observer    pipeline.Observer
	hooks       hooks
	clock       *clock.Clock

	admin  *kgo.Client         // not transactional: metadata, offsets, barriers
	topics map[string]state.ID // those of inputs too
	// identities are those of the inputs, by name, if the key needs a position.
	identities  map[string]string
	sizes       map[string]int32 // number of partitions by input topic
	sources     map[string]int32 // number of partitions by input, if copies of them are decided
	tableTopics kadm.TopicDetails

	// copyPartitions is the number of partitions of the topic between the stages.
	copyPartitions int32
	byID           bool                           // brokers answer requests for a topic by its id
	topicLimits    atomic.Pointer[cluster.Limits] // of the topics that it writes
	health         health
	contents       *coarse.Watch
	stall          diagnose.Stall
	lacks          atomic.Pointer[error] // for a missing right, see permitted

	slots   slots
	mu      sync.Mutex                   // guards the fields below
	copying map[cluster.Partition]string // partitions of the first stage, and the members that copy them
	gone    map[state.ID]bool            // topics that no longer exist
	tables  *tables.Reader               // nil without Tables; set once, before members start
}

// clientOptions returns the caller's options, those of every client here, and more.
func (t *Transactor) clientOptions(more ...kgo.Opt) []kgo.Opt {
	opts := append([]kgo.Opt{}, t.client...)
	// Each client needs its own option, because it changes the slice.
	opts = append(opts, kgo.ProducerBatchCompression(t.compression))
	opts = append(opts, kgo.RetryBackoffFn(func(tries int) time.Duration {
		return min(20*time.Millisecond<<min(tries, 6), time.Second)
	}), kgo.MetadataMinAge(100*time.Millisecond))
	return append(opts, more...)
}

// now returns the time in milliseconds.
func (t *Transactor) now() int64 { return t.clock.Nanos() / int64(time.Millisecond) }

func (t *Transactor) observe(e pipeline.Event) {
	if t.observer != nil && (e.Count > 0 || e.Kind >= pipeline.EventPaused) {
		e.Pipeline = t.chain.Name
		t.observer.ObservePipeline(e)
	}
}

func (t *Transactor) adm() *kadm.Client { return kadm.NewClient(t.admin) }

// changelogRetention returns the retention of the changelog in milliseconds, or -1.
func (t *Transactor) changelogRetention() int64 {
	keep := t.windows.Retention()
	if t.windows.EventTime || keep >= semel.Forever/2 {
		return -1 // the times of its records do not show when they expire
	}
	return (keep + max(keep/4, time.Hour)).Milliseconds()
}

// written returns the topics that are written.
func (t *Transactor) written() []string {
	list := append(t.changelogs.names(t.decided...), t.chain.Output)
	if t.chain.Parked != "" {
		list = append(list, t.chain.Parked)
	}
	for _, topic := range t.decided {
		if !slices.Contains(t.inputs, topic) {
			list = append(list, topic)
		}
	}
	return list
}

// readLimits reads the limits of the topics that are written.
func (t *Transactor) readLimits(ctx context.Context, adm *kadm.Client) error {
	l, err := cluster.ReadLimits(ctx, adm, t.written()...)
	if err == nil {
		t.topicLimits.Store(&l)
	}
	return err
}

// raised returns the error of a check against a client's limits. The first such error
// of a transaction makes it read the limits again. If they have changed, the client must restart,
// so that a raised limit counts without a restart of the process. restart is the error that says
// so, and the check then has none.
func (t *Transactor) raised(ctx context.Context, had cluster.Limits, asked *bool, tooLarge error) (err, restart error) {
	if tooLarge == nil || *asked || t.admin == nil { // a Trial has no brokers
		return tooLarge, nil
	}
	*asked = true
	if err := t.readLimits(ctx, t.adm()); err != nil {
		return nil, fmt.Errorf("kafka: %w: %w", errAgain, err)
	}
	if !maps.Equal(had, *t.topicLimits.Load()) {
		return nil, fmt.Errorf("kafka: %w with the new limits of the topics", errAgain)
	}
	return tooLarge, nil
}
