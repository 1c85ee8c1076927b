package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
)

// SinkOptions are the options of OpenSink. URL and one of Subject and Route are required.
type SinkOptions struct {
	// URL has the addresses of servers, separated by commas.
	URL string
	// Client configures the connection, as in SourceOptions. Defaults to nothing.
	Client []natsgo.Option
	// Subject is what messages are published to.
	Subject string
	// Route chooses the subject of each message. If it does not allow the subject, or no
	// stream takes the message, only that message fails.
	Route *pipeline.Route
	// Stream is the stream that must store them. Defaults to any.
	Stream string
	// Create makes the stream with this subject if it does not exist. It needs
	// Stream and Subject. Defaults to false.
	Create bool
	// Name is the pipeline's name, sent as a header. Defaults to none.
	Name string
}

// maxPending bounds the messages that wait for the answer of the server.
const maxPending = 4096

// Sink publishes to a subject of a stream. OpenSink makes it.
type Sink struct {
	opts SinkOptions
	link *link
}

var (
	_ pipeline.Sink  = (*Sink)(nil)
	_ doctor.Readier = (*Sink)(nil)
)

// OpenSink connects. It blocks until the server has answered. If no stream takes
// the subject, the error is a *[MissingError].
func OpenSink(ctx context.Context, opts *SinkOptions) (*Sink, error) {
	s := &Sink{}
	if opts != nil {
		s.opts = *opts
	}
	if s.opts.URL == "" || (s.opts.Subject == "") == (s.opts.Route == nil) || s.opts.Create && (s.opts.Stream == "" || s.opts.Route != nil) {
		return nil, fmt.Errorf("nats: SinkOptions: URL and one of Subject and Route are required, and Stream and Subject if Create is set: %w", semel.ErrInvalidRequest)
	}
	link, err := open(ctx, s.opts.URL, s.opts.Client)
	if err != nil {
		return nil, err
	}
	s.link = link
	err = link.denied.during(ctx, func(ctx context.Context) error {
		if s.opts.Create {
			if _, err := streamOf(ctx, link.js, s.opts.Stream, true, []string{s.opts.Subject}); err != nil {
				return err
			}
		}
		return s.look(ctx, link.js)
	})
	if err != nil {
		link.close()
		return nil, failed(s.opts.URL, "", err)
	}
	return s, nil
}

// look checks that the server answers and, with a single subject, that a stream takes it.
func (s *Sink) look(ctx context.Context, js jetstream.JetStream) error {
	if s.opts.Route != nil {
		_, err := js.AccountInfo(ctx)
		return err
	}
	return s.takes(ctx, js, s.opts.Subject)
}

// takes checks that the right stream takes a subject.
func (s *Sink) takes(ctx context.Context, js jetstream.JetStream, subject string) error {
	name, err := js.StreamNameBySubject(ctx, subject)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return &MissingError{Subject: subject}
	}
	if err == nil && s.opts.Stream != "" && name != s.opts.Stream {
		return fmt.Errorf("the subject %s belongs to the stream %s, not to %s: %w", subject, name, s.opts.Stream, semel.ErrInvalidRequest)
	}
	return err
}

// Traits implements pipeline.Sink. One call has at most one message of a group, because a
// repeated message would be stored behind the next one.
func (s *Sink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Batch: 500, Parallel: 2} }

// Ready implements doctor.Readier.
func (s *Sink) Ready(ctx context.Context) error {
	_, js, err := s.link.get(ctx)
	if err == nil {
		err = s.link.denied.during(ctx, func(ctx context.Context) error { return s.look(ctx, js) })
	}
	if err != nil {
		return failed(s.opts.URL, "", err)
	}
	return nil
}

// Close implements pipeline.Sink.
func (s *Sink) Close(context.Context) error {
	s.link.close()
	return nil
}

// Deliver implements pipeline.Sink. It publishes all messages, and then waits for
// the answers.
func (s *Sink) Deliver(ctx context.Context, items []*pipeline.Item) {
	_, js, err := s.link.get(ctx)
	if err != nil {
		for _, it := range items {
			it.Err = pipeline.Unavailable(failed(s.opts.URL, "", err), 0)
		}
		return
	}
	watched, end := s.link.denied.watch(ctx)
	defer func() { _ = end(nil) }()
	futures := make([]jetstream.PubAckFuture, len(items))
	for i, it := range items {
		msg, err := s.message(it)
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err == nil {
			futures[i], err = js.PublishMsgAsync(msg, s.publishing(msg)...)
			err = s.refused(ctx, js, it, err)
		}
		it.Err = err
	}
	for i, it := range items {
		if futures[i] == nil {
			continue
		}
		it.Err = s.await(ctx, watched, js, it, futures[i])
	}
}

// await waits for the answer to a publication. watched ends when the server denies a right.
func (s *Sink) await(ctx, watched context.Context, js jetstream.JetStream, it *pipeline.Item, answer jetstream.PubAckFuture) error {
	for {
		select {
		case ack := <-answer.Ok():
			if !ack.Duplicate {
				return nil
			}
			asking, end := s.link.denied.watch(ctx)
			defer func() { _ = end(nil) }()
			return s.known(asking, js, it, answer.Msg(), ack)
		case err := <-answer.Err():
			return s.refused(ctx, js, it, err)
		case <-watched.Done():
		}
		if ctx.Err() != nil {
			return fmt.Errorf("nats: no answer yet: %w: %w", semel.ErrOutcomeUnknown, context.Cause(ctx))
		}
		if subject, err := s.subject(it); err == nil && isDenied(watched, subject) {
			return pipeline.Unavailable(failed(s.opts.URL, "", context.Cause(watched)), 0) // nothing is stored
		}
		watched = ctx // the denial was for something else
	}
}

// mostIDs is how many ids a message gets at most, if the server knows them all and the
// stream has none of them.
const mostIDs = 4

// known checks the answer that the server knows the id of a message. It is right if the server
// has a message with the id, or if the reader has acknowledged an earlier attempt since. But a
// server may remember an id whose message it did not store, when the leader of a stream changes.
// Then the message is published under an id of its own, and the answer is checked again.
func (s *Sink) known(ctx context.Context, js jetstream.JetStream, it *pipeline.Item, msg *natsgo.Msg, ack *jetstream.PubAck) error {
	id := msg.Header.Get(jetstream.MsgIDHeader)
	for n := 1; ; n++ {
		stored, err := s.stored(ctx, js, msg, ack)
		switch {
		case err != nil || stored:
			return err
		case n == mostIDs:
			return fmt.Errorf("nats: the server says that it knows the Nats-Msg-Id %s and the %d ids after it, and stream %s has none of their messages: is it purged, or smaller than what is published within its duplicate window: %w", id, n-1, ack.Stream, semel.ErrOutcomeUnknown)
		}
		msg.Header.Set(jetstream.MsgIDHeader, fmt.Sprintf("%s#%d", id, n+1))
		if ack, err = js.PublishMsg(ctx, msg, s.publishing(msg)...); err != nil || !ack.Duplicate {
			return s.refused(ctx, js, it, err)
		}
	}
}

// stored reports whether a stream has the message of an id that the server knows, or has
// removed it because its readers acknowledged it.
func (s *Sink) stored(ctx context.Context, js jetstream.JetStream, msg *natsgo.Msg, ack *jetstream.PubAck) (bool, error) {
	id := msg.Header.Get(jetstream.MsgIDHeader)
	stream, err := js.Stream(ctx, ack.Stream)
	var found *jetstream.RawStreamMsg
	if err == nil {
		found, err = stream.GetMsg(ctx, ack.Sequence)
	}
	switch {
	case err == nil:
		return found.Header.Get(jetstream.MsgIDHeader) == id, nil
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return stream.CachedInfo().Config.Retention != jetstream.LimitsPolicy, nil
	}
	return false, fmt.Errorf("nats: the server says that it knows the Nats-Msg-Id %s, and it is not known whether stream %s has the message: grant the user the requests STREAM.INFO and STREAM.MSG.GET of the stream: %w: %w", id, ack.Stream, semel.ErrOutcomeUnknown, err)
}

func (s *Sink) publishing(msg *natsgo.Msg) []jetstream.PublishOpt {
	// The client library would repeat a message that no stream stores. The pipeline does.
	opts := []jetstream.PublishOpt{jetstream.WithMsgID(msg.Header.Get(jetstream.MsgIDHeader)), jetstream.WithRetryAttempts(0)}
	if s.opts.Stream != "" {
		opts = append(opts, jetstream.WithExpectStream(s.opts.Stream))
	}
	return opts
}

// longestID is the length of the longest Nats-Msg-Id.
const longestID = 255

// maxSubject is the length of the longest subject. A server closes the connection if a line
// of the protocol is longer than its max_control_line, 4 KiB by default.
const maxSubject = 2 << 10

// subject returns the subject of an item. A text with wildcards or spaces is no subject, and one
// that begins with $ is a request to the server.
func (s *Sink) subject(it *pipeline.Item) (string, error) {
	if s.opts.Route == nil {
		return s.opts.Subject, nil
	}
	subject, err := s.opts.Route.Target(&it.Message)
	if err == nil && (len(subject) > maxSubject || strings.ContainsAny(subject, "*> \t\r\n\x00") || strings.HasPrefix(subject, "$") || strings.Contains("."+subject+".", "..")) {
		err = fmt.Errorf("%.100q is not a subject that can be published to: %w", subject, pipeline.ErrRoute)
	}
	return subject, err
}

// message returns the message to publish for an item. Headers that are instructions to
// the server are left out. A header that NATS cannot carry is a permanent error.
func (s *Sink) message(it *pipeline.Item) (*natsgo.Msg, error) {
	subject, err := s.subject(it)
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	msg := &natsgo.Msg{Subject: subject, Data: it.Message.Body, Header: natsgo.Header{}}
	for _, h := range header.Output(it, s.opts.Name) {
		if len(h.Name) > 5 && strings.EqualFold(h.Name[:5], "nats-") {
			continue
		}
		if h.Name == "" || strings.ContainsAny(h.Name, ":\r\n \t") || strings.ContainsAny(string(h.Value), "\r\n") || strings.TrimSpace(string(h.Value)) != string(h.Value) {
			return nil, semel.Permanent(fmt.Errorf("nats: the header %q has a name or value that NATS cannot carry", h.Name))
		}
		msg.Header[h.Name] = append(msg.Header[h.Name], string(h.Value))
	}
	msg.Header.Set(jetstream.MsgIDHeader, header.OnceID(it, s.opts.Name, subject, longestID))
	return msg, nil
}

// codeNotExpected is a code of the server's errors, see server/errors.json of nats-server.
const codeNotExpected = 10060 // another stream took the message

// refused classifies an error of a publication.
func (s *Sink) refused(ctx context.Context, js jetstream.JetStream, it *pipeline.Item, err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, natsgo.ErrMaxPayload), errors.Is(err, natsgo.ErrBadHeaderMsg), errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum):
		return semel.Permanent(failed(s.opts.URL, "", err))
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, natsgo.ErrNoResponders):
		return s.untaken(ctx, js, it)
	case errors.Is(err, natsgo.ErrReconnectBufExceeded), errors.Is(err, natsgo.ErrConnectionReconnecting), errors.Is(err, natsgo.ErrConnectionClosed), errors.Is(err, jetstream.ErrTooManyStalledMsgs):
		return pipeline.Unavailable(failed(s.opts.URL, "", s.link.refused(err)), 0) // nothing was sent
	case errors.As(err, &api):
		err = failed(s.opts.URL, "", err)
		if s.opts.Route != nil && api.ErrorCode == codeNotExpected {
			return err // its own failure: another stream has its subject
		}
		if api.ErrorCode == codeNotExpected || api.Code >= 500 {
			return pipeline.Unavailable(err, 0) // the stream is full, or the server has no room or no leader
		}
		return err
	}
	return pipeline.Unavailable(fmt.Errorf("nats: %w: %w", semel.ErrOutcomeUnknown, s.link.refused(err)), 0)
}

// untaken is the error of a message that no stream took. If it named its subject, and
// the server has no stream for that, others are not affected. A server that is starting
// takes no subject.
func (s *Sink) untaken(ctx context.Context, js jetstream.JetStream, it *pipeline.Item) error {
	subject, _ := s.subject(it)
	err := fmt.Errorf("nats: %w", &MissingError{Subject: subject})
	if s.opts.Route != nil {
		if _, missing := errors.AsType[*MissingError](s.takes(ctx, js, subject)); missing {
			return err
		}
	}
	return pipeline.Unavailable(err, 0)
}
