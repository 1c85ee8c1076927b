package kafka

import (
	"context"
	"errors"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
)

// naming returns the field of a pipeline that names a topic.
func naming(p *config.Pipeline, topic string) string {
	if source, ok := p.Source.(*Source); ok && source.has(topic) {
		return "source.kafka.topics"
	}
	if sink, ok := p.Sink.(*Sink); ok && sink.Topic.Has(topic) {
		return "sink.kafka.topic"
	}
	return "parked.topic"
}

// Advise implements config.Kind for the source and the sink.
func (c *Client) Advise(_ *config.File, p *config.Pipeline, path string, err error) *diagnose.Error {
	said := &diagnose.Error{Public: true}
	brokers := strings.Join(c.Brokers, ", ")
	missing, lacks := kafka.MissingTopic(err)
	none, away := kafka.NoBroker(err)
	if c.SASL != nil {
		if login := c.SASL.explain(path, err); login != nil {
			return login
		}
	}
	switch {
	case lacks:
		field, settings := naming(p, missing), ""
		if field == "parked.topic" {
			settings = " --config retention.ms=-1" // the broker must not delete parked messages
		}
		said.Cause = "topic " + missing + " does not exist"
		said.Remedy = "create it with kafka-topics.sh --create --topic " + missing + " --bootstrap-server " + c.Brokers[0] + settings + ", or correct " + field
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed), errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		said.Cause, said.Remedy = c.denied(p, err)
	case errors.Is(err, kerr.InconsistentGroupProtocol):
		said.Cause, said.Remedy = diagnose.Line(err.Error()), "end the other members of the group, or write another "+path+".group or protocol"
	case away && errors.Is(none, context.DeadlineExceeded):
		said.Cause, said.Remedy = "no answer from "+brokers, "is a broker up there, can this machine reach it, and is it the right kind of server?"
	case away:
		if network := diagnose.Network(none); network != nil && network.Public {
			return network
		}
		said.Cause, said.Remedy = "no Kafka broker answers at "+brokers+": "+diagnose.Line(none.Error()), "is it the right kind of server and port, and does it need tls or sasl?"
	default:
		return nil
	}
	return said
}

// denied says which right a user lacks, and how to grant it.
func (c *Client) denied(p *config.Pipeline, err error) (cause, remedy string) {
	user, principal := "the user", "User:NAME"
	if name := c.SASL.user(); name != "" {
		user, principal = "user "+name, "User:"+name
	}
	text := err.Error()
	source, reads := p.Source.(*Source)
	var lacks, on string
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed) && reads:
		group := source.Group
		if copies := repartitionGroup(group); strings.Contains(text, copies) {
			group = copies
		}
		lacks, on = "Read", "--group "+group
		cause = user + " may not read " + source.reads() + " as group " + group
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed) && reads:
		lacks, on = "Write", "--transactional-id "+source.Group+"/ --resource-pattern-type prefixed"
		cause = user + " may not write transactions with ids of group " + source.Group
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		topic, operations := deniedTopic(p, text)
		if topic == "" {
			break
		}
		lacks, on = strings.Join(operations, " --operation "), "--topic "+topic
		cause = user + " lacks the right " + strings.Join(operations, " or ") + " on topic " + topic
	}
	if cause != "" && c.SASL != nil && c.SASL.AWS != nil {
		return cause, inPolicy
	}
	if cause == "" {
		return diagnose.Line(text), "grant the permission with kafka-acls.sh: semel doctor names what is missing"
	}
	return cause, "kafka-acls.sh --bootstrap-server " + c.Brokers[0] + " --add --allow-principal " + principal + " --operation " + lacks + " " + on + "; semel doctor checks all rights"
}

// deniedTopic returns the topic of a pipeline that an error names, and the operations of the
// pipeline on it.
func deniedTopic(p *config.Pipeline, text string) (topic string, operations []string) {
	found := func(name string, does ...string) {
		if len(name) > len(topic) && strings.Contains(text, name) {
			topic, operations = name, does
		}
	}
	if source, ok := p.Source.(*Source); ok {
		for _, name := range source.Topics {
			found(name, "Read")
		}
		if source.Pattern != nil {
			for _, word := range strings.FieldsFunc(text, notInNames) {
				if source.Pattern.Matches(word) {
					found(word, "Read")
				}
			}
		}
		for _, name := range append(source.Changelogs(p), source.States(p)...) {
			found(name, "Read", "Write")
		}
		found(source.RepartitionTopic(), "Read", "Write")
	}
	if sink, ok := p.Sink.(*Sink); ok {
		for _, name := range sink.Topic.Names() {
			found(name, "Write")
		}
	}
	found(p.Parked.Topic, "Write")
	for _, t := range p.Tables {
		found(t.Topic, "Read")
	}
	return topic, operations
}

// notInNames reports whether a character is in no name of a topic.
func notInNames(r rune) bool {
	return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", r)
}
