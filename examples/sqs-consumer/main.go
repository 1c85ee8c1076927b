// Command sqs-consumer is an idempotent consumer of Amazon SQS with aws-sdk-go-v2.
// Each order is charged once, however often SQS delivers it, also from a dead-letter
// queue. A message is deleted when its outcome is durable. A message that fails comes
// again, and after maxReceiveCount deliveries SQS moves it to the dead-letter queue.
//
//	SQS_QUEUE_URL=https://sqs.eu-west-1.amazonaws.com/123456789012/orders go run ./examples/sqs-consumer
//	aws sqs send-message --queue-url "$SQS_QUEUE_URL" --message-body '{"event_id":"e1","customer":"alice"}'
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
)

type order struct {
	EventID  string `json:"event_id"`
	Customer string `json:"customer"`
	Seconds  int    `json:"seconds"` // how long the charge takes
}

type consumer struct {
	client *sqs.Client
	queue  string
	guard  *semel.Guard
	hidden int32 // seconds in which SQS delivers a message to no other process
}

func main() {
	dir := flag.String("keys", "./keys", "the directory of the keys")
	visibility := flag.Duration("visibility", 30*time.Second, "how long SQS waits for a process that died")
	workers := flag.Int("workers", 4, "how many messages are handled at the same time")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *dir, *visibility, *workers); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, dir string, visibility time.Duration, workers int) error {
	store, err := logstore.Open(dir, nil) // for one process; several share redisstore or pgstore
	if err != nil {
		return err
	}
	defer store.Close()
	// Longer than the queue and its dead-letter queue keep a message.
	guard, err := semel.NewGuard(store, &semel.GuardOptions{Window: 28 * 24 * time.Hour})
	if err != nil {
		return err
	}
	account, err := awsconfig.LoadDefaultConfig(ctx)
	if err != nil {
		return err
	}
	c := &consumer{sqs.NewFromConfig(account), os.Getenv("SQS_QUEUE_URL"), guard, max(2, int32(visibility.Seconds()))}
	var running sync.WaitGroup
	for range workers {
		running.Go(func() { c.work(ctx) })
	}
	fmt.Println("waiting for messages of", c.queue)
	running.Wait()
	return nil
}

// work handles messages until ctx ends. It requests one at a time: SQS holds back the
// rest of a FIFO queue's message group until the message is deleted or comes again.
func (c *consumer) work(ctx context.Context) {
	for {
		got, err := c.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: &c.queue, MaxNumberOfMessages: 1, WaitTimeSeconds: 20, VisibilityTimeout: c.hidden,
		})
		if err == nil {
			for _, m := range got.Messages {
				c.handle(context.WithoutCancel(ctx), m) // the end of the program waits for it
			}
			continue
		}
		if ctx.Err() != nil {
			return
		}
		fmt.Println("waiting for SQS:", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// handle charges the order of a message once, and tells SQS the outcome. If SQS does
// not learn of it, the message comes again and is a duplicate.
func (c *consumer) handle(ctx context.Context, m types.Message) {
	stop := c.keepHidden(ctx, m)
	o, err := c.charge(ctx, m)
	stop()
	var permanent *semel.PermanentError
	if !semel.MayAck(err) || errors.As(err, &permanent) {
		fmt.Println("later", err)
		c.hide(ctx, m, 1)
		return
	}
	_, err = c.client.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &c.queue, ReceiptHandle: m.ReceiptHandle})
	fmt.Println("charged", o.EventID) // now, or by an earlier delivery
	if err != nil {
		fmt.Println("it comes again:", err)
	}
}

// charge charges the order of a message unless its key is known. The MessageId is no key: it
// changes when a producer sends the order again.
func (c *consumer) charge(ctx context.Context, m types.Message) (o order, err error) {
	if err := json.Unmarshal([]byte(aws.ToString(m.Body)), &o); err != nil {
		return o, err
	}
	return o, c.guard.Run(ctx, semel.Key{Scope: "charges", ID: o.EventID}, func(ctx context.Context) error {
		return charge(ctx, o)
	})
}

// keepHidden extends the visibility time-out of a message until stop is called.
func (c *consumer) keepHidden(ctx context.Context, m types.Message) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(time.Duration(c.hidden) * time.Second / 3)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				c.hide(ctx, m, c.hidden)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

// hide hides a message from all processes for some seconds from now on. If it fails,
// the message comes again when SQS delivers it: the guard knows what was done.
func (c *consumer) hide(ctx context.Context, m types.Message, seconds int32) {
	_, _ = c.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{ // see above
		QueueUrl: &c.queue, ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: seconds,
	})
}

// charge is the effect. It must not happen twice.
func charge(_ context.Context, o order) error {
	fmt.Println("charging", o.Customer, "for", o.EventID)
	time.Sleep(time.Duration(o.Seconds) * time.Second)
	return nil
}
