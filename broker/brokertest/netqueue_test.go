package brokertest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/pipeline"
)

// netQueue is a small broker: a queue of messages behind a TCP address, with a lease for
// each connection. Its answers can be lost, and its consumers can vanish.
type netQueue struct {
	tb      testing.TB
	address string

	mu      sync.Mutex // guards all fields below
	list    []*queued
	effects []Effect
	made    int
	// keeps: what a consumer has stays with it when its connection ends, until it asks.
	keeps bool
}

// queued is a message of the queue.
type queued struct {
	Number    int
	Partition int
	Body      []byte
	Headers   []semel.Header
	Time      time.Time

	gone   bool
	holder string // the consumer that has it, or empty
}

// request is what a client sends on a line, and reply what it gets.
type request struct {
	Do       string
	Consumer string
	Numbers  []int
	Body     []byte
	Headers  []semel.Header
	Text     string // the body as text, which a relay can find
}

type reply struct {
	Messages []*queued
	Text     string
	Refused  bool
}

func newNetQueue(tb testing.TB) *netQueue {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	q := &netQueue{tb: tb, address: listener.Addr().String()}
	var serving sync.WaitGroup
	var open sync.Map
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			open.Store(conn, true)
			serving.Go(func() {
				defer conn.Close()
				q.serve(conn)
			})
		}
	})
	tb.Cleanup(func() {
		listener.Close()
		open.Range(func(conn, _ any) bool { conn.(net.Conn).Close(); return true })
		serving.Wait()
	})
	return q
}

// serve answers the requests of a connection. When it ends, other consumers get what its
// consumer had.
func (q *netQueue) serve(conn net.Conn) {
	lines, encoder := bufio.NewReader(conn), json.NewEncoder(conn)
	consumer := ""
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, m := range q.list {
			if consumer != "" && m.holder == consumer && !q.keeps {
				m.holder = ""
			}
		}
	}()
	for {
		line, err := lines.ReadBytes('\n')
		var r request
		if err != nil || json.Unmarshal(line, &r) != nil {
			return
		}
		if r.Consumer != "" {
			consumer = r.Consumer
		}
		if err := encoder.Encode(q.answer(&r)); err != nil {
			return
		}
	}
}

const refusedBody = `{"id":"refused","no":"thanks"}`

func (q *netQueue) answer(r *request) (a reply) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch r.Do {
	case "read", "pending": // new messages, or those that the consumer has
		for _, m := range q.list {
			mine := r.Do == "pending" && m.holder == r.Consumer
			if !m.gone && (mine || r.Do == "read" && m.holder == "") && len(a.Messages) < 20 {
				m.holder = r.Consumer
				a.Messages = append(a.Messages, m)
				a.Text += string(m.Body)
			}
		}
	case "claim": // those of other consumers
		for _, m := range q.list {
			if m.holder != "" && m.holder != r.Consumer {
				m.holder = ""
			}
		}
	case "leave":
		for _, m := range q.list {
			if m.holder == r.Consumer {
				m.holder = ""
			}
		}
	case "ack", "return":
		for _, n := range r.Numbers {
			q.list[n].gone = q.list[n].gone || r.Do == "ack"
			q.list[n].holder = ""
		}
	case "deliver":
		if a.Refused = string(r.Body) == refusedBody; !a.Refused {
			q.effects = append(q.effects, Effect{r.Body, r.Headers})
		}
	}
	return a
}

func (q *netQueue) produce(_ context.Context, list []Numbered) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range list {
		q.list = append(q.list, &queued{Number: len(q.list), Partition: m.Partition, Body: m.Body, Headers: m.Headers, Time: time.Now()})
	}
	return nil
}

// link is a connection that is made again when it ends.
type link struct {
	address string

	mu    sync.Mutex // guards all fields below, and is held during a call
	conn  net.Conn
	lines *bufio.Reader
}

// errSent is wrapped by the error of a call whose request may have arrived.
var errSent = errors.New("no answer")

// call sends a request and reads its answer. It does not repeat it.
func (l *link) call(ctx context.Context, r request) (a reply, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return a, err
	}
	if l.conn == nil {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.address)
		if err != nil {
			return a, err
		}
		l.conn, l.lines = conn, bufio.NewReader(conn)
	}
	conn, ended := l.conn, make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	defer func() {
		if !stop() { // the next call must not meet the deadline of this one
			<-ended
			_ = conn.SetDeadline(time.Time{})
		}
	}()
	r.Text = string(r.Body)
	line, err := json.Marshal(r)
	if err == nil {
		_, err = l.conn.Write(append(line, '\n'))
	}
	if err == nil {
		line, err = l.lines.ReadBytes('\n')
	}
	if err != nil {
		l.conn.Close()
		l.conn = nil
		return a, fmt.Errorf("%w: %w", errSent, errors.Join(err, ctx.Err()))
	}
	return a, json.Unmarshal(line, &a)
}

func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.Close()
		l.conn = nil
	}
}

// netSource reads from a netQueue, with a bug or none.
type netSource struct {
	*link
	queue      *netQueue
	consumer   string
	bug        sourceBug
	partitions []*pipeline.Partition
	pending    bool // ask for the messages that the server holds for this consumer
}

var consumers struct {
	sync.Mutex
	n int
}

func openNetSource(q *netQueue, address string, b sourceBug) *netSource {
	consumers.Lock()
	defer consumers.Unlock()
	consumers.n++
	s := &netSource{link: &link{address: address}, queue: q, consumer: strconv.Itoa(consumers.n), bug: b}
	for range 3 {
		s.partitions = append(s.partitions, pipeline.NewPartition("net"))
	}
	return s
}

// Traits implements pipeline.Source.
func (s *netSource) Traits() pipeline.SourceTraits {
	return pipeline.SourceTraits{CanReturn: true, Positions: true}
}

// Read implements pipeline.Source. It polls, and looks again for what a lost answer had.
func (s *netSource) Read(ctx context.Context) ([]*pipeline.Item, error) {
	for {
		do := "read"
		if s.pending && s.bug != noSecondLook {
			do = "pending"
		}
		if s.bug == opensOnce && s.conn == nil && s.pending {
			return nil, errors.New("the connection was lost")
		}
		a, err := s.call(ctx, request{Do: do, Consumer: s.consumer})
		if ctx.Err() != nil && len(a.Messages) == 0 {
			return nil, context.Cause(ctx)
		}
		s.pending = err != nil || s.pending && len(a.Messages) > 0
		if len(a.Messages) > 0 {
			return s.items(a.Messages), nil
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func (s *netSource) items(list []*queued) (items []*pipeline.Item) {
	s.queue.mu.Lock()
	made := s.queue.made
	s.queue.mu.Unlock()
	for _, m := range list {
		it := &pipeline.Item{Partition: s.partitions[min(m.Partition, 2)], Ref: m.Number}
		it.Message = semel.Message{Body: m.Body, Headers: m.Headers, Time: m.Time, Origin: semel.Origin{Source: "net", Identity: strconv.Itoa(made), Offset: int64(m.Number)}}
		switch s.bug {
		case tellsNoTime:
			it.Message.Time = time.Time{}
		case tellsOldTime:
			it.Message.Time = time.Unix(m.Time.UnixMilli(), 0) // milliseconds for seconds
		case tellsNoHeaders:
			it.Message.Headers = nil
		case cutsHeaders:
			for i := range it.Message.Headers {
				value := it.Message.Headers[i].Value
				it.Message.Headers[i].Value = value[:len(value)/2]
			}
		case tellsNoOrigin:
			it.Message.Origin.Source = ""
		case newPartitions:
			it.Partition = pipeline.NewPartition("net")
		}
		items = append(items, it)
	}
	return items
}

// settle sends a request about items until it is answered: it may be repeated.
func (s *netSource) settle(ctx context.Context, do string, items []*pipeline.Item) error {
	if len(items) == 0 && s.bug != refusesNone {
		return nil
	} else if len(items) == 0 {
		return errors.New("no items")
	}
	r := request{Do: do, Consumer: s.consumer}
	for _, it := range items {
		r.Numbers = append(r.Numbers, it.Ref.(int))
	}
	for {
		_, err := s.call(ctx, r)
		if s.bug == hidesAckErrors && do == "ack" {
			return nil
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// Ack implements pipeline.Source.
func (s *netSource) Ack(ctx context.Context, items []*pipeline.Item) error {
	if s.bug == ackHangs && len(items) > 0 {
		select {}
	}
	return s.settle(ctx, "ack", items)
}

// Return implements pipeline.Source.
func (s *netSource) Return(ctx context.Context, items []*pipeline.Item, _ time.Duration) error {
	return s.settle(ctx, "return", items)
}

// Close implements pipeline.Source.
func (s *netSource) Close(ctx context.Context) error {
	if ctx.Err() == nil { // a clean end gives up what it has
		_, _ = s.call(ctx, request{Do: "leave", Consumer: s.consumer})
	}
	s.link.close()
	if s.bug == closeHangs {
		select {}
	}
	return nil
}

// netPlace is a netQueue for the suite.
func netPlace(tb testing.TB, b sourceBug) SourcePlace {
	q := newNetQueue(tb)
	q.keeps = b == strandsVanished || b == noSecondLook || b == hidesAckErrors
	open := func(address string) (pipeline.Source, error) {
		s := openNetSource(q, address, b)
		if b == noSecondLook { // it takes over from its predecessor alone
			_, _ = s.call(tb.Context(), request{Do: "claim", Consumer: s.consumer})
		}
		return s, nil
	}
	place := SourcePlace{
		Partitions: 3, Produce: q.produce, Server: q.address,
		Open:   func(context.Context) (pipeline.Source, error) { return open(q.address) },
		OpenAt: func(_ context.Context, address string) (pipeline.Source, error) { return open(address) },
		Again: func(context.Context) error {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.list = nil
			q.made++
			return nil
		},
	}
	if b == hidesServer {
		place.Server, place.OpenAt = "", nil
		place.Restart = func(context.Context) error { return nil }
	}
	return place
}

// netSink delivers to a netQueue, with a bug or none.
type netSink struct {
	*link
	bug sinkBug
}

// Traits implements pipeline.Sink.
func (s *netSink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Ordered: true} }

// Close implements pipeline.Sink.
func (s *netSink) Close(context.Context) error {
	s.link.close()
	if s.bug == sinkCloseHangs {
		select {}
	}
	return nil
}

// Deliver implements pipeline.Sink.
func (s *netSink) Deliver(ctx context.Context, items []*pipeline.Item) {
	if s.bug == reversesGroups {
		items = slices.Clone(items)
		slices.Reverse(items)
	}
	var failed []uint64
	for _, it := range items {
		if slices.Contains(failed, it.Group) {
			it.Err = pipeline.ErrBehind
			continue
		}
		if it.Err = s.deliver(ctx, it); it.Err != nil && s.bug != claimsOrdered {
			failed = append(failed, it.Group)
		}
	}
}

func (s *netSink) deliver(ctx context.Context, it *pipeline.Item) error {
	a, err := s.call(ctx, request{Do: "deliver", Body: it.Message.Body, Headers: header.Output(it, "")})
	switch {
	case err == nil && a.Refused:
		refused := errors.New("the server refuses the message")
		switch s.bug {
		case retriesRefused:
			return refused
		case ignoresRefusal:
			return nil
		case unavailableForRefused:
			return pipeline.Unavailable(refused, 0)
		}
		return semel.Permanent(refused)
	case err == nil:
		return nil
	case s.bug == permanentWhenAway:
		return semel.Permanent(err)
	case s.bug == plainWhenAway && !errors.Is(err, errSent):
		return err
	case ctx.Err() != nil && !errors.Is(err, errSent):
		return err
	case !errors.Is(err, errSent) || s.bug == unavailableForLost:
		return pipeline.Unavailable(errors.New("no connection"), 0)
	case s.bug == retriesLost:
		return errors.New("no answer: again")
	case s.bug == successForLost:
		return nil
	case s.bug == repeatsLost:
		_, err = s.call(ctx, request{Do: "deliver", Body: it.Message.Body, Headers: header.Output(it, "")})
		return err
	}
	return pipeline.Unavailable(fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, err), 0)
}

func netTarget(tb testing.TB, b sinkBug) SinkTarget {
	q := newNetQueue(tb)
	open := func(address string) (pipeline.Sink, error) {
		return &netSink{link: &link{address: address}, bug: b}, nil
	}
	return SinkTarget{
		Server: q.address, Refused: []byte(refusedBody),
		Sink:   func(context.Context) (pipeline.Sink, error) { return open(q.address) },
		SinkAt: func(_ context.Context, address string) (pipeline.Sink, error) { return open(address) },
		Effects: func(context.Context) ([]Effect, error) {
			q.mu.Lock()
			defer q.mu.Unlock()
			return slices.Clone(q.effects), nil
		},
	}
}

// TestCallWorksAfterOneThatEnded ends calls at about the time at which they are answered. A call
// after them must not meet what ended those.
func TestCallWorksAfterOneThatEnded(t *testing.T) {
	t.Parallel()
	l := &link{address: newNetQueue(t).address}
	defer l.close()
	for i := range 5000 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%200)*time.Microsecond)
		_, _ = l.call(ctx, request{Do: "read", Consumer: "a"})
		cancel()
		if _, err := l.call(t.Context(), request{Do: "read", Consumer: "a"}); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
}
