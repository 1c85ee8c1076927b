package kafkatxn

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
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keystate"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/sample"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// prepare checks the brokers and topics until everything that is needed is there. It
// returns errors that waiting does not fix.
func (t *Transactor) prepare(ctx context.Context) error {
	began, told := time.Now(), ""
	for tries := 1; ; tries++ {
		err := t.check(ctx)
		// A broker that has just started does not know all topics yet.
		early := errors.Is(err, errNoTopic) && time.Since(began) < noTopicAfter
		if err == nil || !transient(err) && !early {
			t.health.Prepared(err)
			return err
		}
		t.health.Missing(err)
		if err.Error() != told {
			told = err.Error()
			t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "waiting for topics and brokers", Err: err})
		}
		if retry.Sleep(ctx, retry.Backoff(tries, 50*time.Millisecond, time.Second)) != nil {
			return context.Cause(ctx)
		}
	}
}

// noTopicAfter is how long a topic that holds state must be missing until it counts as
// non-existent. An input or output may be created at any time.
const noTopicAfter = 10 * time.Second

var errNoTopic = fmt.Errorf("does not exist: %w", semel.ErrInvalidRequest)

// transient reports whether waiting may fix an error: a connection error, or one that
// brokers call retriable.
func transient(err error) bool {
	if cluster.IsFinal(err) {
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
	names := append([]string{t.opts.Output.Topic}, t.opts.Inputs...)
	topics, err := adm.ListTopics(ctx, names...)
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	for _, name := range names {
		if err := topics[name].Err; errors.Is(err, kerr.UnknownTopicOrPartition) {
			return fmt.Errorf("kafka: %w", &cluster.MissingTopicError{Topic: name})
		} else if err != nil {
			return fmt.Errorf("kafka: topic %s: %w", name, err)
		}
	}
	if err := t.checkParked(ctx, adm, len(topics[t.opts.Inputs[0]].Partitions)); err != nil {
		return err
	}
	if t.opts.Output.SamePartition {
		for _, input := range t.opts.Inputs {
			if have, need := len(topics[t.opts.Output.Topic].Partitions), len(topics[input].Partitions); have < need {
				return fmt.Errorf("kafka: %s has %d partitions and %s %d, and records keep the number of their partition (partition: same): the output needs as many: %w", input, need, t.opts.Output.Topic, have, semel.ErrInvalidRequest)
			}
		}
	}
	if err := t.checkRepartition(ctx, adm, topics); err != nil {
		return err
	}
	if err := t.sample(ctx); err != nil { // before a topic is created whose partitions cannot be changed
		return err
	}
	if t.tableTopics, err = t.checkTables(ctx, adm, topics); err != nil {
		return err
	}
	t.topics, t.sizes, t.changelog = map[string]keystate.TopicID{}, map[string]int32{}, map[string]keystate.TopicID{}
	t.stateTopic, t.origins, t.identities = map[string]keystate.TopicID{}, map[string]int32{}, map[string]string{}
	for _, input := range t.opts.Inputs {
		if t.opts.Key.Rule.NeedsPosition() {
			t.identities[input] = cluster.Identity(topics[input].ID)
		}
		t.origins[input], t.topics[input] = int32(len(topics[input].Partitions)), topics[input].ID
	}
	for _, topic := range t.opts.reads() {
		partitions := len(topics[topic].Partitions)
		t.topics[topic], t.sizes[topic] = topics[topic].ID, int32(partitions)
		id, err := t.checkChangelog(ctx, adm, topic, partitions)
		if err != nil {
			return err
		}
		t.changelog[topic] = id
		if t.opts.hasState() {
			if err := t.checkWindows(ctx, adm, topic, partitions); err != nil {
				return err
			}
		}
	}
	if err := t.intact(ctx, adm); err != nil {
		return err
	}
	return t.readLimits(ctx, adm)
}

// readLimits reads the limits of the topics that are written.
func (t *Transactor) readLimits(ctx context.Context, adm *kadm.Client) error {
	l, err := cluster.ReadLimits(ctx, adm, t.opts.written()...)
	if err == nil {
		t.limits.Store(&l)
	}
	return err
}

// raised returns the error of a check against a client's limits. The first such error
// of a transaction makes it read the limits again. If they have changed, the error
// restarts the client, so that a raised limit counts without a restart of the process.
func (t *Transactor) raised(ctx context.Context, had cluster.Limits, asked *bool, tooLarge error) error {
	if tooLarge == nil || *asked || t.admin == nil { // a Trial has no brokers
		return tooLarge
	}
	*asked = true
	if err := t.readLimits(ctx, t.adm()); err != nil {
		return fmt.Errorf("kafka: %w: %w", errAgain, err)
	}
	if !maps.Equal(had, *t.limits.Load()) {
		return fmt.Errorf("kafka: %w with the new limits of the topics", errAgain)
	}
	return tooLarge
}

// mostRefusals is how many consecutive times brokers may refuse, for its size, a record
// that fits the visible limits.
const mostRefusals = 5

// refusedSize classifies an error of a producer that had these limits. It returns nil
// if the error is not about a size. The client restarts with the present limits. If
// they have not changed after several refusals, a restart would change nothing.
func (t *Transactor) refusedSize(ctx context.Context, had cluster.Limits, times *int, cause error) error {
	if !cluster.IsTooLarge(cause) {
		return nil
	}
	*times++
	if err := t.readLimits(ctx, t.adm()); err != nil {
		return err
	}
	if *times < mostRefusals || !maps.Equal(had, *t.limits.Load()) {
		return fmt.Errorf("kafka: %w: %w", errAgain, cause)
	}
	return fmt.Errorf("kafka: %w: %w: the brokers take less than max.message.bytes of that topic says, or it may not be seen: allow DescribeConfigs on the topic, or raise it", pipeline.ErrStopped, cause)
}

// checkParked creates the dead-letter topic if it is missing. Its records do not
// expire.
func (t *Transactor) checkParked(ctx context.Context, adm *kadm.Client, partitions int) error {
	if t.opts.Parked == "" {
		return nil
	}
	topics, err := adm.ListTopics(ctx, t.opts.Parked)
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	switch err := topics[t.opts.Parked].Err; {
	case err == nil:
		return nil
	case !errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("kafka: topic %s: %w", t.opts.Parked, err)
	}
	forever := map[string]*string{"retention.ms": kadm.StringPtr("-1"), "retention.bytes": kadm.StringPtr("-1")}
	_, err = adm.CreateTopic(ctx, int32(partitions), -1, forever, t.opts.Parked)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("kafka: create dead-letter topic %s: %w", t.opts.Parked, err)
	}
	return kerr.LeaderNotAvailable // check again
}

// checkBrokers refuses brokers that do not fence a replaced member.
func (t *Transactor) checkBrokers(ctx context.Context) error {
	answer, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, t.admin)
	if err != nil {
		return fmt.Errorf("kafka: ask for versions: %w", err)
	}
	fences := false
	for _, k := range answer.ApiKeys {
		t.byID = t.byID || k.ApiKey == int16(kmsg.Metadata) && k.MaxVersion >= cluster.MetadataByID
		fences = fences || k.ApiKey == int16(kmsg.TxnOffsetCommit) && k.MaxVersion >= cluster.FencesFrom
	}
	if !fences {
		return fmt.Errorf("kafka: the brokers are older than Kafka 2.5: they do not stop a member that was replaced from committing: %w", semel.ErrInvalidRequest)
	}
	if found, ok := cluster.TransactionVersion(answer.FinalizedFeatures); !ok {
		t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "transaction.version is " + found + ": " + cluster.LateWrites})
	}
	return nil
}

// checkChangelog creates the changelog of an input if it is missing, refuses an
// unsuitable one, and returns its id.
func (t *Transactor) checkChangelog(ctx context.Context, adm *kadm.Client, input string, partitions int) (keystate.TopicID, error) {
	name := t.opts.changelogOf(input)
	topics, err := adm.ListTopics(ctx, name)
	if err != nil {
		return keystate.TopicID{}, fmt.Errorf("kafka: list topics: %w", err)
	}
	topic := topics[name]
	if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
		settings := map[string]*string{
			"cleanup.policy": kadm.StringPtr("delete"), "retention.bytes": kadm.StringPtr("-1"),
			"retention.ms": kadm.StringPtr(strconv.FormatInt(t.changelogRetention(), 10)),
		}
		if err := t.checkUnread(ctx, adm, input, partitions, settings); err != nil {
			return keystate.TopicID{}, err
		}
		_, err := adm.CreateTopic(ctx, int32(partitions), -1, settings, name)
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return keystate.TopicID{}, fmt.Errorf("kafka: create changelog %s: %w", name, err)
		}
		return keystate.TopicID{}, kerr.LeaderNotAvailable // check again
	}
	if topic.Err != nil {
		return keystate.TopicID{}, fmt.Errorf("kafka: changelog %s: %w", name, topic.Err)
	}
	if len(topic.Partitions) != partitions {
		return keystate.TopicID{}, changelogDiffers(input, partitions, name, len(topic.Partitions))
	}
	return topic.ID, t.checkSettings(ctx, adm, name)
}

// grown returns the error for a topic that has gained partitions since the start.
func (t *Transactor) grown(ctx context.Context, topic string) error {
	topics, err := t.adm().ListTopics(ctx, topic)
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	partitions, had := len(topics[topic].Partitions), int(t.sizes[topic])
	if partitions <= had {
		return fmt.Errorf("kafka: brokers do not agree on the partitions of %s: %w", topic, errAgain)
	}
	if t.opts.Repartition != nil {
		return stageDiffers(topic, partitions, t.opts.changelogOf(topic), had)
	}
	return changelogDiffers(topic, partitions, t.opts.changelogOf(topic), had)
}

// changelogDiffers is the error of an input whose changelog has another number of
// partitions.
func changelogDiffers(input string, partitions int, changelog string, keys int) error {
	return fmt.Errorf("kafka: %s has %d partitions and its changelog %s %d: keys would not be found, and duplicates would pass. Use a new changelog, or a new input with the old number of partitions: %w",
		input, partitions, changelog, keys, semel.ErrInvalidRequest)
}

// checkUnread refuses to create the changelog of an input that the group has read: its
// keys were there, or are in another topic.
func (t *Transactor) checkUnread(ctx context.Context, adm *kadm.Client, input string, partitions int, settings map[string]*string) error {
	read, err := t.hasRead(ctx, adm, t.opts.Group, input)
	if err != nil || read == "" {
		return err
	}
	name, one, several := t.opts.changelogOf(input), t.opts.State.Changelog, t.opts.State.Changelog+"-"+input
	other := several
	if name == several {
		other = one
	}
	topics, err := adm.ListTopics(ctx, other)
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	hint := ""
	switch {
	case topics[other].Err != nil: // missing or hidden
	case other == one:
		hint = fmt.Sprintf("with one input its keys were in %s: give the new inputs a pipeline of their own, in another group. ", one)
	default:
		hint = fmt.Sprintf("with several inputs its keys were in %s: name that one (transaction.changelog: %s). ", several, several)
	}
	create := fmt.Sprintf("kafka-topics.sh --create --topic %s --partitions %d", name, partitions)
	for _, setting := range slices.Sorted(maps.Keys(settings)) {
		create += " --config " + setting + "=" + *settings[setting]
	}
	return fmt.Errorf("kafka: group %s has read %s, and changelog %s, which holds its keys, %w: repeated records would take effect again. %sIf there were no keys, because the offsets are another consumer's or were set by hand, or to start without them, create it: %s. If Semel has read the input before, also %s",
		t.opts.Group, input, name, errNoTopic, hint, create, t.acceptLoss(input))
}

// changelogRetention returns the retention of the changelog in milliseconds, or -1.
func (t *Transactor) changelogRetention() int64 {
	keep := t.windows.Retention()
	if t.windows.EventTime || keep >= semel.Forever/2 {
		return -1 // the times of its records do not show when they expire
	}
	return (keep + max(keep/4, time.Hour)).Milliseconds()
}

// checkSettings refuses a changelog that loses keys. Hidden settings are trusted.
func (t *Transactor) checkSettings(ctx context.Context, adm *kadm.Client, name string) error {
	configs, err := cluster.TopicSettings(ctx, adm, name)
	if err != nil {
		return err
	}
	has := cluster.Settings(configs, name)
	if policy := has["cleanup.policy"]; strings.Contains(policy, "compact") {
		return fmt.Errorf("kafka: changelog %s has cleanup.policy %s: its records have no key, only \"delete\" keeps them: %w", name, policy, semel.ErrInvalidRequest)
	}
	keeps, err := strconv.ParseInt(has["retention.ms"], 10, 64)
	need := t.changelogRetention()
	if err == nil && keeps >= 0 && (need < 0 || keeps < t.windows.Retention().Milliseconds()) {
		return fmt.Errorf("kafka: changelog %s has retention.ms %d, shorter than what the window needs (%d): keys would be forgotten early: %w", name, keeps, need, semel.ErrInvalidRequest)
	}
	return nil
}

// checkKeysOf refuses a changelog with keys of another existing topic. A record with
// one of these keys would be dropped as a duplicate, without an effect. Keys of a topic
// that no longer exists belong to the input before it was recreated.
func (t *Transactor) checkKeysOf(ctx context.Context, input string, theirs keystate.TopicID) error {
	if theirs == (keystate.TopicID{}) { // written when brokers had no ids
		return nil
	}
	t.mu.Lock()
	gone := t.gone[theirs]
	t.mu.Unlock()
	if gone {
		return nil
	}
	other, err := cluster.TopicOf(ctx, t.admin, kadm.TopicID(theirs), t.byID)
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		other = "a topic that may not be seen"
	case err != nil:
		return fmt.Errorf("kafka: topic of the keys in %s: %w", t.opts.changelogOf(input), err)
	case other == "", other == input: // a broker may know an earlier id for a while
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.gone == nil {
			t.gone = map[keystate.TopicID]bool{}
		}
		t.gone[theirs] = true
		return nil
	default:
		other = "topic " + other
	}
	return fmt.Errorf("kafka: changelog %s holds keys of %s: records of %s with one of them would be dropped as duplicates, and be lost. Give this pipeline a new group, or a changelog of its own (transaction.changelog): %w",
		t.opts.changelogOf(input), other, input, semel.ErrInvalidRequest)
}

// sample refuses an input with records of one id, or of one group key, in several partitions:
// each partition remembers its own keys and windows. It reads only the newest records, so it
// may miss some. With a repartition stage these records come to one partition anyway.
func (t *Transactor) sample(ctx context.Context) error {
	if t.opts.Repartition != nil || t.opts.skipSample {
		return nil
	}
	samples := &sample.Topics{Client: t.clientOptions, Admin: t.adm()}
	for _, input := range t.opts.Inputs {
		if rule := t.opts.Key.Rule; rule.Form() != key.FormRecordKey {
			if err := samples.CheckIDs(ctx, input, rule); err != nil {
				return err
			}
		}
		if agg := t.opts.Aggregate; agg != nil && agg.By.Form() != key.FormRecordKey {
			if err := samples.CheckGroups(ctx, input, agg.By); err != nil {
				return err
			}
		}
		for _, table := range t.opts.Tables {
			if err := t.sampleTable(ctx, samples, input, table); err != nil {
				return err
			}
		}
	}
	return nil
}

// sampleTable warns of an input with messages of one row in several partitions, of which a
// local table has the row in one. It does not refuse them, because the filter may.
func (t *Transactor) sampleTable(ctx context.Context, samples *sample.Topics, input string, table *stream.Table) error {
	if !table.Local || table.By.Form() == key.FormRecordKey {
		return nil
	}
	apart, err := samples.Apart(ctx, input, table.By)
	if apart != nil {
		t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "messages may be in other partitions than their rows", Err: fmt.Errorf(
			"kafka: the records of %s in %v need one row of table %s (%s), which is in one partition: write read: global (Local: false), or write both topics with the key of the row as record key",
			input, apart, table.Title(), table.By)})
	}
	return err
}
