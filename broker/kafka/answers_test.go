package kafka

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/internal/peertest"
	"github.com/semel-dev/semel/test/kafkatest"
)

// TestServerAnswersAreClassifiedAsDocumented has the rows of Kafka in the table of broker/ANSWERS.md.
func TestServerAnswersAreClassifiedAsDocumented(t *testing.T) {
	t.Parallel()
	deliver := func(fault kfake.Fault) func(t *testing.T) error {
		return func(t *testing.T) (err error) {
			inRealTime(t, 1, func(b *bubble) {
				sink, _ := b.sink(nil)
				fault.Keys = []kmsg.Key{kmsg.Produce}
				b.Cluster.Fault(fault)
				err = peertest.DeliverOne(t, sink, "{}")
				if closed := sink.Close(b.Context()); closed != nil {
					t.Error(closed)
				}
			})
			return err
		}
	}
	always := func(err *kerr.Error) func(t *testing.T) error { return deliver(kfake.Fault{Err: err, Count: -1}) }
	once := func(err *kerr.Error) func(t *testing.T) error { return deliver(kfake.Fault{Err: err, Count: 1}) }
	missing := func(t *testing.T) (err error) {
		inRealTime(t, 1, func(b *bubble) {
			sink, _ := b.sink(func(o *SinkOptions) { o.Topic = "gone" })
			err = peertest.DeliverOne(t, sink, "{}")
			_ = sink.Close(b.Context())
		})
		return err
	}
	cut := func(t *testing.T) (err error) {
		inRealTime(t, 1, func(b *bubble) {
			sink, line := b.sink(nil)
			first := kafkatest.Once(kmsg.Produce, 1)
			line.On(nil, func(kind kmsg.Key) bool {
				if !first(kind) {
					return false
				}
				time.AfterFunc(100*time.Millisecond, line.Mend)
				return true
			})
			err = peertest.DeliverOne(t, sink, "{}")
			_ = sink.Close(b.Context())
		})
		return err
	}
	peertest.RunAnswers(t, "Kafka", []peertest.Answer{
		{Name: "a cut connection, or an error that Kafka calls retriable, for a while", Means: peertest.Delivered, Deliver: peertest.Same(
			once(kerr.NotEnoughReplicas), once(kerr.NotLeaderForPartition), once(kerr.RequestTimedOut), cut)},
		{Name: "`UNKNOWN_TOPIC_OR_PARTITION`", Means: peertest.Server, Deliver: missing},
		{Name: "`TOPIC_AUTHORIZATION_FAILED`, `CLUSTER_AUTHORIZATION_FAILED`", Means: peertest.Server, Deliver: peertest.Same(always(kerr.TopicAuthorizationFailed), always(kerr.ClusterAuthorizationFailed))},
		{Name: "`SASL_AUTHENTICATION_FAILED`, `UNKNOWN_SERVER_ERROR` and other errors", Means: peertest.ServerInDoubt, Deliver: peertest.Same(always(kerr.SaslAuthenticationFailed), always(kerr.UnknownServerError))},
		{Name: "`MESSAGE_TOO_LARGE`, `INVALID_RECORD`, `INVALID_TIMESTAMP`", Means: peertest.MessageForGood, Deliver: peertest.Same(always(kerr.InvalidRecord), always(kerr.InvalidTimestamp), always(kerr.MessageTooLarge))},
	})
}
