package kafkatxn

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/marks"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/sample"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// source is where sessions read the records that they decide: the inputs themselves (direct), or
// copies of their records (repartitioned).
type source interface {
	// start says where to begin in a partition without a committed offset, and fromEnd whether
	// that is its end.
	start() []kgo.Opt
	fromEnd() bool
	// original makes the record that was read the one of an input. Elsewhere reports whether the
	// records with a group key are in another partition than this one.
	original() func(*kgo.Record)
	elsewhere() func(group []byte, partition int32) bool
	// quietAt returns when the clock may move the watermark of a partition that stays without new
	// records for an idle time, in milliseconds; or an earlier time if that is not known.
	quietAt(p *part, idle int64) int64
	// copied returns the ends of the inputs' partitions that are copied to their ends. settle moves
	// the watermarks of partitions without new records. asked is when they were looked for,
	// before brokers gave copied, and then the ends of the session's partitions.
	copied(ctx context.Context, s *session) (map[cluster.Partition]int64, error)
	settle(s *session, asked int64, copied map[cluster.Partition]int64, ends kadm.ListedOffsets)
	// members returns what runs the members of this process that belong to a session.
	members(number int) []run
	// tidy deletes records that sessions have committed, until ctx ends.
	tidy(ctx context.Context)

	// check refuses topics and offsets of groups that do not fit, and adds the topics that are
	// decided to those of the brokers. Sample refuses records that are in the wrong partition.
	check(ctx context.Context, adm *kadm.Client, topics kadm.TopicDetails) error
	sample(ctx context.Context) error
	// differs is the error of a topic that has another number of partitions than its keys.
	differs(topic string, partitions int, changelog string, has int) error
	// madeAgain is the error of a topic that was made again since it was read.
	madeAgain(topic string) error
	// intact returns an error if brokers lost what sessions need. lacks does that for an offset
	// of the group, and outOfRange explains the error of a session that met it.
	intact(ctx context.Context, adm *kadm.Client, has *presence) error
	lacks(id cluster.Partition, offset int64, has marks.Present) error
	outOfRange(ctx context.Context, err error) error
}

// direct reads the inputs.
type direct struct{ *Transactor }

var _ source = direct{}

func (t direct) start() []kgo.Opt                                    { return t.reset.Options() }
func (t direct) fromEnd() bool                                       { return t.reset == kafka.ResetEnd }
func (direct) original() func(*kgo.Record)                           { return func(*kgo.Record) {} }
func (direct) elsewhere() func([]byte, int32) bool                   { return func([]byte, int32) bool { return false } }
func (direct) members(int) []run                                     { return nil }
func (direct) tidy(context.Context)                                  {}
func (direct) intact(context.Context, *kadm.Client, *presence) error { return nil }
func (direct) lacks(cluster.Partition, int64, marks.Present) error   { return nil }
func (direct) outOfRange(_ context.Context, err error) error         { return err }

// check refuses to run without a repartition stage that was used before.
func (t direct) check(ctx context.Context, adm *kadm.Client, _ kadm.TopicDetails) error {
	group := repartitionGroup(t.chain.Group)
	copied, err := hasRead(ctx, adm, group, t.inputs...)
	if errors.Is(err, kerr.GroupAuthorizationFailed) || copied == "" && err == nil {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("kafka: group %s has copied %s for a repartition stage: without it keys would not be found, and %s would be read from the start. Keep the stage, or use a new group and changelog: %w",
		group, copied, copied, semel.ErrInvalidRequest)
}

// sample refuses an input with records of one id, or of one group key, in several partitions:
// each partition remembers its own keys and windows. It reads only the newest records, so it
// may miss some.
func (t direct) sample(ctx context.Context) error {
	if t.hooks.skipSample {
		return nil
	}
	samples := &sample.Topics{Client: t.clientOptions, Admin: t.adm()}
	if t.chain.Unwrap != nil {
		samples.Unwrap = t.chain.Unwrap.Unwrap
	}
	for _, input := range t.inputs {
		if rule := t.chain.Rule; rule.Form() != key.FormRecordKey {
			if err := samples.CheckIDs(ctx, input, rule); err != nil {
				return err
			}
		}
		if by := t.chain.By(); by != nil && by.Form() != key.FormRecordKey {
			if err := samples.CheckGroups(ctx, input, by); err != nil {
				return err
			}
		}
		for _, table := range t.chain.Tables {
			if err := t.sampleTable(ctx, samples, input, table); err != nil {
				return err
			}
		}
	}
	return nil
}

// sampleTable warns of an input with messages of one row in several partitions, of which a
// local table has the row in one. It does not refuse them, because the filter may.
func (t direct) sampleTable(ctx context.Context, samples *sample.Topics, input string, table *stream.Table) error {
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

func (direct) differs(input string, partitions int, changelog string, has int) error {
	return fmt.Errorf("kafka: %s has %d partitions and its changelog %s %d: keys would not be found, and duplicates would pass. Use a new changelog, or a new input with the old number of partitions: %w",
		input, partitions, changelog, has, semel.ErrInvalidRequest)
}

func (t direct) madeAgain(topic string) error { return inputMadeAgain(topic, t.chain.Group) }

// inputMadeAgain says that a group has offsets of an earlier input of the name.
func inputMadeAgain(topic, group string) error {
	return cluster.Damaged("kafka: topic %s was deleted and made again, and group %s has the offsets of the former one: records before them would be skipped. Stop all instances and read it from its start: kafka-consumer-groups.sh --bootstrap-server ADDRESS --group %s --topic %s --reset-offsets --to-earliest --execute",
		topic, group, group, topic)
}

// hasRead returns the first of topics with a committed offset of a group, or "".
func hasRead(ctx context.Context, adm *kadm.Client, group string, topics ...string) (string, error) {
	committed, err := pending.Offsets(ctx, adm, group, topics)
	return firstRead(committed, topics), err
}

// firstRead returns the first of topics with a committed offset, or "".
func firstRead(committed kadm.OffsetResponses, topics []string) string {
	for _, topic := range topics {
		for _, o := range committed[topic] {
			if o.Err == nil && o.At >= 0 {
				return topic
			}
		}
	}
	return ""
}
