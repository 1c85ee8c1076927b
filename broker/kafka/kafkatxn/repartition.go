package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/marks"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/repartition"
	"github.com/semel-dev/semel/pipeline"
)

// Repartition is a stage before the stage that decides. It copies the records of all
// inputs to a topic in which all records of a key are in one partition, whatever their
// record keys and producers are. Copies and offsets are one transaction, so nothing is
// lost or added between the stages. The second stage decides, writes and parks the
// original record: key, value, headers, time and origin.
//
// Records of one id stay in order, not records of one record key. With an Aggregate, records
// of one group key are in one partition instead, and stay in order; duplicates are found if
// they have one group key. The slowest partition of the inputs decides which windows are
// closed, and which held records take effect. With EventTime alone, Grace must cover how far
// the partitions of the inputs are apart, because the stage mixes their records.
type Repartition struct {
	// Topic is the topic between the stages. It is created if it is missing. The
	// Transactor deletes records that the second stage has committed. No other pipeline
	// may use it. A new topic has as many partitions as the keys were remembered with, or
	// as the input with the most. Defaults to Group and "-repartition".
	Topic string
}

func (r *Repartition) withDefaults(group string) *Repartition {
	set := *r
	if set.Topic == "" {
		set.Topic = group + cluster.RepartitionSuffix
	}
	return &set
}

// repartitionGroup returns the group of the first stage, if the second stage reads as
// group.
func repartitionGroup(group string) string { return group + cluster.RepartitionSuffix }

// repartitioned is the source of sessions behind a repartition stage: copies of the records.
type repartitioned struct {
	*Transactor
	topic, group string // between the stages, and of the first stage
}

var _ source = (*repartitioned)(nil)

// start implements source. Sessions must read all records that the first stage has copied.
func (*repartitioned) start() []kgo.Opt {
	return []kgo.Opt{kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.ConsumeResetOffset(kgo.NoResetOffset())}
}

func (*repartitioned) fromEnd() bool { return false }

func (*repartitioned) original() func(*kgo.Record) { return new(repartition.Originals).Unwrap }

func (t *repartitioned) elsewhere() func([]byte, int32) bool {
	p := t.partitioner()
	return func(group []byte, partition int32) bool { return p.Of(group) != partition }
}

func (t *repartitioned) members(number int) []run { return []run{newCopier(t, number).run} }

// sample implements source: records of a key come to one partition anyway.
func (*repartitioned) sample(context.Context) error { return nil }

// partitioner chooses the partitions of copies.
func (t *repartitioned) partitioner() *repartition.Partitioner {
	return repartition.NewPartitioner(repartition.PartitionerOptions{
		Rule: t.chain.Rule, Scope: t.chain.Scope, Hash: t.chain.OnMissing == pipeline.MissingHash,
		Unwrap: t.chain.Unwrap, Topic: t.topic, Partitions: t.copyPartitions, Identities: t.identities,
		Time: t.chain.Times.Rule, Unit: t.chain.Times.Unit, By: t.chain.By(),
		FilterMap: func(ctx context.Context, d pipeline.Delivery) ([]byte, bool, error) {
			return t.chain.CallFilterMap(ctx, &d, t.timeouts.Transaction)
		},
	})
}

// check implements source. It creates a missing topic between the stages, and refuses one that
// would lose or separate copies.
func (t *repartitioned) check(ctx context.Context, adm *kadm.Client, topics kadm.TopicDetails) error {
	changelog := t.changelogs[t.topic][0].name
	found, err := adm.ListTopics(ctx, t.topic, changelog)
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	topic, keys := found[t.topic], len(found[changelog].Partitions)
	read := map[string]string{}
	for _, group := range []string{t.group, t.chain.Group} {
		committed, err := pending.Offsets(ctx, adm, group, t.inputs)
		if err == nil {
			err = pending.Refuse(group, committed, t.inputs) // no stage would read records that wait
		}
		if err != nil {
			return err
		}
		read[group] = firstRead(committed, t.inputs)
	}
	copied, before := read[t.group], read[t.chain.Group]
	if copied == "" && before != "" {
		return fmt.Errorf("kafka: group %s has read %s without a repartition stage: its keys would not be found, and %s would be read from the start. Give the pipeline a new group. Give its first stage, whose group has the suffix %q, the offsets of the old group, and create the topic between the stages: %w",
			t.chain.Group, before, before, cluster.RepartitionSuffix, semel.ErrInvalidRequest)
	}
	if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
		if copied != "" {
			return fmt.Errorf("kafka: repartition topic %s, into which group %s has copied %s, %w; what was not read of it would be lost: delete that group, and %s is copied again; what is remembered of keys stays",
				t.topic, t.group, copied, errNoTopic, copied)
		}
		return t.create(ctx, adm, topics, keys)
	}
	if topic.Err != nil {
		return fmt.Errorf("kafka: repartition topic %s: %w", t.topic, topic.Err)
	}
	partitions := len(topic.Partitions)
	if found[changelog].Err == nil && keys != partitions {
		return t.differs(t.topic, partitions, changelog, keys)
	}
	topics[t.topic] = topic
	t.copyPartitions = int32(partitions)
	configs, err := cluster.TopicSettings(ctx, adm, t.topic) // hidden settings are trusted
	if err != nil {
		return err
	}
	if policy := cluster.Setting(configs, t.topic, "cleanup.policy"); strings.Contains(policy, "compact") {
		return fmt.Errorf("kafka: repartition topic %s has cleanup.policy %s: of the records of one id all but the last would be lost, only \"delete\" keeps them: %w",
			t.topic, policy, semel.ErrInvalidRequest)
	}
	return nil
}

// create creates the topic between the stages. Its records do not expire.
func (t *repartitioned) create(ctx context.Context, adm *kadm.Client, topics kadm.TopicDetails, partitions int) error {
	if partitions == 0 {
		for _, input := range t.inputs {
			partitions = max(partitions, len(topics[input].Partitions))
		}
	}
	settings := map[string]*string{
		"cleanup.policy": kadm.StringPtr("delete"), "retention.ms": kadm.StringPtr("-1"), "retention.bytes": kadm.StringPtr("-1"),
		"message.timestamp.type": kadm.StringPtr("CreateTime"), "segment.bytes": kadm.StringPtr(strconv.Itoa(smallSegment)),
	}
	limits, err := cluster.ReadLimits(ctx, adm, t.inputs...)
	if err != nil {
		return err
	}
	largest := 0 // if all limits are hidden
	for _, l := range limits {
		largest = max(largest, l.Bytes)
	}
	if largest > 0 {
		settings["max.message.bytes"] = kadm.StringPtr(strconv.Itoa(largest + copyHeadroom))
	}
	return createTopic(ctx, adm, "repartition topic", t.topic, partitions, settings)
}

// copyHeadroom is how much longer a copy may be than its record: the id, the key and
// the origin.
const copyHeadroom = 64 << 10

func (*repartitioned) differs(topic string, partitions int, changelog string, has int) error {
	return fmt.Errorf("kafka: repartition topic %s has %d partitions, and the keys in %s were remembered with %d: they would not be found. Use a new group, repartition topic and changelog: %w",
		topic, partitions, changelog, has, semel.ErrInvalidRequest)
}

func (t *repartitioned) madeAgain(topic string) error {
	return cluster.Damaged("kafka: repartition topic %s was deleted and made again, and copies that were not decided are lost. Delete the groups %s and %s, and the input is copied again; what is remembered of keys stays",
		topic, t.chain.Group, t.group)
}

// intact implements source: the inputs must have been copied to the topic that is there. Brokers
// delete the offsets of that topic with it, but not those of the inputs. An input that was made
// again would be copied from an offset of the former one.
func (t *repartitioned) intact(ctx context.Context, adm *kadm.Client, has *presence) error {
	copied, err := pending.Offsets(ctx, adm, t.group, t.inputs)
	if err != nil {
		return err
	}
	inputs, err := adm.ListTopics(ctx, t.inputs...)
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	other := func(was marks.ID, now kadm.TopicID) bool {
		return was != marks.ID(now) && was != (marks.ID{}) && now != (kadm.TopicID{})
	}
	copied.Each(func(at kadm.OffsetResponse) {
		n, _ := marks.Parse(at.Metadata)
		switch {
		case err != nil || n == nil:
		case other(n.Copied, has.topics[t.topic].ID):
			err = t.madeAgain(t.topic)
		case other(n.Read, inputs[at.Topic].ID):
			err = inputMadeAgain(at.Topic, t.group)
		}
	})
	return err
}

func (t *repartitioned) lacks(id cluster.Partition, offset int64, has marks.Present) error {
	if offset >= has.Start && offset <= has.End {
		return nil
	}
	return cluster.Damaged("kafka: repartition topic %s/%d has records from %d to %d, but the next offset is %d: records were lost before they were read. Set the offsets of group %s back to copy them again, and those of group %s to the start: %w",
		id.Topic, id.Number, has.Start, has.End, offset, t.group, t.chain.Group, cluster.ErrOutOfRange)
}

// outOfRange implements source. A replaced member may meet records that others have read and
// deleted; it restarts. Records that the group has not read must exist.
func (t *repartitioned) outOfRange(ctx context.Context, cause error) error {
	if !errors.Is(cause, cluster.ErrOutOfRange) {
		return cause
	}
	adm := t.adm()
	committed, err := pending.Offsets(ctx, adm, t.chain.Group, []string{t.topic})
	if err != nil {
		return err
	}
	has, err := losses{t.Transactor}.present(ctx, adm)
	if err != nil {
		return err
	}
	committed.Each(func(at kadm.OffsetResponse) {
		if now, known := has.of(t.topic, at.Partition); known && at.Err == nil && at.At >= 0 && err == nil {
			err = t.lacks(cluster.Partition{Topic: t.topic, Number: at.Partition}, at.At, now)
		}
	})
	if err != nil {
		return err
	}
	return fmt.Errorf("kafka: another member went on: %w: %v", errAgain, cause) // not wrapped: a restart may help
}

// tidyEvery is how often committed records are deleted from the topic between the stages.
const tidyEvery = 30 * time.Second

// tidy implements source. Every process does it; a repeated deletion costs nothing.
func (t *repartitioned) tidy(ctx context.Context) {
	done := map[int32]int64{}
	trimmer{t.Transactor}.repeat(ctx, tidyEvery, "what was read of "+t.topic+" stays until its retention ends", func() error {
		err := t.deleteDecided(ctx, done)
		if err != nil && transient(err) {
			return nil
		}
		return err
	})
}

// deleteDecided deletes copies before the committed offsets. done has those up to which they are
// deleted.
func (t *repartitioned) deleteDecided(ctx context.Context, done map[int32]int64) error {
	committed, err := pending.Offsets(ctx, t.adm(), t.chain.Group, []string{t.topic})
	if err != nil {
		return err
	}
	upTo := kadm.Offsets{}
	for number, o := range committed[t.topic] {
		if o.Err == nil && o.At > done[number] {
			upTo.AddOffset(t.topic, number, o.At, -1)
		}
	}
	if err := (trimmer{t.Transactor}).cutOff(ctx, upTo); err != nil {
		return err
	}
	upTo.Each(func(o kadm.Offset) { done[o.Partition] = o.At })
	return nil
}
