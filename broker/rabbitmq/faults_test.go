package rabbitmq_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/rabbitmq"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// proxy stands between a client and a server.
type proxy struct {
	net.Listener
	target string
	// deaf drops what the client sends, mute what the server sends.
	deaf, mute atomic.Bool

	mu      sync.Mutex // guards open and dropped
	open    []net.Conn
	dropped []byte
	running sync.WaitGroup
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: listener, target: target}
	p.running.Go(p.serve)
	t.Cleanup(func() {
		_ = listener.Close() // ends serve
		p.disconnect()
		p.running.Wait()
	})
	return p
}

func (p *proxy) serve() {
	for {
		client, err := p.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close() // the client tries again
			continue
		}
		p.mu.Lock()
		p.open = append(p.open, client, server)
		p.mu.Unlock()
		p.running.Go(func() { p.copy(server, client, &p.deaf) })
		p.running.Go(func() { p.copy(client, server, &p.mute) })
	}
}

// copy copies until one side is closed, and closes both.
func (p *proxy) copy(to, from net.Conn, dropping *atomic.Bool) {
	defer func() { _ = errors.Join(to.Close(), from.Close()) }() // both may be closed
	for buffer := make([]byte, 64<<10); ; {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if dropping.Load() {
			p.mu.Lock()
			p.dropped = append(p.dropped, buffer[:n]...)
			p.mu.Unlock()
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// hasDropped reports whether a text was dropped.
func (p *proxy) hasDropped(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Contains(p.dropped, []byte(text))
}

// disconnect closes all connections.
func (p *proxy) disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.open {
		_ = conn.Close() // it may be closed
	}
	p.open = nil
}

// reader reads a source.
type reader struct {
	*testing.T
	*rabbitmq.Source
}

func open(t *testing.T, opts *rabbitmq.SourceOptions) reader {
	t.Helper()
	source, err := rabbitmq.OpenSource(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = source.Close(context.Background()) }) // the server may be gone
	return reader{t, source}
}

// read reads until n messages have come.
func (r reader) read(n int) (items []*pipeline.Item) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Minute)
	defer cancel()
	for len(items) < n {
		more, err := r.Read(ctx)
		if err != nil {
			r.Fatalf("%d of %d messages came: %v", len(items), n, err)
		}
		items = append(items, more...)
	}
	return items
}

func (r reader) ack(items []*pipeline.Item) {
	r.Helper()
	if err := r.Ack(r.Context(), items); err != nil {
		r.Error(err)
	}
}

// left takes what a queue still has for another consumer, and returns the ids.
func left(t *testing.T, url, queue string) (ids []string) {
	t.Helper()
	err := with(url, func(ch *amqp.Channel) error {
		for {
			m, ok, err := ch.Get(queue, true)
			if err != nil || !ok {
				return err
			}
			ids = append(ids, m.MessageId)
		}
	})
	if err != nil {
		t.Error(err)
	}
	slices.Sort(ids)
	return ids
}

// fill publishes numbered messages together.
func fill(t *testing.T, url, queue string, n int) {
	t.Helper()
	err := with(url, func(ch *amqp.Channel) error {
		var last *amqp.DeferredConfirmation
		for _, m := range numbered(n) {
			var err error
			if last, err = ch.PublishWithDeferredConfirm("", queue, true, false, m); err != nil {
				return err
			}
		}
		if ok, err := last.WaitContext(t.Context()); err != nil || !ok {
			return errors.Join(err, errors.New("no confirm"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// inOrder reads the messages with the numbers from one to another, and acknowledges
// them. Messages behind them that come too are not acknowledged.
func inOrder(t *testing.T, source reader, from, to int) {
	t.Helper()
	for from < to {
		items := source.read(1)
		items = items[:min(len(items), to-from)]
		for _, it := range items {
			if want := fmt.Sprint("m", from); it.Message.ID != want {
				t.Fatalf("%s came, want %s", it.Message.ID, want)
			}
			from++
		}
		source.ack(items)
	}
}

func numbered(n int) (list []amqp.Publishing) {
	for i := range n {
		list = append(list, amqp.Publishing{MessageId: fmt.Sprint("m", i), DeliveryMode: amqp.Persistent, Body: []byte("{}")})
	}
	return list
}

// runWaiting has all messages that a consumer may have wait, and then more of them. Each
// of them comes once.
func runWaiting(t *testing.T, server *services.Server) {
	queue := quorum(t, server, nil)
	source := open(t, &rabbitmq.SourceOptions{Client: client(server), Queue: queue, Prefetch: 10})
	for range 2 { // at the second time, the queue was empty before
		if err := send(t.Context(), "amqp://"+server.Addr(), queue, numbered(20)); err != nil {
			t.Fatal(err)
		}
		for came := 0; came < 20; {
			items := source.read(1)
			came += len(items)
			if delivery := items[0].Message.Origin.Delivery; delivery != 1 {
				t.Errorf("delivery %d, want 1", delivery)
			}
			if err := source.Return(t.Context(), items, time.Hour); err != nil {
				t.Error(err)
			}
		}
	}
}

// forbidden is the prefix of names that no user may write, and hidden of names that none may read.
const (
	forbidden = "forbidden-"
	hidden    = "hidden-"
	// maxMessage is the size of the largest message.
	maxMessage = 1_000_000
)

// TestSourceAndSinkSurviveServerFaults shares one server, which closes a channel that keeps a message for ten
// seconds. That is longer than a slow machine stands still: most parts keep messages, and want them once.
func TestSourceAndSinkSurviveServerFaults(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRabbitMQ(t, &services.RabbitMQOptions{Config: fmt.Sprintf("{consumer_timeout, 10000}, {channel_tick_interval, 500}, {max_message_size, %d}, "+
		"{default_permissions, [<<\".*\">>, <<\"^(?!%s).*\">>, <<\"^(?!%s).*\">>]}", maxMessage, forbidden, hidden)})
	url := "amqp://" + server.Addr()
	filled := func(t *testing.T, messages int, args amqp.Table) string {
		t.Helper()
		queue := servicestest.Topic()
		all := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
		for name, value := range args {
			all[name] = value
		}
		declare(t, url, queue, all)
		if err := send(t.Context(), url, queue, numbered(messages)); err != nil {
			t.Fatal(err)
		}
		return queue
	}
	t.Run("a message that takes longer than the consumer time-out comes again", func(t *testing.T) {
		t.Parallel()
		queue := filled(t, 5, nil)
		source := open(t, &rabbitmq.SourceOptions{Client: client(server), Queue: queue})
		first := source.read(5)
		again := source.read(5) // the server closes the channel in between
		source.ack(first)       // of a channel that is closed
		if delivery := again[0].Message.Origin.Delivery; delivery < 2 {
			t.Errorf("delivery %d, want at least 2", delivery)
		}
		source.ack(again)
		if err := source.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if ids := left(t, url, queue); len(ids) > 0 {
			t.Errorf("%v are left", ids)
		}
	})
	t.Run("a lost acknowledgement leads to a duplicate", func(t *testing.T) {
		t.Parallel()
		queue := filled(t, 5, nil)
		p := newProxy(t, server.Addr())
		source := open(t, &rabbitmq.SourceOptions{Client: rabbitmq.Client{Addrs: []string{p.Addr().String()}}, Queue: queue})
		items := source.read(5)
		p.deaf.Store(true)
		source.ack(items)
		p.disconnect()
		p.deaf.Store(false)
		source.ack(source.read(5))
		if err := source.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if ids := left(t, url, queue); len(ids) > 0 {
			t.Errorf("%v are left", ids)
		}
	})
	t.Run("a lost confirm is an unknown outcome", func(t *testing.T) {
		t.Parallel()
		queue := filled(t, 0, nil)
		p := newProxy(t, server.Addr())
		publisher, err := rabbitmq.OpenPublisher(t.Context(), rabbitmq.Client{Addrs: []string{p.Addr().String()}})
		if err != nil {
			t.Fatal(err)
		}
		defer publisher.Close(context.Background())
		p.mute.Store(true)
		m := &rabbitmq.Publication{RoutingKey: queue, Message: amqp.Publishing{MessageId: "m0"}}
		publishing := make(chan struct{})
		go func() {
			defer close(publishing)
			publisher.Publish(t.Context(), m)
		}()
		source := open(t, &rabbitmq.SourceOptions{Client: client(server), Queue: queue})
		source.read(1) // the server has the message
		p.disconnect()
		<-publishing
		if !errors.Is(m.Err, semel.ErrOutcomeUnknown) {
			t.Errorf("the error is %v", m.Err)
		}
		p.mute.Store(false)
		if publisher.Publish(t.Context(), m); m.Err != nil {
			t.Errorf("published again: %v", m.Err)
		}
	})
	t.Run("an unroutable message fails alone", func(t *testing.T) {
		t.Parallel()
		queue := filled(t, 0, nil)
		publisher, err := rabbitmq.OpenPublisher(t.Context(), client(server))
		if err != nil {
			t.Fatal(err)
		}
		defer publisher.Close(context.Background())
		var list []*rabbitmq.Publication
		for i := range 1200 { // several batches
			m := &rabbitmq.Publication{RoutingKey: queue, Message: amqp.Publishing{MessageId: fmt.Sprint("m", i)}}
			if i%3 == 0 {
				m.RoutingKey += "-absent"
			}
			list = append(list, m)
		}
		publisher.Publish(t.Context(), list...)
		for i, m := range list {
			var unroutable *rabbitmq.UnroutableError
			if errors.As(m.Err, &unroutable) != (i%3 == 0) || i%3 != 0 && m.Err != nil {
				t.Fatalf("message %d: %v", i, m.Err)
			}
		}
		if ids := left(t, url, queue); len(ids) != 800 {
			t.Errorf("the queue has %d messages, want 800", len(ids))
		}
	})
	t.Run("a sink waits for an exchange that is gone", func(t *testing.T) {
		t.Parallel()
		exchange := servicestest.Topic()
		err := with(url, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil)
		})
		if err != nil {
			t.Fatal(err)
		}
		sink, err := rabbitmq.OpenSink(t.Context(), &rabbitmq.SinkOptions{Client: client(server), Exchange: exchange, RoutingKey: "k"})
		if err != nil {
			t.Fatal(err)
		}
		defer sink.Close(context.Background())
		if err := with(url, func(ch *amqp.Channel) error { return ch.ExchangeDelete(exchange, false, false) }); err != nil {
			t.Fatal(err)
		}
		deliver := func() error {
			it := &pipeline.Item{Message: semel.Message{Body: []byte("{}")}}
			it.Call.Key = semel.Key{Scope: "s", ID: "m0"}
			sink.Deliver(t.Context(), []*pipeline.Item{it})
			return it.Err
		}
		if err := deliver(); !errors.Is(err, semel.ErrOutcomeUnknown) {
			t.Errorf("the first error is %v", err)
		}
		var missing *rabbitmq.MissingError
		var unavailable *pipeline.UnavailableError
		if err := deliver(); !errors.As(err, &missing) || !errors.As(err, &unavailable) {
			t.Errorf("the second error is %v", err)
		}
	})
	t.Run("a resource that the pipeline will create is a notice", func(t *testing.T) {
		t.Parallel()
		for _, opts := range []rabbitmq.ExamineOptions{{Queue: servicestest.Topic()}, {Exchange: servicestest.Topic()}} {
			for create, want := range map[bool]doctor.Severity{false: doctor.Broken, true: doctor.Notice} {
				opts.Client, opts.Create = client(server), create
				findings, err := rabbitmq.Examine(t.Context(), &opts)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.ContainsFunc(findings, func(f doctor.Finding) bool {
					return f.Severity == want && strings.HasPrefix(f.Found, "it does not exist") && strings.HasSuffix(f.Subject, opts.Queue+opts.Exchange)
				}) {
					t.Errorf("create %v: %+v, want %v", create, findings, want)
				}
			}
		}
	})
	t.Run("a message that AMQP cannot carry fails alone", func(t *testing.T) {
		t.Parallel()
		queue := filled(t, 0, nil)
		publisher, err := rabbitmq.OpenPublisher(t.Context(), client(server))
		if err != nil {
			t.Fatal(err)
		}
		defer publisher.Close(context.Background())
		good := &rabbitmq.Publication{RoutingKey: queue, Message: amqp.Publishing{MessageId: "m0"}}
		bad := &rabbitmq.Publication{RoutingKey: queue, Message: amqp.Publishing{MessageId: "m1", Headers: amqp.Table{strings.Repeat("n", 300): "v"}}}
		unnamed := &rabbitmq.Publication{RoutingKey: queue}
		publisher.Publish(t.Context(), bad, good, unnamed)
		var permanent *semel.PermanentError
		if good.Err != nil || !errors.As(bad.Err, &permanent) || !errors.As(unnamed.Err, &permanent) {
			t.Errorf("%v; %v; %v", good.Err, bad.Err, unnamed.Err)
		}
	})
	t.Run("a message that the server refuses fails alone", func(t *testing.T) {
		t.Parallel()
		for name, refused := range map[string]amqp.Publishing{
			"large body":      {Body: make([]byte, maxMessage+1)},
			"wrong copies":    {Headers: amqp.Table{"CC": "text"}},
			"wrong user":      {UserId: "somebody"},
			"long header":     {Headers: amqp.Table{"h": strings.Repeat("v", 200_000)}},
			"many headers":    {Headers: amqp.Table{"list": slices.Repeat([]any{amqp.Table{"name": []byte("value")}}, 10_000)}},
			"long property":   {Headers: amqp.Table{}, ContentType: strings.Repeat("t", 300)},
			"wrong lifespan":  {Expiration: "soon"},
			"wrong in header": {Headers: amqp.Table{"h": struct{}{}}},
		} {
			queue := filled(t, 0, nil)
			publisher, err := rabbitmq.OpenPublisher(t.Context(), client(server))
			if err != nil {
				t.Fatal(err)
			}
			defer publisher.Close(context.Background())
			var list []*rabbitmq.Publication
			for i := range 9 {
				m := &rabbitmq.Publication{RoutingKey: queue}
				if i == 4 {
					m.Message = refused
				}
				m.Message.MessageId = fmt.Sprint("m", i)
				list = append(list, m)
			}
			publisher.Publish(t.Context(), list...)
			stored := left(t, url, queue)
			for i, m := range list {
				var permanent *semel.PermanentError
				if isRefused := i == 4; errors.As(m.Err, &permanent) != isRefused || (m.Err == nil) == isRefused || slices.Contains(stored, m.Message.MessageId) == isRefused {
					t.Errorf("%s: message %d: %v; the queue has %v", name, i, m.Err, stored)
				}
			}
		}
	})
	t.Run("a publisher ends although the server does not answer", func(t *testing.T) {
		t.Parallel()
		p := newProxy(t, server.Addr())
		publisher, err := rabbitmq.OpenPublisher(t.Context(), rabbitmq.Client{Addrs: []string{p.Addr().String()}})
		if err != nil {
			t.Fatal(err)
		}
		p.deaf.Store(true) // as a server that is out of memory
		if err := publisher.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	t.Run("a sink waits for the right to write", func(t *testing.T) {
		t.Parallel()
		exchange := forbidden + servicestest.Topic()
		err := with(url, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclare(exchange, amqp.ExchangeTopic, true, false, false, false, nil)
		})
		if err != nil {
			t.Fatal(err)
		}
		sink, err := rabbitmq.OpenSink(t.Context(), &rabbitmq.SinkOptions{Client: client(server), Exchange: exchange, RoutingKey: "k"})
		if err != nil {
			t.Fatal(err)
		}
		defer sink.Close(context.Background())
		var items []*pipeline.Item
		for i := range 3 {
			it := &pipeline.Item{Message: semel.Message{Body: []byte("{}")}}
			it.Call.Key = semel.Key{Scope: "s", ID: fmt.Sprint("m", i)}
			items = append(items, it)
		}
		sink.Deliver(t.Context(), items)
		for _, it := range items {
			var unavailable *pipeline.UnavailableError
			var answer *amqp.Error
			if !errors.As(it.Err, &unavailable) || !errors.As(it.Err, &answer) || answer.Code != amqp.AccessRefused {
				t.Errorf("the error is %v", it.Err)
			}
		}
	})
	t.Run("the doctor finds missing rights", func(t *testing.T) {
		t.Parallel()
		for prefix, wants := range map[string]string{"": "", forbidden: "write", hidden: "read"} {
			queue := prefix + servicestest.Topic()
			declare(t, url, queue, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
			if prefix != forbidden {
				err := with(url, func(ch *amqp.Channel) error {
					confirm, err := ch.PublishWithDeferredConfirm("", queue, true, false, amqp.Publishing{MessageId: "m0"})
					if err == nil {
						confirm.Wait()
					}
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			exchange := queue
			err := with(url, func(ch *amqp.Channel) error {
				return ch.ExchangeDeclare(exchange, amqp.ExchangeFanout, true, false, false, false, nil)
			})
			if err != nil {
				t.Fatal(err)
			}
			findings, err := rabbitmq.Examine(t.Context(), &rabbitmq.ExamineOptions{Client: client(server), Queue: queue, Exchange: exchange})
			if err != nil {
				t.Fatal(err)
			}
			found := ""
			for _, f := range findings {
				if f.Severity == doctor.Broken {
					found += f.Found
				}
			}
			if (found == "") != (wants == "") || !strings.Contains(found, wants) {
				t.Errorf("%s: %q, want a finding about the right to %s", queue, found, wants)
			}
			if prefix == "" {
				source := open(t, &rabbitmq.SourceOptions{Client: client(server), Queue: queue})
				if m := source.read(1)[0].Message; m.Origin.Delivery != 1 {
					t.Errorf("the doctor changed the queue: delivery %d, want 1", m.Origin.Delivery)
				}
			}
		}
	})
	t.Run("a full queue makes the publisher wait", func(t *testing.T) {
		t.Parallel()
		queue := filled(t, 0, amqp.Table{amqp.QueueMaxLenArg: 1, amqp.QueueOverflowArg: amqp.QueueOverflowRejectPublish})
		publisher, err := rabbitmq.OpenPublisher(t.Context(), client(server))
		if err != nil {
			t.Fatal(err)
		}
		defer publisher.Close(context.Background())
		var unavailable *pipeline.UnavailableError
		for i := 0; ; i++ {
			m := &rabbitmq.Publication{RoutingKey: queue, Message: amqp.Publishing{MessageId: fmt.Sprint("m", i)}}
			if publisher.Publish(t.Context(), m); errors.As(m.Err, &unavailable) {
				break
			}
			if m.Err != nil || i > 100 {
				t.Fatalf("message %d: %v", i, m.Err)
			}
		}
	})
	t.Run("returned messages do not reach the delivery limit", func(t *testing.T) {
		t.Parallel()
		queue := filled(t, 3, amqp.Table{"x-delivery-limit": 2})
		source := open(t, &rabbitmq.SourceOptions{Client: client(server), Queue: queue})
		for range 10 {
			items := source.read(3)
			for _, it := range items {
				if delivery := it.Message.Origin.Delivery; delivery != 1 {
					t.Errorf("delivery %d, want 1", delivery)
				}
			}
			if err := source.Return(t.Context(), items, time.Millisecond); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("messages at the delivery limit are read separately", func(t *testing.T) {
		t.Parallel()
		queue := filled(t, 1, amqp.Table{"x-delivery-limit": 3, "x-max-length": 9, "x-overflow": "reject-publish", "x-single-active-consumer": true})
		for n := 1; n <= 3; n++ {
			source := open(t, &rabbitmq.SourceOptions{Client: client(server), Queue: queue})
			read := source.Read
			if n == 3 {
				read = source.Traits().Exhausted
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			items, err := read(ctx)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			it := items[0]
			if exhausted := it.Err != nil; it.Message.Origin.Delivery != n || exhausted != (n == 3) {
				t.Errorf("delivery %d, %v; want delivery %d", it.Message.Origin.Delivery, it.Err, n)
			}
			if n == 3 && !strings.Contains(it.Err.Error(), "delivery 3 of at most 4, after which RabbitMQ deletes the message") {
				t.Error(it.Err)
			}
			if err := source.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("a queue that delivers once is refused", func(t *testing.T) {
		t.Parallel()
		for _, limit := range []int{0, -1} { // RabbitMQ 3 takes -1 for less than 0
			queue := filled(t, 0, amqp.Table{"x-delivery-limit": limit})
			source, err := rabbitmq.OpenSource(t.Context(), &rabbitmq.SourceOptions{Client: client(server), Queue: queue})
			if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), fmt.Sprintf("delivery-limit %d", limit)) {
				t.Errorf("%v, want a refusal that names the limit", err)
			}
			if source != nil {
				_ = source.Close(t.Context())
			}
		}
	})
	t.Run("reading the limit creates no queue", func(t *testing.T) {
		t.Parallel()
		missing := servicestest.Topic()
		var absent *rabbitmq.MissingError
		if _, err := rabbitmq.LimitArgument(t.Context(), client(server), missing); err != nil {
			t.Error(err)
		}
		if _, err := rabbitmq.OpenSource(t.Context(), &rabbitmq.SourceOptions{Client: client(server), Queue: missing}); !errors.As(err, &absent) {
			t.Errorf("%v, want that there is no queue", err)
		}
	})
	t.Run("messages come in the order of the queue", func(t *testing.T) {
		t.Parallel()
		queue := filled(t, 0, nil)
		const messages = 3000
		fill(t, url, queue, messages)
		inOrder(t, open(t, &rabbitmq.SourceOptions{Client: client(server), Queue: queue}), 0, messages)
	})
	t.Run("a single active consumer hands the queue over in order", func(t *testing.T) {
		t.Parallel()
		queue := filled(t, 0, amqp.Table{"x-single-active-consumer": true})
		const messages = 300
		fill(t, url, queue, messages)
		first := open(t, &rabbitmq.SourceOptions{Client: client(server), Queue: queue})
		second := open(t, &rabbitmq.SourceOptions{Client: client(server), Queue: queue})
		inOrder(t, first, 0, messages/2)
		if err := first.Close(t.Context()); err != nil { // with messages that it has not acknowledged
			t.Error(err)
		}
		inOrder(t, second, messages/2, messages)
	})
	t.Run("a stream takes messages, and is refused as a source", func(t *testing.T) {
		t.Parallel()
		queue := servicestest.Topic()
		declare(t, url, queue, amqp.Table{amqp.QueueTypeArg: "stream"})
		source := open(t, &rabbitmq.SourceOptions{Client: client(server), Queue: queue})
		publisher, err := rabbitmq.OpenPublisher(t.Context(), client(server))
		if err != nil {
			t.Fatal(err)
		}
		defer publisher.Close(context.Background())
		m := &rabbitmq.Publication{RoutingKey: queue, Message: amqp.Publishing{MessageId: "m0"}}
		if publisher.Publish(t.Context(), m); m.Err != nil {
			t.Fatal(m.Err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if items, err := source.Read(ctx); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%d messages, %v; want a refusal", len(items), err)
		}
	})
	t.Run("a message keeps its id through the dead-letter exchange and back", func(t *testing.T) {
		t.Parallel()
		dead := filled(t, 0, nil)
		queue := filled(t, 1, amqp.Table{"x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
		for range 2 { // two deliveries without an acknowledgement
			if err := with(url, func(ch *amqp.Channel) error {
				for {
					_, ok, err := ch.Get(queue, false)
					if ok || err != nil || t.Context().Err() != nil {
						return errors.Join(err, ch.Close())
					}
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		source := open(t, &rabbitmq.SourceOptions{Client: client(server), Queue: dead})
		m := source.read(1)[0].Message
		death, _ := m.Header("x-death")
		first, _ := m.Header("x-first-death-queue")
		if m.ID != "m0" || string(first) != queue || len(death) == 0 || death[0] != '[' {
			t.Errorf("id %s, x-first-death-queue %s, x-death %s", m.ID, first, death)
		}
	})
}

// TestADeliveryLimitOfAPolicyIsFound asks the HTTP API of a server of its own.
func TestADeliveryLimitOfAPolicyIsFound(t *testing.T) {
	t.Parallel()
	management := servicestest.FreeAddr(t)
	server := servicestest.StartRabbitMQ(t, &services.RabbitMQOptions{Management: management})
	queue := quorum(t, server, nil)
	fill(t, "amqp://"+server.Addr(), queue, 1)
	policy := fmt.Sprintf(`{"pattern": %q, "definition": {"delivery-limit": 1}, "apply-to": "queues"}`, "^"+queue+"$")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://"+management+"/api/policies/%2F/once", strings.NewReader(policy))
	if err != nil {
		t.Fatal(err)
	}
	request.SetBasicAuth("guest", "guest")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		t.Fatal(answer.Status)
	}
	for known := false; !known; <-time.After(100 * time.Millisecond) { // the API learns of the policy later
		if known, err = rabbitmq.PolicyKnown(t.Context(), client(server), "http://"+management, queue); err != nil {
			t.Fatal(err)
		}
	}
	opts := &rabbitmq.SourceOptions{Client: client(server), Queue: queue, Management: "http://" + management}
	again := func(read func(*rabbitmq.Source) func(context.Context) ([]*pipeline.Item, error)) *pipeline.Item {
		t.Helper()
		source, err := rabbitmq.OpenSource(t.Context(), opts)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		items, err := read(source)(ctx)
		if err := errors.Join(err, source.Close(ctx)); err != nil {
			t.Fatal(err)
		}
		return items[0]
	}
	again(func(s *rabbitmq.Source) func(context.Context) ([]*pipeline.Item, error) { return s.Read })
	last := again(func(s *rabbitmq.Source) func(context.Context) ([]*pipeline.Item, error) { return s.Traits().Exhausted })
	if last.Message.Origin.Delivery != 2 || last.Err == nil {
		t.Errorf("delivery %d, %v; want the second and last one", last.Message.Origin.Delivery, last.Err)
	}
	opts.Management = "http://" + servicestest.FreeAddr(t)
	if _, err := rabbitmq.OpenSource(t.Context(), opts); !errors.Is(err, semel.ErrStoreUnavailable) || !strings.Contains(err.Error(), "management") {
		t.Errorf("%v, want that the HTTP API does not answer", err)
	}
}
