package services_test

import (
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestKilledElasticMQHasItsDataAfterRestart(t *testing.T) {
	t.Parallel()
	server := servicestest.StartElasticMQ(t)
	client := sqs.New(sqs.Options{
		Region: "us-east-1", BaseEndpoint: aws.String(server.URL()), Credentials: aws.AnonymousCredentials{},
	})
	queue, err := client.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String("kept.fifo"), Attributes: map[string]string{"FifoQueue": "true"}})
	if err != nil {
		t.Fatal(err)
	}
	send := func() (id string) {
		t.Helper()
		sent, err := client.SendMessage(t.Context(), &sqs.SendMessageInput{
			QueueUrl: queue.QueueUrl, MessageBody: aws.String("b"), MessageGroupId: aws.String("g"), MessageDeduplicationId: aws.String("d"),
		})
		if err != nil {
			t.Fatal(err)
		}
		return *sent.MessageId
	}
	first := send()
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second := send(); second != first {
		t.Errorf("the repeated message is %s, want the first one, %s: the deduplication id is lost", second, first)
	}
	got, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: queue.QueueUrl, MaxNumberOfMessages: 10})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Messages) != 1 || *got.Messages[0].Body != "b" {
		t.Errorf("after the kill the queue has %d messages, want the one that was sent", len(got.Messages))
	}
}
