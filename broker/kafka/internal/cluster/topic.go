package cluster

import (
	"context"
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// SaysTopic reports whether an error is a broker's verdict on a topic.
func SaysTopic(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.InvalidTopicException) || errors.Is(err, kerr.TopicAuthorizationFailed)
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
