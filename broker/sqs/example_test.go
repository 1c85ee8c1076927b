package sqs_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// publishOrder publishes an order. The ids of the message come from the key, so it may
// be called again after any error. SQS drops the repetition within five minutes, and a
// pipeline that reads the queue drops it within its window.
func publishOrder(ctx context.Context, publisher *sqs.Publisher, id, body string) error {
	order := sqs.Publication{
		Key:     semel.Key{Scope: "orders", ID: id},
		Message: types.SendMessageBatchRequestEntry{MessageBody: aws.String(body)},
	}
	publisher.Publish(ctx, &order)
	return order.Err
}

func ExamplePublisher() {
	ctx := context.Background()
	config, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	publisher, err := sqs.OpenPublisher(ctx, awssqs.NewFromConfig(config), "https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(publishOrder(ctx, publisher, "order-42", `{"order_id":"order-42","cents":1250}`))
}

// TestTheExampleOfPublisherRuns does on a server what the example shows, twice.
func TestTheExampleOfPublisherRuns(t *testing.T) {
	t.Parallel()
	api := client(t, servers.SQS(t))
	queue := newQueue(t, api, servicestest.Topic()+".fifo", map[string]string{"FifoQueue": "true"})
	publisher, err := sqs.OpenPublisher(t.Context(), api, queue)
	if err != nil {
		t.Fatal(err)
	}
	const body = `{"order_id":"order-42","cents":1250}`
	for range 2 {
		if err := publishOrder(t.Context(), publisher, "order-42", body); err != nil {
			t.Error(err)
		}
	}
	if got := texts(t, queue); len(got) != 1 || got[0] != body {
		t.Errorf("the queue has %q, want the order once", got)
	}
}
