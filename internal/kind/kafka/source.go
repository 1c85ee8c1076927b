package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafkaio"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Source reads Kafka topics as a group member, always with read_committed.
type Source struct {
	config.SourceBase
	Client
	Topics []string
	Group  string
	// Instance is the name of the member. "" means a name made from pipeline and
	// host.
	Instance       string
	SessionTimeout time.Duration
	// Start is earliest or latest: where a group without offsets starts.
	Start string
	// Repartition brings all copies of a key to one partition of a topic before
	// they are decided. Nil means no such stage.
	Repartition *Repartition
	// Protocol is classic or consumer.
	Protocol string
	// MaxPoll is the maximum number of messages that one read returns.
	MaxPoll int64
	// Retention is how long the topics keep a record. It is only compared, not read
	// from the broker. 0 means unknown.
	Retention time.Duration
}

// Repartition is a stage before the transaction.
type Repartition struct {
	// Topic is the topic's name. "" means the group followed by "-repartition"; see
	// Source.RepartitionTopic.
	Topic string
	// Partitions is the number of partitions of the topic. 0 means as many as the
	// input.
	Partitions int
}

// RepartitionTopic returns the topic between the stages, or "" if there is only
// one stage.
func (s *Source) RepartitionTopic() string {
	switch {
	case s.Repartition == nil:
		return ""
	case s.Repartition.Topic == "":
		return s.Group + "-repartition"
	}
	return s.Repartition.Topic
}

// NewSource returns an empty Source.
func NewSource() config.Source { return &Source{} }

// Kind implements config.Kind.
func (*Source) Kind() string { return "kafka" }

// Fields implements config.Kind.
func (s *Source) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Records of topics, read as a member of a group, always `read_committed`.",
		Fields: append(s.Client.fields(),
			schema.TextsField("topics", &s.Topics, "Topics to read.").Need(),
			schema.TextField("group", &s.Group, "Name of the group, whose offsets say what is settled.").Need(),
			schema.TextField("instance", &s.Instance, "Name of this member in the group, other for each process: a restart then takes no rebalance. Where the name of the host is another after a restart, as in most containers, write one that stays, such as ${env:POD_NAME} of a stateful set: without it a restart waits for the session of the one before.").Means("the names of the pipeline and of the host and a number, with dots between them"),
			schema.DurationField("session_timeout", &s.SessionTimeout, "After how long without a sign a member is taken for dead.").Means("10s"),
			schema.ChoiceField("start", &s.Start, "Where a group without offsets begins.", "earliest", "latest").Or("earliest"),
			schema.ChoiceField("protocol", &s.Protocol, "How the group divides partitions: by its members, or by the broker (KIP-848, Kafka 4.0), which then also says when a member is dead: after a crash the next run with its name waits as long.", "classic", "consumer").Or("classic"),
			schema.PartField("repartition", func() schema.Mapping {
				s.Repartition = &Repartition{}
				return schema.Mapping{Fields: []schema.Field{
					schema.TextField("topic", &s.Repartition.Topic, "Topic between the stages, of this pipeline alone. It is made if it is missing, and what was decided is deleted from it.").Means("the group with `-repartition` behind it"),
					schema.NumberField("partitions", &s.Repartition.Partitions, 1, 100_000, "How many partitions it has. It cannot be changed while keys are remembered.").Means("what is there; if it is made, as many as the topic with the most"),
				}}
			}, "In a transaction from Kafka to Kafka: copy the records to a topic in which all copies of a key are in one partition, and decide them there. Needed where the key is not the record key, or producers partition differently. `{}` is enough.").Means("off").Titled("Repartition stage"),
			schema.CountField("max_poll", &s.MaxPoll, "Messages that one read returns at most. In a transaction of Kafka `transaction.max_records` bounds them.").Means("2000"),
			schema.WindowField("retention", &s.Retention, "How long the topics keep a record. Nothing is done with it but to compare it with the window."),
		),
	}
}

// About implements config.Source.
func (s *Source) About(p *config.Pipeline) config.SourceAbout {
	about := config.SourceAbout{
		Name:   "kafka " + strings.Join(s.Topics, ", ") + " as " + s.Group,
		Again:  "the record is read again from the last committed offset",
		Shared: true, AfterAck: config.ReadAgain(), Behind: "no offset behind it is committed",
	}
	topic := s.RepartitionTopic()
	if topic != "" {
		about.Name += ", by key through " + topic
	}
	if p.Store.Name == "" {
		about.Repartition = topic
	}
	return about
}

// Lint implements config.Source.
func (s *Source) Lint(l *config.Linter) {
	if s.Start == "latest" {
		l.Add(semel.Warning, config.Loss, l.At("source.kafka.start"), "latest", "what was written before the group first read, or while its offsets were gone, is never read", "start: earliest")
	}
	if s.Repartition != nil {
		s.lintRepartition(l)
	}
	s.lint(l, "source.kafka")
	s.lintWindow(l)
	s.lintIgnored(l)
	s.lintOthers(l)
}

// lintWindow compares the window with the retention of the topics.
func (s *Source) lintWindow(l *config.Linter) {
	p, path := l.Pipeline, l.At("window")
	retention := l.At("source.kafka.retention")
	switch {
	case s.Retention == 0 && p.Window != semel.Forever:
		l.Notice(retention, "not stated", "a record that is read again after the window of "+schema.Duration(p.Window)+" has its effect again, and nothing here can tell whether the topics keep records that long", "retention: what the topics have, such as 7d")
	case s.Retention > p.Window:
		l.Add(semel.Warning, config.Repeat, path, fmt.Sprintf("%s, and the topics keep records for %s", schema.Duration(p.Window), schema.Duration(s.Retention)),
			"a record that is read again after its key was forgotten, as after a reset of offsets or a redrive, has its effect again", "window: "+longer(s.Retention))
	}
}

// longer returns a window that exceeds a retention by a seventh, in whole days.
func longer(retention time.Duration) string {
	const day = 24 * time.Hour
	if retention > semel.Forever-retention/7-day {
		return "forever"
	}
	window := retention + retention/7 + day - 1
	return schema.Duration(window-window%day) + " or more"
}

// lintRepartition checks the stage that brings the copies of a key together.
func (s *Source) lintRepartition(l *config.Linter) {
	p, path := l.Pipeline, l.At("source.kafka.repartition")
	if l.Mode != config.SourceIsSink {
		l.Add(semel.Broken, config.NoRisk, path, "a stage for keys in Kafka, and the keys are in the store "+p.Store.Name, "the store finds a key whatever partition its copies are in: nothing would be gained", "leave it out, or leave store out: keys, outputs and offsets are then one transaction of Kafka")
		return
	}
	topic := s.RepartitionTopic()
	others := append([]string{p.Parked.Topic, cmp.Or(p.Transaction.Changelog, s.Group+"-keys")}, s.Topics...)
	if sink, ok := p.Sink.(*Sink); ok {
		others = append(others, sink.Topic)
	}
	if slices.Contains(others, topic) {
		l.Add(semel.Broken, config.NoRisk, path+".topic", topic+", which the pipeline uses otherwise", "what is in it would be taken for what it is not", "a topic of its own")
	}
	if p.Transaction.Time == "event" {
		l.Add(semel.Warning, config.NoRisk, l.At("transaction.grace"), schema.Duration(p.Transaction.Grace)+", with a repartition stage", "it mixes the records of several partitions: one that is behind the others by more than the grace is late, and on_late decides what becomes of it", "a grace above what partitions are apart while a backlog is read, or time: processing")
	}
}

// lintIgnored reports fields that have no effect in the pipeline's mode.
func (s *Source) lintIgnored(l *config.Linter) {
	if l.Mode == config.SourceIsSink {
		l.Ignored("source.kafka.protocol")
		l.Ignored("source.kafka.max_poll")
		return
	}
	if at := l.At("source.kafka.session_timeout"); s.Protocol == "consumer" && l.Given(at) {
		l.Notice(at, "it means nothing here", "the broker divides the group, and says by its group.consumer.session.timeout.ms when a member is dead", "leave it out")
	}
}

// lintOthers compares the source with the sources of the pipelines before it.
func (s *Source) lintOthers(l *config.Linter) {
	var twice string
	for _, p := range l.File.Pipelines {
		if p == l.Pipeline {
			return
		}
		other, ok := p.Source.(*Source)
		if !ok || !sameBrokers(s.Brokers, other.Brokers) {
			continue
		}
		if topic := s.RepartitionTopic(); topic != "" && topic == other.RepartitionTopic() {
			l.Add(semel.Broken, config.Repeat, l.At("source.kafka.repartition"), topic+", as in pipeline "+p.Name, "each of the two decides what the other copied", "a topic of its own")
		}
		for _, topic := range s.Topics {
			if topic != twice && s.Group == other.Group && slices.Contains(other.Topics, topic) {
				l.Add(semel.Warning, config.Loss, l.At("source.kafka.group"), fmt.Sprintf("%s, which reads %s in pipeline %s too", s.Group, topic, p.Name),
					"each of the two gets a part of the messages", "a group of its own")
				twice = topic
			}
		}
	}
}

// Open implements config.Source.
func (s *Source) Open(ctx context.Context, env *config.Env) (pipeline.Source, error) {
	client, err := s.options()
	if err != nil {
		return nil, err
	}
	instance, lock, err := s.member(env.Pipeline.Name, membersDir())
	if err != nil {
		return nil, err
	}
	source, err := kafkaio.OpenSource(ctx, &kafkaio.SourceOptions{
		Name: env.Pipeline.Name, Client: client, Group: s.Group, Topics: s.Topics, Instance: instance,
		SessionTimeout: s.SessionTimeout, Reset: reset(s.Start), ServerSide: s.Protocol == "consumer",
		MaxPoll: int(s.MaxPoll), Observer: env.Observer,
	})
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &lockedSource{source, lock}, nil
}

// Sample implements config.Source. It reads without a group, so no consumer is
// affected.
func (s *Source) Sample(ctx context.Context, fn func(*semel.Message) bool) error {
	opts, err := s.options()
	if err != nil {
		return err
	}
	err = kafkaio.ReadAll(ctx, opts, s.Topics, func(r *kgo.Record) bool { return fn(messageOf(r)) })
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// messageOf converts a Kafka record to a message.
func messageOf(r *kgo.Record) *semel.Message {
	m := &semel.Message{
		RecordKey: r.Key, Body: r.Value, Time: r.Timestamp,
		Origin: semel.Origin{Source: r.Topic, Partition: r.Partition, Offset: r.Offset},
	}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, semel.Header{Name: h.Key, Value: h.Value})
	}
	return m
}
