package rabbitmq

import (
	"errors"
	"fmt"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// TestUnconfirmedPublishStaysUnknownAfterARefusedOne publishes messages twice. A message that one of the two may
// have stored must not count as unsent.
func TestUnconfirmedPublishStaysUnknownAfterARefusedOne(t *testing.T) {
	t.Parallel()
	unsent := pipeline.Unavailable(amqp.ErrClosed, 0)
	unknown := fmt.Errorf("no confirm: %w", semel.ErrOutcomeUnknown)
	permanent := semel.Permanent(errors.New("too large"))
	unroutable := pipeline.Unavailable(&UnroutableError{RoutingKey: "q"}, 0)
	denied := pipeline.Unavailable(&amqp.Error{Code: amqp.AccessRefused, Server: true}, 0)
	for _, test := range []struct{ first, second, want error }{
		{unknown, nil, nil},
		{unknown, unsent, unknown},
		{unknown, permanent, permanent},
		{unknown, unroutable, unroutable},
		{unknown, denied, denied},
		{unsent, nil, nil},
		{unsent, unsent, unsent},
		{unsent, unknown, unknown},
		{unsent, permanent, permanent},
	} {
		if got := outcome(test.first, test.second); got != test.want {
			t.Errorf("%v, then %v: %v, want %v", test.first, test.second, got, test.want)
		}
	}
}
