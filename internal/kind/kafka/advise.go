package kafka

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/internal/advice"
	"github.com/semel-dev/semel/internal/config"
)

var (
	_ config.Advisor = (*Source)(nil)
	_ config.Advisor = (*Sink)(nil)
)

// naming returns the field of a pipeline that names a topic.
func naming(p *config.Pipeline, topic string) string {
	if source, ok := p.Source.(*Source); ok && slices.Contains(source.Topics, topic) {
		return "source.kafka.topics"
	}
	if sink, ok := p.Sink.(*Sink); ok && sink.Topic.Has(topic) {
		return "sink.kafka.topic"
	}
	return "parked.topic"
}

// Advise implements config.Advisor for the source and the sink.
func (c *Client) Advise(_ *config.File, p *config.Pipeline, path string, err error) *advice.Error {
	said := &advice.Error{Public: true}
	brokers := strings.Join(c.Brokers, ", ")
	missing, lacks := kafka.MissingTopic(err)
	none, away := kafka.NoBroker(err)
	switch {
	case lacks:
		field, settings := naming(p, missing), ""
		if field == "parked.topic" {
			settings = " --config retention.ms=-1" // the broker must not delete parked messages
		}
		said.Cause = "topic " + missing + " does not exist"
		said.Remedy = "create it with kafka-topics.sh --create --topic " + missing + " --bootstrap-server " + c.Brokers[0] + settings + ", or correct " + field
	case errors.Is(err, kerr.SaslAuthenticationFailed) && c.SASL != nil:
		said.Cause, said.Remedy = "password refused for user "+c.SASL.Username, "correct "+path+".sasl"
	case errors.Is(err, kerr.UnsupportedSaslMechanism) && c.SASL != nil:
		said.Cause, said.Remedy = "the brokers do not support the SASL mechanism "+c.SASL.Mechanism, "correct "+path+".sasl.mechanism"
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed), errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		said.Cause, said.Remedy = advice.Line(err.Error()), "grant the permission with kafka-acls.sh"
	case errors.Is(err, kerr.InconsistentGroupProtocol):
		said.Cause, said.Remedy = advice.Line(err.Error()), "end the other members of the group, or write another "+path+".group or protocol"
	case away && errors.Is(none, context.DeadlineExceeded):
		said.Cause, said.Remedy = "no answer from "+brokers, "is a broker up there, can this machine reach it, and is it the right kind of server?"
	case away:
		if network := advice.For(none); network != nil && network.Public {
			return network
		}
		said.Cause, said.Remedy = "no Kafka broker answers at "+brokers+": "+advice.Line(none.Error()), "is it the right kind of server and port, and does it need tls or sasl?"
	default:
		return nil
	}
	return said
}
