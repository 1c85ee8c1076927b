package rabbitmq

import (
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
)

// If messages of the default exchange had a record key, it would be the same for all of
// them, and the pipeline would deliver one after the other.
func TestDefaultExchangeGivesNoRecordKey(t *testing.T) {
	t.Parallel()
	if m := message("orders", &amqp.Delivery{RoutingKey: "orders"}); m.RecordKey != nil {
		t.Errorf("the record key of a message of the default exchange is %q", m.RecordKey)
	}
	if m := message("orders", &amqp.Delivery{Exchange: "shop", RoutingKey: "eu.new"}); string(m.RecordKey) != "eu.new" {
		t.Errorf("the record key is %q, want the routing key", m.RecordKey)
	}
	if m := message("orders", &amqp.Delivery{Exchange: "fanout"}); m.RecordKey != nil {
		t.Errorf("the record key of a message without a routing key is %q", m.RecordKey)
	}
}
