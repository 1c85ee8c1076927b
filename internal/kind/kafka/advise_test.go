package kafka_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"

	broker "github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/kafka"
)

// An error about rights names user, group and topic, and the command that grants the right.
func TestDeniedRightsAreNamed(t *testing.T) {
	t.Parallel()
	source := &kafka.Source{Topics: []string{"clicks"}, Group: "once", Client: kafka.Client{Brokers: []string{"b:9092"}, SASL: &kafka.SASL{Username: "semel"}}}
	p := &config.Pipeline{Source: source, Parked: config.Parked{Topic: "clicks-parked"}}
	for _, c := range []struct {
		err  error
		want string
	}{
		{kerr.GroupAuthorizationFailed, "user semel may not read clicks as group once --operation Read --group once;"},
		{fmt.Errorf("kafka: group once-repartition: %w", kerr.GroupAuthorizationFailed), "as group once-repartition --operation Read --group once-repartition;"},
		{fmt.Errorf("kafka: read clicks/0: %w", kerr.TopicAuthorizationFailed), "user semel lacks the right Read on topic clicks --operation Read --topic clicks;"},
		{fmt.Errorf("kafka: write clicks-parked/0: %w", kerr.TopicAuthorizationFailed), "lacks the right Write on topic clicks-parked --operation Write --topic clicks-parked;"},
		{fmt.Errorf("kafka: producer x: %w", kerr.TransactionalIDAuthorizationFailed), "ids of group once --operation Write --transactional-id once/ --resource-pattern-type prefixed;"},
		{fmt.Errorf("kafka: %w", kerr.TopicAuthorizationFailed), "semel doctor names what is missing"},
	} {
		said := source.Advise(nil, p, "source.kafka", c.err)
		got := said.Cause + " " + strings.ReplaceAll(said.Remedy, "kafka-acls.sh --bootstrap-server b:9092 --add --allow-principal User:semel ", "")
		if !strings.Contains(got, c.want) {
			t.Errorf("%v is explained as %q, want %q", c.err, got, c.want)
		}
	}
	source.SASL = &kafka.SASL{AWS: &kafka.AWS{}}
	if said := source.Advise(nil, p, "source.kafka", kerr.GroupAuthorizationFailed); said.Cause != "the user may not read clicks as group once" || !strings.HasPrefix(said.Remedy, "allow it in the policy of the role or user") {
		t.Errorf("on MSK: %v", said)
	}
	pattern, err := broker.NewPattern("clicks-.*")
	if err != nil {
		t.Fatal(err)
	}
	source.SASL, source.Topics, source.Pattern = nil, nil, pattern
	if said := source.Advise(nil, p, "source.kafka", fmt.Errorf("kafka: clicks-eu/0: %w", kerr.TopicAuthorizationFailed)); !strings.Contains(said.Error(), "lacks the right Read on topic clicks-eu") {
		t.Errorf("of a topic that matches: %v", said)
	}
}
