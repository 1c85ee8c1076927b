package sqs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/sqs"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func publication(id, body string) *sqs.Publication {
	return &sqs.Publication{
		Key:     semel.Key{Scope: "orders", ID: id},
		Message: types.SendMessageBatchRequestEntry{MessageBody: &body},
	}
}

// TestPublishedMessagesKeepTheirKeyAndOrder publishes everything twice. A FIFO queue
// stores it once, a standard queue twice.
func TestPublishedMessagesKeepTheirKeyAndOrder(t *testing.T) {
	t.Parallel()
	api := client(t, servers.SQS(t))
	for _, p := range places {
		queue := newQueue(t, api, servicestest.Topic()+p.end, p.attributes)
		publisher, err := sqs.OpenPublisher(t.Context(), api, queue)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for range 2 {
			var list []*sqs.Publication
			for i := range 23 {
				m := publication(fmt.Sprint("k", i), fmt.Sprint("b", i))
				if p.end != "" {
					m.Message.MessageGroupId = aws.String("one")
				}
				list = append(list, m)
				if p.end == "" || len(want) < 23 {
					want = append(want, *m.Message.MessageBody)
				}
			}
			publisher.Publish(t.Context(), list...)
			for _, m := range list {
				if m.Err != nil {
					t.Errorf("%s: %v: %v", p.name, m.Key, m.Err)
				}
			}
		}
		if err := publisher.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		got := texts(t, queue)
		if p.end == "" {
			slices.Sort(got)
			slices.Sort(want)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: the queue has %q, want %q", p.name, got, want)
		}
	}
}

// texts takes all messages from a queue.
func texts(t *testing.T, queue string) (list []string) {
	t.Helper()
	found, err := bodies(t.Context(), client(t, servers.SQS(t)), queue)
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range found {
		list = append(list, string(body))
	}
	return list
}

// TestRefusedMessageDelaysNoOther publishes messages that SQS refuses together
// with others.
func TestRefusedMessageDelaysNoOther(t *testing.T) {
	t.Parallel()
	api := client(t, servers.SQS(t))
	for _, p := range places {
		queue := newQueue(t, api, servicestest.Topic()+p.end, p.attributes)
		publisher, err := sqs.OpenPublisher(t.Context(), api, queue)
		if err != nil {
			t.Fatal(err)
		}
		var list []*sqs.Publication
		var want []string
		for i := range 5 { // more than one request can have
			m := publication(fmt.Sprint("k", i), fmt.Sprint(i)+strings.Repeat("x", 100<<10))
			list, want = append(list, m), append(want, *m.Message.MessageBody)
		}
		many := publication("many", "many attributes")
		many.Message.MessageAttributes = map[string]types.MessageAttributeValue{}
		for i := range 11 {
			many.Message.MessageAttributes[fmt.Sprint("a", i)] = types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String("v")}
		}
		untyped := publication("untyped", "an attribute without a type")
		untyped.Message.MessageAttributes = map[string]types.MessageAttributeValue{"a": {StringValue: aws.String("v")}}
		refused := map[string]*sqs.Publication{
			"accepts no empty one":             publication("empty", ""),
			"the message has 11 attributes":    many,
			"DataType":                         untyped,
			"InvalidMessageContents":           publication("character", "\x01"),
			"neither a Key nor a MessageGroup": {Message: types.SendMessageBatchRequestEntry{MessageBody: aws.String("no key")}},
			"ContentBasedDeduplication of the": {Message: types.SendMessageBatchRequestEntry{MessageBody: aws.String("no id"), MessageGroupId: aws.String("g")}},
		}
		for reason, m := range refused {
			if m.Key.ID == "" && p.end == "" {
				delete(refused, reason)
				continue
			}
			list = append(list, m)
		}
		publisher.Publish(t.Context(), list...)
		for _, m := range list[:len(want)] {
			if m.Err != nil {
				t.Errorf("%s: %v: %v", p.name, m.Key, m.Err)
			}
		}
		for reason, m := range refused {
			if _, permanent := errors.AsType[*semel.PermanentError](m.Err); !permanent || !strings.Contains(m.Err.Error(), reason) {
				t.Errorf("%s: %v: want a permanent error with %q, got %v", p.name, m.Key, reason, m.Err)
			}
		}
		got := texts(t, queue)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the queue has %d messages, want %d", p.name, len(got), len(want))
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		late := publication("late", "late")
		if publisher.Publish(ended, late); !errors.Is(late.Err, context.Canceled) {
			t.Errorf("%s: after the end of the context: %v", p.name, late.Err)
		}
	}
}

func TestContentBasedDeduplicationNeedsNoKey(t *testing.T) {
	t.Parallel()
	api := client(t, servers.SQS(t))
	queue := newQueue(t, api, servicestest.Topic()+".fifo", map[string]string{"FifoQueue": "true", "ContentBasedDeduplication": "true"})
	publisher, err := sqs.OpenPublisher(t.Context(), api, queue)
	if err != nil {
		t.Fatal(err)
	}
	bare := func() *sqs.Publication {
		return &sqs.Publication{Message: types.SendMessageBatchRequestEntry{MessageBody: aws.String("same"), MessageGroupId: aws.String("g")}}
	}
	list := []*sqs.Publication{bare(), bare(), publication("1", "same"), publication("2", "same"), publication("1", "same")}
	publisher.Publish(t.Context(), list...)
	for _, m := range list {
		if m.Err != nil {
			t.Error(m.Err)
		}
	}
	if got := texts(t, queue); len(got) != 3 {
		t.Errorf("the queue has %q, want one by its content and two by their keys", got)
	}
	if _, err := sqs.OpenPublisher(t.Context(), nil, "orders"); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "sqs: Publisher.Client is required") {
		t.Errorf("without a client: %v", err)
	}
}
