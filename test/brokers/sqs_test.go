package brokers

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// The queues of the tests. SQS moves a message that it has delivered too often to the
// second one. A pipeline may write to the third one.
const (
	sqsIn   = "in"
	sqsDead = "dead"
	sqsOut  = "out"
)

// sqsBroker has a standard queue, and sqsFIFO a queue whose groups are the aggregates.
// ElasticMQ forgets in a restart which groups are blocked, and cannot move a message
// to the dead-letter queue before and after one. So it dies under the standard queue
// only, and only the FIFO queue has a dead-letter queue.
var (
	sqsBroker = sqsQueue("sqs", "")
	sqsFIFO   = sqsQueue("sqs-fifo", ".fifo")
)

func sqsQueue(name, end string) broker {
	b := broker{
		name: name, slow: true,
		start: func(t *testing.T) *services.Server { return servicestest.StartElasticMQ(t) },
		prepare: func(t *testing.T, url string) {
			for _, queue := range []string{sqsDead, sqsOut, sqsIn} {
				attributes := map[string]string{}
				if end != "" {
					attributes["FifoQueue"] = "true"
				}
				if end != "" && queue == sqsIn {
					attributes["RedrivePolicy"] = fmt.Sprintf(`{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:%s","maxReceiveCount":%d}`, sqsDead+end, sqsDeliveries)
				}
				if _, err := connectSQS(url).CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String(queue + end), Attributes: attributes}); err != nil {
					t.Fatal(err)
				}
			}
		},
		produce: func(ctx context.Context, url string, bodies []string) error { return sendSQS(ctx, url, end, bodies) },
		source: func(addr string) string {
			return fmt.Sprintf("{ sqs: { queue: %q } }", sqsURL("http://"+addr, sqsIn+end))
		},
		sink: func(addr string) string {
			return fmt.Sprintf("{ sqs: { queue: %q } }", sqsURL("http://"+addr, sqsOut+end))
		},
		written: func(t *testing.T, url string, fn func(id, token, attempt string)) { takeSQS(t, url, sqsOut+end, fn) },
		once:    end != "", // for five minutes
		left: func(t *testing.T, url string) (n int) {
			out, err := connectSQS(url).GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: sqsURLOf(url, sqsIn+end), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []types.QueueAttributeName{types.QueueAttributeNameApproximateNumberOfMessages, types.QueueAttributeNameApproximateNumberOfMessagesNotVisible} {
				more, err := strconv.Atoi(out.Attributes[string(name)])
				if err != nil {
					t.Fatal(err)
				}
				n += more
			}
			return n
		},
		patience: 30 * time.Second, // the visibility time-out of the source
	}
	if end != "" {
		b.ordered, b.immortal, b.deliveries, b.nearEnd = true, true, sqsDeliveries, sqsDeliveries-2
		b.revive = func(ctx context.Context, url string, moved func(id string)) error {
			return reviveSQS(ctx, url, end, moved)
		}
	}
	return b
}

// sqsDeliveries is how often SQS delivers a message before it gives up.
const sqsDeliveries = 4

// sendSQS sends messages in order. In a FIFO queue each sending has its own ids, as if
// the five minutes were over in which SQS knows those of the last one.
func sendSQS(ctx context.Context, url, end string, bodies []string) error {
	client, sending := connectSQS(url), time.Now().UnixNano()
	for n, part := range slices.Collect(slices.Chunk(bodies, 10)) {
		in := &sqs.SendMessageBatchInput{QueueUrl: sqsURLOf(url, sqsIn+end)}
		for i := range part {
			entry := types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: &part[i]}
			if end != "" {
				entry.MessageGroupId = aws.String(strconv.Itoa(aggregateOf(idOf(part[i]))))
				entry.MessageDeduplicationId = aws.String(fmt.Sprintf("%d-%d-%d", sending, n, i))
			}
			in.Entries = append(in.Entries, entry)
		}
		out, err := client.SendMessageBatch(ctx, in)
		if err != nil {
			return err
		}
		if len(out.Failed) > 0 {
			return fmt.Errorf("%d messages were refused: %s", len(out.Failed), aws.ToString(out.Failed[0].Message))
		}
	}
	return nil
}

// reviveSQS sends the messages of the dead-letter queue again.
func reviveSQS(ctx context.Context, url, end string, moved func(id string)) error {
	client, dead := connectSQS(url), sqsURLOf(url, sqsDead+end)
	for {
		got, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: dead, MaxNumberOfMessages: 10})
		if err != nil || len(got.Messages) == 0 {
			return err
		}
		for _, m := range got.Messages {
			moved(idOf(*m.Body))
			err := sendSQS(ctx, url, end, []string{*m.Body})
			if err == nil {
				_, err = client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: dead, ReceiptHandle: m.ReceiptHandle})
			}
			if err != nil {
				return err
			}
		}
	}
}

// takeSQS takes all messages from a queue.
func takeSQS(t *testing.T, url, queue string, fn func(id, token, attempt string)) {
	t.Helper()
	client := connectSQS(url)
	for {
		got, err := client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: sqsURLOf(url, queue), MaxNumberOfMessages: 10, VisibilityTimeout: 600, MessageAttributeNames: []string{"All"}})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Messages) == 0 {
			return
		}
		in := &sqs.DeleteMessageBatchInput{QueueUrl: sqsURLOf(url, queue)}
		for i, m := range got.Messages {
			text := func(name string) string { return aws.ToString(m.MessageAttributes[name].StringValue) }
			fn(idOf(*m.Body), text(header.Token), text(header.Attempt))
			in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: m.ReceiptHandle})
		}
		if out, err := client.DeleteMessageBatch(t.Context(), in); err != nil || len(out.Failed) > 0 {
			t.Fatalf("%v, %d messages are not deleted", err, len(out.Failed))
		}
	}
}

func sqsURL(url, queue string) string { return url + "/000000000000/" + queue }

func sqsURLOf(url, queue string) *string { return aws.String(sqsURL(url, queue)) }

func connectSQS(url string) *sqs.Client {
	return sqs.New(sqs.Options{Region: "us-east-1", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}})
}
