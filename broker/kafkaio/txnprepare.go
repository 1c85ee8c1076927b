package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// prepare looks at the brokers and topics until all that is needed is there. It
// returns an error for what will not mend by itself.
func (t *Transactor) prepare(ctx context.Context) error {
	began := time.Now()
	for tries := 1; ; tries++ {
		err := t.check(ctx)
		// A broker that has just started does not know all topics at once.
		early := errors.Is(err, errNoTopic) && time.Since(began) < noTopicAfter
		if err == nil || !transient(err) && !early {
			t.health.prepared(err)
			return err
		}
		t.health.missing(err)
		t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "not all is there yet", Err: err})
		if !pause(ctx, min(time.Second, 50*time.Millisecond<<min(tries, 5))) {
			return context.Cause(ctx)
		}
	}
}

// noTopicAfter is how long a topic must be missing before it does not exist.
const noTopicAfter = 10 * time.Second

var errNoTopic = fmt.Errorf("does not exist: %w", semel.ErrInvalidRequest)

// pause waits and reports whether it did to the end.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// transient reports whether an error may end by waiting: of a connection, or one
// that the broker says can be retried.
func transient(err error) bool {
	if errors.Is(err, semel.ErrInvalidRequest) {
		return false
	}
	if refused, ok := errors.AsType[*kerr.Error](err); ok {
		return refused.Retriable
	}
	return true
}

func (t *Transactor) check(ctx context.Context) error {
	if err := t.checkBrokers(ctx); err != nil {
		return err
	}
	adm := t.adm()
	names := append([]string{t.opts.Output}, t.opts.Inputs...)
	topics, err := adm.ListTopics(ctx, names...)
	if err != nil {
		return fmt.Errorf("kafkaio: list topics: %w", err)
	}
	for _, name := range names {
		if err := topics[name].Err; errors.Is(err, kerr.UnknownTopicOrPartition) {
			return fmt.Errorf("kafkaio: topic %s %w: make it: kafka-topics.sh --create --topic %s", name, errNoTopic, name)
		} else if err != nil {
			return fmt.Errorf("kafkaio: topic %s: %w", name, err)
		}
	}
	if err := t.checkParked(ctx, adm, len(topics[t.opts.Inputs[0]].Partitions)); err != nil {
		return err
	}
	if t.opts.SamePartition {
		for _, input := range t.opts.Inputs {
			if have, need := len(topics[t.opts.Output].Partitions), len(topics[input].Partitions); have < need {
				return fmt.Errorf("kafkaio: %s has %d partitions and %s %d, and records keep the number of their partition (partition: same): the output needs as many: %w", input, need, t.opts.Output, have, semel.ErrInvalidRequest)
			}
		}
	}
	if err := t.checkRepartition(ctx, adm, topics); err != nil {
		return err
	}
	if err := t.sample(ctx); err != nil { // before anything is made that would fix a number of partitions
		return err
	}
	t.topics, t.sizes, t.changelog = map[string]topicID{}, map[string]int32{}, map[string]topicID{}
	for _, topic := range t.opts.reads() {
		partitions := len(topics[topic].Partitions)
		t.topics[topic], t.sizes[topic] = topics[topic].ID, int32(partitions)
		id, err := t.checkChangelog(ctx, adm, topic, partitions)
		if err != nil {
			return err
		}
		t.changelog[topic] = id
	}
	return t.readLimits(ctx, adm)
}

// readLimits reads what the topics that are written take.
func (t *Transactor) readLimits(ctx context.Context, adm *kadm.Client) error {
	l, err := readLimits(ctx, adm, t.opts.written()...)
	if err == nil {
		t.limits.Store(&l)
	}
	return err
}

// raised returns the error of a check against the limits that a client has. The first
// one of a transaction has the topics asked again: if they take something else by now,
// the error has the client begin anew. A raised limit then counts without a restart.
func (t *Transactor) raised(ctx context.Context, had limits, asked *bool, tooLarge error) error {
	if tooLarge == nil || *asked {
		return tooLarge
	}
	*asked = true
	if err := t.readLimits(ctx, t.adm()); err != nil {
		return fmt.Errorf("kafkaio: %w: %w", errAgain, err)
	}
	if !maps.Equal(had, *t.limits.Load()) {
		return fmt.Errorf("kafkaio: %w with the topics' new max.message.bytes", errAgain)
	}
	return tooLarge
}

// mostRefusals is how often in a row brokers may refuse, for its size, what fits by
// the settings that they tell.
const mostRefusals = 5

// refusedSize says what follows from an error of the producer of a client that had
// these limits: nothing if it is not about a size. A client begins anew with the
// settings that the brokers have by now. Where these are the same, and it was
// refused times before, nothing would change.
func (t *Transactor) refusedSize(ctx context.Context, had limits, times *int, cause error) error {
	if !isTooLarge(cause) {
		return nil
	}
	*times++
	if err := t.readLimits(ctx, t.adm()); err != nil {
		return err
	}
	if *times < mostRefusals || !maps.Equal(had, *t.limits.Load()) {
		return fmt.Errorf("kafkaio: %w: %w", errAgain, cause)
	}
	return fmt.Errorf("kafkaio: %w: %w: the brokers take less than max.message.bytes of that topic says, or it may not be seen: allow DescribeConfigs on the topic, or raise it", pipeline.ErrStopped, cause)
}

// checkParked makes the topic of what is put aside if it is missing. It keeps
// its records until somebody settles them.
func (t *Transactor) checkParked(ctx context.Context, adm *kadm.Client, partitions int) error {
	if t.opts.Parked == "" {
		return nil
	}
	topics, err := adm.ListTopics(ctx, t.opts.Parked)
	if err != nil {
		return fmt.Errorf("kafkaio: list topics: %w", err)
	}
	switch err := topics[t.opts.Parked].Err; {
	case err == nil:
		return nil
	case !errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("kafkaio: topic %s: %w", t.opts.Parked, err)
	}
	forever := map[string]*string{"retention.ms": kadm.StringPtr("-1"), "retention.bytes": kadm.StringPtr("-1")}
	_, err = adm.CreateTopic(ctx, int32(partitions), -1, forever, t.opts.Parked)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("kafkaio: make %s, for what is put aside: %w", t.opts.Parked, err)
	}
	return kerr.LeaderNotAvailable // look again
}

// checkBrokers refuses brokers that do not fence a member which was replaced.
func (t *Transactor) checkBrokers(ctx context.Context) error {
	answer, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, t.admin)
	if err != nil {
		return fmt.Errorf("kafkaio: ask for versions: %w", err)
	}
	if fencing(answer).Severity != semel.Fine {
		return fmt.Errorf("kafkaio: the brokers are older than Kafka 2.5: they do not stop a member that was replaced from committing: %w", semel.ErrInvalidRequest)
	}
	for _, k := range answer.ApiKeys {
		t.byID = t.byID || k.ApiKey == int16(kmsg.Metadata) && k.MaxVersion >= metadataByID
	}
	if f := transactionVersion(answer); f.Severity != semel.Fine {
		t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: f.Subject + " is " + f.Found + ": " + f.Cost})
	}
	return nil
}

// checkChangelog makes the changelog of an input if it is missing, refuses one
// that does not fit, and returns its id.
func (t *Transactor) checkChangelog(ctx context.Context, adm *kadm.Client, input string, partitions int) (topicID, error) {
	name := t.opts.changelogOf(input)
	topics, err := adm.ListTopics(ctx, name)
	if err != nil {
		return topicID{}, fmt.Errorf("kafkaio: list topics: %w", err)
	}
	topic := topics[name]
	if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
		settings := map[string]*string{
			"cleanup.policy": kadm.StringPtr("delete"), "retention.bytes": kadm.StringPtr("-1"),
			"retention.ms": kadm.StringPtr(strconv.FormatInt(t.changelogRetention(), 10)),
		}
		if err := t.checkUnread(ctx, adm, input, partitions, settings); err != nil {
			return topicID{}, err
		}
		_, err := adm.CreateTopic(ctx, int32(partitions), -1, settings, name)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return topicID{}, fmt.Errorf("kafkaio: make changelog %s: %w", name, err)
		}
		return topicID{}, kerr.LeaderNotAvailable // look again
	}
	if topic.Err != nil {
		return topicID{}, fmt.Errorf("kafkaio: changelog %s: %w", name, topic.Err)
	}
	if len(topic.Partitions) != partitions {
		return topicID{}, changelogDiffers(input, partitions, name, len(topic.Partitions))
	}
	return topic.ID, t.checkSettings(ctx, adm, name)
}

// grown says what it means that a topic has more partitions than when this began:
// what would be refused at a start ends the work.
func (t *Transactor) grown(ctx context.Context, topic string) error {
	topics, err := t.adm().ListTopics(ctx, topic)
	if err != nil {
		return fmt.Errorf("kafkaio: list topics: %w", err)
	}
	partitions, had := len(topics[topic].Partitions), int(t.sizes[topic])
	if partitions <= had {
		return fmt.Errorf("kafkaio: brokers do not agree on the partitions of %s: %w", topic, errAgain)
	}
	if t.opts.Repartition != nil {
		return stageDiffers(topic, partitions, t.opts.changelogOf(topic), had)
	}
	return changelogDiffers(topic, partitions, t.opts.changelogOf(topic), had)
}

// changelogDiffers is the error of an input that has other partitions than its keys.
func changelogDiffers(input string, partitions int, changelog string, keys int) error {
	return fmt.Errorf("kafkaio: %s has %d partitions and its changelog %s %d: keys would be looked for where they are not; begin with a new changelog, or with a new input of the old count: %w",
		input, partitions, changelog, keys, semel.ErrInvalidRequest)
}

// checkUnread refuses to make the changelog of an input that the group has read:
// what is remembered of it was there, or is in another topic.
func (t *Transactor) checkUnread(ctx context.Context, adm *kadm.Client, input string, partitions int, settings map[string]*string) error {
	read, err := t.hasRead(ctx, adm, t.opts.Group, input)
	if err != nil || read == "" {
		return err
	}
	name, one, several := t.opts.changelogOf(input), t.opts.Changelog, t.opts.Changelog+"-"+input
	other := several
	if name == several {
		other = one
	}
	topics, err := adm.ListTopics(ctx, other)
	if err != nil {
		return fmt.Errorf("kafkaio: list topics: %w", err)
	}
	hint := ""
	switch {
	case topics[other].Err != nil: // not there, or not to be seen
	case other == one:
		hint = fmt.Sprintf("with one input its keys were in %s: give what is new a pipeline of its own, in another group; ", one)
	default:
		hint = fmt.Sprintf("with several inputs its keys were in %s: name that one (transaction.changelog: %s); ", several, several)
	}
	create := fmt.Sprintf("kafka-topics.sh --create --topic %s --partitions %d", name, partitions)
	for _, setting := range slices.Sorted(maps.Keys(settings)) {
		create += " --config " + setting + "=" + *settings[setting]
	}
	return fmt.Errorf("kafkaio: group %s has read %s, and changelog %s, which holds its keys, %w: what comes again would have its effect again; %sif there were none, for the offsets are another consumer's or were set by hand, or to begin without them, make it: %s",
		t.opts.Group, input, name, errNoTopic, hint, create)
}

// changelogRetention returns for how many milliseconds the changelog keeps its
// records, or -1.
func (t *Transactor) changelogRetention() int64 {
	keep := t.windows.retention()
	if t.windows.eventTime || keep >= semel.Forever/2 {
		return -1 // its records' times say nothing about when they may go
	}
	return (keep + max(keep/4, time.Hour)).Milliseconds()
}

// checkSettings refuses a changelog that loses keys. Settings that may not be
// seen are believed.
func (t *Transactor) checkSettings(ctx context.Context, adm *kadm.Client, name string) error {
	configs, err := topicSettings(ctx, adm, name)
	if err != nil {
		return err
	}
	has := settings(configs, name)
	if policy := has["cleanup.policy"]; strings.Contains(policy, "compact") {
		return fmt.Errorf("kafkaio: changelog %s has cleanup.policy %s: its records have no key, only \"delete\" keeps them: %w", name, policy, semel.ErrInvalidRequest)
	}
	keeps, err := strconv.ParseInt(has["retention.ms"], 10, 64)
	need := t.changelogRetention()
	if err == nil && keeps >= 0 && (need < 0 || keeps < t.windows.retention().Milliseconds()) {
		return fmt.Errorf("kafkaio: changelog %s has retention.ms %d, shorter than what the window needs (%d): keys would be forgotten early: %w", name, keeps, need, semel.ErrInvalidRequest)
	}
	return nil
}

// partitioner leaves the partition of records for some topics to the caller. For
// others the key's hash decides, as in Kafka's own client.
type partitioner struct{ manual map[string]bool }

func (p partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	if p.manual[topic] {
		return kgo.ManualPartitioner().ForTopic(topic)
	}
	return kgo.StickyKeyPartitioner(nil).ForTopic(topic)
}
