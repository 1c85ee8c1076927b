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
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// checks are those of brokers and topics before a Transactor works.
type checks struct{ *Transactor }

// prepare checks the brokers and topics until everything that is needed is there. It
// returns errors that waiting does not fix.
func (t checks) prepare(ctx context.Context) error {
	began, told := time.Now(), ""
	for tries := 1; ; tries++ {
		err := t.check(ctx)
		// A broker that has just started does not know all topics yet.
		early := errors.Is(err, errNoTopic) && time.Since(began) < noTopicAfter
		if err == nil || !transient(err) && !early {
			t.health.prepared(err)
			return err
		}
		t.health.missing(err)
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

func (t checks) check(ctx context.Context) error {
	if err := t.checkBrokers(ctx); err != nil {
		return err
	}
	adm := t.adm()
	names := append([]string{t.chain.Output}, t.inputs...)
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
	if err := t.checkParked(ctx, adm, len(topics[t.inputs[0]].Partitions)); err != nil {
		return err
	}
	if t.chain.SamePartition {
		for _, input := range t.inputs {
			if have, need := len(topics[t.chain.Output].Partitions), len(topics[input].Partitions); have < need {
				return fmt.Errorf("kafka: %s has %d partitions and %s %d, and records keep the number of their partition (partition: same): the output needs as many: %w", input, need, t.chain.Output, have, semel.ErrInvalidRequest)
			}
		}
	}
	if err := t.source.check(ctx, adm, topics); err != nil {
		return err
	}
	if err := t.source.sample(ctx); err != nil { // before a topic is created whose partitions cannot be changed
		return err
	}
	if t.tableTopics, err = t.checkTables(ctx, adm, topics); err != nil {
		return err
	}
	t.topics, t.sizes, t.sources, t.identities = map[string]state.ID{}, map[string]int32{}, map[string]int32{}, map[string]string{}
	for _, input := range t.inputs {
		if t.chain.Rule.NeedsPosition() {
			t.identities[input] = cluster.Identity(topics[input].ID)
		}
		t.sources[input], t.topics[input] = int32(len(topics[input].Partitions)), topics[input].ID
	}
	for _, topic := range t.decided {
		partitions := len(topics[topic].Partitions)
		t.topics[topic], t.sizes[topic] = topics[topic].ID, int32(partitions)
		for _, c := range t.changelogs[topic] {
			if c.id, err = t.checkChangelog(ctx, adm, c, partitions); err != nil {
				return err
			}
		}
	}
	if err := agreed(ctx, func() error { return losses(t).intact(ctx, adm) }); err != nil {
		return err
	}
	return t.readLimits(ctx, adm)
}

// checkParked creates the dead-letter topic if it is missing. Its records do not
// expire.
func (t checks) checkParked(ctx context.Context, adm *kadm.Client, partitions int) error {
	if t.chain.Parked == "" {
		return nil
	}
	topics, err := adm.ListTopics(ctx, t.chain.Parked)
	if err != nil {
		return fmt.Errorf("kafka: list topics: %w", err)
	}
	switch err := topics[t.chain.Parked].Err; {
	case err == nil:
		return nil
	case !errors.Is(err, kerr.UnknownTopicOrPartition):
		return fmt.Errorf("kafka: topic %s: %w", t.chain.Parked, err)
	}
	forever := map[string]*string{"retention.ms": kadm.StringPtr("-1"), "retention.bytes": kadm.StringPtr("-1")}
	return createTopic(ctx, adm, "dead-letter topic", t.chain.Parked, partitions, forever)
}

// createTopic creates a topic, and returns an error that says to check again.
func createTopic(ctx context.Context, adm *kadm.Client, what, name string, partitions int, settings map[string]*string) error {
	if _, err := adm.CreateTopic(ctx, int32(partitions), -1, settings, name); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("kafka: create %s %s: %w", what, name, err)
	}
	return kerr.LeaderNotAvailable
}

// checkBrokers refuses brokers that do not fence a replaced member.
func (t checks) checkBrokers(ctx context.Context) error {
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

// checkChangelog creates the topic if it is missing and the group has read nothing, refuses an
// unsuitable one, and returns its id.
func (t checks) checkChangelog(ctx context.Context, adm *kadm.Client, c *changelog, partitions int) (id state.ID, err error) {
	topics, err := adm.ListTopics(ctx, c.name)
	if err != nil {
		return id, fmt.Errorf("kafka: list topics: %w", err)
	}
	switch topic := topics[c.name]; {
	case errors.Is(topic.Err, kerr.UnknownTopicOrPartition):
		return id, t.createChangelog(ctx, adm, c, partitions)
	case topic.Err != nil:
		return id, fmt.Errorf("kafka: %s %s: %w", c.what, c.name, topic.Err)
	case len(topic.Partitions) != partitions:
		return id, c.differs(t.Transactor, c, partitions, len(topic.Partitions))
	}
	return state.ID(topics[c.name].ID), c.checkSettings(ctx, adm)
}

// createChangelog creates a topic, unless the group has read its input: the state was there, or
// is in another topic. It returns an error that says to check again.
func (t checks) createChangelog(ctx context.Context, adm *kadm.Client, c *changelog, partitions int) error {
	settings := map[string]*string{
		"cleanup.policy": kadm.StringPtr("delete"), "retention.bytes": kadm.StringPtr("-1"),
		"retention.ms": kadm.StringPtr(strconv.FormatInt(c.created, 10)),
	}
	create := fmt.Sprintf("kafka-topics.sh --create --topic %s --partitions %d", c.name, partitions)
	for _, setting := range slices.Sorted(maps.Keys(settings)) {
		create += " --config " + setting + "=" + *settings[setting]
	}
	read, err := hasRead(ctx, adm, t.chain.Group, c.of)
	if err != nil {
		return err
	}
	if read != "" {
		return c.missing(ctx, t, c, create, read)
	}
	if c.segment != "" {
		settings["segment.bytes"] = &c.segment
	}
	return createTopic(ctx, adm, c.what, c.name, partitions, settings)
}

// checkSettings refuses a topic that loses state. Hidden settings are trusted.
func (c *changelog) checkSettings(ctx context.Context, adm *kadm.Client) error {
	configs, err := cluster.TopicSettings(ctx, adm, c.name)
	if err != nil {
		return err
	}
	has := cluster.Settings(configs, c.name)
	if policy := has["cleanup.policy"]; strings.Contains(policy, "compact") {
		return fmt.Errorf("kafka: %s %s has cleanup.policy %s: its records have no key, only \"delete\" keeps them: %w", c.what, c.name, policy, semel.ErrInvalidRequest)
	}
	for setting, need := range map[string]int64{"retention.ms": c.retention, "retention.bytes": -1} {
		keeps, err := strconv.ParseInt(has[setting], 10, 64)
		if err == nil && keeps >= 0 && (need < 0 || keeps < need) {
			return fmt.Errorf("kafka: %s %s has %s %d, less than it needs, and %s: set it to %d; Semel deletes what is not needed: %w", c.what, c.name, setting, keeps, c.early, max(c.created, need), semel.ErrInvalidRequest)
		}
	}
	return nil
}

// keysLost is the error of an input that the group has read, although its changelog is missing.
// create is the command that creates it.
func (t checks) keysLost(ctx context.Context, c *changelog, create, read string) error {
	one, several := t.state.Changelog, t.state.Changelog+"-"+c.of
	other := several
	if c.name == several {
		other = one
	}
	topics, err := t.adm().ListTopics(ctx, other)
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
	return fmt.Errorf("kafka: group %s has read %s, and changelog %s, which holds its keys, %w: repeated records would take effect again. %sIf there were no keys, because the offsets are another consumer's or were set by hand, or to start without them, create it: %s. If Semel has read the input before, also %s",
		t.chain.Group, c.of, c.name, errNoTopic, hint, create, losses(t).acceptLoss(c.of))
}

// checkTables refuses unsuitable topics of tables, and returns them. inputs are the topics
// that are read.
func (t checks) checkTables(ctx context.Context, adm *kadm.Client, inputs kadm.TopicDetails) (kadm.TopicDetails, error) {
	all := kadm.TopicDetails{}
	for _, table := range t.chain.Tables {
		name := table.Topic
		if all.Has(name) {
			continue
		}
		topics, err := adm.ListTopics(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("kafka: list topics: %w", err)
		}
		topic := topics[name]
		if errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
			return nil, fmt.Errorf("kafka: table %s: %w", table.Title(), &cluster.MissingTopicError{Topic: name})
		} else if topic.Err != nil {
			return nil, fmt.Errorf("kafka: table topic %s: %w", name, topic.Err)
		}
		all[name] = topic
		for _, input := range t.inputs {
			if have, need := len(topic.Partitions), len(inputs[input].Partitions); table.Local && have != need {
				return nil, fmt.Errorf("kafka: table topic %s has %d partitions and %s %d, so rows and messages are not in the same partitions: write read: global (Local: false): %w", name, have, input, need, semel.ErrInvalidRequest)
			}
		}
		configs, err := cluster.TopicSettings(ctx, adm, name)
		if err != nil {
			return nil, err
		}
		if found, cost, remedy := cluster.TableProblem(cluster.Settings(configs, name), table.History); found != "" {
			return nil, fmt.Errorf("kafka: table topic %s has %s: %s: %s: %w", name, found, cost, remedy, semel.ErrInvalidRequest)
		}
	}
	return all, nil
}
