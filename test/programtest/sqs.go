package programtest

import (
	"maps"
	"strconv"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel/test/services/servicestest"
)

// SetAWS sets the environment of the client library, so the test cannot run in parallel.
func SetAWS(t *testing.T, more map[string]string) {
	t.Helper()
	env := map[string]string{"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true", "AWS_PROFILE": "", "HOME": t.TempDir()}
	maps.Copy(env, more)
	for name, value := range env {
		t.Setenv(name, value)
	}
}

// SQSQueue is a queue of a test.
type SQSQueue struct {
	*testing.T
	api  *awssqs.Client
	URL  string
	Fifo bool
}

// NewSQSQueue creates a queue. end is .fifo for a FIFO queue.
func NewSQSQueue(t *testing.T, api *awssqs.Client, end string, attributes map[string]string) *SQSQueue {
	t.Helper()
	attributes = maps.Clone(attributes)
	if end != "" {
		if attributes == nil {
			attributes = map[string]string{}
		}
		attributes["FifoQueue"] = "true"
	}
	made, err := api.CreateQueue(t.Context(), &awssqs.CreateQueueInput{QueueName: aws.String(servicestest.Topic() + end), Attributes: attributes})
	if err != nil {
		t.Fatal(err)
	}
	return &SQSQueue{t, api, *made.QueueUrl, end != ""}
}

// Send sends the events from first to last. A FIFO queue gets each with an id of this
// sending, as after its five minutes.
func (q *SQSQueue) Send(sending string, first, last int) {
	q.Helper()
	for i := first; i <= last; i++ {
		in := &awssqs.SendMessageInput{QueueUrl: &q.URL, MessageBody: aws.String(EventText(i))}
		if q.Fifo {
			in.MessageGroupId, in.MessageDeduplicationId = aws.String(strconv.Itoa(i)), aws.String(sending+strconv.Itoa(i))
		}
		if _, err := q.api.SendMessage(q.Context(), in); err != nil {
			q.Fatal(err)
		}
	}
}

// Receive receives messages until there are no more, and gives them back immediately.
func (q *SQSQueue) Receive() (n int) {
	q.Helper()
	for {
		got, err := q.api.ReceiveMessage(q.Context(), &awssqs.ReceiveMessageInput{QueueUrl: &q.URL, MaxNumberOfMessages: 10})
		if err != nil {
			q.Fatal(err)
		}
		if len(got.Messages) == 0 {
			return n
		}
		n += len(got.Messages)
		for _, m := range got.Messages {
			in := &awssqs.ChangeMessageVisibilityInput{QueueUrl: &q.URL, ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: 0}
			if _, err := q.api.ChangeMessageVisibility(q.Context(), in); err != nil {
				q.Fatal(err)
			}
		}
	}
}

// Left returns how many messages the queue has, including those that are processed.
func (q *SQSQueue) Left() (n int) {
	q.Helper()
	got, err := q.api.GetQueueAttributes(q.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: &q.URL, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
	if err != nil {
		q.Fatal(err)
	}
	for _, name := range []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible} {
		more, err := strconv.Atoi(got.Attributes[string(name)])
		if err != nil {
			q.Fatal(err)
		}
		n += more
	}
	return n
}
