package httpsrc

import (
	"cmp"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
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
	"github.com/semel-dev/semel/pipeline"
)

// Options are the options of Open. Listen is required.
type Options struct {
	// Listen is the address, such as "127.0.0.1:8080". Port 0 selects a free
	// port.
	Listen string
	// Path is the path of the requests. Defaults to "/".
	Path string
	// MaxBody is the longest body in bytes. Defaults to 1 MiB.
	MaxBody int64
	// Wait is how long a request waits until its message is settled. After that
	// it is answered with 503. Defaults to 30 s.
	Wait time.Duration
	// MaxBytes bounds the bodies of the requests that wait for their answer. A
	// request without a length counts as MaxBody while its body is read.
	// Further requests are answered with 503 before their bodies are read.
	// Defaults to 256 MiB, and to at least MaxBody.
	MaxBytes int64
	// TLS secures the listener. Defaults to nil: no TLS.
	TLS *tls.Config
	// Authorization is the required value of the header of that name. Defaults
	// to "": every request is accepted, except that on a loopback address those
	// of web pages of other sites are answered with 403.
	Authorization string

	queue int // requests that may wait to be read; smaller in tests
}

// DecisionHeader is the header of an answer with the decision about the
// message.
const DecisionHeader = "Semel-Decision"

// Source receives requests. Open makes it.
type Source struct {
	opts      Options
	listener  net.Listener
	server    *http.Server
	partition *pipeline.Partition
	queue     chan *pipeline.Item
	closing   chan struct{}
	once      sync.Once
	offset    atomic.Int64
	held      atomic.Int64 // bytes of bodies in memory
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
	o.MaxBytes = max(cmp.Or(o.MaxBytes, 256<<20), o.MaxBody)
	if err := o.validate(); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("httpsrc: %w", err)
	}
	s := &Source{
		opts: o, listener: listener, partition: pipeline.NewPartition("http"),
		queue: make(chan *pipeline.Item, o.queue), closing: make(chan struct{}), failed: make(chan error, 1),
	}
	if end, ok := listener.Addr().(*net.TCPAddr); ok && o.Authorization == "" && (o.TLS == nil || o.TLS.ClientCAs == nil) {
		s.local = end.IP.IsLoopback()
	}
	s.offset.Store(time.Now().UnixNano())
	s.server = &http.Server{
		Handler: http.HandlerFunc(s.handle), TLSConfig: o.TLS,
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
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
type request struct{ answer chan answer }

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
	body, release, ok := s.body(w, r)
	defer release()
	if !ok {
		return
	}
	s.await(w, r, body)
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

// body reads the body of a request, or answers the request with an error. The
// bytes of the body count until release is called.
func (s *Source) body(w http.ResponseWriter, r *http.Request) (body []byte, release func(), ok bool) {
	length := r.ContentLength
	if length < 0 {
		length = s.opts.MaxBody
	}
	if length > s.opts.MaxBody {
		s.tooLarge(w)
		return nil, func() {}, false
	}
	release = func() { s.held.Add(-length) }
	if s.held.Add(length) > s.opts.MaxBytes {
		write(w, later("too many requests are waiting: send it again"))
		return nil, release, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opts.MaxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		s.tooLarge(w)
	case err != nil:
		http.Error(w, "the body could not be read", http.StatusBadRequest)
	default:
		s.held.Add(int64(len(body)) - length)
		length = int64(len(body))
		return body, release, true
	}
	return nil, release, false
}

func (s *Source) tooLarge(w http.ResponseWriter) {
	w.Header().Set("Connection", "close") // the rest is not read
	http.Error(w, fmt.Sprintf("the body is longer than %d bytes", s.opts.MaxBody), http.StatusRequestEntityTooLarge)
}

// later returns the answer to a request whose message is not settled.
func later(text string) answer {
	return answer{status: http.StatusServiceUnavailable, after: time.Second, text: text}
}

// await passes a message on and answers when it is settled. Every path writes
// an answer, because net/http sends 200 for a handler that just returns. The
// context of the request is not a reliable sign that the sender is gone. It
// also ends when the sender has closed its half of the connection and waits.
func (s *Source) await(w http.ResponseWriter, r *http.Request, body []byte) {
	timer := time.NewTimer(s.opts.Wait)
	defer timer.Stop()
	req := &request{make(chan answer, 1)}
	select {
	case <-s.closing:
		write(w, later("shutting down: send it again"))
		return
	default:
	}
	select {
	case s.queue <- s.item(r, body, req):
	case <-s.closing:
		write(w, later("shutting down: send it again"))
		return
	case <-timer.C:
		write(w, later("not read in time: send it again"))
		return
	case <-r.Context().Done():
		write(w, later("not accepted: send it again"))
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
		write(w, later("not settled in time: send it again"))
	}
}

func (s *Source) item(r *http.Request, body []byte, req *request) *pipeline.Item {
	it := &pipeline.Item{Partition: s.partition, Ref: req}
	m := &it.Message
	m.Body, m.Time = body, time.Now()
	m.Origin = semel.Origin{Source: "http", Offset: s.offset.Add(1)}
	for name, values := range r.Header {
		if name == "Authorization" || name == "Cookie" {
			continue // these headers are for the source and must not be forwarded
		}
		if name == "Traceparent" || name == "Tracestate" {
			name = strings.ToLower(name) // readers of Kafka headers compare names by case
		}
		for _, value := range values {
			m.Headers = append(m.Headers, semel.Header{Name: name, Value: []byte(value)})
		}
	}
	slices.SortStableFunc(m.Headers, func(a, b semel.Header) int { return cmp.Compare(a.Name, b.Name) })
	return it
}

func write(w http.ResponseWriter, a answer) {
	if a.decision != "" {
		w.Header().Set(DecisionHeader, a.decision)
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
		it.Ref.(*request).answer <- answerOf(it)
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
		it.Ref.(*request).answer <- a
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
	err := s.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.server.Close())
	}
	s.serving.Wait()
	return err
}
