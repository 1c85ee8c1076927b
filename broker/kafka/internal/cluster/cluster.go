// Package cluster sends requests to Kafka clusters: first contact, limits and settings of
// topics, reading to the end, groups.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
)

// Dial returns a client when a broker has answered. The errors are those of Reach, and
// semel.ErrInvalidRequest for invalid options.
func Dial(ctx context.Context, opts ...kgo.Opt) (*kgo.Client, error) {
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w: %w", semel.ErrInvalidRequest, err)
	}
	if err := Reach(ctx, client); err != nil {
		client.Close()
		return nil, err
	}
	return client, nil
}

// RefusePools refuses a client with a pool for decompressed bytes. Records are recycled while
// messages still have their bytes, and such a pool gives the bytes to later records.
func RefusePools(client *kgo.Client) error {
	pools := reflect.ValueOf(client.OptValue(kgo.WithPools)) // a slice of an unexported type
	for i := range pools.Len() {
		if _, ok := pools.Index(i).Interface().(kgo.PoolDecompressBytes); ok {
			return fmt.Errorf("kafka: Client: kgo.WithPools has a pool for decompressed bytes, which later records overwrite while messages still use them: leave it out: %w", semel.ErrInvalidRequest)
		}
	}
	return nil
}

// NoBrokerError says that no broker answers. It wraps semel.ErrStoreUnavailable and the
// error of the last broker.
type NoBrokerError struct{ Err error }

// Error implements error.
func (e *NoBrokerError) Error() string {
	return "no broker answers: " + e.Err.Error()
}

// Unwrap returns the class and the error.
func (e *NoBrokerError) Unwrap() []error { return []error{semel.ErrStoreUnavailable, e.Err} }

// Reach waits until a broker has answered. A refusal wraps semel.ErrInvalidRequest,
// because retrying does not help. Other errors wrap semel.ErrStoreUnavailable, also that of a
// mechanism which has nothing to log in with yet.
func Reach(ctx context.Context, client *kgo.Client) error {
	switch err := ping(ctx, client); {
	case err == nil:
		return nil
	case errors.Is(err, semel.ErrStoreUnavailable): // there is nothing to log in with yet
		return fmt.Errorf("kafka: %w", err)
	case Refused(err), Invalid(err):
		return fmt.Errorf("kafka: %w: %w", semel.ErrInvalidRequest, err)
	default:
		return fmt.Errorf("kafka: %w", &NoBrokerError{err})
	}
}

// answerWithin limits the wait for the seed brokers together, and leastWithin that for
// one of them.
const answerWithin, leastWithin = 9 * time.Second, 3 * time.Second

// ping asks one seed broker after the other. A broker that never answers must not keep
// the next one from being asked.
func ping(ctx context.Context, client *kgo.Client) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	seeds := client.SeedBrokers()
	err := errors.New("no seed broker")
	for _, broker := range seeds {
		if err = ask(ctx, broker, req, max(answerWithin/time.Duration(len(seeds)), leastWithin)); err == nil || ctx.Err() != nil {
			break
		}
	}
	return err
}

func ask(ctx context.Context, broker *kgo.Broker, req kmsg.Request, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := broker.Request(ctx, req)
	return err
}

// Refused reports whether brokers refused a user, a right, or a member in addition to the
// present ones. An operator can change that at the brokers.
func Refused(err error) bool {
	return IsAny(err,
		kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState, kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed,
		kerr.ClusterAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed, kerr.InconsistentGroupProtocol)
}

// Invalid reports whether brokers never accept a request: an option is wrong.
func Invalid(err error) bool {
	return IsAny(err, kerr.InvalidGroupID, kerr.InvalidTopicException, kerr.InvalidSessionTimeout, kerr.InvalidTransactionTimeout, kerr.UnsupportedAssignor)
}

// IsAny reports whether an error is one of several.
func IsAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}

// Partition identifies a partition of a topic.
type Partition struct {
	Topic  string
	Number int32
}

// LimitsWithin is how long a broker may not know a new topic, its settings or its
// offsets.
const LimitsWithin = 3 * time.Second

// AsksAgain waits after an error and reports whether to retry the request.
func AsksAgain(ctx context.Context, began time.Time, tries int, err error) bool {
	refused, ok := errors.AsType[*kerr.Error](err)
	return ok && refused.Retriable && time.Since(began) < LimitsWithin && retry.Sleep(ctx, retry.Backoff(tries, 25*time.Millisecond, 500*time.Millisecond)) == nil
}

// Lasting returns a context that ends a while later than ctx, for work that must be
// finished.
func Lasting(ctx context.Context, longer time.Duration) (context.Context, context.CancelFunc) {
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(longer, cancel)
		context.AfterFunc(last, func() { timer.Stop() })
	})
	return last, func() { stop(); cancel() }
}

// Partitioner leaves the partition of records for some topics to the caller. For others
// the key's hash decides, as in Kafka's own client.
type Partitioner map[string]bool

// ForTopic implements kgo.Partitioner.
func (p Partitioner) ForTopic(topic string) kgo.TopicPartitioner {
	if p[topic] {
		return kgo.ManualPartitioner().ForTopic(topic)
	}
	return kgo.StickyKeyPartitioner(nil).ForTopic(topic)
}

// FencesFrom is the version of TxnOffsetCommit from which brokers refuse a replaced
// member.
const FencesFrom = 3

// IdentifiesFrom is the version of Fetch from which brokers send the ids of topics with records.
const IdentifiesFrom = 13

// LateWrites is what may happen with a transaction.version below 2 (KIP-890).
const LateWrites = "a write of an earlier transaction that comes late may become part of a later one, or leave one open for readers to wait at"

// TransactionVersion returns the level of the feature, and whether it excludes late
// writes.
func TransactionVersion(features []kmsg.ApiVersionsResponseFinalizedFeature) (level string, ok bool) {
	for _, f := range features {
		if f.Name == "transaction.version" {
			return strconv.Itoa(int(f.MaxVersionLevel)), f.MaxVersionLevel >= 2
		}
	}
	return "not set", false
}
