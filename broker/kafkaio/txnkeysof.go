package kafkaio

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
)

// metadataByID is the first version of requests for metadata that asks by id.
const metadataByID = 12

// checkKeysOf refuses keys of a changelog that are those of another topic than the
// one that is read: a record whose key is among them would pass for a duplicate,
// though nothing came of it. Keys of a topic that is no more are taken for those
// of the input before it was made anew.
func (t *Transactor) checkKeysOf(ctx context.Context, input string, theirs topicID) error {
	if theirs == (topicID{}) { // written when brokers had no ids: there is nothing to compare
		return nil
	}
	t.mu.Lock()
	gone := t.gone[theirs]
	t.mu.Unlock()
	if gone {
		return nil
	}
	other, err := t.topicOf(ctx, theirs)
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		other = "a topic that may not be seen"
	case err != nil:
		return fmt.Errorf("kafkaio: topic of the keys in %s: %w", t.opts.changelogOf(input), err)
	case other == "", other == input: // a broker may know an earlier id for a while
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.gone == nil {
			t.gone = map[topicID]bool{}
		}
		t.gone[theirs] = true
		return nil
	default:
		other = "topic " + other
	}
	return fmt.Errorf("kafkaio: changelog %s holds keys of %s: what comes from %s under one of them would pass for a duplicate, and be lost; give this pipeline a new group, or a changelog of its own (transaction.changelog): %w",
		t.opts.changelogOf(input), other, input, semel.ErrInvalidRequest)
}

// topicOf returns the name of the topic with an id, or "" if there is none.
func (t *Transactor) topicOf(ctx context.Context, id topicID) (string, error) {
	if !t.byID {
		topics, err := t.adm().ListTopics(ctx)
		if err != nil {
			return "", err
		}
		for name, topic := range topics {
			if topic.ID == kadm.TopicID(id) {
				return name, nil
			}
		}
		return "", nil
	}
	// By id a broker also tells of a topic that may not be seen.
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.TopicID = id
	req.Topics = append(req.Topics, topic)
	answer, err := req.RequestWith(ctx, t.admin)
	if err != nil {
		return "", err
	}
	for i := range answer.Topics {
		found := &answer.Topics[i]
		switch err := kerr.ErrorForCode(found.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.UnknownTopicOrPartition):
			return "", nil
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			return "", err
		case found.Topic != nil && *found.Topic != "":
			return *found.Topic, nil
		case err != nil:
			return "", err
		}
	}
	return "", errors.New("no broker says whether it exists")
}
