package brokers

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel/internal/services"
	"github.com/semel-dev/semel/internal/services/servicestest"
)

var sqsBroker = broker{
	name:  "sqs",
	slow:  true,
	start: func(t *testing.T) *services.Server { return servicestest.StartElasticMQ(t) },
	prepare: func(t *testing.T, url string) {
		if _, err := connectSQS(url).CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String("in")}); err != nil {
			t.Fatal(err)
		}
	},
	produce: func(ctx context.Context, url string, bodies []string) error {
		client := connectSQS(url)
		for part := range slices.Chunk(bodies, 10) {
			in := &sqs.SendMessageBatchInput{QueueUrl: aws.String(queueIn(url))}
			for i := range part {
				in.Entries = append(in.Entries, types.SendMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), MessageBody: &part[i]})
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
	},
	source: func(addr string) string { return fmt.Sprintf("{ sqs: { queue: %q } }", queueIn("http://"+addr)) },
	left: func(t *testing.T, url string) (n int) {
		out, err := connectSQS(url).GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: aws.String(queueIn(url)), AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
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
}

func queueIn(url string) string { return url + "/000000000000/in" }

func connectSQS(url string) *sqs.Client {
	return sqs.New(sqs.Options{Region: "us-east-1", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}})
}
