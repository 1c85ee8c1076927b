package sqs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Publication is a message to publish.
type Publication struct {
	// Key is what makes two messages the same. On a FIFO queue it gives the message
	// its MessageGroupId (the id of Key) and its MessageDeduplicationId (scope, colon and id),
	// unless Message has them. A text that SQS does not accept is replaced by a digest.
	// SQS stores messages with the same
	// MessageDeduplicationId once within five minutes. Without a Key, a FIFO queue
	// needs both in Message, or ContentBasedDeduplication, which ignores attributes.
	// A standard queue stores every message and needs no Key.
	Key semel.Key
	// Message has the body and at most ten attributes. Publish sets its Id.
	Message types.SendMessageBatchRequestEntry
	// Err is the outcome, set by Publish. It has the meaning of [pipeline.Sink].
	Err error
}

// leastLimit is the size that a request may have in every version of SQS.
const leastLimit = 256 << 10

// Publisher sends messages to one queue. Many goroutines may use it.
type Publisher struct {
	queue   *queue
	limit   int  // bytes of a request
	most    int  // bytes of a message, or 0 if unknown
	byBody  bool // a FIFO queue makes the MessageDeduplicationId of the body
	unknown bool // this process may not read the attributes of the queue
}

// OpenPublisher looks up the queue with this URL. It blocks until SQS has answered.
// Errors are as those of OpenSource. The client belongs to the caller.
func OpenPublisher(ctx context.Context, client *awssqs.Client, queue string) (*Publisher, error) {
	return openPublisher(ctx, client, queue, "Publisher")
}

// openPublisher names the options of its caller in its errors.
func openPublisher(ctx context.Context, client *awssqs.Client, queue, options string) (*Publisher, error) {
	q, err := newQueue(client, queue, options)
	if err != nil {
		return nil, err
	}
	attributes, err := q.attributes(ctx)
	if err != nil {
		return nil, fmt.Errorf("sqs: %w", err)
	}
	p := &Publisher{queue: q, unknown: attributes == nil, byBody: attributes[string(types.QueueAttributeNameContentBasedDeduplication)] == "true"}
	p.most, _ = strconv.Atoi(attributes[string(types.QueueAttributeNameMaximumMessageSize)]) // 0 is unknown
	p.limit = max(leastLimit, p.most)
	return p, nil
}

// Ready implements doctor.Readier.
func (p *Publisher) Ready(ctx context.Context) error {
	if _, err := p.queue.attributes(ctx); err != nil {
		return fmt.Errorf("sqs: %w", err)
	}
	return nil
}

// Publish sends messages and sets the Err of each. It blocks until SQS has answered,
// for at most 10 s a request. A request has up to 10 messages and 256 KiB, or as many
// bytes as the queue permits for one message. It is sent once: publish a message again
// if its outcome is unknown. Messages of one group and one call reach the queue in
// their order if all succeed.
func (p *Publisher) Publish(ctx context.Context, list ...*Publication) {
	var parts [][]*Publication
	size, groups, ordered := 0, map[string]bool{}, false
	for _, m := range list {
		if m.Err = p.prepare(m); m.Err != nil {
			continue
		}
		n := sizeOf(*m.Message.MessageBody, m.Message.MessageAttributes)
		if last := len(parts) - 1; last < 0 || len(parts[last]) == batch || size+n > p.limit {
			parts, size = append(parts, nil), 0
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], m)
		size += n
		group := aws.ToString(m.Message.MessageGroupId)
		ordered = ordered || p.queue.FIFO && groups[group]
		groups[group] = true
	}
	if !ordered {
		inBatches(parts, func(part []*Publication) { p.send(ctx, part) })
		return
	}
	for _, part := range parts {
		p.send(ctx, part)
	}
}

// prepare completes a message. It returns an error if SQS cannot take it.
func (p *Publisher) prepare(m *Publication) error {
	wrong := func(format string, args ...any) error {
		return semel.Permanent(fmt.Errorf("sqs: "+format+": %w", append(args, semel.ErrInvalidRequest)...))
	}
	if aws.ToString(m.Message.MessageBody) == "" {
		return wrong("the message has no body, and SQS accepts no empty one")
	}
	if n := len(m.Message.MessageAttributes); n > maxAttributes {
		return wrong("the message has %d attributes, and SQS accepts %d: put the others into the body", n, maxAttributes)
	}
	if n := sizeOf(*m.Message.MessageBody, m.Message.MessageAttributes); p.most > 0 && n > p.most {
		return semel.Permanent(fmt.Errorf("sqs: the message has %d bytes with its attributes, and the queue accepts %d", n, p.most))
	}
	if !p.queue.FIFO {
		return nil
	}
	if m.Key == (semel.Key{}) {
		switch {
		case m.Message.MessageGroupId == nil:
			return wrong("the message has neither a Key nor a MessageGroupId, which a FIFO queue needs")
		case m.Message.MessageDeduplicationId == nil && !p.byBody && !p.unknown:
			return wrong("the message has neither a Key nor a MessageDeduplicationId, and ContentBasedDeduplication of the queue is off")
		}
		return nil
	}
	if m.Message.MessageGroupId == nil {
		m.Message.MessageGroupId = aws.String(groupID(m.Key, nil))
	}
	if m.Message.MessageDeduplicationId == nil {
		m.Message.MessageDeduplicationId = aws.String(deduplicationID(m.Key))
	}
	return nil
}

// send sends one request. If SQS refuses the request for the content of a message, it
// sends each message alone.
func (p *Publisher) send(ctx context.Context, part []*Publication) {
	if ctx.Err() != nil { // nothing was sent
		setErr(part, context.Cause(ctx))
		return
	}
	in := &awssqs.SendMessageBatchInput{QueueUrl: &p.queue.URL}
	for i := range part {
		part[i].Message.Id = entryID(i)
		in.Entries = append(in.Entries, part[i].Message)
	}
	limited, cancel := context.WithTimeout(ctx, requestTimeout)
	out, err := p.queue.api.SendMessageBatch(limited, in, p.queue.use)
	cancel()
	if err != nil {
		if ofContent(err) && len(part) > 1 {
			for i := range part {
				p.send(ctx, part[i:i+1])
			}
			return
		}
		setErr(part, refused(ctx, err))
		return
	}
	setErr(part, ofServer(errors.New("the answer does not mention the message"), true))
	for _, sent := range out.Successful {
		if i := entryOf(sent.Id, part); i >= 0 {
			part[i].Err = nil
		}
	}
	for _, failed := range out.Failed {
		if i := entryOf(failed.Id, part); i >= 0 {
			part[i].Err = refusedEntry(&failed)
		}
	}
}

func setErr(part []*Publication, err error) {
	for i := range part {
		part[i].Err = err
	}
}

// ofContent reports whether SQS, the client library or a proxy refuses a request because of
// the content of a message.
func ofContent(err error) bool {
	if _, ok := errors.AsType[smithy.InvalidParamsError](err); ok {
		return true
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return isContent(api.ErrorCode())
	}
	return statusOf(err) == http.StatusRequestEntityTooLarge
}

func isContent(text string) bool {
	switch code(text) {
	case "InvalidMessageContents", "InvalidParameterValue", "InvalidParameterValueException", "InvalidAttributeValue", "InvalidAttributeName",
		"MissingParameter", "BatchRequestTooLong", "MessageTooLong":
		return true
	}
	return false
}

// statusOf returns the status of an answer, or 0 if none existed.
func statusOf(err error) int {
	if response, ok := errors.AsType[*smithyhttp.ResponseError](err); ok && response.Response != nil {
		return response.HTTPStatusCode()
	}
	return 0
}

// refused classifies the error of a request with one message, or of a request that
// is refused as a whole. If the content of a message is not the cause, the server or
// a component in between is. The queue is missing, this process may not write to it, or a proxy
// answers with a page of its own. Only an answer that says so proves that nothing was
// stored.
func refused(ctx context.Context, err error) error {
	_, answered := errors.AsType[smithy.APIError](err)
	status := statusOf(err)
	switch {
	case ofContent(err):
		return semel.Permanent(fmt.Errorf("sqs: %w", err))
	case status >= 300 && status < 500, answered && status == http.StatusServiceUnavailable, unsent(err):
		return ofServer(err, false)
	case ctx.Err() != nil:
		return fmt.Errorf("sqs: no answer yet: %w: %w", semel.ErrOutcomeUnknown, context.Cause(ctx))
	}
	return ofServer(err, true)
}

// serverPause is how long a queue wants no requests after a server has failed.
const serverPause = time.Second

// ofServer returns the error of a message for a failure of the server. stored says that
// the message may be in the queue.
func ofServer(err error, stored bool) error {
	if stored {
		err = fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, err)
	}
	return pipeline.Unavailable(fmt.Errorf("sqs: %w", err), serverPause)
}

// refusedEntry classifies the failure of one message of a request.
func refusedEntry(e *types.BatchResultErrorEntry) error {
	err := entryError(e)
	switch name := code(deref(e.Code)); {
	case isContent(name):
		return semel.Permanent(fmt.Errorf("sqs: %w", err))
	case strings.Contains(name, "Throttl"), name == "OverLimit", name == "TooManyRequestsException", name == "ServiceUnavailable",
		strings.HasPrefix(name, "AccessDenied"), strings.HasPrefix(name, "Kms"):
		return ofServer(err, false)
	case e.SenderFault:
		return fmt.Errorf("sqs: %w", err)
	}
	return ofServer(err, true)
}
