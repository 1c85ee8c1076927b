package rabbitmq

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

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
	// maxConsumers bounds the consumers of a lane.
	maxConsumers = 16
	// overhead is the assumed size of a message without its body, in bytes.
	overhead = 256
)

// lane is a channel, and the messages that came through it. Its delivery tags mean
// nothing elsewhere. The mutex of the source guards below, open, waiting and dead.
type lane struct {
	source *Source
	link   *link
	ch     *amqp.Channel
	lost   chan *amqp.Error

	pumps     sync.WaitGroup // one for each consumer
	delivered atomic.Bool

	below   uint64  // all messages with this tag and lower ones are settled
	open    []*held // those with the tags from below+1; nil if not offered yet
	waiting int     // returned, and not offered again yet
	dead    bool

	acking sync.Mutex // one acknowledgement after the other

	growing   sync.Mutex // guards the fields below, and is held during calls
	consumers int
	granted   int // the sum of their prefetch counts
}

// held is a message that the server has handed to this process.
type held struct {
	lane    *lane
	tag     uint64
	item    *pipeline.Item
	settled bool
}

// consume adds a consumer with a prefetch count. l.growing is held, or nothing else
// has the lane.
func (l *lane) consume(prefetch int) error {
	if err := l.ch.Qos(prefetch, 0, false); err != nil {
		return err
	}
	messages, err := l.ch.Consume(l.source.opts.Queue, "", false, false, false, false, nil)
	if err != nil {
		return missing(err, l.source.opts.Queue, "")
	}
	l.consumers++
	l.granted += prefetch
	l.pumps.Go(func() { l.pump(messages) })
	return nil
}

// pump offers messages until the consumer ends.
func (l *lane) pump(messages <-chan amqp.Delivery) {
	for d := range messages {
		l.delivered.Store(true)
		h := &held{lane: l, tag: d.DeliveryTag}
		h.item = &pipeline.Item{Partition: l.source.partition, Ref: h, Message: message(l.source.opts.Queue, &d)}
		l.source.offer(h, len(d.Body))
		if d.DeliveryTag%firstPrefetch == 0 {
			l.grow()
		}
	}
}

// grow adds a consumer if the prefetch counts of the others are too small. Consumers
// of one channel are counted separately, so messages that wait here do not keep
// others from being delivered.
func (l *lane) grow() {
	l.growing.Lock()
	defer l.growing.Unlock()
	wanted := l.source.wanted()
	l.source.mu.Lock()
	more := wanted + min(l.waiting, 4*l.source.opts.Prefetch) - l.granted
	dead := l.dead
	l.source.mu.Unlock()
	if dead || l.consumers >= maxConsumers || more < max(1, wanted/4) {
		return
	}
	_ = l.consume(min(more, maxPrefetch)) // after an error the channel is closed, and wait returns
}

// wait blocks until the server or the connection has ended all consumers. It returns
// the reason.
func (l *lane) wait() error {
	l.pumps.Wait()
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
func (l *lane) ack(list []*held) {
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

// add notes a message that is offered. Consumers run concurrently, so tags come in
// any order.
func (l *lane) add(h *held) {
	for i := h.tag - l.below; uint64(len(l.open)) < i; {
		l.open = append(l.open, nil)
	}
	l.open[h.tag-l.below-1] = h
}

// unsettled counts the messages that are not settled.
func (l *lane) unsettled() (n int) {
	for _, h := range l.open {
		if h != nil && !h.settled {
			n++
		}
	}
	return n
}

// settle marks messages as settled. below is the tag of the last of them before which
// all are settled, or 0. single are the tags of those behind it. The server refuses
// to acknowledge a tag twice.
func (l *lane) settle(list []*held) (below uint64, single []uint64) {
	l.source.mu.Lock()
	defer l.source.mu.Unlock()
	if l.dead {
		return 0, nil
	}
	fresh := map[uint64]bool{}
	for _, h := range list {
		if !h.settled {
			h.settled, fresh[h.tag] = true, true
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
