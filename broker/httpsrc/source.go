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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
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
	// TLS secures the listener. Defaults to nil: no TLS.
	TLS *tls.Config
	// Authorization is the required value of the header of that name. Defaults
	// to "": every request is accepted, except that on a loopback address those
	// of web pages of other sites are answered with 403.
	Authorization string

	queue    int           // requests that may wait to be read; smaller in tests
	most     int64         // open connections, and unanswered requests; smaller in tests
	patience time.Duration // for a header, and for a body beyond minRate; shorter in tests
}

// decisionHeader is the header of an answer with the decision about the
// message.
const decisionHeader = "Semel-Decision"

// Source receives requests. Open makes it.
type Source struct {
	opts      Options
	listener  net.Listener
	server    *http.Server
	partition *pipeline.Partition
	decoders  *decoders
	queue     chan *pipeline.Item
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

var _ pipeline.Source = (*Source)(nil)

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
		queue: make(chan *pipeline.Item, o.queue), closing: make(chan struct{}), failed: make(chan error, 1),
	}
	if end, ok := listener.Addr().(*net.TCPAddr); ok && o.Authorization == "" && (o.TLS == nil || o.TLS.ClientCAs == nil) {
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

// Addr returns the address of the listener.
func (s *Source) Addr() net.Addr { return s.listener.Addr() }

// Traits implements pipeline.Source. The source can ask a sender to repeat a
// request.
func (s *Source) Traits() pipeline.SourceTraits { return pipeline.SourceTraits{CanReturn: true} }

// request is a request whose handler waits for its answer.
type request struct {
	answer chan answer
	held   hold
}

// settle answers the request. Its message takes no memory from now on.
func (r *request) settle(a answer) {
	r.held.release()
	r.answer <- a
}

// answer is the answer to one request.
type answer struct {
	status   int
	decision string
	after    time.Duration
	body     []byte
	text     string
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
	req := &request{make(chan answer, 1), hold{of: s}}
	it := s.item(r, req)
	if refused := s.receive(w, r, it, &req.held); refused != nil {
		req.held.release()
		write(w, *refused)
		return
	}
	s.await(w, r, it, req)
}

// receive reads the body of a message, or returns the answer that refuses it.
func (s *Source) receive(w http.ResponseWriter, r *http.Request, it *pipeline.Item, held *hold) *answer {
	list, refused := s.decoders.of(r.Header)
	if refused != nil {
		w.Header().Set("Accept-Encoding", codings)
		w.Header().Set("Connection", "close") // the body is not read
		return refused
	}
	sent, refused := s.body(w, r, it.Bytes(), held)
	if refused != nil {
		return refused
	}
	if it.Message.Body, refused = s.decoders.decode(r.Context(), list, sent, held); refused != nil {
		return refused
	}
	before := it.Bytes()
	if refused = unform(&it.Message); refused == nil && !held.add(it.Bytes()-before) {
		refused = later(full)
	}
	return refused
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

// later returns the answer to a request whose message is not settled.
func later(text string) *answer {
	return &answer{status: http.StatusServiceUnavailable, after: time.Second, text: text}
}

// await passes a message on and answers when it is settled. Every path writes
// an answer, because net/http sends 200 for a handler that just returns. The
// context of the request is not a reliable sign that the sender is gone. It
// also ends when the sender has closed its half of the connection and waits.
func (s *Source) await(w http.ResponseWriter, r *http.Request, it *pipeline.Item, req *request) {
	timer := time.NewTimer(s.opts.Wait)
	defer timer.Stop()
	if refused := s.pass(r, it, timer); refused != nil {
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
		write(w, *later("not settled in time: send it again"))
	}
}

// pass hands a message to the reader, or returns why it did not.
func (s *Source) pass(r *http.Request, it *pipeline.Item, timer *time.Timer) *answer {
	select {
	case <-s.closing:
		return later("shutting down: send it again")
	default:
	}
	select {
	case s.queue <- it:
		return nil
	case <-s.closing:
		return later("shutting down: send it again")
	case <-timer.C:
		return later("not read in time: send it again")
	case <-r.Context().Done():
		return later("not accepted: send it again")
	}
}

// item returns the message of a request without its body.
func (s *Source) item(r *http.Request, req *request) *pipeline.Item {
	it := &pipeline.Item{Partition: s.partition, Ref: req}
	it.Message = semel.Message{
		Headers: headers(r.Header), CaselessHeaders: true, Time: time.Now(),
		Origin: semel.Origin{Source: "http", Offset: s.offset.Add(1)},
	}
	return it
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

func write(w http.ResponseWriter, a answer) {
	if a.decision != "" {
		w.Header().Set(decisionHeader, a.decision)
	}
	if a.after > 0 {
		seconds := int64((a.after + time.Second - 1) / time.Second)
		w.Header().Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
	if a.text != "" {
		http.Error(w, a.text, a.status)
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // a sender that has left gets no answer
}

// Read implements pipeline.Source.
func (s *Source) Read(ctx context.Context) ([]*pipeline.Item, error) {
	select {
	case it := <-s.queue:
		items := []*pipeline.Item{it}
		for len(items) < 100 {
			select {
			case it := <-s.queue:
				items = append(items, it)
				continue
			default:
			}
			break
		}
		return items, nil
	case err := <-s.failed:
		return nil, fmt.Errorf("httpsrc: %w", err)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Ack implements pipeline.Source. It answers the requests.
func (s *Source) Ack(_ context.Context, items []*pipeline.Item) error {
	for _, it := range items {
		it.Ref.(*request).settle(answerOf(it))
	}
	return nil
}

func answerOf(it *pipeline.Item) answer {
	switch {
	case it.Parked != "":
		return answer{status: http.StatusAccepted, decision: "parked", text: "parked: " + string(it.Parked)}
	case it.Err != nil:
		return answer{status: http.StatusUnprocessableEntity, decision: "dropped", text: "given up"}
	case it.Result.Kind == semel.Failed: // permanently, and recorded as the outcome of its key
		return answer{status: http.StatusUnprocessableEntity, decision: it.Decision.String(), text: "failed permanently before"}
	}
	return answer{status: http.StatusOK, decision: it.Decision.String(), body: it.Result.Data}
}

// Return implements pipeline.Source. It asks the senders to repeat their
// requests.
func (s *Source) Return(_ context.Context, items []*pipeline.Item, delay time.Duration) error {
	for _, it := range items {
		a := answer{status: http.StatusServiceUnavailable, after: max(delay, time.Second), text: "not settled: send it again"}
		if it.Decision == semel.InFlight {
			a.status, a.decision, a.text = http.StatusConflict, "in_flight", "another delivery holds the key: send it again"
		}
		it.Ref.(*request).settle(a)
	}
	return nil
}

// Close implements pipeline.Source. It asks the senders of unread requests to
// repeat them.
func (s *Source) Close(ctx context.Context) error {
	s.once.Do(func() { close(s.closing) })
	for {
		select {
		case it := <-s.queue:
			_ = s.Return(ctx, []*pipeline.Item{it}, 0) // Return always succeeds
			continue
		default:
		}
		break
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
