package rabbitmq

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/doctor"
)

func TestADeliveryLimitThatRestartsReachIsAWarning(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		version string
		kind    string
		limit   any
		want    doctor.Severity
		found   string
	}{
		{"3.10.8", amqp.QueueTypeQuorum, nil, doctor.Fine, "not set; RabbitMQ 4 and later use 20 then"},
		{"4.1.0", amqp.QueueTypeQuorum, nil, doctor.Warning, "20"},
		{"4.1.0", amqp.QueueTypeQuorum, -1.0, doctor.Fine, "-1"},
		{"4.1.0", amqp.QueueTypeQuorum, 1000.0, doctor.Fine, "1000"},
		{"3.10.8", amqp.QueueTypeQuorum, 1.0, doctor.Warning, "1"},
		{"3.10.8", amqp.QueueTypeQuorum, 0.0, doctor.Broken, "0"},
		{"3.10.8", amqp.QueueTypeQuorum, -1.0, doctor.Broken, "-1"},
		{"4.1.0", amqp.QueueTypeClassic, nil, 0, ""},
	} {
		q := queueInfo{Type: c.kind, Arguments: map[string]any{}}
		if c.limit != nil {
			q.Arguments["x-delivery-limit"] = c.limit
		}
		e := examination{version: c.version}
		e.read("queue q", &q)
		var got doctor.Finding
		for _, f := range e.findings {
			if strings.HasSuffix(f.Subject, " delivery-limit") {
				got = f
			}
		}
		if got.Severity != c.want || got.Found != c.found || got.Severity == doctor.Warning && !strings.Contains(got.Cost, "a message is parked at delivery 2, because the server deletes it") && c.limit != nil {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

func TestTheDeliveryLimitOfArgumentAndPolicy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind             string
		argument, policy any
		major            int
		want             int64
		set              bool
	}{
		{amqp.QueueTypeQuorum, nil, nil, 3, 20, false},
		{amqp.QueueTypeQuorum, nil, nil, 4, 20, true},
		{amqp.QueueTypeQuorum, 7.0, nil, 3, 7, true},
		{amqp.QueueTypeQuorum, nil, 5.0, 3, 5, true},
		{amqp.QueueTypeQuorum, 7.0, 5.0, 3, 5, true},
		{amqp.QueueTypeQuorum, 7.0, 5.0, 4, 5, true},
		{amqp.QueueTypeQuorum, -1.0, 5.0, 4, 5, true},
		{amqp.QueueTypeQuorum, -1.0, 5.0, 3, -1, true},
		{amqp.QueueTypeClassic, 7.0, nil, 4, 0, false},
	} {
		q := queueInfo{Type: c.kind, Arguments: map[string]any{}, Policy: map[string]any{}}
		if c.argument != nil {
			q.Arguments["x-delivery-limit"] = c.argument
		}
		if c.policy != nil {
			q.Policy["delivery-limit"] = c.policy
		}
		if got, set := q.deliveryLimit(c.major); got != c.want || set != c.set {
			t.Errorf("%+v: %d, %t", c, got, set)
		}
	}
}
