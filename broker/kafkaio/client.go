package kafkaio

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// reach waits until a broker has answered. Who is refused is refused for good; an
// error for which that is not so wraps semel.ErrStoreUnavailable.
func reach(ctx context.Context, client *kgo.Client) error {
	switch err := client.Ping(ctx); {
	case err == nil:
		return nil
	case refused(err):
		return fmt.Errorf("kafkaio: %w: %w", semel.ErrInvalidRequest, err)
	default:
		return fmt.Errorf("kafkaio: no broker answers: %w: %w", semel.ErrStoreUnavailable, err)
	}
}

// refused reports whether brokers understood what was asked and will not do it,
// however often they are asked.
func refused(err error) bool {
	for _, never := range []error{
		kerr.SaslAuthenticationFailed, kerr.UnsupportedSaslMechanism, kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed,
		kerr.ClusterAuthorizationFailed, kerr.InvalidGroupID, kerr.InconsistentGroupProtocol, kerr.InvalidSessionTimeout, kerr.UnsupportedAssignor,
	} {
		if errors.Is(err, never) {
			return true
		}
	}
	return false
}
