package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/inbox"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// SourceOptions are the options of OpenSource. URL, Stream and Consumer are
// required.
type SourceOptions struct {
	// URL has the addresses of servers, separated by commas.
	URL string
	// Client configures the connection: credentials, TLS. It cannot change how the
	// connection is restored. Defaults to nothing.
	Client []natsgo.Option
	// Stream is the name of the stream, and Consumer that of a durable pull
	// consumer of it. Processes with the same consumer share the messages.
	Stream, Consumer string
	// Create makes the consumer if it does not exist, and the stream if Subjects
	// are given. An existing one stays as it is. Defaults to false.
	Create bool
	// Subjects are those that a new consumer delivers. Defaults to all.
	Subjects []string
	// AckWait is how long the server waits for a sign of life about a message
	// before it delivers the message again, if Create makes the consumer. Defaults
	// to 30 s.
	AckWait time.Duration
	// ConfirmAcks waits until the server has confirmed each acknowledgement. An
	// acknowledgement that is lost otherwise leads to a duplicate, which is
	// recognised. Defaults to false.
	ConfirmAcks bool
	// MaxBytes is the maximum size of the messages that are read before the pipeline
	// takes them, up to 500. A message that is larger is read alone. Defaults to 16 MiB.
	MaxBytes int
}

// batchSize is the maximum number of messages that are read before the pipeline takes them.
const batchSize = 500

func (o *SourceOptions) complete() error {
	o.AckWait = cmp.Or(o.AckWait, 30*time.Second)
	o.MaxBytes = cmp.Or(o.MaxBytes, 16<<20)
	wrong := invalid.In("nats: SourceOptions.")
	if o.URL == "" || o.Stream == "" || o.Consumer == "" {
		wrong.Add("URL, Stream and Consumer are required")
	}
	for name, value := range map[string]string{"Stream": o.Stream, "Consumer": o.Consumer} {
		if err := CheckName(value); err != nil {
			wrong.Add("%s: %q: %v", name, value, err)
		}
	}
	if o.AckWait < time.Second || o.MaxBytes < 1 {
		wrong.Add("AckWait, MaxBytes: %v, %d: want at least 1 s and 1", o.AckWait, o.MaxBytes)
	}
	return wrong.Err()
}

// Source reads a durable pull consumer. OpenSource makes it.
type Source struct {
	opts      SourceOptions
	link      *link
	partition *pipeline.Partition
	stop      context.CancelFunc
	running   sync.WaitGroup
	trouble   atomic.Pointer[error] // why nothing can be fetched now

	mu       sync.Mutex // guards the fields below
	consumer jetstream.Consumer
	limit    inbox.Limit        // of the deliveries of a message
	interval time.Duration      // of beat
	recall   context.CancelFunc // ends the request for messages that is under way, or nil
	inbox    inbox.Inbox
	held     map[*held]struct{} // not settled, and not returned
	closed   bool
}

// held is a message that the server has handed to this process.
type held struct {
	msg  jetstream.Msg
	item *pipeline.Item
}

var (
	_ pipeline.Source = (*Source)(nil)
	_ pipeline.Waiter = (*Source)(nil)
	_ doctor.Readier  = (*Source)(nil)
)

// OpenSource connects and looks up the consumer. It blocks until the server has
// answered. If the stream or the consumer does not exist, the error is a
// *[MissingError]. A consumer that would lose messages is refused: one that does not want
// explicit acknowledgements, leaves out the bodies, or delivers a message only once.
func OpenSource(ctx context.Context, opts *SourceOptions) (*Source, error) {
	var o SourceOptions
	if opts != nil {
		o = *opts
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	link, err := open(ctx, o.URL, o.Client)
	if err != nil {
		return nil, err
	}
	pumping, stop := context.WithCancel(context.WithoutCancel(ctx))
	s := &Source{opts: o, link: link, partition: pipeline.NewPartition(o.Stream), stop: stop, held: map[*held]struct{}{}}
	s.inbox = inbox.New(&s.mu)
	if err := s.look(ctx); err != nil {
		stop()
		link.close()
		return nil, failed(o.URL, "", err)
	}
	s.running.Go(func() { s.pump(pumping) })
	s.running.Go(func() { s.beat(pumping) })
	return s, nil
}

// look looks up the consumer, or makes it. If the connection is closed permanently, it
// connects again.
func (s *Source) look(ctx context.Context) error {
	conn, js, err := s.link.get(ctx)
	if err != nil {
		return err
	}
	var consumer jetstream.Consumer
	err = s.link.denied.during(ctx, func(ctx context.Context) (err error) {
		consumer, err = s.opts.consumer(ctx, js)
		return err
	})
	if err != nil {
		return err
	}
	conn.SetReconnectHandler(func(*natsgo.Conn) { s.renew() })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.consumer = consumer
	s.follow(&consumer.CachedInfo().Config)
	return nil
}

// follow takes over the settings of the consumer, which may change at any time. s.mu is
// held.
func (s *Source) follow(config *jetstream.ConsumerConfig) {
	s.limit = inbox.Limit{
		Deliveries: max(config.MaxDeliver, 0),
		Then:       "NATS delivers the message to nobody",
		Setting:    fmt.Sprintf("max_deliver %d of consumer %s", config.MaxDeliver, s.opts.Consumer),
	}
	s.interval = slices.Min(append(slices.Clone(config.BackOff), config.AckWait)) / 3
}

// info asks the server for the state of the consumer.
func (s *Source) info(ctx context.Context) (*jetstream.ConsumerInfo, error) {
	var info *jetstream.ConsumerInfo
	err := s.link.denied.during(ctx, func(ctx context.Context) (err error) {
		info, err = s.reader().Info(ctx)
		return err
	})
	if err != nil {
		return nil, failed(s.opts.URL, "", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.follow(&info.Config)
	return info, nil
}

// reader returns the consumer.
func (s *Source) reader() jetstream.Consumer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.consumer
}

// consumer looks up the consumer, or makes it.
func (o *SourceOptions) consumer(ctx context.Context, js jetstream.JetStream) (jetstream.Consumer, error) {
	stream, err := streamOf(ctx, js, o.Stream, o.Create, o.Subjects)
	if err != nil {
		return nil, err
	}
	consumer, err := stream.Consumer(ctx, o.Consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		if !o.Create {
			return nil, &MissingError{Stream: o.Stream, Consumer: o.Consumer}
		}
		consumer, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
			Durable: o.Consumer, AckPolicy: jetstream.AckExplicitPolicy, AckWait: o.AckWait, MaxDeliver: -1,
			MaxAckPending: 10_000, FilterSubjects: o.Subjects,
		})
	}
	if err != nil {
		return nil, err
	}
	if err := o.refuse(&consumer.CachedInfo().Config); err != nil {
		return nil, err
	}
	return consumer, nil
}

// refuse returns an error if a consumer would lose messages, or parts of them.
func (o *SourceOptions) refuse(c *jetstream.ConsumerConfig) error {
	why := ""
	switch {
	case c.AckPolicy != jetstream.AckExplicitPolicy:
		why = "has the ack policy " + c.AckPolicy.String() + ": a message would be forgotten before its effect; it must be explicit"
	case c.HeadersOnly:
		why = "is headers_only: its messages come without their bodies; remove headers_only with nats consumer edit"
	case c.MaxDeliver == 1:
		why = "has max_deliver 1: the server delivers a message to nobody after the end of the process that had it; set max_deliver to -1 with nats consumer edit"
	default:
		return nil
	}
	return fmt.Errorf("consumer %s of stream %s %s: %w", o.Consumer, o.Stream, why, semel.ErrInvalidRequest)
}

// Traits implements pipeline.Source. The server delivers a returned message again
// after a delay.
func (s *Source) Traits() pipeline.SourceTraits {
	return pipeline.SourceTraits{Positions: true, CanReturn: true, Exhausted: s.inbox.ReadExhausted, Lag: s.Lag, Place: func(o semel.Origin) string {
		return fmt.Sprintf("%s, sequence %d", o.Source, o.Offset)
	}}
}

// fetchFor is how long a request for messages waits for the first one.
const fetchFor = 30 * time.Second

// pump fetches messages whenever the pipeline has taken those before.
func (s *Source) pump(ctx context.Context) {
	alone, pause, lost := false, time.Duration(0), false
	for s.inbox.Await(ctx, s.inbox.Empty) {
		var err error
		if !lost {
			begun, n := time.Now(), 0
			n, err = s.fetch(ctx, alone)
			// A message larger than the limit ends a request early, without an error.
			// It is fetched alone, without the limit.
			alone = n == 0 && err == nil && time.Since(begun) < fetchFor/2
		}
		if ctx.Err() == nil && (lost || err != nil) {
			why := s.look(ctx)
			if lost = why != nil; lost || errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, natsgo.ErrNoResponders) {
				err = why // it says more, or the consumer is there
			}
		}
		if ctx.Err() != nil {
			return
		}
		if pause = s.note(err, pause); pause > 0 {
			_ = retry.Sleep(ctx, pause)
		}
	}
}

// sizeHeader is a header of messages whose bodies the server has left out.
const sizeHeader = "Nats-Msg-Size"

// errHeadersOnly says that a message came without its body.
var errHeadersOnly = errors.New("the consumer is headers_only")

// note keeps what a request failed with, and returns how long to wait before the
// next one.
func (s *Source) note(err error, pause time.Duration) time.Duration {
	if err == nil || errors.Is(err, jetstream.ErrConsumerLeadershipChanged) || errors.Is(err, jetstream.ErrServerShutdown) {
		s.trouble.Store(nil)
		if err == nil {
			return 0
		}
	} else {
		s.trouble.Store(&err)
	}
	return min(max(2*pause, 50*time.Millisecond), 2*time.Second)
}

// fetch requests messages and offers each one as it comes. It returns when the
// request has ended.
func (s *Source) fetch(ctx context.Context, alone bool) (n int, err error) {
	ctx, end := s.link.denied.watch(ctx)
	defer func() { err = end(err) }()
	ctx, cancel := context.WithTimeout(ctx, fetchFor)
	defer cancel()
	s.mu.Lock()
	s.recall = cancel
	s.mu.Unlock()
	opts := []jetstream.FetchOpt{jetstream.FetchContext(ctx), jetstream.FetchHeartbeat(5 * time.Second)}
	most := 1
	if !alone {
		most = batchSize
		opts = append(opts, jetstream.FetchMaxBytes(s.opts.MaxBytes))
	}
	batch, err := s.reader().Fetch(most, opts...)
	if err != nil {
		return 0, err
	}
	for msg := range batch.Messages() {
		if size := msg.Headers().Get(sizeHeader); len(msg.Data()) == 0 && size != "" && size != "0" {
			cancel()
			_ = msg.Nak() // without it the message comes again later
			err = errHeadersOnly
			continue
		}
		if s.offer(msg) {
			n++
		}
	}
	if err != nil {
		return n, err
	}
	if err := batch.Error(); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return n, err
	}
	return n, nil
}

// renew ends the request that is under way. After a reconnect the server does not
// know it any more.
func (s *Source) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.recall != nil {
		s.recall()
	}
}

// offer makes a message readable.
func (s *Source) offer(msg jetstream.Msg) bool {
	meta, err := msg.Metadata()
	if err != nil { // it does not come from a consumer, and cannot be acknowledged
		return false
	}
	h := &held{msg: msg}
	h.item = &pipeline.Item{Partition: s.partition, Ref: h, Message: message(msg, meta)}
	s.trouble.Store(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return true
	}
	h.item.Err = s.limit.Check(int(meta.NumDelivered))
	s.held[h] = struct{}{}
	s.inbox.Put(h.item)
	s.inbox.Changed()
	return true
}

// SubjectHeader is the header with the subject that a message was published to.
const SubjectHeader = "Nats-Subject"

func message(msg jetstream.Msg, meta *jetstream.MsgMetadata) semel.Message {
	m := semel.Message{
		ID: msg.Headers().Get(jetstream.MsgIDHeader), Body: msg.Data(), Time: meta.Timestamp,
		Origin: origin(meta.Stream, meta.Sequence.Stream, meta.Timestamp),
	}
	m.Origin.Delivery = int(meta.NumDelivered)
	if m.Body == nil {
		m.Body = []byte{} // the server does not tell nil from empty
	}
	m.Headers = append(headers(msg.Headers()), semel.Header{Name: SubjectHeader, Value: []byte(msg.Subject())})
	return m
}

// origin returns the place of a message. A stream that was created again, or restored from a
// backup, gives the same sequences to other messages. The time at which the server stored a
// message, in nanoseconds, tells them apart. It comes with each delivery, so it cannot be
// that of an earlier stream.
func origin(stream string, sequence uint64, stored time.Time) semel.Origin {
	return semel.Origin{Source: stream, Identity: stream + " " + strconv.FormatInt(stored.UnixNano(), 10), Offset: int64(sequence)}
}

// headers returns headers in the order of their names.
func headers(from natsgo.Header) []semel.Header {
	var list []semel.Header
	for name, values := range from {
		for _, value := range values {
			list = append(list, semel.Header{Name: name, Value: []byte(value)})
		}
	}
	slices.SortStableFunc(list, func(a, b semel.Header) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Read implements pipeline.Source. While the server cannot be reached, it waits.
func (s *Source) Read(ctx context.Context) ([]*pipeline.Item, error) { return s.inbox.Read(ctx) }

// beat tells the server, until ctx ends, that the messages of this process are
// being processed.
func (s *Source) beat(ctx context.Context) {
	every := func() time.Duration {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.interval
	}
	ticker := time.NewTicker(every())
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		for _, h := range s.all() {
			_ = h.msg.InProgress() // if it is lost, the message comes again and is recognised
		}
		ticker.Reset(every()) // the consumer may be another one by now
	}
}

// all returns the messages that are neither settled nor returned.
func (s *Source) all() []*held {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*held, 0, len(s.held))
	for h := range s.held {
		list = append(list, h)
	}
	return list
}

// drop forgets a message of which the server has been told.
func (s *Source) drop(h *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, h)
}

// Ack implements pipeline.Source. The server stops delivering a message that was
// parked or dropped, and announces the reason in an advisory. A message whose connection
// is closed permanently comes again, and is recognised.
func (s *Source) Ack(ctx context.Context, items []*pipeline.Item) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var errs []error
	for _, it := range items {
		h := it.Ref.(*held)
		var err error
		switch {
		case it.Parked != "":
			err = h.msg.TermWithReason(string(it.Parked))
		case it.Err != nil:
			err = h.msg.TermWithReason("dropped")
		case s.opts.ConfirmAcks:
			err = h.msg.DoubleAck(ctx)
		default:
			err = h.msg.Ack()
		}
		if err != nil && !errors.Is(err, jetstream.ErrMsgAlreadyAckd) && !errors.Is(err, natsgo.ErrConnectionClosed) { // Ack comes again with all items
			errs = append(errs, err)
			continue
		}
		s.drop(h)
	}
	if err := errors.Join(errs...); err != nil {
		return failed(s.opts.URL, "acknowledge: ", errs[0])
	}
	return nil
}

// Return implements pipeline.Source. If the server limits the deliveries of a message,
// the message stays here and is offered again.
func (s *Source) Return(_ context.Context, items []*pipeline.Item, delay time.Duration) error {
	s.mu.Lock()
	limited := s.limit.Deliveries > 0
	s.mu.Unlock()
	var first error
	for _, it := range items {
		h := it.Ref.(*held)
		if limited {
			time.AfterFunc(delay, func() { s.again(h) })
			continue
		}
		// The message comes again after the ack wait if the server is not told.
		if err := h.msg.NakWithDelay(max(delay, time.Millisecond)); err != nil && first == nil {
			first = failed(s.opts.URL, "return: ", err)
		}
		s.drop(h)
	}
	return first
}

// again offers a message once more.
func (s *Source) again(h *held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.inbox.Put(&pipeline.Item{Partition: s.partition, Ref: h, Message: h.item.Message, Returned: true})
	s.inbox.Changed()
}

// Close implements pipeline.Source. The server delivers unsettled messages again
// immediately, perhaps to another process.
func (s *Source) Close(ctx context.Context) error {
	s.stop()
	s.running.Wait()
	s.mu.Lock()
	s.closed = true
	s.inbox.Take()
	s.mu.Unlock()
	for _, h := range s.all() {
		_ = h.msg.Nak() // without it the message comes again later
	}
	var err error
	conn := s.link.last()
	if conn.IsConnected() {
		if _, limited := ctx.Deadline(); !limited {
			patient, cancel := context.WithTimeout(ctx, requestTimeout)
			defer cancel()
			ctx = patient
		}
		err = conn.FlushWithContext(ctx) // the server has read all acknowledgements
	}
	s.link.close()
	if err != nil {
		return failed(s.opts.URL, "acknowledgements may be lost: ", err)
	}
	return nil
}

// Ready implements doctor.Readier.
func (s *Source) Ready(ctx context.Context) error {
	if !s.link.last().IsConnected() {
		return failed(s.opts.URL, "", s.link.refused(natsgo.ErrDisconnected))
	}
	if err := s.trouble.Load(); err != nil {
		return failed(s.opts.URL, "", *err)
	}
	_, err := s.info(ctx)
	return err
}

// WaitsFor implements pipeline.Waiter.
func (s *Source) WaitsFor(ctx context.Context) (what string, ends bool) {
	if err := s.Ready(ctx); err != nil {
		return "an answer of NATS: " + strings.TrimPrefix(err.Error(), "nats: "), false
	}
	return "", false
}

// Lag returns the backlog, as in pipeline.SourceTraits. It counts the messages that were not
// delivered or not acknowledged.
func (s *Source) Lag(ctx context.Context) ([]pipeline.Lag, error) {
	info, err := s.info(ctx)
	if err != nil {
		return nil, err
	}
	return []pipeline.Lag{{Source: s.opts.Stream, Messages: int64(info.NumPending) + int64(info.NumAckPending), Bytes: pipeline.UnknownLag}}, nil
}
