package watermill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	watermilllib "github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// servers are the real servers of the tests.
var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// bench is a router with the middleware, and what its handlers saw and published.
type bench struct {
	*testing.T
	router *message.Router
	pubsub *gochannel.GoChannel

	mu   sync.Mutex
	seen map[string]int // by topic and payload
	news chan struct{}  // gets a value whenever seen changes
}

func newBench(t *testing.T) *bench {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermilllib.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	pubsub := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermilllib.NopLogger{})
	b := &bench{T: t, router: router, pubsub: pubsub, seen: map[string]int{}, news: make(chan struct{}, 1)}
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc { // around all others
		return func(msg *message.Message) ([]*message.Message, error) {
			list, err := h(msg)
			if name := message.HandlerNameFromCtx(msg.Context()); err == nil && !strings.HasPrefix(name, "count ") {
				b.saw(name + " acks " + string(msg.Payload))
			}
			return list, err
		}
	})
	return b
}

// guard returns a guard over a store in memory.
func (b *bench) guard() *semel.Guard {
	b.Helper()
	store, err := memstore.New(nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	guard, err := semel.NewGuard(store, &semel.GuardOptions{Wait: 10 * time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	return guard
}

func (b *bench) middleware(guard *semel.Guard, opts *Options) message.HandlerMiddleware {
	b.Helper()
	m, err := Middleware(guard, opts)
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// saw counts something.
func (b *bench) saw(what string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seen[what]++
	select {
	case b.news <- struct{}{}:
	default:
	}
	return b.seen[what]
}

// count counts the messages of a topic.
func (b *bench) count(topic string, from message.Subscriber) {
	b.router.AddConsumerHandler("count "+topic, topic, from, func(msg *message.Message) error {
		b.saw(topic + " " + string(msg.Payload))
		return nil
	})
}

// run runs the router until the test ends.
func (b *bench) run() {
	b.Helper()
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.router.Run(context.WithoutCancel(b.Context())); err != nil {
			b.Error(err)
		}
	})
	<-b.router.Running()
	b.Cleanup(func() {
		if err := errors.Join(b.router.Close(), b.pubsub.Close()); err != nil {
			b.Error(err)
		}
		running.Wait()
	})
}

// await waits until the counts are these, and no other.
func (b *bench) await(want map[string]int) {
	b.Helper()
	timeout := time.After(5 * time.Minute)
	for {
		b.mu.Lock()
		missing := ""
		for what, n := range want {
			if b.seen[what] < n {
				missing = fmt.Sprintf("%q %d times, want %d", what, b.seen[what], n)
			}
		}
		got := fmt.Sprint(b.seen)
		b.mu.Unlock()
		if missing == "" && got != fmt.Sprint(want) {
			b.Fatalf("saw %s, want %v", got, want)
		}
		if missing == "" {
			return
		}
		select {
		case <-b.news:
		case <-timeout:
			b.Fatalf("saw %s; all: %s", missing, got)
		}
	}
}

func send(t *testing.T, to message.Publisher, topic, uuid, payload string, metadata ...string) {
	t.Helper()
	msg := message.NewMessage(uuid, []byte(payload))
	for i := 0; i+1 < len(metadata); i += 2 {
		msg.Metadata.Set(metadata[i], metadata[i+1])
	}
	if err := to.Publish(topic, msg); err != nil {
		t.Fatal(err)
	}
}

func TestEachHandlerRunsOnceForAKey(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.router.AddMiddleware(b.middleware(b.guard(), &Options{ID: ByMetadata("event-id")}))
	for _, name := range []string{"bill", "ship"} { // two handlers of one topic: two scopes
		b.router.AddConsumerHandler(name, "orders", b.pubsub, func(msg *message.Message) error {
			if claim, ok := ClaimOf(msg.Context()); !ok || claim.Token == 0 || claim.Attempt != 1 {
				t.Errorf("the handler has the claim %+v, %t", claim, ok)
			}
			b.saw(name + " " + string(msg.Payload))
			return nil
		})
	}
	b.run()
	for i := range 3 {
		send(t, b.pubsub, "orders", fmt.Sprint("uuid", i), "a", "event-id", "e1") // sent three times, with new UUIDs
	}
	send(t, b.pubsub, "orders", "last", "b", "event-id", "e2")
	b.await(map[string]int{
		"bill a": 1, "bill b": 1, "ship a": 1, "ship b": 1,
		"bill acks a": 3, "bill acks b": 1, "ship acks a": 3, "ship acks b": 1,
	})
	if _, ok := ClaimOf(t.Context()); ok {
		t.Error("there is a claim without a message")
	}
}

func TestMessageIsRedeliveredAfterAFailureOrWhileItsKeyIsHeld(t *testing.T) {
	t.Parallel()
	b, guard := newBench(t), (*semel.Guard)(nil)
	guard = b.guard()
	b.router.AddMiddleware(b.middleware(guard, &Options{Scope: "s"}))
	b.router.AddConsumerHandler("h", "orders", b.pubsub, func(msg *message.Message) error {
		if n := b.saw("h " + string(msg.Payload)); string(msg.Payload) == "fails" && n < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	held, release := make(chan struct{}), make(chan struct{})
	var holder sync.WaitGroup
	holder.Go(func() { // another process, which fails in the end
		_, err := guard.Do(t.Context(), semel.Key{Scope: "s", ID: "held"}, func(context.Context, semel.Claim) ([]byte, error) {
			close(held)
			<-release
			return nil, errors.New("the other process failed")
		})
		if err == nil {
			t.Error("the other process did not fail")
		}
	})
	<-held
	b.run()
	send(t, b.pubsub, "orders", "fails", "fails")
	send(t, b.pubsub, "orders", "held", "held")
	b.await(map[string]int{"h fails": 3, "h acks fails": 1})
	close(release)
	holder.Wait()
	b.await(map[string]int{"h fails": 3, "h acks fails": 1, "h held": 1, "h acks held": 1})
}

// failing fails to publish, the first time after it has published a part.
type failing struct {
	message.Publisher
	mu    sync.Mutex
	times int
}

func (p *failing) Publish(topic string, list ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch p.times++; p.times {
	case 1:
		return errors.Join(p.Publisher.Publish(topic, list[0]), errors.New("the answer is lost"))
	case 2:
		return errors.New("the broker is away")
	}
	return p.Publisher.Publish(topic, list...)
}

func TestOutputsArePublishedBeforeTheKeyIsComplete(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	publisher := &failing{Publisher: b.pubsub}
	var attempts []int
	handler := b.router.AddHandler("h", "orders", b.pubsub, "out", b.pubsub, func(msg *message.Message) ([]*message.Message, error) {
		claim, _ := ClaimOf(msg.Context())
		attempts = append(attempts, claim.Attempt) // one message after the other
		b.saw("h " + string(msg.Payload))
		return []*message.Message{message.NewMessage(msg.UUID+"/1", []byte("first")), message.NewMessage(msg.UUID+"/2", []byte("second"))}, nil
	})
	handler.AddMiddleware(b.middleware(b.guard(), &Options{Publisher: publisher}))
	b.count("out", b.pubsub)
	b.run()
	send(t, b.pubsub, "orders", "u", "a")
	b.await(map[string]int{"h a": 3, "h acks a": 1, "out first": 2, "out second": 1}) // one answer was lost
	send(t, b.pubsub, "orders", "u", "a")
	send(t, b.pubsub, "orders", "v", "b")
	b.await(map[string]int{"h a": 3, "h acks a": 2, "h b": 1, "h acks b": 1, "out first": 3, "out second": 2})
	if !slices.Equal(attempts, []int{1, 2, 3, 1}) { // an output may be there: the doubt is kept
		t.Errorf("the attempts are %v", attempts)
	}
}

func TestOutputsWithoutAPublisherAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	refused := make(chan error, 1)
	b.router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			list, err := h(msg)
			select {
			case refused <- err:
			default:
			}
			return list, nil // ends the test's message
		}
	}, b.middleware(b.guard(), nil))
	b.router.AddHandler("h", "orders", b.pubsub, "out", b.pubsub, func(msg *message.Message) ([]*message.Message, error) {
		return message.Messages{message.NewMessage("o", nil)}, nil
	})
	b.count("out", b.pubsub)
	b.run()
	send(t, b.pubsub, "orders", "u", "a")
	if err := <-refused; err == nil || semel.MayAck(err) || Parkable(err) {
		t.Errorf("the message gets %v", err)
	}
	b.await(map[string]int{"h acks a": 1})
}

func TestMessagesThatNoRetryHelpsReachThePoisonQueue(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	poison, err := middleware.PoisonQueueWithFilter(b.pubsub, "parked", Parkable)
	if err != nil {
		t.Fatal(err)
	}
	b.router.AddConsumerHandler("h", "orders", b.pubsub, func(msg *message.Message) error {
		b.saw("h " + string(msg.Payload))
		return semel.Permanent(errors.New("the card is stolen"))
	}).AddMiddleware(poison, b.middleware(b.guard(), &Options{ID: ByMetadata("event-id")}))
	b.count("parked", b.pubsub)
	b.run()
	send(t, b.pubsub, "orders", "u", "a", "event-id", "e1")
	b.await(map[string]int{"h a": 1, "h acks a": 1, "parked a": 1})
	send(t, b.pubsub, "orders", "v", "a", "event-id", "e1") // a duplicate of a failure
	send(t, b.pubsub, "orders", "w", "no id")
	b.await(map[string]int{"h a": 1, "h acks a": 2, "h acks no id": 1, "parked a": 2, "parked no id": 1})
}

func TestAMiddlewareNeedsAGuard(t *testing.T) {
	t.Parallel()
	if m, err := Middleware(nil, nil); m != nil || !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("got %v", err)
	}
}

// TestMiddlewareDeduplicatesOnRabbitMQ sends each message twice through a real broker, and takes each output
// from it.
func TestMiddlewareDeduplicatesOnRabbitMQ(t *testing.T) {
	t.Parallel()
	const messages = 50
	config := amqp.NewDurableQueueConfig("amqp://" + servers.RabbitMQ(t))
	config.Publish.ConfirmDelivery = true
	logger := watermilllib.NopLogger{}
	publisher, err := amqp.NewPublisher(config, logger)
	if err != nil {
		t.Fatal(err)
	}
	subscriber, err := amqp.NewSubscriber(config, logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(publisher.Close(), subscriber.Close()); err != nil {
			t.Error(err)
		}
	})
	b, in, out := newBench(t), servicestest.Topic(), servicestest.Topic()
	b.router.AddHandler("h", in, subscriber, out, publisher, func(msg *message.Message) ([]*message.Message, error) {
		if n := b.saw("h " + string(msg.Payload)); n == 1 && len(msg.Payload)%2 == 0 {
			return nil, errors.New("the first attempt fails")
		}
		return message.Messages{message.NewMessage(msg.UUID+"/out", msg.Payload)}, nil
	}).AddMiddleware(b.middleware(b.guard(), &Options{Publisher: publisher}))
	b.count(out, subscriber)
	b.run()
	want := map[string]int{}
	for i := range messages {
		payload := fmt.Sprint("m", i)
		for range 2 {
			send(t, publisher, in, "uuid-"+payload, payload)
		}
		want[out+" "+payload], want["h acks "+payload], want["h "+payload] = 1, 2, 1+(len(payload)+1)%2
	}
	b.await(want)
}
