package examples_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestKafkaConsumerWritesEachOrderOnce(t *testing.T) {
	t.Parallel()
	topic, brokers, database := servicestest.Topic(), servers.Kafka(t), servers.Database(t)
	env := []string{"DATABASE_URL=" + database, "KAFKA_BROKERS=" + brokers}
	args := []string{"-topic", topic, "-group", topic}
	conn := connect(t, database)
	if _, err := conn.Exec(t.Context(), "CREATE TABLE orders_in_go (event_id text PRIMARY KEY, customer text, amount numeric)"); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{
		`{"event_id":"e1","customer":"a","amount":"1"}`,
		`{"event_id":"e2","customer":"a","amount":"2"}`,
		`{"event_id":"e1","customer":"a","amount":"1"}`,
		`{"event_id":"e3","customer":"a","amount":"3"}`,
		`not JSON`,
		`{"customer":"a","amount":"4"}`,
		`{"event_id":"e5","customer":"a","amount":"five"}`,
		`{"event_id":"e6","customer":"a","amount":"6"}`,
	} {
		if err := client.ProduceSync(t.Context(), kgo.StringRecord(value)).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}

	// Another transaction holds e3, so the consumer dies with two orders done and no
	// offset committed.
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "INSERT INTO orders_in_go VALUES ('e3', 'other', 0)"); err != nil {
		t.Fatal(err)
	}
	consumer := start(t, env, "kafka-consumer", args...)
	consumer.await("duplicate e1")
	awaitLock(t, database, consumer.ended)
	consumer.kill()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	removeMembers(t, client, topic)

	consumer = start(t, env, "kafka-consumer", args...)
	consumer.await("fresh e6")
	consumer.stop()
	for _, want := range []string{"duplicate e1\nduplicate e2\nduplicate e1\nfresh e3\nparked invalid character", "fresh e6"} {
		if !strings.Contains(consumer.printed.String(), want) {
			t.Errorf("after the kill the consumer printed\n%s\nwant %s", &consumer.printed, want)
		}
	}
	if got := rows(t, conn, "SELECT event_id FROM orders_in_go ORDER BY event_id"); got != "[e1 e2 e3 e6]" {
		t.Errorf("the table has %s", got)
	}
	client.AddConsumeTopics(topic + "-parked")
	var parked []string
	for len(parked) < 3 {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		for _, record := range fetches.Records() {
			if len(record.Headers) != 1 || record.Headers[0].Key != "reason" || len(record.Headers[0].Value) == 0 {
				t.Errorf("%s is parked without a reason: %v", record.Value, record.Headers)
			}
			parked = append(parked, string(record.Value))
		}
	}
	if want := []string{"not JSON", `{"customer":"a","amount":"4"}`, `{"event_id":"e5","customer":"a","amount":"five"}`}; !slices.Equal(parked, want) {
		t.Errorf("parked: %q, want %q", parked, want)
	}
}

// removeMembers removes the killed members of a group, as the broker does after
// their session timeout.
func removeMembers(t *testing.T, client *kgo.Client, group string) {
	t.Helper()
	found, err := kadm.NewClient(client).DescribeGroups(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	request := kmsg.NewPtrLeaveGroupRequest()
	request.Group = group
	for _, m := range found[group].Members {
		member := kmsg.NewLeaveGroupRequestMember()
		member.MemberID = m.MemberID
		request.Members = append(request.Members, member)
	}
	if _, err := request.RequestWith(t.Context(), client); err != nil {
		t.Fatal(err)
	}
}
