package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// SaysTopic reports whether an error is a broker's verdict on a topic.
func SaysTopic(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.InvalidTopicException) || errors.Is(err, kerr.TopicAuthorizationFailed)
}

// WriteError says where a record could not be written, and what to do about its time.
func WriteError(r *kgo.Record, err error) error {
	where := fmt.Errorf("write %s/%d: %w", r.Topic, r.Partition, err)
	if !errors.Is(err, kerr.InvalidTimestamp) {
		return where
	}
	return fmt.Errorf("%w: the topic does not take the time %s of a record: raise its message.timestamp.after.max.ms or message.timestamp.before.max.ms", where, r.Timestamp.UTC().Format(time.RFC3339))
}

// AskTopic returns nil if a topic may be written, the broker's verdict, or why there is
// no answer. cause is the previous verdict.
func AskTopic(ctx context.Context, adm *kadm.Client, topic string, cause error) error {
	topics, err := adm.ListTopics(kadm.WithAuthorizedOps(ctx), topic)
	if err != nil {
		return err
	}
	if err := topics[topic].Err; err != nil {
		return err
	}
	may := topics[topic].AuthorizedOperations
	if errors.Is(cause, kerr.TopicAuthorizationFailed) && len(may) > 0 && !slices.Contains(may, kadm.OpWrite) {
		return kerr.TopicAuthorizationFailed
	}
	return nil
}

// MetadataByID is the first version of metadata requests by topic id.
const MetadataByID = 12

// TopicOf returns the name of the topic with an id, or "". byID says that brokers answer such
// requests.
func TopicOf(ctx context.Context, client *kgo.Client, id kadm.TopicID, byID bool) (string, error) {
	if !byID {
		topics, err := kadm.NewClient(client).ListTopics(ctx)
		if err != nil {
			return "", err
		}
		for name, topic := range topics {
			if topic.ID == id {
				return name, nil
			}
		}
		return "", nil
	}
	// A request by id also finds a topic that the user may not see.
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.TopicID = id
	req.Topics = append(req.Topics, topic)
	answer, err := req.RequestWith(ctx, client)
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
