package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
)

// SinkOptions are the options of OpenSink. Client is required, and RoutingKey, Route or
// Exchange.
type SinkOptions struct {
	Client Client
	// Exchange is what messages are published to. Defaults to the default exchange,
	// in which RoutingKey is the name of a queue.
	Exchange, RoutingKey string
	// Route chooses the routing key of each message, instead of RoutingKey. If it does
	// not allow the key, or no queue takes the message, only that message fails.
	Route *pipeline.Route
	// Create makes what does not exist: the durable topic exchange, or, without an
	// Exchange, the quorum queue. Defaults to false.
	Create bool
	// Name is the pipeline's name, sent as a header. Defaults to none.
	Name string
}

// Sink publishes to an exchange or a queue. OpenSink makes it.
type Sink struct {
	opts      SinkOptions
	publisher *Publisher
	// doubtful: a delivery failed, perhaps because the exchange or queue is gone.
	doubtful atomic.Bool
}

var (
	_ pipeline.Sink  = (*Sink)(nil)
	_ doctor.Readier = (*Sink)(nil)
)

// OpenSink connects. It blocks until the server has answered. If the exchange or
// queue does not exist, the error is a *[MissingError].
func OpenSink(ctx context.Context, opts *SinkOptions) (*Sink, error) {
	s := &Sink{}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.RoutingKey == "" && s.opts.Exchange == "" && s.opts.Route == nil || s.opts.RoutingKey != "" && s.opts.Route != nil {
		return nil, fmt.Errorf("rabbitmq: SinkOptions: Exchange, RoutingKey or Route is required, and not both of the last two: %w", semel.ErrInvalidRequest)
	}
	if s.opts.Create && s.opts.Exchange == "" && s.opts.Route != nil {
		return nil, fmt.Errorf("rabbitmq: SinkOptions: Create cannot make the queues that messages name: %w", semel.ErrInvalidRequest)
	}
	publisher, err := OpenPublisher(ctx, s.opts.Client)
	if err != nil {
		return nil, err
	}
	s.publisher = publisher
	if err := s.look(ctx); err != nil {
		_ = publisher.Close(ctx) // the other error says more
		return nil, fmt.Errorf("rabbitmq: %w", err)
	}
	return s, nil
}

// look looks up the exchange or queue, and makes it if that is wanted.
func (s *Sink) look(ctx context.Context) error {
	o, err := s.publisher.take(ctx)
	if err != nil {
		return err
	}
	defer s.publisher.give(o)
	if s.opts.Exchange != "" {
		return o.link.needExchange(s.opts.Exchange, s.opts.Create)
	}
	if s.opts.Route != nil {
		return nil // messages name the queues
	}
	return o.link.needQueue(s.opts.RoutingKey, s.opts.Create)
}

// Traits implements pipeline.Sink. One call has at most one message of a group, because a
// repeated message would be stored behind the next one.
func (s *Sink) Traits() pipeline.SinkTraits {
	return pipeline.SinkTraits{Batch: maxPublished, Parallel: 2}
}

// Ready implements doctor.Readier.
func (s *Sink) Ready(ctx context.Context) error { return s.publisher.Ready(ctx) }

// Close implements pipeline.Sink.
func (s *Sink) Close(ctx context.Context) error { return s.publisher.Close(ctx) }

// Deliver implements pipeline.Sink. It publishes all messages, and then waits for
// their confirms. An exchange without a queue for them counts as unavailable: the
// pipeline pauses until there is one. So does an exchange that is gone: the first
// delivery has an unknown outcome then, because the server closes the channel.
func (s *Sink) Deliver(ctx context.Context, items []*pipeline.Item) {
	if s.doubtful.Load() {
		if err := s.look(ctx); err != nil {
			for _, it := range items {
				it.Err = pipeline.Unavailable(fmt.Errorf("rabbitmq: %w", err), time.Second)
			}
			return
		}
		s.doubtful.Store(false)
	}
	list := make([]*Publication, 0, len(items))
	published := make([]*pipeline.Item, 0, len(items))
	for _, it := range items {
		key, err := s.opts.RoutingKey, error(nil)
		if s.opts.Route != nil {
			key, err = s.opts.Route.Target(&it.Message)
		}
		if err != nil {
			it.Err = fmt.Errorf("rabbitmq: %w", err)
			continue
		}
		list = append(list, &Publication{Exchange: s.opts.Exchange, RoutingKey: key, Message: s.publishing(it)})
		published = append(published, it)
	}
	s.publisher.Publish(ctx, list...)
	for i, it := range published {
		it.Err = list[i].Err
		away, isAway := errors.AsType[*pipeline.UnavailableError](it.Err)
		_, permanent := errors.AsType[*semel.PermanentError](it.Err)
		switch {
		case isAway && s.opts.Route != nil && isOfKey(away.Err): // its own failure: other routing keys have queues
			it.Err = away.Err
		case permanent:
		case it.Err != nil:
			s.doubtful.Store(true)
		}
	}
}

// isOfKey reports whether an error concerns one routing key: no queue takes it, or this
// user may not write it.
func isOfKey(err error) bool {
	_, unroutable := errors.AsType[*UnroutableError](err)
	return unroutable || isCode(err, amqp.AccessRefused) && strings.Contains(err.Error(), "access to topic")
}

// isOfServer reports whether a header is an instruction to the server.
func isOfServer(name string) bool {
	return strings.HasPrefix(strings.ToLower(name), "x-") || name == "CC" || name == "BCC"
}

// publishing returns the AMQP message of an item. Headers that belong to the server are
// left out.
func (s *Sink) publishing(it *pipeline.Item) amqp.Publishing {
	p := amqp.Publishing{MessageId: MessageID(it.Call.Key.ID), Timestamp: it.Message.Time, Headers: amqp.Table{}, Body: it.Message.Body}
	for _, h := range header.Output(it, s.opts.Name) {
		if !setProperty(&p, h) && h.Name != exchangeHeader && h.Name != routingKeyHeader && !isOfServer(h.Name) {
			p.Headers[h.Name] = string(h.Value)
		}
	}
	return p
}

// setProperty sets the property with the name of a header. It returns false if no
// property has that name, or if the value is too long for it.
func setProperty(p *amqp.Publishing, h semel.Header) bool {
	if len(h.Value) > longest {
		return false
	}
	for _, property := range properties() {
		if strings.EqualFold(property.name, h.Name) {
			*property.of(p) = string(h.Value)
			return true
		}
	}
	return false
}
