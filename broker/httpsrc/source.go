package httpsrc

import (
	"cmp"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/httpsrc/provider"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/structured"
	"github.com/semel-dev/semel/pipeline"
)

// Options are the options of Open. Listen is required.
type Options struct {
	// Listen is the address, such as "127.0.0.1:8080". Port 0 selects a free
	// port.
	Listen string
	// Path is the path of the requests. Defaults to "/".
	Path string
	// MaxBody is the longest body in bytes, also after it was decompressed. Defaults to
	// 1 MiB.
	MaxBody int64
	// Wait is how long a request waits until its message is settled. After that
	// it is answered with 503. Defaults to 30 s.
	Wait time.Duration
	// MaxBytes bounds the messages in memory, as pipeline.Item.Bytes counts them.
	// A message counts from the first byte of its body until it is settled, even
	// if its sender has left before. Requests beyond the bound are answered with
	// 503. A larger message is accepted if no other is in memory. Set it to
	// pipeline.Options.MaxBytes. Defaults to 64 MiB.
	MaxBytes int64
	// Split says where a request has its messages. They are answered together, with their
	// counts. Each needs a key of its own, so a key must not be made of headers alone.
	// Defaults to nil: the body is one message.
	Split *Split
	// TLS secures the listener. Defaults to nil: no TLS.
	TLS *tls.Config
	// Authorization is the required value of the header of that name. Defaults
	// to "": every request is accepted, except that on a loopback address those
	// of web pages of other sites are answered with 403.
	Authorization string
	// Verify checks the signature of a request over its body as it arrived. A
	// [*provider.Refusal] is answered with 401. Any other error is answered with 503, and told
	// to the Observer alone. Defaults to nil: no signature is needed.
	Verify func(r *http.Request, body []byte) error
	// Handshakes are the requests that are no messages. Defaults to none.
	Handshakes []*provider.Handshake
	// AttemptHeaders are headers that differ when a sender repeats a request, such as a
	// signature with a time, besides those that proxies add. Defaults to none.
	AttemptHeaders []string
	// Pipeline is the name of the pipeline, for events. Observer gets an event when messages
	// begin to fail all alike, with the names that the last one had, and when that ends. It also
	// gets one if a signature is wrong or cannot be checked, and if a handshake is about a
	// subscription. Defaults to none.
	Pipeline string
	Observer pipeline.Observer

	queue    int           // requests that may wait to be read; smaller in tests
	most     int64         // open connections, and unanswered requests; smaller in tests
	patience time.Duration // for a header, and for a body beyond minRate; shorter in tests
}

// Source receives requests. Open makes it.
type Source struct {
	opts      Options
	listener  net.Listener
	server    *http.Server
	partition *pipeline.Partition
	decoders  *decoders
	doubts    doubts
	queue     chan *request
	reading   *request // some of its messages were read; used by Read and Close
	closing   chan struct{}
	once      sync.Once
	offset    atomic.Int64
	held      atomic.Int64 // bytes of messages in memory
	conns     atomic.Int64 // open connections
	requests  atomic.Int64 // requests without an answer
	local     bool         // being on this machine is all that permits a request
	serving   sync.WaitGroup
	failed    chan error
}

var (
	_ pipeline.Source = (*Source)(nil)
	_ doctor.Readier  = (*Source)(nil)
)

// Open listens and answers requests from now on. One error names all invalid
// options, and wraps semel.ErrInvalidRequest.
func Open(opts *Options) (*Source, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	o.Path = cmp.Or(o.Path, "/")
	o.MaxBody = cmp.Or(o.MaxBody, 1<<20)
	o.Wait = cmp.Or(o.Wait, 30*time.Second)
	o.queue = cmp.Or(o.queue, 256)
	o.most = cmp.Or(o.most, mostOpen)
	o.patience = cmp.Or(o.patience, 10*time.Second)
	o.MaxBytes = cmp.Or(o.MaxBytes, 64<<20)
	if err := o.validate(); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("httpsrc: %w", err)
	}
	s := &Source{
		opts: o, listener: listener, partition: pipeline.NewPartition("http"), decoders: newDecoders(o.MaxBody),
		queue: make(chan *request, o.queue), closing: make(chan struct{}), failed: make(chan error, 1),
		doubts: doubts{pipeline: o.Pipeline, observer: o.Observer},
	}
	if end, ok := listener.Addr().(*net.TCPAddr); ok && o.Authorization == "" && o.Verify == nil && (o.TLS == nil || o.TLS.ClientCAs == nil) {
		s.local = end.IP.IsLoopback()
	}
	s.offset.Store(time.Now().UnixNano())
	s.server = &http.Server{
		Handler: http.HandlerFunc(s.handle), TLSConfig: o.TLS,
		ReadHeaderTimeout: o.patience, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10, ConnState: s.count,
	}
	s.serving.Go(func() {
		var err error
		if o.TLS != nil {
			err = s.server.ServeTLS(listener, "", "")
		} else {
			err = s.server.Serve(listener)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			s.failed <- err
		}
	})
	return s, nil
}

func (o *Options) validate() error {
	wrong := invalid.In("httpsrc: Options.")
	if o.Listen == "" {
		wrong.Add("Listen is missing")
	}
	if o.Path[0] != '/' {
		wrong.Add("Path: %q does not begin with /", o.Path)
	}
	if o.MaxBody < 0 || o.Wait < 0 || o.MaxBytes < 0 {
		wrong.Add("MaxBody, Wait, MaxBytes: %d, %v, %d: none may be negative", o.MaxBody, o.Wait, o.MaxBytes)
	}
	return wrong.Err()
}

// Ready implements doctor.Readier. A source whose messages fail all alike is not ready until one
// does not, or until none has come for a minute. The error has no part of a message.
func (s *Source) Ready(context.Context) error { return s.doubts.ready() }

// Addr returns the address of the listener.
func (s *Source) Addr() net.Addr { return s.listener.Addr() }

// Traits implements pipeline.Source. The source can ask a sender to repeat a
// request, and a sender also does that unasked.
func (s *Source) Traits() pipeline.SourceTraits {
	return pipeline.SourceTraits{CanReturn: true, Repeats: true, OfAttempt: s.ofAttempt}
}

// ofAttempt reports whether a header may differ when a request is repeated, and is no id of an
// event. X-Request-Id may be one, so two messages that differ in it are both parked.
func (s *Source) ofAttempt(name string) bool {
	switch name {
	case "date", "forwarded", "via", "x-real-ip", "true-client-ip", "x-request-start", "traceparent", "tracestate", "b3", "x-amzn-trace-id", "x-cloud-trace-context", "x-slack-retry-num", "x-slack-retry-reason":
		return true
	}
	for _, begin := range []string{"x-forwarded-", "x-b3-", "x-envoy-", "cf-"} {
		if strings.HasPrefix(name, begin) {
			return true
		}
	}
	return slices.ContainsFunc(s.opts.AttemptHeaders, func(header string) bool { return strings.EqualFold(header, name) })
}

// handle serves one request.
func (s *Source) handle(w http.ResponseWriter, r *http.Request) {
	s.limitTime(w, r)
	defer s.requests.Add(-1)
	if s.requests.Add(1) > s.opts.most {
		write(w, *later(full))
		return
	}
	switch {
	case r.URL.Path != s.opts.Path:
		http.Error(w, "unknown path: send a POST request to "+s.opts.Path, http.StatusNotFound)
		return
	case r.Method != http.MethodPost:
		if reply, err := s.shake(r, nil, false); reply != nil {
			s.told(reply, err, nil)
			write(w, *reply)
			return
		}
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST is allowed", http.StatusMethodNotAllowed)
		return
	case s.opts.Authorization != "" && subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte(s.opts.Authorization)) == 0:
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "not authorized", http.StatusUnauthorized)
		return
	case s.local && foreignPage(r.Header.Get("Origin")):
		http.Error(w, "a web page of another site may not send messages here: set a token, which a proxy can add", http.StatusForbidden)
		return
	}
	req := &request{message: message(r), answer: make(chan answer, 1), held: hold{of: s}}
	refusal := s.receive(w, r, req)
	switch {
	case refusal != nil:
		req.held.release()
		write(w, *refusal)
	case req.open == 0:
		req.held.release()
		write(w, req.counts.answer())
	default:
		s.await(w, r, req)
	}
}

// receive reads the body of a request and finds its messages, or returns the answer that
// refuses it.
func (s *Source) receive(w http.ResponseWriter, r *http.Request, req *request) *answer {
	list, refusal := s.decoders.of(r.Header)
	if refusal != nil {
		w.Header().Set("Accept-Encoding", codings)
		w.Header().Set("Connection", "close") // the body is not read
		return refusal
	}
	m := &req.message
	sent, refusal := s.body(w, r, bytesOf(m), &req.held)
	if refusal != nil {
		return refusal
	}
	if refusal = s.admit(w, r, m, sent); refusal != nil {
		return refusal
	}
	if m.Body, refusal = s.decoders.decode(r.Context(), list, sent, &req.held); refusal != nil {
		return refusal
	}
	before := bytesOf(m)
	if refusal = unform(m); refusal != nil {
		return refusal
	}
	if int64(len(m.Body)) > s.opts.MaxBody { // the document of a form can be longer than the form
		return tooLarge(s.opts.MaxBody)
	}
	if !req.held.add(bytesOf(m) - before) {
		return later(full)
	}
	var err error
	if req.events, err = s.opts.Split.of(m.Body); errors.Is(err, errManyMessages) {
		return &answer{status: http.StatusRequestEntityTooLarge, text: err.Error()}
	} else if err != nil {
		s.doubts.fails(&s.doubts.messages, refused("split", "its messages cannot be found", err), m)
		return &answer{status: http.StatusBadRequest, text: "the messages of the request cannot be found: " + err.Error()}
	}
	req.open, req.divided = req.events.count, s.opts.Split != nil
	return nil
}

// bytesOf returns what a message takes of the bound.
func bytesOf(m *semel.Message) int64 { return (&pipeline.Item{Message: *m}).Bytes() }

// admit checks the signature of a request over its body as it arrived. It returns the answer
// to a request without a valid one, or to a handshake, and nil for a message.
func (s *Source) admit(w http.ResponseWriter, r *http.Request, m *semel.Message, body []byte) *answer {
	if reply, err := s.shake(r, body, false); reply != nil {
		s.told(reply, err, m)
		return reply
	}
	if s.opts.Verify != nil {
		if err := s.opts.Verify(r, body); err != nil {
			answer := refusal(err, http.StatusUnauthorized)
			if answer.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Signature")
				s.doubts.fails(&s.doubts.signatures, s.doubts.unsigned(err), m)
			} else {
				s.doubts.fails(&s.doubts.checks, unchecked(err), m)
			}
			return answer
		}
		s.doubts.succeeds(&s.doubts.signatures)
		if n := len(r.Header["Content-Type"]); n > 1 { // it is not signed, and says how the body is read
			return &answer{status: http.StatusBadRequest, text: fmt.Sprintf("the request has %d headers Content-Type, expected one", n)}
		}
	}
	reply, err := s.shake(r, body, true)
	if s.told(reply, err, m); err == nil && s.opts.Verify != nil {
		s.doubts.succeeds(&s.doubts.checks)
	}
	return reply
}

// shake returns the answer to a handshake, and nil for other requests. signed says whether
// its signature was checked. With an error, the answer says that it failed.
func (s *Source) shake(r *http.Request, body []byte, signed bool) (*answer, error) {
	for _, h := range s.opts.Handshakes {
		if r.Method == http.MethodPost && h.Unsigned == signed {
			continue
		}
		reply, err := h.Answer(r, body)
		if err != nil {
			return refusal(err, http.StatusForbidden), err
		}
		if reply != nil {
			return &answer{reply: reply}, nil
		}
	}
	return nil, nil
}

// told tells the observer what a handshake means, or why it failed. The request has no message.
func (s *Source) told(a *answer, err error, m *semel.Message) {
	switch {
	case err != nil:
		s.doubts.fails(&s.doubts.checks, unchecked(err), m)
	case a == nil || a.reply == nil || a.reply.Note == "":
	case a.reply.Ends:
		s.doubts.tell("a subscription has ended", &diagnose.Error{Cause: a.reply.Note, Shown: "no more messages come from it: the log has its name"})
	default:
		s.doubts.tell(a.reply.Note, nil)
	}
}

// refusal returns the answer to a request that is refused because of err. Another error than a
// refusal is about another server: the request can be sent again, and the log has the error.
func refusal(err error, status int) *answer {
	if _, refused := errors.AsType[*provider.Refusal](err); refused {
		return &answer{status: status, text: err.Error()}
	}
	return later("the request cannot be checked now, and the log of the receiver says why: send it again")
}

// foreignPage reports whether the Origin that a browser sends is not on this machine. It
// decides by the origin, because the Host of a page's own name that leads to this machine
// (DNS rebinding) looks like that of a proxy.
func foreignPage(origin string) bool {
	if origin == "" {
		return false // no browser
	}
	of, err := url.Parse(origin)
	if err != nil {
		return true
	}
	ip := net.ParseIP(of.Hostname())
	return of.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback())
}

// await passes a request on and answers when its messages are settled. Every path writes
// an answer, because net/http sends 200 for a handler that just returns. The
// context of the request is not a reliable sign that the sender is gone. It
// also ends when the sender has closed its half of the connection and waits.
func (s *Source) await(w http.ResponseWriter, r *http.Request, req *request) {
	timer := time.NewTimer(s.opts.Wait)
	defer timer.Stop()
	if refused := s.pass(r, req, timer); refused != nil {
		req.held.release()
		write(w, *refused)
		return
	}
	select {
	case a := <-req.answer:
		write(w, a)
		return
	case <-s.closing: // all requests that were read have their answers by now
	case <-timer.C:
	case <-r.Context().Done(): // the message continues
	}
	select {
	case a := <-req.answer:
		write(w, a)
	default:
		write(w, *later(fmt.Sprintf("not settled within %v, and semel status says why: send it again", s.opts.Wait)))
	}
}

// pass hands a request to the reader, or returns why it did not.
func (s *Source) pass(r *http.Request, req *request, timer *time.Timer) *answer {
	select {
	case <-s.closing:
		return later("shutting down: send it again")
	default:
	}
	select {
	case s.queue <- req:
		return nil
	case <-s.closing:
		return later("shutting down: send it again")
	case <-timer.C:
		return later(fmt.Sprintf("not read within %v, because other messages are in progress: send it again", s.opts.Wait))
	case <-r.Context().Done():
		return later("not accepted: send it again")
	}
}

// message returns the message of a request without its body.
func message(r *http.Request) semel.Message {
	return semel.Message{Headers: headers(r.Header), CaselessHeaders: true, Time: time.Now(), Origin: semel.Origin{Source: "http"}}
}

// headers returns the headers of a message in the order of their names. Each has one spelling for
// all that HTTP calls equal: the name in lower case, as HTTP/2 sends it, several lines as one,
// and an Idempotency-Key without the quotes of a string.
func headers(from http.Header) []semel.Header {
	list := make([]semel.Header, 0, len(from))
	for name, lines := range from {
		if IsKept(name) {
			continue
		}
		name, value := strings.ToLower(name), strings.Join(lines, ", ")
		if name == "idempotency-key" && structured.IsString(value) {
			if key, err := structured.String(value); err == nil {
				value = key
			}
		}
		list = append(list, semel.Header{Name: name, Value: []byte(value)})
	}
	slices.SortFunc(list, func(a, b semel.Header) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// IsKept reports whether the source keeps a header, in any case, to itself: credentials,
// which must not be forwarded, and how the body came, which it has decoded.
func IsKept(name string) bool {
	switch strings.ToLower(name) {
	case "authorization", "proxy-authorization", "cookie":
		return true
	case "content-encoding", "content-length", "transfer-encoding", "trailer", "host": // net/http takes the last three
		return true
	}
	return false
}

// Read implements pipeline.Source. The messages of a request are made when they are read, so
// that a request with many of them takes the memory of its body.
func (s *Source) Read(ctx context.Context) (items []*pipeline.Item, err error) {
	for len(items) < mostRead {
		if s.reading == nil {
			if s.reading, err = s.next(ctx, items == nil); s.reading == nil {
				return items, err
			}
		}
		if body, ok := s.reading.events.next(); ok {
			items = append(items, s.item(s.reading, slices.Clip(body))) // the next one is behind it
		} else {
			s.reading = nil
		}
	}
	return items, nil
}

// mostRead is how many messages one Read returns at most.
const mostRead = 100

// next returns the next request. Unless it may wait, it returns nil if there is no request.
func (s *Source) next(ctx context.Context, mayWait bool) (*request, error) {
	if !mayWait {
		select {
		case req := <-s.queue:
			return req, nil
		default:
			return nil, nil
		}
	}
	select {
	case req := <-s.queue:
		return req, nil
	case err := <-s.failed:
		return nil, fmt.Errorf("httpsrc: %w", err)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// item returns a message of a request.
func (s *Source) item(req *request, body []byte) *pipeline.Item {
	it := &pipeline.Item{Partition: s.partition, Ref: req, Message: req.message}
	it.Message.Body, it.Message.Origin.Offset = body, s.offset.Add(1)
	return it
}

// Ack implements pipeline.Source. It answers the requests.
func (s *Source) Ack(_ context.Context, items []*pipeline.Item) error {
	for _, it := range items {
		it.Ref.(*request).settle(s.doubts.settled(it))
	}
	return nil
}

// Return implements pipeline.Source. It asks the senders to repeat their
// requests.
func (s *Source) Return(_ context.Context, items []*pipeline.Item, delay time.Duration) error {
	for _, it := range items {
		it.Ref.(*request).settle(returned(it, delay))
	}
	return nil
}

// Close implements pipeline.Source. It asks the senders of unread requests to
// repeat them.
func (s *Source) Close(ctx context.Context) error {
	s.once.Do(func() { close(s.closing) })
	for s.reading != nil || len(s.queue) > 0 {
		if s.reading == nil {
			s.reading = <-s.queue
		}
		for _, ok := s.reading.events.next(); ok; _, ok = s.reading.events.next() {
			s.reading.settle(*later("not settled: send it again"))
		}
		s.reading = nil
	}
	grace, cancel := context.WithTimeout(ctx, closeGrace)
	defer cancel()
	err := s.server.Shutdown(grace)
	if err != nil {
		err = errors.Join(ctx.Err(), s.server.Close())
	}
	s.serving.Wait()
	return err
}
