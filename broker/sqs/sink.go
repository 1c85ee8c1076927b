package sqs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

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

// leastLimit is the size that a request may have in every version of SQS.
const leastLimit = 256 << 10

// Sink sends to a queue. OpenSink makes it.
type Sink struct {
	queue *queue
	name  string
	limit int // size of a request
	most  int // size of a message, or 0 if it is unknown
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
	q, err := newQueue(o.Client, o.Queue, "SinkOptions")
	if err != nil {
		return nil, err
	}
	attributes, err := q.attributes(ctx)
	if err != nil {
		return nil, fmt.Errorf("sqs: %w", err)
	}
	s := &Sink{queue: q, name: o.Name}
	s.most, _ = strconv.Atoi(attributes[string(types.QueueAttributeNameMaximumMessageSize)]) // 0 is unknown
	s.limit = max(leastLimit, s.most)
	return s, nil
}

// Traits implements pipeline.Sink. One call has at most one message of a group, so
// its requests may run concurrently.
func (s *Sink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Batch: 100, Parallel: 2} }

// Ready implements semel.Readier.
func (s *Sink) Ready(ctx context.Context) error {
	if _, err := s.queue.attributes(ctx); err != nil {
		return fmt.Errorf("sqs: %w", err)
	}
	return nil
}

// Close implements pipeline.Sink. The client belongs to the caller.
func (s *Sink) Close(context.Context) error { return nil }

// outgoing is an item with what is sent for it.
type outgoing struct {
	item  *pipeline.Item
	entry types.SendMessageBatchRequestEntry
	size  int
}

// Deliver implements pipeline.Sink. On a FIFO queue an answer that the message is a
// duplicate looks like any other: its MessageDeduplicationId is the same for all
// attempts, and differs for each redrive.
func (s *Sink) Deliver(ctx context.Context, items []*pipeline.Item) {
	var parts [][]outgoing
	size := 0
	for _, it := range items {
		out := s.outgoing(it)
		if it.Err = nil; s.most > 0 && out.size > s.most {
			it.Err = semel.Permanent(fmt.Errorf("sqs: the message has %d bytes with its attributes, and the queue accepts %d", out.size, s.most))
			continue
		}
		if last := len(parts) - 1; last < 0 || len(parts[last]) == batch || size+out.size > s.limit {
			parts, size = append(parts, nil), 0
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], out)
		size += out.size
	}
	inBatches(parts, func(part []outgoing) { s.send(ctx, part) })
}

// outgoing returns what is sent for an item.
func (s *Sink) outgoing(it *pipeline.Item) outgoing {
	headers := header.Output(it, s.name)
	body, attributes := encode(it.Message.Body, headers, func(name string) bool { return header.IsKey(name) || name == pipeline.RedriveHeader })
	out := outgoing{item: it, size: sizeOf(body, attributes)}
	out.entry.MessageBody, out.entry.MessageAttributes = &body, attributes
	if s.queue.FIFO {
		group, id := GroupID(it.Call.Key, it.Message.RecordKey), DeduplicationID(it.Call.Key, it.Redrive)
		out.entry.MessageGroupId, out.entry.MessageDeduplicationId = &group, &id
	}
	return out
}

// send sends one request. If SQS refuses the request for the content of a message, it
// sends each message alone.
func (s *Sink) send(ctx context.Context, part []outgoing) {
	if ctx.Err() != nil { // nothing was sent
		setErr(part, context.Cause(ctx))
		return
	}
	in := &awssqs.SendMessageBatchInput{QueueUrl: &s.queue.URL}
	for i := range part {
		part[i].entry.Id = entryID(i)
		in.Entries = append(in.Entries, part[i].entry)
	}
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	out, err := s.queue.api.SendMessageBatch(limited, in, s.queue.use)
	cancel()
	if err != nil {
		if ofContent(err) && len(part) > 1 {
			for i := range part {
				s.send(ctx, part[i:i+1])
			}
			return
		}
		setErr(part, refused(ctx, err))
		return
	}
	setErr(part, fmt.Errorf("sqs: the answer does not mention the message: %w", semel.ErrOutcomeUnknown))
	for _, sent := range out.Successful {
		if i := entryOf(sent.Id, part); i >= 0 {
			part[i].item.Err = nil
		}
	}
	for _, failed := range out.Failed {
		if i := entryOf(failed.Id, part); i >= 0 {
			part[i].item.Err = refusedEntry(&failed)
		}
	}
}

func setErr(part []outgoing, err error) {
	for i := range part {
		part[i].item.Err = err
	}
}

// ofContent reports whether SQS refuses a request because of the content of a
// message.
func ofContent(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	return ok && isContent(api.ErrorCode())
}

func isContent(text string) bool {
	switch code(text) {
	case "InvalidMessageContents", "InvalidParameterValue", "InvalidParameterValueException", "InvalidAttributeValue", "InvalidAttributeName",
		"MissingParameter", "BatchRequestTooLong", "MessageTooLong":
		return true
	}
	return false
}

// refused classifies the error of a request with one message, or of a request that
// the server refuses as a whole.
func refused(ctx context.Context, err error) error {
	api, answered := errors.AsType[smithy.APIError](err)
	status := 0
	if response, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && response.Response != nil {
		status = response.HTTPStatusCode()
	}
	failed := fmt.Errorf("sqs: %w", err)
	switch {
	case ofContent(err):
		return semel.Permanent(failed)
	case answered && (status < 500 || status == 503 || isThrottled(api.ErrorCode())), unsent(err):
		return pipeline.Unavailable(failed, 0) // the queue is missing, or this process may not write to it, or not so much
	case ctx.Err() != nil:
		return fmt.Errorf("sqs: no answer yet: %w: %w", semel.ErrOutcomeUnknown, context.Cause(ctx))
	}
	return fmt.Errorf("sqs: %w: %w", semel.ErrOutcomeUnknown, err)
}

func isThrottled(text string) bool {
	text = code(text)
	return strings.Contains(text, "Throttl") || text == "OverLimit" || text == "TooManyRequestsException" || text == "ServiceUnavailable"
}

// refusedEntry classifies the failure of one message of a request.
func refusedEntry(e *types.BatchResultErrorEntry) error {
	err := fmt.Errorf("sqs: %w", entryError(e))
	switch name := deref(e.Code); {
	case isContent(name):
		return semel.Permanent(err)
	case isThrottled(name):
		return pipeline.Unavailable(err, 0)
	case e.SenderFault:
		return err
	}
	return fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, err)
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
