package rabbitmq

import (
	"crypto/rand"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel/pipeline"
)

const (
	// firstPrefetch is how many messages the server may deliver before their sizes
	// are known. A queue with a single active consumer keeps this limit: only the
	// first consumer gets messages, and to replace it would hand the queue to another
	// process.
	firstPrefetch = 64
	// maxPrefetch is the largest number of the protocol.
	maxPrefetch = 65_535
	// growLimit is how long a new consumer waits for its first message, and growPause
	// the time between two questions whether the queue has any.
	growLimit = time.Second
	growPause = 100 * time.Millisecond
	// overhead is the assumed size of a message without its body, in bytes.
	overhead = 256
)

// subscription is a channel, and the messages that came through it. Its delivery tags mean
// nothing elsewhere. The mutex of the source guards the fields from below to dead.
//
// One consumer at a time gets messages, because the server divides a queue between
// several, and its order would be lost.
type subscription struct {
	source *Source
	link   *link
	ch     *amqp.Channel
	lost   chan *amqp.Error

	delivered atomic.Bool
	ended     chan struct{} // closed when nothing is running any more

	below    uint64  // all messages with this tag and lower ones are settled
	open     []*held // those with the tags from below+1; nil if not offered yet
	held     int     // messages in open that are not settled
	since    uint64  // the last tag of earlier consumers
	used     int     // messages of the consumer that are not settled
	prefetch int     // how many those may be
	planned  bool    // grow is called again
	retry    uint64  // the tag from which on a larger consumer may be tried
	failed   int     // how often one got no message
	waiting  int     // returned, and not offered again yet
	running  int     // pumps, and calls that replace the consumer
	dead     bool

	acking sync.Mutex // one acknowledgement after the other, and none while the consumer changes

	growing  sync.Mutex // guards consumer, and is held during calls
	consumer string
}

// held is a message that the server has handed to this process.
type held struct {
	subscription *subscription
	tag          uint64
	item         *pipeline.Item
	settled      bool
}

// consume starts a consumer with a prefetch count. l.growing is held, or nothing else
// has the subscription.
func (l *subscription) consume(prefetch int) (name string, messages <-chan amqp.Delivery, err error) {
	if err := l.ch.Qos(prefetch, 0, false); err != nil {
		return "", nil, err
	}
	name = rand.Text()
	messages, err = l.ch.Consume(l.source.opts.Queue, name, false, false, false, false, nil)
	return name, messages, missing(err, l.source.opts.Queue, "")
}

// start starts the first consumer.
func (l *subscription) start(prefetch int) error {
	name, messages, err := l.consume(prefetch)
	if err != nil {
		return err
	}
	l.consumer, l.prefetch = name, prefetch
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	l.pump(messages)
	return nil
}

// pump starts to offer messages, until the consumer ends. The source's mutex is held.
func (l *subscription) pump(messages <-chan amqp.Delivery) {
	l.running++
	go func() {
		defer l.leave()
		for d := range messages {
			if l.take(&d) {
				l.grow()
			}
		}
	}()
}

// leave ends the subscription when the last pump, or call that replaces the consumer, has ended.
func (l *subscription) leave() {
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	if l.running--; l.running == 0 {
		close(l.ended)
	}
}

// take offers a message. It reports whether a larger consumer may be needed.
func (l *subscription) take(d *amqp.Delivery) (grow bool) {
	l.delivered.Store(true)
	if _, ok := d.Headers["x-stream-offset"]; ok {
		l.source.refuseStream()
		return false
	}
	h := &held{subscription: l, tag: d.DeliveryTag}
	h.item = &pipeline.Item{Partition: l.source.partition, Ref: h, Message: message(l.source.opts.Queue, d)}
	return l.source.offer(h, len(d.Body))
}

// more returns how many messages a larger consumer may have, or 0 if the present one
// is large enough or has room. The source's mutex is held.
func (l *subscription) more() int {
	if l.dead || l.running == 0 || l.used < l.prefetch || l.below+uint64(len(l.open)) < l.retry || l.planned {
		return 0
	}
	wanted := l.source.wanted()
	more := wanted + min(l.waiting, 4*l.source.opts.Prefetch) - l.held
	if more < max(1, wanted/4) {
		return 0
	}
	return min(more, maxPrefetch)
}

// grow replaces the consumer by a larger one if it is full. Messages that wait here
// then do not keep others from being delivered. Without acknowledgements the old one
// gets nothing, so the new one gets the next messages of the queue. After an error
// the channel is closed, and wait returns.
func (l *subscription) grow() {
	l.growing.Lock()
	defer l.growing.Unlock()
	l.acking.Lock()
	defer l.acking.Unlock()
	l.source.mu.Lock()
	more := l.more()
	if more > 0 {
		l.running++ // while no consumer has a pump, the subscription has not ended
	}
	l.source.mu.Unlock()
	if more == 0 {
		return
	}
	defer l.leave()
	queue, err := l.ch.QueueDeclarePassive(l.source.opts.Queue, true, false, false, false, nil)
	if err != nil {
		return
	}
	if queue.Messages == 0 {
		l.plan()
		return
	}
	name, messages, err := l.consume(more)
	if err != nil {
		return
	}
	timer := time.NewTimer(growLimit)
	defer timer.Stop()
	select {
	case first, ok := <-messages:
		if !ok {
			return
		}
		l.replace(name, more, &first)
		l.source.mu.Lock()
		l.pump(messages)
		l.source.mu.Unlock()
	case <-timer.C: // a queue with a single active consumer
		l.keep(name, messages)
	}
}

// plan calls grow again after a pause. The queue has no more messages yet.
func (l *subscription) plan() {
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	l.planned = true
	time.AfterFunc(growPause, func() {
		l.source.mu.Lock()
		l.planned = false
		l.source.mu.Unlock()
		l.grow()
	})
}

// replace makes a consumer the one that gets messages. l.growing is held.
func (l *subscription) replace(name string, prefetch int, first *amqp.Delivery) {
	_ = l.ch.Cancel(l.consumer, false)
	l.consumer = name
	l.source.mu.Lock()
	l.since, l.used, l.prefetch = first.DeliveryTag-1, 0, prefetch
	l.source.mu.Unlock()
	l.take(first)
}

// keep ends a new consumer. The next try comes ever later: the messages that were
// expected may also have gone to another process.
func (l *subscription) keep(name string, messages <-chan amqp.Delivery) {
	_ = l.ch.Cancel(name, false)
	for d := range messages { // that came in the last moment
		l.take(&d)
	}
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	l.failed++
	l.retry = l.below + uint64(len(l.open)) + uint64(l.prefetch)<<min(4*l.failed, 32)
}

// wait blocks until the server or the connection has ended all consumers. It returns
// the reason.
func (l *subscription) wait() error {
	<-l.ended
	select {
	case err := <-l.lost:
		if err != nil {
			return err
		}
	default:
	}
	return errors.New("the server has ended the consumer: was the queue deleted?")
}

// ack acknowledges messages: the settled ones before the first open one together,
// each other one alone. An error means that the channel is lost, and that the
// server delivers the messages again.
func (l *subscription) ack(list []*held) {
	l.acking.Lock()
	defer l.acking.Unlock()
	below, single := l.settle(list)
	if below > 0 && l.ch.Ack(below, true) != nil {
		return
	}
	for _, tag := range single {
		if l.ch.Ack(tag, false) != nil {
			return
		}
	}
}

// add notes a message that is offered.
func (l *subscription) add(h *held) {
	for i := h.tag - l.below; uint64(len(l.open)) < i; {
		l.open = append(l.open, nil)
	}
	l.open[h.tag-l.below-1] = h
	l.held++
	if h.tag > l.since {
		l.used++
	}
}

// settle marks messages as settled. below is the tag of the last of them before which
// all are settled, or 0. single are the tags of those behind it. The server refuses
// to acknowledge a tag twice.
func (l *subscription) settle(list []*held) (below uint64, single []uint64) {
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	if l.dead {
		return 0, nil
	}
	fresh := map[uint64]bool{}
	for _, h := range list {
		if !h.settled {
			h.settled, fresh[h.tag] = true, true
			l.held--
			if h.tag > l.since {
				l.used--
			}
		}
	}
	n := 0
	for ; n < len(l.open) && l.open[n] != nil && l.open[n].settled; n++ {
		if tag := l.open[n].tag; fresh[tag] {
			below = tag
		}
	}
	clear(l.open[:n])
	l.open, l.below = l.open[n:], l.below+uint64(n)
	for tag := range fresh {
		if tag > below {
			single = append(single, tag)
		}
	}
	slices.Sort(single)
	return below, single
}
