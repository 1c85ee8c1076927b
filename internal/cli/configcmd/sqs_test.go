package configcmd_test

import (
	"fmt"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel/test/programtest"
)

// TestSQSScenariosRunAsPrinted lets all orders fall into the dead-letter queue, while
// half of them have their effect by another delivery. Both files together have the
// output of one delivery of each.
func TestSQSScenariosRunAsPrinted(t *testing.T) {
	programtest.SetAWS(t, nil)
	url := programtest.Servers.SQS(t)
	api := awssqs.New(awssqs.Options{Region: "us-east-1", BaseEndpoint: &url, Credentials: aws.AnonymousCredentials{}})
	for name, end := range map[string]string{"standard": "", "FIFO": ".fifo"} {
		t.Run(name, func(t *testing.T) {
			dead := programtest.NewSQSQueue(t, api, end, nil)
			got, err := api.GetQueueAttributes(t.Context(), &awssqs.GetQueueAttributesInput{QueueUrl: &dead.URL, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn}})
			if err != nil {
				t.Fatal(err)
			}
			policy := func(most int) map[string]string {
				return map[string]string{"RedrivePolicy": fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, got.Attributes["QueueArn"], most)}
			}
			queue := programtest.NewSQSQueue(t, api, end, policy(1))
			queue.Send("first", 0, programtest.Distinct-1)
			if n := queue.Receive(); n != programtest.Distinct || queue.Left() != 0 || dead.Left() != programtest.Distinct {
				t.Fatalf("%d messages were received, the queue has %d and the dead-letter queue %d", n, queue.Left(), dead.Left())
			}
			if _, err := api.SetQueueAttributes(t.Context(), &awssqs.SetQueueAttributesInput{QueueUrl: &queue.URL, Attributes: policy(10)}); err != nil {
				t.Fatal(err)
			}
			queue.Send("again", 0, programtest.Distinct/2-1)
			queue.Send("more", 0, 1)
			env := map[string]string{"SQS_QUEUE_URL": queue.URL, "SQS_DLQ_URL": dead.URL, "DATABASE_URL": programtest.Servers.Database(t)}
			s := programtest.OpenScenario(t, "sqs", env)
			rowsWithout := func(read *programtest.SQSQueue) func() []string { // once the queue is empty
				return func() []string {
					if read.Left() > 0 {
						return nil
					}
					return s.Query("SELECT event_id || ' ' || amount FROM orders")
				}
			}
			var want []string
			for i := range programtest.Distinct {
				want = append(want, fmt.Sprintf("e%[1]d %[1]d.50", i))
			}
			s.Until(rowsWithout(queue), want[:programtest.Distinct/2])
			programtest.OpenScenario(t, "sqs-dlq", env).Until(rowsWithout(dead), want)
		})
	}
}
