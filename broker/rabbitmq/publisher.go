package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	client Client

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
		n := min(len(list), maxPublished)
		p.publish(ctx, list[:n])
		list = list[n:]
	}
}

func (p *Publisher) publish(ctx context.Context, list []*Publication) {
	o, err := p.take(ctx)
	if err != nil {
		for _, m := range list {
			m.Err = pipeline.Unavailable(fmt.Errorf("rabbitmq: %w", err), 0)
		}
		return
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
		return
	}
	p.running.Go(func() { _ = o.ch.Close() }) // it may wait for a server that hangs
}

// send publishes a message.
func (o *outlet) send(ctx context.Context, m *Publication) (*amqp.DeferredConfirmation, error) {
	if m.Message.MessageId == "" || len(m.Message.MessageId) > longest || len(m.RoutingKey) > longest {
		return nil, semel.Permanent(fmt.Errorf("rabbitmq: the message-id has %d bytes and the routing key %d: want 1 to %d, and at most %[3]d: %w", len(m.Message.MessageId), len(m.RoutingKey), longest, semel.ErrInvalidRequest))
	}
	if err := m.Message.Headers.Validate(); err != nil {
		return nil, semel.Permanent(fmt.Errorf("rabbitmq: %w", err))
	}
	for name := range m.Message.Headers {
		if len(name) > longest { // the client library would close the connection
			return nil, semel.Permanent(fmt.Errorf("rabbitmq: the header %.40q… has a name of more than %d bytes: %w", name, longest, semel.ErrInvalidRequest))
		}
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
	return nil, fmt.Errorf("rabbitmq: %w: %w", semel.ErrOutcomeUnknown, err)
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
		m.Err = fmt.Errorf("%w: %w", refused, semel.ErrOutcomeUnknown)
	}
	return true
}

// unknown returns the error of a message whose confirm did not come.
func (o *outlet) unknown(ctx context.Context) error {
	err := context.Cause(ctx)
	if err == nil {
		err = errors.New("the connection was lost")
	}
	return fmt.Errorf("rabbitmq: no confirm: %w: %w", semel.ErrOutcomeUnknown, err)
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
	return &outlet{p.link, ch, ch.NotifyReturn(make(chan amqp.Return, maxPublished))}, nil
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

// Ready implements semel.Readier.
func (p *Publisher) Ready(ctx context.Context) error {
	o, err := p.take(ctx)
	if err != nil {
		return fmt.Errorf("rabbitmq: %w", err)
	}
	p.give(o)
	return nil
}

// Close closes the connection. It blocks at most until ctx ends.
func (p *Publisher) Close(ctx context.Context) error {
	p.mu.Lock()
	l := p.link
	p.closed = true
	p.mu.Unlock()
	var err error
	if l != nil {
		err = l.close(ctx)
	}
	p.running.Wait()
	if err != nil {
		return fmt.Errorf("rabbitmq: %w", err)
	}
	return nil
}
