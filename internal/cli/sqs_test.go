package cli

import (
	"fmt"
	"maps"
	"strconv"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel/internal/services/servicestest"
)

// sqsQueue is a queue of a test.
type sqsQueue struct {
	*testing.T
	api  *awssqs.Client
	url  string
	fifo bool
}

// newSQSQueue creates a queue. end is .fifo for a FIFO queue.
func newSQSQueue(t *testing.T, api *awssqs.Client, end string, attributes map[string]string) *sqsQueue {
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
	return &sqsQueue{t, api, *made.QueueUrl, end != ""}
}

// send sends the events from first to last. A FIFO queue gets each with an id of this
// sending, as after its five minutes.
func (q *sqsQueue) send(sending string, first, last int) {
	q.Helper()
	for i := first; i <= last; i++ {
		in := &awssqs.SendMessageInput{QueueUrl: &q.url, MessageBody: aws.String(eventText(i))}
		if q.fifo {
			in.MessageGroupId, in.MessageDeduplicationId = aws.String(strconv.Itoa(i)), aws.String(sending+strconv.Itoa(i))
		}
		if _, err := q.api.SendMessage(q.Context(), in); err != nil {
			q.Fatal(err)
		}
	}
}

// receive receives messages until there are no more, and gives them back immediately.
func (q *sqsQueue) receive() (n int) {
	q.Helper()
	for {
		got, err := q.api.ReceiveMessage(q.Context(), &awssqs.ReceiveMessageInput{QueueUrl: &q.url, MaxNumberOfMessages: 10})
		if err != nil {
			q.Fatal(err)
		}
		if len(got.Messages) == 0 {
			return n
		}
		n += len(got.Messages)
		for _, m := range got.Messages {
			in := &awssqs.ChangeMessageVisibilityInput{QueueUrl: &q.url, ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: 0}
			if _, err := q.api.ChangeMessageVisibility(q.Context(), in); err != nil {
				q.Fatal(err)
			}
		}
	}
}

// left returns how many messages the queue has, including those that are processed.
func (q *sqsQueue) left() (n int) {
	q.Helper()
	got, err := q.api.GetQueueAttributes(q.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: &q.url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
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

// TestSQSScenariosRunAsPrinted lets all orders fall into the dead-letter queue, while
// half of them have their effect by another delivery. Both files together have the
// output of one delivery of each.
func TestSQSScenariosRunAsPrinted(t *testing.T) {
	for name, value := range map[string]string{"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_EC2_METADATA_DISABLED": "true"} {
		t.Setenv(name, value) // so it cannot run in parallel
	}
	url := servers.SQS(t)
	api := awssqs.New(awssqs.Options{Region: "us-east-1", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}})
	for name, end := range map[string]string{"standard": "", "FIFO": ".fifo"} {
		t.Run(name, func(t *testing.T) {
			dead := newSQSQueue(t, api, end, nil)
			got, err := api.GetQueueAttributes(t.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: &dead.url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn}})
			if err != nil {
				t.Fatal(err)
			}
			queue := newSQSQueue(t, api, end, map[string]string{"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":1}`, got.Attributes["QueueArn"])})
			queue.send("first", 0, distinct-1)
			if n := queue.receive(); n != distinct || queue.left() != 0 || dead.left() != distinct {
				t.Fatalf("%d messages were received, the queue has %d and the dead-letter queue %d", n, queue.left(), dead.left())
			}
			queue.send("again", 0, distinct/2-1)
			queue.send("more", 0, 1)
			env := map[string]string{"SQS_QUEUE_URL": queue.url, "SQS_DLQ_URL": dead.url, "DATABASE_URL": servers.Database(t)}
			s := openScenario(t, "sqs", env)
			rowsWithout := func(read *sqsQueue) func() []string { // once the queue is empty
				return func() []string {
					if read.left() > 0 {
						return nil
					}
					return s.query("SELECT event_id || ' ' || amount FROM orders")
				}
			}
			var want []string
			for i := range distinct {
				want = append(want, fmt.Sprintf("e%[1]d %[1]d.50", i))
			}
			s.until(rowsWithout(queue), want[:distinct/2])
			openScenario(t, "sqs-dlq", env).until(rowsWithout(dead), want)
		})
	}
}
