package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// checkRepartition makes the topic between the stages if it is missing, refuses
// one that would lose or separate copies, and adds it to the topics.
func (t *Transactor) checkRepartition(ctx context.Context, adm *kadm.Client, topics kadm.TopicDetails) error {
	if t.opts.Repartition == nil {
		return t.checkWithout(ctx, adm)
	}
	name, changelog := t.opts.Repartition.Topic, t.opts.changelogOf(t.opts.Repartition.Topic)
	found, err := adm.ListTopics(ctx, name, changelog)
	if err != nil {
		return fmt.Errorf("kafkaio: list topics: %w", err)
	}
	topic, keys := found[name], len(found[changelog].Partitions)
	copied, err := t.hasRead(ctx, adm, t.opts.copyGroup(), t.opts.Inputs...)
	if err != nil {
		return err
	}
	if copied == "" {
		if before, err := t.hasRead(ctx, adm, t.opts.Group, t.opts.Inputs...); err != nil {
			return err
		} else if before != "" {
			return fmt.Errorf("kafkaio: group %s has read %s without a repartition stage: its keys would be looked for where they are not, and %s read from the start; give the pipeline a new group, and its first stage, the new group's name with %q behind it, the offsets of the old one: %w",
				t.opts.Group, before, before, repartitionSuffix, semel.ErrInvalidRequest)
		}
	}
	if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
		if copied != "" {
			return fmt.Errorf("kafkaio: repartition topic %s, into which group %s has copied %s, %w; what was not read of it would be lost: delete that group, and %s is copied again; what is remembered of keys stays",
				name, t.opts.copyGroup(), copied, errNoTopic, copied)
		}
		return t.makeRepartition(ctx, adm, topics, keys)
	}
	if topic.Err != nil {
		return fmt.Errorf("kafkaio: repartition topic %s: %w", name, topic.Err)
	}
	partitions := len(topic.Partitions)
	if want := t.opts.Repartition.Partitions; want > 0 && want != partitions {
		return fmt.Errorf("kafkaio: repartition topic %s has %d partitions, and %d are wanted: keys would be looked for where they are not; keep %d, or begin with a new group, repartition topic and changelog: %w",
			name, partitions, want, partitions, semel.ErrInvalidRequest)
	}
	if found[changelog].Err == nil && keys != partitions {
		return stageDiffers(name, partitions, changelog, keys)
	}
	topics[name] = topic
	t.copyPartitions = int32(partitions)
	return t.checkRepartitionSettings(ctx, adm, name)
}

// stageDiffers is the error of a topic between the stages that has other
// partitions than its keys.
func stageDiffers(topic string, partitions int, changelog string, keys int) error {
	return fmt.Errorf("kafkaio: repartition topic %s has %d partitions, and the keys in %s were remembered with %d: they would be looked for where they are not; begin with a new group, repartition topic and changelog: %w",
		topic, partitions, changelog, keys, semel.ErrInvalidRequest)
}

// checkWithout refuses to go on without the stage where it was.
func (t *Transactor) checkWithout(ctx context.Context, adm *kadm.Client) error {
	copied, err := t.hasRead(ctx, adm, t.opts.copyGroup(), t.opts.Inputs...)
	if errors.Is(err, kerr.GroupAuthorizationFailed) || copied == "" && err == nil {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("kafkaio: group %s has copied %s for a repartition stage: without it keys would be looked for where they are not, and %s read from the start; go on with the stage, or begin with a new group and changelog: %w",
		t.opts.copyGroup(), copied, copied, semel.ErrInvalidRequest)
}

// hasRead returns the first of topics of which a group has committed an offset, or "".
func (t *Transactor) hasRead(ctx context.Context, adm *kadm.Client, group string, topics ...string) (string, error) {
	committed, err := adm.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("kafkaio: offsets of group %s: %w", group, err)
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

// repartitionSegment is how much the broker keeps at least of a partition: it
// deletes whole segments.
const repartitionSegment = 50 << 20

// makeRepartition makes the topic between the stages. It keeps what is in it until
// that is deleted.
func (t *Transactor) makeRepartition(ctx context.Context, adm *kadm.Client, topics kadm.TopicDetails, keys int) error {
	name, partitions := t.opts.Repartition.Topic, t.opts.Repartition.Partitions
	if partitions == 0 {
		partitions = keys
	}
	most := 0
	for _, input := range t.opts.Inputs {
		most = max(most, len(topics[input].Partitions))
	}
	if partitions == 0 {
		partitions = most
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
		return fmt.Errorf("kafkaio: make repartition topic %s: %w", name, err)
	}
	return kerr.LeaderNotAvailable // look again
}

// copyHeadroom is how much longer a copy may be than its record: the id and the
// key, which are at most as long, and the origin.
const copyHeadroom = 64 << 10

// largest returns the largest record that an input takes, or 0 if none may be seen.
func (t *Transactor) largest(ctx context.Context, adm *kadm.Client) (int, error) {
	sizes, err := readLimits(ctx, adm, t.opts.Inputs...)
	if err != nil {
		return 0, err
	}
	largest := 0
	for _, size := range sizes {
		largest = max(largest, size)
	}
	return largest, nil
}

// checkRepartitionSettings refuses a topic that loses copies. Settings that may
// not be seen are believed.
func (t *Transactor) checkRepartitionSettings(ctx context.Context, adm *kadm.Client, name string) error {
	configs, err := topicSettings(ctx, adm, name)
	if err != nil {
		return err
	}
	if policy := setting(configs, name, "cleanup.policy"); strings.Contains(policy, "compact") {
		return fmt.Errorf("kafkaio: repartition topic %s has cleanup.policy %s: of the records of one id all but the last would be lost, only \"delete\" keeps them: %w",
			name, policy, semel.ErrInvalidRequest)
	}
	return nil
}

// purgeEvery is how often what the second stage has committed is deleted.
const purgeEvery = 30 * time.Second

// purge deletes from the topic between the stages what is committed, until ctx
// ends. Every process does it: what is deleted already costs nothing.
func (t *Transactor) purge(ctx context.Context) {
	done := map[int32]int64{}
	refused := ""
	for pause(ctx, purgeEvery) {
		err := t.purgeOnce(ctx, done)
		if err == nil || ctx.Err() != nil || transient(err) {
			continue
		}
		if err.Error() != refused { // once is enough
			refused = err.Error()
			t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "what was read of " + t.opts.Repartition.Topic + " stays until its retention ends", Err: err})
		}
	}
}

func (t *Transactor) purgeOnce(ctx context.Context, done map[int32]int64) error {
	adm, topic := t.adm(), t.opts.Repartition.Topic
	committed, err := adm.FetchOffsets(ctx, t.opts.Group)
	if err != nil {
		return fmt.Errorf("kafkaio: offsets of group %s: %w", t.opts.Group, err)
	}
	upTo := kadm.Offsets{}
	for number, o := range committed[topic] {
		if o.Err == nil && o.At > done[number] {
			upTo.AddOffset(topic, number, o.At, -1)
		}
	}
	deleted, err := adm.DeleteRecords(ctx, upTo)
	if err == nil {
		err = deleted.Error()
	}
	if err != nil {
		return fmt.Errorf("kafkaio: delete from %s: %w", topic, err)
	}
	upTo.Each(func(o kadm.Offset) { done[o.Partition] = o.At })
	return nil
}

// lost says what it means that an offset of the topic between the stages is not
// there. A member that was replaced meets what others have read and deleted: it
// begins anew. What nobody has read must be there.
func (t *Transactor) lost(ctx context.Context, cause error) error {
	adm, topic := t.adm(), t.opts.Repartition.Topic
	committed, err := adm.FetchOffsets(ctx, t.opts.Group)
	if err != nil {
		return fmt.Errorf("kafkaio: offsets of group %s: %w", t.opts.Group, err)
	}
	starts, err := adm.ListStartOffsets(ctx, topic)
	ends, err2 := adm.ListEndOffsets(ctx, topic)
	if err := errors.Join(err, err2); err != nil {
		return fmt.Errorf("kafkaio: offsets of %s: %w", topic, err)
	}
	for number, o := range committed[topic] {
		start, ok := starts.Lookup(topic, number)
		end, ok2 := ends.Lookup(topic, number)
		if o.Err == nil && o.At >= 0 && ok && ok2 && start.Err == nil && end.Err == nil && (o.At < start.Offset || o.At > end.Offset) {
			return fmt.Errorf("kafkaio: repartition topic %s/%d has records from %d to %d, and %d is where to go on: records were lost before they were read; set the offsets of group %s back to copy them again, and those of group %s to the start: %w",
				topic, number, start.Offset, end.Offset, o.At, t.opts.copyGroup(), t.opts.Group, cause)
		}
	}
	return fmt.Errorf("kafkaio: another member went on: %w: %v", errAgain, cause) // not wrapped: it is not the end
}

// repartitionTopic says whether the topic between the stages keeps what it must.
// Without keys no changelog is there yet.
func repartitionTopic(name string, partitions int, changelog string, keys int, settings map[string]string) []semel.Finding {
	counts := semel.Finding{Subject: "partitions of " + name, Found: fmt.Sprintf("%d, and %d of %s", partitions, keys, changelog)}
	switch {
	case keys == 0:
		counts.Found = fmt.Sprintf("%d; %s will be made", partitions, changelog)
	case keys != partitions:
		counts.Severity, counts.Cost, counts.Remedy = semel.Broken, "keys would be looked for where they are not", "begin with a new group, repartition topic and changelog"
	}
	list := []semel.Finding{counts}
	policy := semel.Finding{Subject: name + " cleanup.policy", Found: settings["cleanup.policy"]}
	if strings.Contains(policy.Found, "compact") {
		policy.Severity, policy.Cost, policy.Remedy = semel.Broken, "of the records of one id all but the last would be lost", "cleanup.policy=delete"
		list = append(list, policy)
	}
	ms, err := strconv.ParseInt(settings["retention.ms"], 10, 64)
	if err != nil {
		return list // it may not be seen
	}
	kept := semel.Finding{Subject: name + " retention.ms", Found: "for ever"}
	if ms >= 0 {
		kept.Found = (time.Duration(min(ms, int64(1<<63-1)/int64(time.Millisecond))) * time.Millisecond).String()
		kept.Severity = semel.Warning
		kept.Cost = "what is copied and not decided within that time is lost"
		kept.Remedy = "retention.ms=-1: what was decided is deleted without it"
	}
	return append(list, kept)
}
