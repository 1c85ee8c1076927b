package sqs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/header"
	"github.com/semel-dev/semel/pipeline"
)

// SinkOptions are the options of OpenSink. Client and Queue are required.
type SinkOptions struct {
	// Client and Queue are as in SourceOptions.
	Client *awssqs.Client
	Queue  string
	// Name is the pipeline's name, sent as an attribute. Defaults to none.
	Name string
}

// Sink sends to a queue. OpenSink makes it.
type Sink struct {
	publisher *Publisher
	name      string
}

var (
	_ pipeline.Sink = (*Sink)(nil)
	_ semel.Readier = (*Sink)(nil)
)

// OpenSink looks up the queue. It blocks until SQS has answered. Errors are as those
// of OpenSource.
func OpenSink(ctx context.Context, opts *SinkOptions) (*Sink, error) {
	var o SinkOptions
	if opts != nil {
		o = *opts
	}
	publisher, err := openPublisher(ctx, o.Client, o.Queue, "SinkOptions")
	if err != nil {
		return nil, err
	}
	return &Sink{publisher, o.Name}, nil
}

// Traits implements pipeline.Sink. One call has at most one message of a group, so
// its requests may run concurrently.
func (s *Sink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Batch: 100, Parallel: 2} }

// Ready implements semel.Readier.
func (s *Sink) Ready(ctx context.Context) error { return s.publisher.Ready(ctx) }

// Close implements pipeline.Sink. The client belongs to the caller.
func (s *Sink) Close(context.Context) error { return nil }

// Deliver implements pipeline.Sink. On a FIFO queue an answer that the message is a
// duplicate looks like any other: its MessageDeduplicationId is the same for all
// attempts, and differs for each redrive.
func (s *Sink) Deliver(ctx context.Context, items []*pipeline.Item) {
	list := make([]*Publication, len(items))
	for i, it := range items {
		list[i] = s.publication(it)
	}
	s.publisher.Publish(ctx, list...)
	for i, it := range items {
		it.Err = list[i].Err
	}
}

// publication returns what is sent for an item.
func (s *Sink) publication(it *pipeline.Item) *Publication {
	headers := header.Output(it, s.name)
	body, attributes := encode(it.Message.Body, headers, func(name string) bool { return header.IsKey(name) || name == pipeline.RedriveHeader })
	m := &Publication{Key: it.Call.Key, Message: types.SendMessageBatchRequestEntry{MessageBody: &body, MessageAttributes: attributes}}
	if s.publisher.queue.FIFO {
		group, id := GroupID(it.Call.Key, it.Message.RecordKey), DeduplicationID(it.Call.Key, it.Redrive)
		m.Message.MessageGroupId, m.Message.MessageDeduplicationId = &group, &id
	}
	return m
}

// maxID is the length of the longest group and deduplication id.
const maxID = 128

// fits reports whether a text can be a group or deduplication id: printable ASCII
// without spaces.
func fits(id string) bool {
	return id != "" && len(id) <= maxID && !strings.ContainsFunc(id, func(c rune) bool { return c < '!' || c > '~' })
}

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + base64.RawURLEncoding.EncodeToString(sum[:])
}

// DeduplicationID returns the MessageDeduplicationId of a key: scope, colon and id if
// they are printable and short, and otherwise a digest of them. redrive is how often
// the message was redriven. A redriven message must not be dropped as a duplicate, so
// it has another id.
func DeduplicationID(key semel.Key, redrive int) string {
	id, end := key.Scope+":"+key.ID, ""
	if redrive > 0 {
		end = "#r" + strconv.Itoa(redrive)
	}
	if !fits(id+end) || strings.Contains(key.Scope, ":") {
		id = digest(strconv.Itoa(len(key.Scope)) + ":" + id)
	}
	return id + end
}

// GroupID returns the MessageGroupId of a message: its record key, such as the group
// that it had in another queue, or else its key. An id that SQS does not accept is
// replaced by a digest.
func GroupID(key semel.Key, recordKey []byte) string {
	id := cmp.Or(string(recordKey), key.ID)
	if !fits(id) {
		id = digest(id)
	}
	return id
}
