package rabbitmq

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
)

func TestADeliveryLimitThatRestartsReachIsAWarning(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version string
		kind    string
		limit   any
		want    semel.Severity
		found   string
	}{
		{"3.10.8", amqp.QueueTypeQuorum, nil, semel.Fine, "not set; RabbitMQ 4 and later use 20 then"},
		{"4.1.0", amqp.QueueTypeQuorum, nil, semel.Warning, "not set, which is 20"},
		{"4.1.0", amqp.QueueTypeQuorum, -1.0, semel.Fine, "-1"},
		{"4.1.0", amqp.QueueTypeQuorum, 1000.0, semel.Fine, "1000"},
		{"3.10.8", amqp.QueueTypeQuorum, 1.0, semel.Warning, "1"},
		{"4.1.0", amqp.QueueTypeClassic, nil, 0, ""},
	} {
		q := queueInfo{Type: c.kind, Arguments: map[string]any{}}
		if c.limit != nil {
			q.Arguments["x-delivery-limit"] = c.limit
		}
		e := examination{version: c.version}
		e.read("queue q", &q)
		var got semel.Finding
		for _, f := range e.findings {
			if strings.HasSuffix(f.Subject, " delivery-limit") {
				got = f
			}
		}
		if got.Severity != c.want || got.Found != c.found || got.Severity == semel.Warning && !strings.Contains(got.Cost, "the server deletes the message after ") {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}
