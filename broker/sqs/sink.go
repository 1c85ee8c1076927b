package sqs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
)

// SinkOptions are the options of OpenSink. Client and Queue are required.
type SinkOptions struct {
	// Client and Queue are as in SourceOptions. With a Route, Queue is the URL before the
	// names of queues, such as https://sqs.eu-west-1.amazonaws.com/123456789012.
	Client *awssqs.Client
	Queue  string
	// Route chooses the name of the queue of each message. If it does not allow the name,
	// or the queue does not exist or denies access, only that message fails. Defaults to
	// one queue for all messages.
	Route *pipeline.Route
	// Name is the pipeline's name, sent as an attribute. Defaults to none.
	Name string
}

// Sink sends to a queue, or to queues that messages name. OpenSink makes it.
type Sink struct {
	opts       SinkOptions
	publishers sync.Map // of queues that were used: URL to *Publisher
}

var (
	_ pipeline.Sink  = (*Sink)(nil)
	_ doctor.Readier = (*Sink)(nil)
)

// OpenSink looks up the queue, or the first one that the Route names. It blocks until SQS
// has answered. Errors are as those of OpenSource.
func OpenSink(ctx context.Context, opts *SinkOptions) (*Sink, error) {
	s := &Sink{}
	if opts != nil {
		s.opts = *opts
	}
	example := s.opts.Queue
	if s.opts.Route != nil {
		example = s.url("orders")
	}
	if _, err := newQueue(s.opts.Client, example, "SinkOptions"); err != nil {
		return nil, err
	}
	if err := s.Ready(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// Traits implements pipeline.Sink. One call has at most one message of a group, so
// its requests may run concurrently.
func (s *Sink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Batch: 100, Parallel: 2} }

// Ready implements doctor.Readier. With a Route, it asks only whether SQS answers: a queue
// that is missing concerns its messages alone.
func (s *Sink) Ready(ctx context.Context) error {
	url := s.opts.Queue
	if s.opts.Route != nil {
		names := s.opts.Route.Names()
		if len(names) == 0 {
			return nil
		}
		url = s.url(names[0])
	}
	var err error
	if known, ok := s.publishers.Load(url); ok {
		err = known.(*Publisher).Ready(ctx)
	} else {
		_, err = s.publisher(ctx, url)
	}
	if s.opts.Route != nil && isOfQueue(err) {
		return nil
	}
	return err
}

// Close implements pipeline.Sink. The client belongs to the caller.
func (s *Sink) Close(context.Context) error { return nil }

// url returns the URL of the queue with this name.
func (s *Sink) url(name string) string { return strings.TrimSuffix(s.opts.Queue, "/") + "/" + name }

// publisher returns the publisher of a queue.
func (s *Sink) publisher(ctx context.Context, url string) (*Publisher, error) {
	if known, ok := s.publishers.Load(url); ok {
		return known.(*Publisher), nil
	}
	publisher, err := openPublisher(ctx, s.opts.Client, url, "SinkOptions")
	if err == nil {
		s.publishers.Store(url, publisher)
	}
	return publisher, err
}

// queueName matches the names of queues. Another text would change the path of the URL.
var queueName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}(\.fifo)?$`) })

// target returns the URL of the queue of an item.
func (s *Sink) target(it *pipeline.Item) (string, error) {
	if s.opts.Route == nil {
		return s.opts.Queue, nil
	}
	name, err := s.opts.Route.Target(&it.Message)
	if err == nil && !queueName().MatchString(name) {
		err = fmt.Errorf("%.100q is not the name of a queue: %w", name, pipeline.ErrRoute)
	}
	if err != nil {
		return "", fmt.Errorf("sqs: %w", err)
	}
	return s.url(name), nil
}

// Deliver implements pipeline.Sink. On a FIFO queue an answer that the message is a
// duplicate looks like any other. So its MessageDeduplicationId is that of no other output:
// see header.OnceID.
func (s *Sink) Deliver(ctx context.Context, items []*pipeline.Item) {
	queues := map[string][]*pipeline.Item{}
	for _, it := range items {
		url, err := s.target(it)
		if err == nil {
			queues[url] = append(queues[url], it)
		}
		it.Err = err
	}
	inBatches(slices.Collect(maps.Values(queues)), func(part []*pipeline.Item) { s.send(ctx, part) })
}

// send sends items to the queue that all of them have.
func (s *Sink) send(ctx context.Context, items []*pipeline.Item) {
	url, _ := s.target(items[0]) // it has one
	publisher, err := s.publisher(ctx, url)
	switch {
	case err == nil:
		list := make([]*Publication, len(items))
		for i, it := range items {
			list[i] = s.publication(publisher, it)
		}
		publisher.Publish(ctx, list...)
		for i, it := range items {
			it.Err = list[i].Err
		}
	case ctx.Err() != nil:
		err = context.Cause(ctx) // nothing was sent
	default:
		err = pipeline.Unavailable(err, 0)
	}
	for _, it := range items {
		if err != nil {
			it.Err = err
		}
		if away, ok := errors.AsType[*pipeline.UnavailableError](it.Err); ok && s.opts.Route != nil && isOfQueue(away.Err) {
			it.Err = fmt.Errorf("queue %s: %w", url[strings.LastIndexByte(url, '/')+1:], away.Err) // its own failure: other queues take their messages
		}
	}
}

// isOfQueue reports whether an error concerns one queue: it does not exist, or this
// process may not write to it.
func isOfQueue(err error) bool {
	_, missing := errors.AsType[*types.QueueDoesNotExist](err)
	return missing || Denied(err)
}

// publication returns the message that is sent to a queue for an item.
func (s *Sink) publication(to *Publisher, it *pipeline.Item) *Publication {
	headers := header.Output(it, s.opts.Name)
	body, attributes := encode(it.Message.Body, headers, func(name string) bool { return header.IsKey(name) || name == pipeline.RedriveHeader })
	m := &Publication{Key: it.Call.Key, Message: types.SendMessageBatchRequestEntry{MessageBody: &body, MessageAttributes: attributes}}
	if to.queue.FIFO {
		group := groupID(it.Call.Key, it.Message.RecordKey)
		id := header.OnceID(it, s.opts.Name, group, maxID) // queues have ids of their own, unlike groups
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

// deduplicationID returns the MessageDeduplicationId of a key: scope, colon and id if
// they are printable and short, and otherwise a digest of them. A Publisher uses it. A
// Sink also has what else tells its outputs apart in the id.
func deduplicationID(key semel.Key) string {
	id := key.Scope + ":" + key.ID
	if !fits(id) || strings.Contains(key.Scope, ":") {
		id = digest(strconv.Itoa(len(key.Scope)) + ":" + id)
	}
	return id
}

// groupID returns the MessageGroupId of a message: its record key, such as the group
// that it had in another queue, or else its key. An id that SQS does not accept is
// replaced by a digest.
func groupID(key semel.Key, recordKey []byte) string {
	id := cmp.Or(string(recordKey), key.ID)
	if !fits(id) {
		id = digest(id)
	}
	return id
}
