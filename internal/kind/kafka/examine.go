package kafka

import (
	"context"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
)

// Examine implements config.Kind. A sink in the same Kafka cluster is examined
// with it.
func (s *Source) Examine(ctx context.Context, x *config.Examination) {
	p := x.Pipeline
	opts := &kafka.ExamineOptions{
		Group: s.Group, Inputs: s.Topics, Pattern: s.Pattern, Latest: s.Start == "latest",
		Parked: p.Parked.Topic, Window: p.Window, Transactional: x.File.Mode(p) == config.SourceIsSink,
	}
	if opts.Transactional {
		opts.Changelogs, opts.States, opts.Repartition = s.Changelogs(p), s.States(p), s.RepartitionTopic()
		opts.TransactionalID, opts.EventTime = s.transactionalID(s.usualName(p.Name))+"-0", p.Transaction.Time == "event" || p.Key.Keep != nil && p.Key.Keep.First != nil
		for _, t := range p.Tables {
			opts.Tables = append(opts.Tables, kafka.ExaminedTable{Name: t.Name, Topic: t.Topic, Local: t.Local, History: t.History})
		}
	}
	if sink, ok := p.Sink.(*Sink); ok && sink.with(p) {
		opts.Output, opts.Route = sink.Topic.Name, sink.Topic.Route
	} else if ok {
		opts.Parked = "" // messages are parked in the sink's cluster
	}
	s.examine(ctx, x, opts)
	s.examineOthers(ctx, x)
}

// examineOthers looks for topics that the source reads and that pipelines of the file use for
// something else, at the same cluster under other addresses. Lint compares the addresses alone.
func (s *Source) examineOthers(ctx context.Context, x *config.Examination) {
	for _, other := range x.File.Pipelines {
		for _, use := range ownTopics(x.File, other) {
			i := slices.IndexFunc(use.topics, s.has)
			if use.field == "sink.kafka.topic" && other != x.Pipeline || i < 0 || sameBrokers(s.Brokers, use.brokers) {
				continue
			}
			here, err := s.clusterID(ctx)
			there := ""
			if err == nil {
				there, err = clientAt(other, use.brokers).clusterID(ctx)
			}
			switch subject := "topic " + use.topics[i]; {
			case err != nil:
				x.Note(doctor.Notice, subject, "not compared with that of pipeline "+other.Name+": "+x.File.Redact(err.Error()), "if both are one topic, messages are mixed up with other records", "")
			case here != "" && here == there:
				x.Note(doctor.Broken, subject, "also the topic of pipeline "+other.Name+" "+use.what+": its brokers are the same cluster under other addresses", "what that pipeline writes there is read as messages", "write another topic or pattern, and the same addresses in brokers")
			}
		}
	}
}

// clientAt returns the client of a pipeline with these brokers.
func clientAt(p *config.Pipeline, brokers []string) *Client {
	if s, ok := p.Source.(*Source); ok && slices.Equal(s.Brokers, brokers) {
		return &s.Client
	}
	return endOf(p)
}

func (c *Client) clusterID(ctx context.Context) (string, error) {
	opts, err := c.options()
	if err != nil {
		return "", err
	}
	return kafka.ClusterID(ctx, opts)
}

// with reports whether the sink is in the Kafka cluster that the pipeline reads.
func (s *Sink) with(p *config.Pipeline) bool {
	source, ok := p.Source.(*Source)
	return ok && slices.Equal(source.Brokers, s.Brokers)
}

// Examine implements config.Kind.
func (s *Sink) Examine(ctx context.Context, x *config.Examination) {
	if !s.with(x.Pipeline) {
		s.examine(ctx, x, &kafka.ExamineOptions{Output: s.Topic.Name, Route: s.Topic.Route, Parked: x.Pipeline.Parked.Topic})
	}
}

func (c *Client) examine(ctx context.Context, x *config.Examination, opts *kafka.ExamineOptions) {
	if !c.SASL.examine(ctx, x) {
		return
	}
	reach, err := c.options()
	if err == nil {
		var findings []doctor.Finding
		findings, err = kafka.Examine(ctx, reach, opts)
		for i, f := range findings {
			if c.SASL != nil && c.SASL.AWS != nil && strings.Contains(f.Remedy, "kafka-acls.sh") {
				findings[i].Remedy = inPolicy
			}
		}
		x.Add(findings)
	}
	if semel.Classify(err) == semel.ClassPermanent {
		found, remedy := x.File.Redact(err.Error()), "correct it"
		if said := c.Advise(x.File, x.Pipeline, "source.kafka", err); said != nil {
			found, remedy = x.File.Redact(said.Cause), said.Remedy
		}
		x.Note(doctor.Broken, "brokers", found, "nothing is read or written", remedy)
		err = nil
	}
	x.Fail("", err)
}

// OpenAdmin connects to the Kafka cluster of a pipeline, to inspect its
// transactions: that of the sink, if both ends are Kafka. It also returns the topics that the pipeline reads and writes,
// and its consumer groups.
func (c *Client) OpenAdmin(ctx context.Context, f *config.File, p *config.Pipeline) (*kafka.Admin, kafka.Places, error) {
	var in kafka.Places
	add := func(list ...string) {
		for _, topic := range list {
			if topic != "" && !slices.Contains(in.Topics, topic) {
				in.Topics = append(in.Topics, topic)
			}
		}
	}
	sink, writes := p.Sink.(*Sink)
	if source, reads := p.Source.(*Source); reads && (!writes || slices.Equal(source.Brokers, sink.Brokers)) {
		topics, err := source.topicsNow(ctx)
		if err != nil {
			return nil, kafka.Places{}, f.RedactError(err)
		}
		add(topics...)
		in.Groups = []string{source.Group}
		if f.Mode(p) == config.SourceIsSink {
			add(append(source.Changelogs(p), source.RepartitionTopic())...)
			add(source.States(p)...)
			for _, t := range p.Tables {
				add(t.Topic)
			}
		}
		if source.Repartition {
			in.Groups = append(in.Groups, repartitionGroup(source.Group))
		}
	}
	if writes {
		add(sink.Topic.Names()...)
	}
	add(p.Parked.Topic)
	client, err := endOf(p).options()
	if err != nil {
		return nil, kafka.Places{}, f.RedactError(err)
	}
	admin, err := kafka.OpenAdmin(ctx, client)
	return admin, in, f.RedactError(err)
}
