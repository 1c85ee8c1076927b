package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/inbox"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// SourceOptions are the options of OpenSource. Client and Queue are required.
type SourceOptions struct {
	Client Client
	// Queue is the queue to read.
	Queue string
	// Management is the URL of the server's HTTP API. The source asks it for the delivery
	// limit of the queue, and needs the first answer. Without it, the
	// source sees a limit among the arguments of the queue, if the user may configure the
	// queue, but none that a policy sets. Defaults to none.
	Management string
	// Create makes a durable quorum queue if the queue does not exist, at the start
	// and whenever the connection is restored. An existing one stays as it is. Defaults to false.
	Create bool
	// Prefetch is the maximum number of messages that the server may deliver before
	// some are acknowledged. It is less if the messages, judged by the sizes of earlier
	// ones, have more than 16 MiB, but not before 64 have come. Messages that wait after
	// Return come on top. Defaults to 1,000.
	Prefetch int
}

// unackedBytes is the approximate maximum size of the messages that the server has
// delivered and that are not acknowledged.
const unackedBytes = 16 << 20

func (o *SourceOptions) complete() error {
	o.Prefetch = cmp.Or(o.Prefetch, 1000)
	wrong := invalid.In("rabbitmq: SourceOptions.")
	if o.Queue == "" {
		wrong.Add("Queue is required")
	}
	if o.Prefetch < 1 || o.Prefetch > maxPrefetch {
		wrong.Add("Prefetch: %d: want 1 to %d", o.Prefetch, maxPrefetch)
	}
	return errors.Join(o.Client.check(), wrong.Err())
}

// Source reads a queue. OpenSource makes it.
type Source struct {
	opts      SourceOptions
	partition *pipeline.Partition
	stop      context.CancelFunc
	running   sync.WaitGroup
	trouble   atomic.Pointer[error] // why nothing can be read now

	mu           sync.Mutex    // guards the fields below, and those of all
	subscription *subscription // nil while there is no connection
	size         float64       // average size of messages in bytes; 0 is unknown
	deliveries   int64         // the number of the latest delivery
	limit        inbox.Limit   // of the deliveries of a message
	limited      bool          // the server has told the limit
	major        int           // the first number of the server's version
	inbox        inbox.Inbox
	closed       bool
}

var (
	_ pipeline.Source = (*Source)(nil)
	_ pipeline.Waiter = (*Source)(nil)
	_ doctor.Readier  = (*Source)(nil)
)

// OpenSource connects and begins to read. It blocks until the server has answered.
// If the queue does not exist, the error is a *[MissingError]. A queue whose messages
// may be delivered only once would lose them when a process ends, and is refused.
func OpenSource(ctx context.Context, opts *SourceOptions) (*Source, error) {
	var o SourceOptions
	if opts != nil {
		o = *opts
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Source{opts: o, partition: pipeline.NewPartition(o.Queue), deliveries: rand.Int64N(math.MaxInt64 / 2)}
	s.inbox = inbox.New(&s.mu)
	first, err := s.open(ctx)
	if err != nil {
		return nil, fmt.Errorf("rabbitmq: %w", err)
	}
	supervising, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.running.Go(func() { s.supervise(supervising, first) })
	if o.Management != "" {
		s.running.Go(func() { s.followLimit(supervising) })
	}
	return s, nil
}

// Traits implements pipeline.Source. A returned message waits here.
func (s *Source) Traits() pipeline.SourceTraits {
	return pipeline.SourceTraits{
		CanReturn: true, Exhausted: s.inbox.ReadExhausted, Lag: s.Lag,
		Place: func(o semel.Origin) string { return "queue " + o.Source },
	}
}

// open connects and consumes the queue.
func (s *Source) open(ctx context.Context) (*subscription, error) {
	l, err := s.opts.Client.connect(ctx)
	if err != nil {
		return nil, err
	}
	release := context.AfterFunc(ctx, func() { _ = l.raw.Close() })
	subscription, err := s.consume(ctx, l)
	if !release() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = l.close(ctx) // the other error says more
		if subscription != nil {
			<-subscription.ended
			s.drop(subscription)
		}
		return nil, err
	}
	return subscription, nil
}

func (s *Source) consume(ctx context.Context, l *link) (*subscription, error) {
	if err := l.needQueue(s.opts.Queue, s.opts.Create); err != nil {
		return nil, err
	}
	limit, err := l.deliveryLimit(ctx, s.opts.Queue, &s.opts.Client, s.opts.Management)
	s.mu.Lock()
	if _, silent := errors.AsType[*apiError](err); silent && s.limited {
		limit, err = s.limit, nil // an outage of the HTTP API alone stops nothing
	}
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	ch, err := l.conn.Channel()
	if err != nil {
		return nil, err
	}
	subscription := &subscription{source: s, link: l, ch: ch, lost: ch.NotifyClose(make(chan *amqp.Error, 1)), ended: make(chan struct{})}
	s.mu.Lock()
	s.limit, s.limited, s.major = limit, true, l.major()
	prefetch := min(firstPrefetch, s.wanted())
	s.mu.Unlock()
	if err := subscription.start(prefetch); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.subscription = subscription
	s.mu.Unlock()
	return subscription, nil
}

// supervise opens a new subscription whenever one is lost, until ctx ends.
func (s *Source) supervise(ctx context.Context, subscription *subscription) {
	for pause := time.Duration(0); ; {
		if subscription != nil {
			err := subscription.wait()
			s.drop(subscription)
			if ctx.Err() != nil {
				return // Close closes the connection
			}
			s.trouble.Store(&err)
			_ = subscription.link.close(ctx) // it is lost, or has lost its channel
			if pause = min(max(2*pause, 20*time.Millisecond), 2*time.Second); subscription.delivered.Load() {
				pause = 20 * time.Millisecond
			}
		}
		_ = retry.Sleep(ctx, pause)
		var err error
		if subscription, err = s.open(ctx); err != nil {
			subscription = nil
			if ctx.Err() != nil {
				return
			}
			s.trouble.Store(&err)
			pause = min(max(2*pause, 20*time.Millisecond), 2*time.Second)
			continue
		}
		s.trouble.Store(nil)
	}
}

// drop forgets the unread messages of a lost subscription. The server delivers them again.
func (s *Source) drop(subscription *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscription == subscription {
		s.subscription = nil
	}
	subscription.dead = true
	s.inbox.Remove(func(it *pipeline.Item) bool { return it.Ref.(*held).subscription == subscription })
}

// wanted returns how many messages the server may deliver before an acknowledgement.
// s.mu is held.
func (s *Source) wanted() int {
	if s.size == 0 {
		return s.opts.Prefetch
	}
	return max(1, min(s.opts.Prefetch, int(unackedBytes/s.size)))
}

// offer makes a message readable. It reports whether its consumer may be too small.
func (s *Source) offer(h *held, body int) (grow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || h.subscription.dead {
		return false
	}
	if size := float64(body) + overhead; s.size == 0 {
		s.size = size
	} else {
		s.size += (size - s.size) / 32
	}
	h.subscription.add(h)
	// A queue has no positions. Without a number, two messages with the same bytes and
	// the same message-id would have the same origin, and count as one delivery.
	s.deliveries++
	h.item.Message.Origin.Offset = s.deliveries
	h.item.Err = s.limit.Check(h.item.Message.Origin.Delivery)
	s.inbox.Put(h.item)
	s.inbox.Changed()
	return h.subscription.more() > 0
}

// refuseStream ends the source. The type of a queue shows in its messages only. A
// consumer of a stream gets what is published while it reads, so that all messages
// between two runs would be lost.
func (s *Source) refuseStream() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inbox.Err = fmt.Errorf("rabbitmq: the queue %s is a stream, whose messages are lost while no consumer reads: read a quorum queue that is bound to the same exchange: %w", s.opts.Queue, semel.ErrInvalidRequest)
	s.inbox.Changed()
}

// Read implements pipeline.Source. While the server cannot be reached, it waits.
func (s *Source) Read(ctx context.Context) ([]*pipeline.Item, error) { return s.inbox.Read(ctx) }

// Ack implements pipeline.Source. If the connection of a message is lost, the server
// delivers the message again, and it is recognised.
func (s *Source) Ack(_ context.Context, items []*pipeline.Item) error {
	all := map[*subscription][]*held{}
	for _, it := range items {
		h := it.Ref.(*held)
		all[h.subscription] = append(all[h.subscription], h)
	}
	for subscription, list := range all {
		subscription.ack(list)
	}
	return nil
}

// Return implements pipeline.Source. A message stays here for the delay and is then
// offered again. If it went back to the server, the server would deliver it
// immediately, over and over, and count each delivery towards its delivery limit.
func (s *Source) Return(_ context.Context, items []*pipeline.Item, delay time.Duration) error {
	var waiting *subscription
	s.mu.Lock()
	for _, it := range items {
		h := it.Ref.(*held)
		h.subscription.waiting++
		if !h.subscription.dead {
			waiting = h.subscription
		}
		time.AfterFunc(delay, func() { s.again(h) })
	}
	s.mu.Unlock()
	if waiting != nil {
		waiting.grow()
	}
	return nil
}

// again offers a message once more.
func (s *Source) again(h *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.subscription.waiting--
	if s.closed || h.subscription.dead {
		return
	}
	h.item = &pipeline.Item{Partition: s.partition, Ref: h, Message: h.item.Message, Returned: true}
	s.inbox.Put(h.item)
	s.inbox.Changed()
}

// Close implements pipeline.Source. The server delivers unsettled messages again
// immediately, perhaps to another process.
func (s *Source) Close(ctx context.Context) error {
	s.stop()
	s.mu.Lock()
	s.closed = true
	s.inbox.Take()
	subscription := s.subscription
	s.mu.Unlock()
	var err error
	if subscription != nil {
		defer context.AfterFunc(ctx, func() { _ = subscription.link.raw.Close() })()
		// The answer says that the server has read all acknowledgements.
		if err = subscription.ch.Close(); errors.Is(err, amqp.ErrClosed) {
			err = nil // they are lost, and their messages come again
		}
		_ = subscription.link.close(ctx) // nothing depends on it any more
	}
	s.running.Wait()
	if err != nil {
		return fmt.Errorf("rabbitmq: acknowledgements may be lost: %w", err)
	}
	return nil
}

// Ready implements doctor.Readier.
func (s *Source) Ready(context.Context) error {
	if err := s.trouble.Load(); err != nil {
		return fmt.Errorf("rabbitmq: %w", *err)
	}
	return nil
}

// WaitsFor implements pipeline.Waiter.
func (s *Source) WaitsFor(ctx context.Context) (what string, ends bool) {
	if err := s.Ready(ctx); err != nil {
		return "an answer of RabbitMQ: " + err.Error(), false
	}
	return "", false
}

// Lag returns the backlog, as in pipeline.SourceTraits. It counts the messages in the
// queue, and those that were delivered to this process and not acknowledged.
func (s *Source) Lag(ctx context.Context) ([]pipeline.Lag, error) {
	s.mu.Lock()
	subscription := s.subscription
	held := 0
	if subscription != nil {
		held = subscription.held
	}
	s.mu.Unlock()
	if subscription == nil {
		return nil, errors.New("rabbitmq: there is no connection")
	}
	type answer struct {
		waiting int
		err     error
	}
	answered := make(chan answer, 1)
	s.running.Go(func() { // the client library waits for an answer without a context
		var a answer
		a.err = subscription.link.on(func(ch *amqp.Channel) error {
			queue, err := ch.QueueDeclarePassive(s.opts.Queue, true, false, false, false, nil)
			a.waiting = queue.Messages
			return missing(err, s.opts.Queue, "")
		})
		answered <- a
	})
	select {
	case a := <-answered:
		if a.err != nil {
			return nil, fmt.Errorf("rabbitmq: %w", a.err)
		}
		return []pipeline.Lag{{Source: s.opts.Queue, Messages: int64(a.waiting + held), Bytes: pipeline.UnknownLag}}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
