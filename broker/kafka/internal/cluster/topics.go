package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
)

// MissingTopicError says that a topic does not exist.
type MissingTopicError struct{ Topic string }

// Error implements error.
func (e *MissingTopicError) Error() string {
	return fmt.Sprintf("topic %s does not exist: create it: kafka-topics.sh --create --topic %[1]s", e.Topic)
}

// Unwrap returns semel.ErrStoreUnavailable: the topic may be created at any time.
func (e *MissingTopicError) Unwrap() error { return semel.ErrStoreUnavailable }

// Identities returns the identities of topics, by name: their ids. A topic that was created
// again has another one. Brokers before Kafka 2.8 have no ids, so their topics have no
// identity.
func Identities(ctx context.Context, client *kgo.Client, topics ...string) (map[string]string, error) {
	list, err := kadm.NewClient(client).ListTopics(ctx, topics...)
	if err == nil {
		err = list.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: ids of topics: %w", err)
	}
	ids := make(map[string]string, len(list))
	for name, topic := range list {
		ids[name] = Identity(topic.ID)
	}
	return ids, nil
}

// Identity returns the identity of a topic with an id.
func Identity(id kadm.TopicID) string {
	if id == (kadm.TopicID{}) {
		return ""
	}
	return id.String()
}

// Present returns the identities of those topics that a broker knows now, and the id of its
// cluster, or "".
func Present(ctx context.Context, client *kgo.Client, topics []string) (ids map[string]string, clusterID string, err error) {
	answer, err := describe(ctx, client, topics)
	if err != nil {
		return nil, "", err
	}
	if answer.ClusterID != nil {
		clusterID = *answer.ClusterID
	}
	ids = map[string]string{}
	for _, topic := range answer.Topics {
		if topic.ErrorCode == 0 && topic.Topic != nil {
			ids[*topic.Topic] = Identity(topic.TopicID)
		}
	}
	return ids, clusterID, nil
}

// describe asks a broker for topics, and not the cache of the client.
func describe(ctx context.Context, client *kgo.Client, topics []string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // nil would be all topics
	for _, name := range topics {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	answer, err := req.RequestWith(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	return answer, nil
}

// HaveTopics returns a *MissingTopicError if one of the topics does not exist. It
// blocks until a broker has answered.
func HaveTopics(ctx context.Context, client *kgo.Client, topics ...string) error {
	if err := client.Ping(ctx); err != nil { // without retries, so its error tells the cause
		return fmt.Errorf("kafka: %w", &NoBrokerError{err})
	}
	if len(topics) == 0 {
		return nil
	}
	answer, err := describe(ctx, client, topics)
	if err != nil {
		return err
	}
	for _, topic := range answer.Topics {
		switch err := kerr.ErrorForCode(topic.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicOrPartition) && topic.Topic != nil:
			return fmt.Errorf("kafka: %w", &MissingTopicError{*topic.Topic})
		case IsAny(err, kerr.TopicAuthorizationFailed, kerr.InvalidTopicException) && topic.Topic != nil:
			return fmt.Errorf("kafka: topic %s: %w", *topic.Topic, err)
		}
	}
	return nil
}
