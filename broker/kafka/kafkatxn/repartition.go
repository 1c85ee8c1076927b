package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/internal/invalid"
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

func (r *Repartition) validate(o *TransactorOptions, wrong *invalid.List) {
	if slices.Contains(append([]string{o.Output.Topic, o.Parked, o.State.Changelog}, o.Inputs...), r.Topic) {
		wrong.Add("Repartition.Topic: %s is another topic of the pipeline; it needs one of its own", r.Topic)
	}
}

// RepartitionGroup returns the group of the first stage, if the second stage reads as
// group.
func RepartitionGroup(group string) string { return group + cluster.RepartitionSuffix }

// checkRepartition creates a missing topic between the stages, refuses a topic that would lose or
// separate copies, and adds the topic to the list.
func (t checks) checkRepartition(ctx context.Context, adm *kadm.Client, topics kadm.TopicDetails) error {
	if t.opts.Repartition == nil {
		return t.checkWithout(ctx, adm)
	}
	name, changelog := t.opts.Repartition.Topic, t.opts.changelogOf(t.opts.Repartition.Topic)
	found, err := adm.ListTopics(ctx, name, changelog)
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	topic, keys := found[name], len(found[changelog].Partitions)
	copied, err := t.hasRead(ctx, adm, t.opts.copyGroup(), t.opts.Inputs...)
	if err != nil {
		return err
	}
	before, err := t.hasRead(ctx, adm, t.opts.Group, t.opts.Inputs...)
	if err != nil {
		return err
	}
	if copied == "" && before != "" {
		return fmt.Errorf("kafka: group %s has read %s without a repartition stage: its keys would not be found, and %s would be read from the start. Give the pipeline a new group. Give its first stage, whose group has the suffix %q, the offsets of the old group, and create the topic between the stages: %w",
			t.opts.Group, before, before, cluster.RepartitionSuffix, semel.ErrInvalidRequest)
	}
	if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
		if copied != "" {
			return fmt.Errorf("kafka: repartition topic %s, into which group %s has copied %s, %w; what was not read of it would be lost: delete that group, and %s is copied again; what is remembered of keys stays",
				name, t.opts.copyGroup(), copied, errNoTopic, copied)
		}
		return t.makeRepartition(ctx, adm, topics, keys)
	}
	if topic.Err != nil {
		return fmt.Errorf("kafka: repartition topic %s: %w", name, topic.Err)
	}
	partitions := len(topic.Partitions)
	if found[changelog].Err == nil && keys != partitions {
		return stageDiffers(name, partitions, changelog, keys)
	}
	topics[name] = topic
	t.copyPartitions = int32(partitions)
	return t.checkRepartitionSettings(ctx, adm, name)
}

// stageDiffers is the error of a topic between the stages whose changelog has another
// number of partitions.
func stageDiffers(topic string, partitions int, changelog string, keys int) error {
	return fmt.Errorf("kafka: repartition topic %s has %d partitions, and the keys in %s were remembered with %d: they would not be found. Use a new group, repartition topic and changelog: %w",
		topic, partitions, changelog, keys, semel.ErrInvalidRequest)
}

// checkWithout refuses to run without a stage that was used before.
func (t checks) checkWithout(ctx context.Context, adm *kadm.Client) error {
	copied, err := t.hasRead(ctx, adm, t.opts.copyGroup(), t.opts.Inputs...)
	if errors.Is(err, kerr.GroupAuthorizationFailed) || copied == "" && err == nil {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("kafka: group %s has copied %s for a repartition stage: without it keys would not be found, and %s would be read from the start. Keep the stage, or use a new group and changelog: %w",
		t.opts.copyGroup(), copied, copied, semel.ErrInvalidRequest)
}

// hasRead returns the first of topics with a committed offset of a group, or "". It refuses
// a Repartition while records of them wait for rows, because no stage would read them.
func (t checks) hasRead(ctx context.Context, adm *kadm.Client, group string, topics ...string) (string, error) {
	committed, err := adm.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("kafka: offsets of group %s: %w", group, err)
	}
	if err := pending.Refuse(group, committed, topics); t.opts.Repartition != nil && err != nil {
		return "", err
	}
	for _, topic := range topics {
		for _, o := range committed[topic] {
			if o.Err == nil && o.At >= 0 {
				return topic, nil
			}
		}
	}
	return "", nil
}

// repartitionSegment is the segment size: the broker deletes whole segments.
const repartitionSegment = 50 << 20

// makeRepartition creates the topic between the stages. Its records do not expire.
func (t checks) makeRepartition(ctx context.Context, adm *kadm.Client, topics kadm.TopicDetails, keys int) error {
	name, partitions := t.opts.Repartition.Topic, keys
	if partitions == 0 {
		for _, input := range t.opts.Inputs {
			partitions = max(partitions, len(topics[input].Partitions))
		}
	}
	settings := map[string]*string{
		"cleanup.policy": kadm.StringPtr("delete"), "retention.ms": kadm.StringPtr("-1"), "retention.bytes": kadm.StringPtr("-1"),
		"message.timestamp.type": kadm.StringPtr("CreateTime"), "segment.bytes": kadm.StringPtr(strconv.Itoa(repartitionSegment)),
	}
	size, err := t.largest(ctx, adm)
	if err != nil {
		return err
	}
	if size > 0 {
		settings["max.message.bytes"] = kadm.StringPtr(strconv.Itoa(size + copyHeadroom))
	}
	_, err = adm.CreateTopic(ctx, int32(partitions), -1, settings, name)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("kafka: create repartition topic %s: %w", name, err)
	}
	return kerr.LeaderNotAvailable // check again
}

// copyHeadroom is how much longer a copy may be than its record: the id, the key and
// the origin.
const copyHeadroom = 64 << 10

// largest returns the largest limit of an input, or 0 if all are hidden.
func (t checks) largest(ctx context.Context, adm *kadm.Client) (int, error) {
	limits, err := cluster.ReadLimits(ctx, adm, t.opts.Inputs...)
	if err != nil {
		return 0, err
	}
	largest := 0
	for _, l := range limits {
		largest = max(largest, l.Bytes)
	}
	return largest, nil
}

// checkRepartitionSettings refuses a topic that loses copies. Hidden settings are
// trusted.
func (t checks) checkRepartitionSettings(ctx context.Context, adm *kadm.Client, name string) error {
	configs, err := cluster.TopicSettings(ctx, adm, name)
	if err != nil {
		return err
	}
	if policy := cluster.Setting(configs, name, "cleanup.policy"); strings.Contains(policy, "compact") {
		return fmt.Errorf("kafka: repartition topic %s has cleanup.policy %s: of the records of one id all but the last would be lost, only \"delete\" keeps them: %w",
			name, policy, semel.ErrInvalidRequest)
	}
	return nil
}

// lost explains a missing offset of the topic between the stages. A replaced member may
// meet records that others have read and deleted; it restarts. Records that the group
// has not read must exist.
func (t checks) lost(ctx context.Context, cause error) error {
	adm, topic := t.adm(), t.opts.Repartition.Topic
	committed, err := adm.FetchOffsets(ctx, t.opts.Group)
	if err != nil {
		return fmt.Errorf("kafka: offsets of group %s: %w", t.opts.Group, err)
	}
	starts, err := adm.ListStartOffsets(ctx, topic)
	ends, err2 := adm.ListEndOffsets(ctx, topic)
	if err := errors.Join(err, err2); err != nil {
		return fmt.Errorf("kafka: offsets of %s: %w", topic, err)
	}
	for number, o := range committed[topic] {
		start, ok := starts.Lookup(topic, number)
		end, ok2 := ends.Lookup(topic, number)
		if o.Err == nil && o.At >= 0 && ok && ok2 && start.Err == nil && end.Err == nil && (o.At < start.Offset || o.At > end.Offset) {
			return fmt.Errorf("kafka: repartition topic %s/%d has records from %d to %d, but the next offset is %d: records were lost before they were read. Set the offsets of group %s back to copy them again, and those of group %s to the start: %w",
				topic, number, start.Offset, end.Offset, o.At, t.opts.copyGroup(), t.opts.Group, cause)
		}
	}
	return fmt.Errorf("kafka: another member went on: %w: %v", errAgain, cause) // not wrapped: a restart may help
}
