package runcmd_test

import (
	"encoding/base64"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// hops moves messages from RabbitMQ through Kafka and SQS to another queue of SQS.
// Each pipeline after the first one finds the key that the first one wrote.
const hops = `stores:
  first:  { embedded: { path: %[1]s/first } }
  second: { embedded: { path: %[1]s/second } }
  third:  { embedded: { path: %[1]s/third } }
pipelines:
  intake:
    source: { rabbitmq: { servers: [%[2]q], queue: %[3]q } }
    key: { id: [property:message-id, .id] }
    store: first
    sink: { kafka: { brokers: [%[4]q], topic: %[3]q } }
    parked: { path: %[1]s/parked }
  forward:
    source: { kafka: { brokers: [%[4]q], topics: [%[3]q], group: %[3]q } }
    key: { id: header:semel-key }
    order: partition
    store: second
    sink: { sqs: { queue: %[5]q } }
    parked: { path: %[1]s/parked }
  deliver:
    source: { sqs: { queue: %[5]q } }
    key: { id: header:semel-key }
    store: third
    sink: { sqs: { queue: %[6]q } }
    parked: { path: %[1]s/parked }
`

// identity is what a message carries from the first pipeline on.
type identity struct{ key, seen, origin string }

func identityOf(headers map[string]string) identity {
	id := identity{headers["semel-key"], headers["semel-first-seen"], headers["semel-origin"]}
	if encoded, ok := headers["semel-key-base64"]; ok {
		key, err := base64.StdEncoding.DecodeString(encoded)
		if id.key = string(key); err != nil {
			id.key = err.Error()
		}
	}
	return id
}

// TestAMessageKeepsItsIdentityFromBrokerToBroker sends each message twice to each
// broker. The last queue gets each once, with the key, the time and the place that the
// first pipeline gave it.
func TestAMessageKeepsItsIdentityFromBrokerToBroker(t *testing.T) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"} {
		t.Setenv(name, value) // so it cannot run in parallel
	}
	name, addr := servicestest.Topic(), programtest.Servers.RabbitMQ(t)
	ch := programtest.RabbitChannel(t, "amqp://"+addr)
	programtest.DeclareQueue(t, ch, name, amqp.QueueTypeQuorum, nil)
	kafka, err := kgo.NewClient(kgo.SeedBrokers(programtest.Servers.Kafka(t)), kgo.ConsumeTopics(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	admin := kadm.NewClient(kafka)
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, name); err != nil {
		t.Fatal(err)
	}
	url := programtest.Servers.SQS(t)
	client := sqs.New(sqs.Options{Region: "us-east-1", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}})
	between, last := newQueue(t, client, name), newQueue(t, client, name+"-last")

	dir := t.TempDir()
	file := programtest.WriteFile(t, filepath.Join(dir, "hops.yaml"), fmt.Sprintf(hops, dir, addr, name, programtest.Servers.Kafka(t), between, last))
	programtest.Run(t, "", "lint", file).Check(t, term.ExitDone, "0 with a warning")
	begun := time.Now().Add(-time.Millisecond)
	stop := programtest.Background(t, "run", file, "--admin", "off")

	keys := map[string]bool{}
	for i := range programtest.Distinct {
		m, key := amqp.Publishing{Body: fmt.Appendf(nil, `{"id":%d}`, i)}, fmt.Sprintf("\x00n%d", i) // the id of a number
		if i%2 == 1 {
			m.MessageId, key = fmt.Sprint("m-", i), fmt.Sprint("m-", i)
		}
		keys[key] = true
		programtest.Publish(t, ch, name, m)
		programtest.Publish(t, ch, name, m)
	}
	records, copies := recordsOf(t, kafka)
	if err := kafka.ProduceSync(t.Context(), copies...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	arrived := receive(t, client, last, programtest.Distinct)
	for i := range arrived { // what arrived, once more before the last pipeline
		if _, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &between, MessageBody: arrived[i].Body, MessageAttributes: arrived[i].MessageAttributes}); err != nil {
			t.Fatal(err)
		}
	}
	// One more message, behind all copies in the topic. It ends the test.
	keys["the end"] = true
	programtest.Publish(t, ch, name, amqp.Publishing{MessageId: "the end", Body: []byte("{}")})
	arrived = append(arrived, receive(t, client, last, 1)...)
	for waiting(t, client, between) > 0 && t.Context().Err() == nil {
		<-time.After(50 * time.Millisecond)
	}
	ended := stop()
	ended.Check(t, term.ExitDone, "ended")
	arrived = append(arrived, receive(t, client, last, 0)...)

	got := map[string]bool{}
	for i := range arrived {
		attributes := map[string]string{}
		for name, value := range arrived[i].MessageAttributes {
			attributes[name] = aws.ToString(value.StringValue)
		}
		id := identityOf(attributes)
		if got[id.key] {
			t.Errorf("%q arrived twice", id.key)
		}
		got[id.key] = true
		if records[id.key] == (identity{}) {
			records[id.key] = id // of the last message
		}
		seen, err := time.Parse(time.RFC3339, id.seen)
		if err != nil || seen.Before(begun.Truncate(time.Millisecond)) || seen.After(time.Now()) || id.origin != "queue "+name || id != records[id.key] {
			t.Errorf("%q arrived as %+v, and the topic has %+v (%v)", id.key, id, records[id.key], err)
		}
	}
	if !maps.Equal(got, keys) {
		t.Errorf("got the keys %q, want %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(keys)))
	}
	counts := fmt.Sprintf(`"fresh":%d,"duplicate":%d,"parked":0`, programtest.Distinct+1, programtest.Distinct)
	if n := strings.Count(ended.Stderr, counts); n != 3 {
		t.Errorf("%d pipelines end with %s, want all 3:\n%s", n, counts, ended.Stderr)
	}
}

// recordsOf reads the records of a topic until it has one for each message. It returns
// their identities, and copies of them.
func recordsOf(t *testing.T, kafka *kgo.Client) (records map[string]identity, copies []*kgo.Record) {
	t.Helper()
	records = map[string]identity{}
	for len(records) < programtest.Distinct {
		for _, r := range kafka.PollFetches(t.Context()).Records() {
			headers := map[string]string{}
			for _, h := range r.Headers {
				headers[h.Key] = string(h.Value)
			}
			id := identityOf(headers)
			if _, twice := records[id.key]; twice {
				t.Errorf("%q is in the topic twice", id.key)
			}
			records[id.key] = id
			copies = append(copies, &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers})
		}
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	return records, copies
}

// newQueue makes a standard queue and returns its URL.
func newQueue(t *testing.T, client *sqs.Client, name string) string {
	t.Helper()
	queue, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name})
	if err != nil {
		t.Fatal(err)
	}
	return *queue.QueueUrl
}

// receive takes messages out of a queue: n of them, or if n is 0, what is there.
func receive(t *testing.T, client *sqs.Client, queue string, n int) (list []types.Message) {
	t.Helper()
	for {
		out, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{
			QueueUrl: &queue, MaxNumberOfMessages: 10, WaitTimeSeconds: int32(min(n, 1)), MessageAttributeNames: []string{"All"},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range out.Messages {
			if _, err := client.DeleteMessage(t.Context(), &sqs.DeleteMessageInput{QueueUrl: &queue, ReceiptHandle: m.ReceiptHandle}); err != nil {
				t.Fatal(err)
			}
		}
		if list = append(list, out.Messages...); len(list) >= n && (n > 0 || len(out.Messages) == 0) {
			return list
		}
	}
}

// waiting returns how many messages a queue has, with those that were received.
func waiting(t *testing.T, client *sqs.Client, queue string) (n int) {
	t.Helper()
	names := []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible}
	out, err := client.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &queue, AttributeNames: names})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		more, err := strconv.Atoi(out.Attributes[string(name)])
		if err != nil {
			t.Fatal(err)
		}
		n += more
	}
	return n
}
