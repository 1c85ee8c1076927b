package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Publication is a message to publish.
type Publication struct {
	// Exchange may be empty: then RoutingKey is the name of a queue.
	Exchange, RoutingKey string
	// Message needs a MessageId, see [MessageID]. It is published as persistent.
	Message amqp.Publishing
	// Err is the outcome, set by Publish. It has the meaning of [pipeline.Sink].
	Err error
}

// UnroutableError says that no queue is bound to take a message. It was not stored.
type UnroutableError struct{ Exchange, RoutingKey string }

// Error implements error.
func (e *UnroutableError) Error() string {
	if e.Exchange == "" {
		return "there is no queue " + e.RoutingKey
	}
	return fmt.Sprintf("no queue takes the routing key %q of the exchange %s", e.RoutingKey, e.Exchange)
}

// maxPublished bounds the messages that wait for their confirms on one channel.
const maxPublished = 500

// Publisher publishes messages and waits for the server's confirms. It connects
// when it is first used, and again when the connection is lost.
type Publisher struct {
	client  Client
	refused atomic.Int64 // size of the smallest body that was too large, or 0

	mu     sync.Mutex // guards the fields below
	link   *link
	idle   []*outlet
	closed bool

	running sync.WaitGroup // follows alarms; closes channels
}

// outlet is a channel in confirm mode. One goroutine uses it.
type outlet struct {
	link     *link
	ch       *amqp.Channel
	returned chan amqp.Return
	lost     chan *amqp.Error // why the server or the connection has closed the channel
}

// OpenPublisher connects. It blocks until a server has answered.
func OpenPublisher(ctx context.Context, client Client) (*Publisher, error) {
	if err := client.check(); err != nil {
		return nil, err
	}
	p := &Publisher{client: client}
	o, err := p.take(ctx)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: %w", err)
	}
	p.give(o)
	return p, nil
}

// Publish publishes messages and sets the Err of each. It blocks until the server
// has confirmed or returned all of them, or until ctx ends. Messages of one call
// reach a queue in their order if all succeed. Many goroutines may call Publish.
func (p *Publisher) Publish(ctx context.Context, list ...*Publication) {
	for len(list) > 0 {
		n := 1
		for !p.isLarge(list[0]) && n < min(len(list), maxPublished) && !p.isLarge(list[n]) {
			n++
		}
		p.publish(ctx, list[:n])
		list = list[n:]
	}
}

// isLarge reports whether the server has refused a message of this size. Such a message is
// published alone, so that it fails no others.
func (p *Publisher) isLarge(m *Publication) bool {
	refused := p.refused.Load()
	return refused > 0 && int64(len(m.Message.Body)) >= refused
}

// publish publishes at most maxPublished messages. If the server closes the channel
// because it refuses one of them, the others without a confirm are published again, each
// alone. Otherwise that one would fail them whenever it is repeated with others.
func (p *Publisher) publish(ctx context.Context, list []*Publication) {
	refused := p.send(ctx, list)
	if refused == nil {
		return
	}
	if len(list) == 1 {
		list[0].Err = refusal(refused)
		if size := int64(len(list[0].Message.Body)); strings.Contains(refused.Reason, "message size") && !p.isLarge(list[0]) {
			p.refused.Store(size)
		}
		return
	}
	denied := map[[2]string]error{} // exchange and routing key
	for _, m := range list {
		if !errors.Is(m.Err, semel.ErrOutcomeUnknown) && !errors.Is(m.Err, amqp.ErrClosed) {
			continue
		}
		before, target := m.Err, [2]string{m.Exchange, m.RoutingKey}
		if m.Err = denied[target]; m.Err != nil {
			continue
		}
		p.publish(ctx, []*Publication{m})
		if isCode(m.Err, amqp.AccessRefused) {
			denied[target] = m.Err
		}
		m.Err = outcome(before, m.Err)
	}
}

// outcome returns the outcome of a message that was published twice. The first publication may
// have stored the message, unless the server's answer to the second one denies this.
func outcome(first, second error) error {
	_, permanent := errors.AsType[*semel.PermanentError](second)
	_, unroutable := errors.AsType[*UnroutableError](second)
	if second == nil || permanent || unroutable || isCode(second, amqp.AccessRefused) || !errors.Is(first, semel.ErrOutcomeUnknown) {
		return second
	}
	return first
}

// refusal is the error of a message for which the server closed its channel. Nothing was
// stored.
func refusal(answer *amqp.Error) error {
	if answer.Code == amqp.AccessRefused {
		return pipeline.Unavailable(fmt.Errorf("rabbitmq: %w", answer), time.Second)
	}
	return semel.Permanent(fmt.Errorf("rabbitmq: the server refuses the message: %w", answer))
}

// isCode reports whether an error is an answer of the server with this code.
func isCode(err error, code int) bool {
	answer, ok := errors.AsType[*amqp.Error](err)
	return ok && answer.Server && answer.Code == code
}

// send publishes messages on one channel and waits for their confirms. If the server
// closes the channel because of a message, send returns its answer.
func (p *Publisher) send(ctx context.Context, list []*Publication) (refused *amqp.Error) {
	o, err := p.take(ctx)
	if err != nil {
		for _, m := range list {
			m.Err = pipeline.Unavailable(fmt.Errorf("rabbitmq: %w", err), 0)
		}
		return nil
	}
	confirms := make([]*amqp.DeferredConfirmation, len(list))
	for i, m := range list {
		confirms[i], m.Err = o.send(ctx, m)
	}
	whole := true
	for i, m := range list {
		if confirms[i] == nil {
			continue
		}
		if whole = o.await(ctx, m, confirms[i]); !whole {
			break
		}
	}
	if !whole { // nothing is known about the rest
		for i, m := range list {
			if confirms[i] != nil && m.Err == nil && !confirms[i].Acked() {
				m.Err = o.unknown(ctx)
			}
		}
	}
	o.markReturned(list)
	if whole && !o.ch.IsClosed() {
		p.give(o)
		return nil
	}
	p.running.Go(func() { _ = o.ch.Close() }) // it may wait for a server that hangs
	select {
	case err := <-o.lost:
		if err != nil && (isCode(err, amqp.PreconditionFailed) || isCode(err, amqp.AccessRefused)) {
			return err
		}
	default:
	}
	return nil
}

// send publishes a message.
func (o *outlet) send(ctx context.Context, m *Publication) (*amqp.DeferredConfirmation, error) {
	if err := o.check(m); err != nil {
		return nil, semel.Permanent(fmt.Errorf("rabbitmq: %w", err))
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m.Message.DeliveryMode = amqp.Persistent
	confirm, err := o.ch.PublishWithDeferredConfirm(m.Exchange, m.RoutingKey, true, false, m.Message)
	switch {
	case err == nil:
		return confirm, nil
	case errors.Is(err, amqp.ErrClosed): // nothing was sent
		return nil, pipeline.Unavailable(fmt.Errorf("rabbitmq: %w", err), 0)
	}
	return nil, pipeline.Unavailable(fmt.Errorf("rabbitmq: %w: %w", semel.ErrOutcomeUnknown, err), 0)
}

// check returns an error if AMQP cannot carry a message. The client library or the server
// would close the connection, on which others publish too.
func (o *outlet) check(m *Publication) error {
	p := &m.Message
	if p.MessageId == "" {
		return fmt.Errorf("the message has no message-id: %w", semel.ErrInvalidRequest)
	}
	if err := p.Headers.Validate(); err != nil {
		return err
	}
	short := []string{m.Exchange, m.RoutingKey, p.MessageId, p.Expiration, p.UserId}
	for _, property := range properties() {
		short = append(short, *property.of(p))
	}
	size := frameOverhead + tableSize(p.Headers)
	for _, text := range short {
		if size += len(text); len(text) > longest {
			return fmt.Errorf("the exchange, the routing key or the property %.40q… has %d bytes, and at most %d are possible: %w", text, len(text), longest, semel.ErrInvalidRequest)
		}
	}
	for name := range p.Headers {
		if len(name) > longest {
			return fmt.Errorf("the header %.40q… has a name of more than %d bytes: %w", name, longest, semel.ErrInvalidRequest)
		}
	}
	if limit := o.link.conn.Config.FrameSize; limit > 0 && size > limit {
		return fmt.Errorf("the headers have about %d bytes, and the server accepts %d (frame_max): %w", size, limit, semel.ErrInvalidRequest)
	}
	return nil
}

// frameOverhead is more than what the frame with the headers has in addition to them.
const frameOverhead = 100

// tableSize returns the size of a table in a frame, or more.
func tableSize(table amqp.Table) int {
	size := 4
	for name, value := range table {
		size += 1 + len(name) + fieldSize(value)
	}
	return size
}

func fieldSize(value any) int {
	switch v := value.(type) {
	case string:
		return 5 + len(v)
	case []byte:
		return 5 + len(v)
	case amqp.Table:
		return 1 + tableSize(v)
	case []any:
		size := 5
		for _, one := range v {
			size += fieldSize(one)
		}
		return size
	}
	return 9 // a number or a time
}

// await waits for the confirm of a message. It returns false if none can come.
func (o *outlet) await(ctx context.Context, m *Publication, confirm *amqp.DeferredConfirmation) bool {
	select {
	case <-confirm.Done():
	case <-ctx.Done():
		return false
	}
	if confirm.Acked() {
		return true
	}
	if o.ch.IsClosed() { // the client library refuses what was not confirmed
		return false
	}
	refused := errors.New("rabbitmq: the server refuses the message: a queue has reached its limit, or is not available")
	if m.Exchange == "" { // one queue, which did not store it
		m.Err = pipeline.Unavailable(refused, time.Second)
	} else { // other queues may have stored it
		m.Err = pipeline.Unavailable(fmt.Errorf("%w: %w", refused, semel.ErrOutcomeUnknown), time.Second)
	}
	return true
}

// unknown returns the error of a message whose confirm did not come.
func (o *outlet) unknown(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("rabbitmq: no confirm: %w: %w", semel.ErrOutcomeUnknown, err)
	}
	return pipeline.Unavailable(fmt.Errorf("rabbitmq: no confirm: %w: the connection was lost", semel.ErrOutcomeUnknown), 0)
}

// markReturned sets the errors of the messages that the server has returned because
// no queue takes them. A return comes before the confirm of its message, so all
// are here when the confirms are. Messages that look the same all fail: one that
// was stored is repeated then, and none is lost.
func (o *outlet) markReturned(list []*Publication) {
	for {
		select {
		case r, ok := <-o.returned:
			if !ok {
				return
			}
			for _, m := range list {
				if m.Message.MessageId == r.MessageId && m.Exchange == r.Exchange && m.RoutingKey == r.RoutingKey {
					m.Err = pipeline.Unavailable(fmt.Errorf("rabbitmq: %w", &UnroutableError{r.Exchange, r.RoutingKey}), time.Second)
				}
			}
		default:
			return
		}
	}
}

// take returns a channel that no other goroutine uses. It connects if necessary.
func (p *Publisher) take(ctx context.Context) (*outlet, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, amqp.ErrClosed
	}
	if p.link == nil || p.link.conn.IsClosed() {
		p.idle = nil
		l, err := p.client.connect(ctx)
		if err != nil {
			return nil, err
		}
		p.link = l
		alarms := l.conn.NotifyBlocked(make(chan amqp.Blocking, 1))
		p.running.Go(func() { l.follow(alarms) })
	}
	if alarm := p.link.alarm.Load(); alarm != nil && alarm.Active {
		return nil, fmt.Errorf("the server accepts no messages: %s", alarm.Reason)
	}
	for len(p.idle) > 0 {
		o := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if o.link == p.link && !o.ch.IsClosed() {
			return o, nil
		}
	}
	ch, err := p.link.conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	return &outlet{p.link, ch, ch.NotifyReturn(make(chan amqp.Return, maxPublished)), ch.NotifyClose(make(chan *amqp.Error, 1))}, nil
}

// give takes a channel back.
func (p *Publisher) give(o *outlet) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, o)
}

// follow keeps the latest alarm of the server until the connection is closed.
func (l *link) follow(alarms <-chan amqp.Blocking) {
	for alarm := range alarms {
		l.alarm.Store(&alarm)
	}
}

// Ready implements doctor.Readier.
func (p *Publisher) Ready(ctx context.Context) error {
	o, err := p.take(ctx)
	if err != nil {
		return fmt.Errorf("rabbitmq: %w", err)
	}
	p.give(o)
	return nil
}

// closeLimit is how long Close waits for the server.
const closeLimit = time.Second

// Close closes the connection. It waits for the server at most until ctx ends, and no longer
// than a second: what was published is confirmed or given up. A server that is out of
// memory or disk does not answer. The error is always nil.
func (p *Publisher) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()
	p.mu.Lock()
	l := p.link
	p.closed = true
	p.mu.Unlock()
	if l != nil {
		_ = l.close(ctx)
	}
	p.running.Wait()
	return nil
}
