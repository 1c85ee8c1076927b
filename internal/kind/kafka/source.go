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
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Source reads Kafka topics as a group member, always with read_committed.
type Source struct {
	config.SourceBase
	Client
	Topics []string
	// Pattern is set instead of Topics if all topics that match are read.
	Pattern *kafka.Pattern
	Group   string
	// Instance is the name of the member. "" means a name made from pipeline and
	// host.
	Instance       string
	SessionTimeout time.Duration
	// Start is earliest or latest: where a group without offsets starts.
	Start string
	// Repartition brings all records of a key to one partition of a topic before they are
	// decided.
	Repartition bool
	// Protocol is classic or consumer.
	Protocol string
	// Retention is how long the topics keep a record. It is only compared, not read
	// from the broker. 0 means unknown.
	Retention time.Duration
}

// RepartitionTopic returns the topic between the stages, or "" if there is only
// one stage.
func (s *Source) RepartitionTopic() string {
	if !s.Repartition {
		return ""
	}
	return repartitionGroup(s.Group)
}

// repartitionGroup returns the group of the first stage of a Kafka transaction that repartitions.
// The topic between the stages has the same name.
func repartitionGroup(group string) string { return group + "-repartition" }

// NewSource returns an empty Source.
func NewSource() config.Source { return &Source{} }

// Kind implements config.Kind.
func (*Source) Kind() string { return "kafka" }

// Fields implements config.Kind.
func (s *Source) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Records of topics, read as a member of a consumer group with `read_committed`.",
		Fields: append(s.Client.fields(),
			topicsField(&s.Topics, &s.Pattern).Need(),
			schema.TextField("group", &s.Group, "Name of the consumer group.").Need(),
			schema.TextField("instance", &s.Instance, "Name of this member in the group, different for each process. A restart under the same name causes no rebalance. In containers, set a stable name, such as ${env:POD_NAME} of a stateful set. Otherwise a restart waits until the old session ends.").Means("`PIPELINE.HOST.NUMBER`"),
			schema.DurationField("session_timeout", &s.SessionTimeout, "How long the group waits for a silent member before it is considered dead.").Means("10s"),
			schema.ChoiceField("start", &s.Start, "Where a group without offsets starts.", "earliest", "latest").Or("earliest"),
			schema.ChoiceField("protocol", &s.Protocol, "How the group divides its partitions: its members do it, or the broker (KIP-848, Kafka 4.0), which then also decides when a member is dead.", "classic", "consumer").Or("classic"),
			schema.TruthField("repartition", &s.Repartition, "In a Kafka transaction: first copy the records to the topic `GROUP-repartition`, in which all records of a key are in one partition, and decide them there. Needed if the key, or with `aggregate` the group key, is not the record key, or if producers partition differently. Semel creates the topic, and deletes the decided records from it. Its partition count cannot change while keys are remembered.").Or("false"),
			schema.WindowField("retention", &s.Retention, "How long the topics keep a record. `lint` compares it with the window."),
		),
	}
}

// About implements config.Source.
func (s *Source) About(p *config.Pipeline) config.SourceAbout {
	about := config.SourceAbout{
		Name:   "kafka " + s.reads() + " as " + s.Group,
		Again:  "the record is read again from the last committed offset",
		Shared: true, AfterAck: config.ReadAgain(), Behind: "no offset behind it is committed",
		Never: func(r *key.Rule) string {
			if r.Form() == key.FormMessageID {
				return "a record of Kafka has no message id"
			}
			return ""
		},
	}
	topic := s.RepartitionTopic()
	if topic != "" {
		by := "key"
		if p.Aggregate != nil {
			by = "group key"
		}
		about.Name += ", by " + by + " through " + topic
	}
	if p.Store.Name == "" {
		about.Repartition = topic
	}
	return about
}

// Lint implements config.Source.
func (s *Source) Lint(l *config.Linter) {
	if s.Start == "latest" {
		l.Add(doctor.Warning, config.Loss, l.At("source.kafka.start"), "latest", "records from before the group first read, or from a time without offsets, are never read", "write start: earliest")
	}
	if s.Pattern != nil && s.Pattern.Prefix() == "" && s.Pattern.Matches("_schemas") {
		l.Notice(l.At("source.kafka.topics.pattern"), s.Pattern.String(), "it also matches topics of tools, such as _schemas of a schema registry, whose records would be messages", "write a pattern that does not match them, such as '[^_].*'")
	}
	if s.Repartition {
		s.lintRepartition(l)
	}
	s.lint(l, "source.kafka")
	s.lintWindow(l)
	lintAggregate(l)
	lintKeep(l)
	l.Tables()
	s.lintIgnored(l)
	s.lintOthers(l)
}

// lintWindow compares the window with the retention of the topics.
func (s *Source) lintWindow(l *config.Linter) {
	p, path := l.Pipeline, l.At("window")
	retention := l.At("source.kafka.retention")
	switch {
	case !p.Remembers():
	case s.Retention == 0 && p.Window != semel.Forever:
		l.Notice(retention, "not stated", "a record that is read again after the window of "+schema.Duration(p.Window)+" has its effect again, and the file does not say whether the topics keep records that long", "set retention to that of the topics, such as 7d")
	case s.Retention > p.Window:
		l.Add(doctor.Warning, config.Repeat, path, fmt.Sprintf("%s, but the topics keep records for %s", schema.Duration(p.Window), schema.Duration(s.Retention)),
			"a record that is read again after its key was forgotten has its effect again, for example after a reset of offsets or a redrive", "write window: "+longer(s.Retention))
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

// lintRepartition checks the stage that brings the records of a key together.
func (s *Source) lintRepartition(l *config.Linter) {
	p, path := l.Pipeline, l.At("source.kafka.repartition")
	if l.Mode != config.SourceIsSink {
		l.Add(doctor.Broken, config.NoRisk, path, "a stage for keys in Kafka, but the keys are in the store "+p.Store.Name, "the stage has no use: a store finds a key in any partition", "leave repartition out, or leave store out: keys, outputs and offsets are then one Kafka transaction")
		return
	}
	topic := s.RepartitionTopic()
	others := append([]string{p.Parked.Topic, cmp.Or(p.Transaction.Changelog, s.Group+"-keys")}, s.Topics...)
	if sink, ok := p.Sink.(*Sink); ok {
		others = append(others, sink.Topic.Names()...)
	}
	if slices.Contains(others, topic) {
		l.Add(doctor.Broken, config.NoRisk, path, topic+", which the pipeline also uses for something else", "its records would be mixed up", "use another topic, or another group")
	}
	if p.Transaction.Time == "event" && p.Aggregate == nil {
		l.Add(doctor.Warning, config.NoRisk, l.At("transaction.grace"), schema.Duration(p.Transaction.Grace)+", with a repartition stage", "the stage mixes the records of several partitions: a record that is behind the others by more than the grace is late, and on_late applies to it", "choose a grace that is longer than partitions are apart while a backlog is read, or write time: processing")
	}
}

// lintIgnored reports fields that have no effect in the pipeline's mode.
func (s *Source) lintIgnored(l *config.Linter) {
	if l.Mode == config.SourceIsSink {
		l.Ignored("source.kafka.protocol")
		return
	}
	if at := l.At("source.kafka.session_timeout"); s.Protocol == "consumer" && l.Given(at) {
		l.Notice(at, "it has no effect here", "the broker divides the group, and its group.consumer.session.timeout.ms decides when a member is dead", "leave it out")
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
			l.Add(doctor.Broken, config.Repeat, l.At("source.kafka.repartition"), topic+", as in pipeline "+p.Name, "each of the two decides what the other copied", "use another group")
		}
		for _, topic := range s.Topics {
			if topic != twice && s.Group == other.Group && other.has(topic) {
				twice = s.lintTwice(l, p, topic)
			}
		}
		if s.Pattern != nil && s.Group == other.Group {
			if i := slices.IndexFunc(other.Topics, s.has); i >= 0 {
				s.lintTwice(l, p, other.Topics[i])
			} else if other.Pattern != nil && (strings.HasPrefix(s.Pattern.Prefix(), other.Pattern.Prefix()) || strings.HasPrefix(other.Pattern.Prefix(), s.Pattern.Prefix())) {
				s.lintTwice(l, p, "topics that match "+s.Pattern.String()+" and "+other.Pattern.String())
			}
		}
	}
}

// lintTwice reports a topic that the group reads in an earlier pipeline too.
func (s *Source) lintTwice(l *config.Linter, earlier *config.Pipeline, topic string) string {
	l.Add(doctor.Warning, config.Loss, l.At("source.kafka.group"), fmt.Sprintf("%s, which reads %s in pipeline %s too", s.Group, topic, earlier.Name),
		"each of the two gets only a part of the messages", "use another group")
	return topic
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
	source, err := kafka.OpenSource(ctx, &kafka.SourceOptions{
		Name: env.Pipeline.Name, Client: client, Group: s.Group, Topics: s.Topics, Pattern: s.Pattern, Instance: instance,
		SessionTimeout: s.SessionTimeout, Reset: reset(s.Start), ServerSide: s.Protocol == "consumer", Observer: env.Observer,
	})
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &lockedSource{source, lock}, nil
}

// Sample implements config.Source. It reads without a group, so no consumer is
// affected.
func (s *Source) Sample(ctx context.Context, p *config.Pipeline, fn func(*semel.Message) bool) error {
	topics, err := s.topicsNow(ctx)
	if err != nil {
		return err
	}
	opts, ids, err := s.identify(ctx, p, topics)
	if err == nil && len(topics) > 0 {
		err = kafka.ReadAll(ctx, opts, topics, func(r *kgo.Record) bool { return fn(messageOf(r, ids)) })
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// identify returns the options of a client, and the identities of topics if the pipeline's
// key needs a position.
func (c *Client) identify(ctx context.Context, p *config.Pipeline, topics []string) (opts []kgo.Opt, ids map[string]string, err error) {
	if opts, err = c.options(); err == nil && p.Key.Rule.NeedsPosition() {
		ids, err = kafka.Identities(ctx, opts, topics...)
	}
	return opts, ids, err
}

// messageOf converts a Kafka record to a message. ids are the identities of topics, or nil.
func messageOf(r *kgo.Record, ids map[string]string) *semel.Message {
	m := &semel.Message{
		RecordKey: r.Key, Body: r.Value, Time: r.Timestamp,
		Origin: semel.Origin{Source: r.Topic, Identity: ids[r.Topic], Partition: r.Partition, Offset: r.Offset},
	}
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, semel.Header{Name: h.Key, Value: h.Value})
	}
	return m
}
