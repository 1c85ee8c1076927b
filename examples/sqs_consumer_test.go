package examples_test

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestSQSConsumerChargesEachOrderOnce(t *testing.T) {
	t.Parallel()
	server := servicestest.StartElasticMQ(t) // its own, to kill
	url := server.URL()
	api := sqs.New(sqs.Options{Region: "us-east-1", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}})
	create := func(name string, attributes map[string]string) *string {
		t.Helper()
		made, err := api.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: &name, Attributes: attributes})
		if err != nil {
			t.Fatal(err)
		}
		return made.QueueUrl
	}
	dead := create("dead", nil)
	queue := create("orders", map[string]string{"RedrivePolicy": `{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:dead","maxReceiveCount":4}`})
	send := func(bodies ...string) {
		t.Helper()
		for i := range bodies {
			if _, err := api.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: queue, MessageBody: &bodies[i]}); err != nil {
				t.Fatal(err)
			}
		}
	}
	env := []string{"SQS_QUEUE_URL=" + *queue, "AWS_ENDPOINT_URL_SQS=" + url, "AWS_REGION=us-east-1", "AWS_ACCESS_KEY_ID=any", "AWS_SECRET_ACCESS_KEY=any"}
	args := []string{"-keys", t.TempDir(), "-visibility", "6s"}
	first := start(t, env, "sqs-consumer", args...)
	first.await("waiting for messages")
	send(`{"event_id":"slow","customer":"s","seconds":9}`, `{"event_id":"e1","customer":"a"}`, `{"event_id":"e1","customer":"a"}`, `{"event_id":"e2","customer":"b"}`)
	first.await("charged slow") // longer than the visibility time-out
	awaitMessages(t, api, queue, 0)
	if printed := first.printed.String(); strings.Count(printed, "charged slow") != 1 {
		t.Errorf("the slow order came again:\n%s", printed)
	}
	if err := errors.Join(server.Kill(), server.Restart(t.Context())); err != nil {
		t.Fatal(err)
	}
	send(`{"event_id":"e3","customer":"c"}`)
	first.await("charged e3")
	first.kill() // the deletion of e3 may be lost
	send(`{"event_id":"e1","customer":"a"}`, `{"event_id":"e4","customer":"d"}`)
	// These come after the kill: ElasticMQ moves a message in two steps. Killed between them, it
	// moves the message again after its restart, and stops at that.
	send("not JSON", `{"customer":"c"}`)
	again := start(t, env, "sqs-consumer", args...)
	again.await("charged e4")
	awaitMessages(t, api, queue, 0)
	awaitMessages(t, api, dead, 2)
	got, err := api.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: dead, MaxNumberOfMessages: 10})
	if err != nil {
		t.Fatal(err)
	}
	var bodies []string
	for _, m := range got.Messages {
		bodies = append(bodies, *m.Body)
	}
	slices.Sort(bodies)
	if want := []string{"not JSON", `{"customer":"c"}`}; !slices.Equal(bodies, want) {
		t.Errorf("the dead-letter queue has %q, want %q", bodies, want)
	}
	again.stop()
	printed := first.printed.String() + again.printed.String()
	for _, id := range []string{"slow", "e1", "e2", "e3", "e4"} {
		if n := strings.Count(printed, " for "+id+"\n"); n != 1 {
			t.Errorf("%s was charged %d times:\n%s", id, n, printed)
		}
	}
}

// awaitMessages waits until a queue has so many messages, including those that are
// being processed.
func awaitMessages(t *testing.T, api *sqs.Client, queue *string, want int) {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(3 * time.Minute); ; <-tick.C {
		got, err := api.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: queue, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		for _, name := range []string{"ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"} {
			n, err := strconv.Atoi(got.Attributes[name])
			if err != nil {
				t.Fatal(err)
			}
			left += n
		}
		if left == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the queue has %d messages, want %d", left, want)
		}
	}
}
