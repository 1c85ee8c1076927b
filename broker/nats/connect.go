package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel"
)

// requestTimeout bounds a request to the server whose context has no deadline.
const requestTimeout = 10 * time.Second

// link is a connection of a source or sink. The client library restores it, except after
// some errors, such as a line that is longer than the server reads. It is replaced then.
type link struct {
	url    string
	opts   []natsgo.Option
	denied denied

	mu     sync.Mutex // guards the fields below
	conn   *natsgo.Conn
	js     jetstream.JetStream
	closed bool
}

// open connects.
func open(ctx context.Context, url string, opts []natsgo.Option) (*link, error) {
	l := &link{url: url, opts: opts}
	var err error
	if l.conn, l.js, err = connect(ctx, url, opts, &l.denied); err != nil {
		return nil, err
	}
	return l, nil
}

// get returns the connection. It connects again if the last one is closed permanently.
func (l *link) get(ctx context.Context) (*natsgo.Conn, jetstream.JetStream, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn.IsClosed() {
		if l.closed {
			return nil, nil, natsgo.ErrConnectionClosed
		}
		conn, js, err := connect(ctx, l.url, l.opts, &l.denied)
		if err != nil {
			return nil, nil, err
		}
		l.conn, l.js = conn, js
	}
	return l.conn, l.js, nil
}

// last returns the connection, which may be lost or closed.
func (l *link) last() *natsgo.Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn
}

// refused returns the last error of the connection if the servers refuse the credentials, and
// err otherwise.
func (l *link) refused(err error) error {
	last := l.last().LastError()
	for _, refusal := range [...]error{natsgo.ErrAuthorization, natsgo.ErrAuthExpired, natsgo.ErrAuthRevoked, natsgo.ErrAccountAuthExpired} {
		if errors.Is(last, refusal) {
			return refusal
		}
	}
	return err
}

// close closes the connection.
func (l *link) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.conn.Close()
}

// connect connects to the first server that answers, and looks whether it has
// JetStream. The connection is restored for as long as the client library can, even if the
// servers refuse the credentials for a while. What is published while there is no
// connection fails immediately, and is not kept in memory. calls end when the server denies
// a right.
func connect(ctx context.Context, url string, opts []natsgo.Option, calls *denied) (*natsgo.Conn, jetstream.JetStream, error) {
	all := []natsgo.Option{
		natsgo.Name("semel"), natsgo.Timeout(requestTimeout), natsgo.MaxReconnects(-1), natsgo.ReconnectBufSize(-1), natsgo.IgnoreAuthErrorAbort(),
		natsgo.ReconnectWait(100 * time.Millisecond), natsgo.ReconnectJitter(100*time.Millisecond, 500*time.Millisecond),
		natsgo.PingInterval(20 * time.Second), natsgo.MaxPingsOutstanding(2),
		// The client library writes these errors to standard error otherwise. The
		// source and the sink report them where they matter.
		natsgo.ErrorHandler(func(*natsgo.Conn, *natsgo.Subscription, error) {}),
	}
	conn, err := natsgo.Connect(url, append(all, opts...)...)
	if err != nil {
		return nil, nil, failed(url, "connect: ", err)
	}
	calls.follow(conn)
	js, err := jetstream.New(conn, jetstream.WithPublishAsyncMaxPending(maxPending), jetstream.WithPublishAsyncTimeout(requestTimeout), jetstream.WithDefaultTimeout(requestTimeout))
	if err == nil {
		err = calls.during(ctx, func(ctx context.Context) error {
			_, err := js.AccountInfo(ctx)
			return err
		})
	}
	if err != nil {
		conn.Close()
		return nil, nil, failed(url, "ask for JetStream: ", err)
	}
	return conn, js, nil
}

// unreachableError says that there is no connection to a server.
type unreachableError struct {
	url string
	err error
}

// Error implements error. It leaves out credentials that are part of the addresses.
func (e *unreachableError) Error() string {
	addrs := strings.Split(e.url, ",")
	for i, addr := range addrs {
		addrs[i] = addr[strings.LastIndexAny(addr, "@/")+1:]
	}
	return "no NATS server answers at " + strings.Join(addrs, ", ")
}

// Unwrap returns the cause.
func (e *unreachableError) Unwrap() error { return e.err }

// Is reports whether target is semel.ErrStoreUnavailable or natsgo.ErrNoServers.
func (e *unreachableError) Is(target error) bool {
	return target == semel.ErrStoreUnavailable || target == natsgo.ErrNoServers
}

// failure names the package in an error. Errors of the client library name it
// already.
type failure struct {
	doing string
	err   error
}

// Error implements error.
func (e *failure) Error() string {
	return "nats: " + e.doing + strings.TrimPrefix(e.err.Error(), "nats: ")
}

// Unwrap returns the cause.
func (e *failure) Unwrap() error { return e.err }

// failed describes an error of a request to the servers in url.
func failed(url, doing string, err error) error {
	for _, lost := range [...]error{natsgo.ErrNoServers, natsgo.ErrReconnectBufExceeded, natsgo.ErrConnectionReconnecting, natsgo.ErrDisconnected} {
		if errors.Is(err, lost) {
			return &failure{doing, &unreachableError{url, err}}
		}
	}
	return &failure{doing, err}
}

// CheckName returns an error if no stream or consumer can have a name. An empty name is
// none.
func CheckName(name string) error {
	for _, c := range name {
		if strings.ContainsRune(`.*>/\`, c) || unicode.IsSpace(c) || !unicode.IsPrint(c) {
			return fmt.Errorf(`%q is not allowed; use letters, digits, - and _: %w`, c, semel.ErrInvalidRequest)
		}
	}
	return nil
}

// MissingError says that a stream or consumer does not exist. Consumer is empty if
// the stream does not exist. It wraps semel.ErrStoreUnavailable, because what is
// missing may be created at any time.
type MissingError struct {
	Stream, Consumer string
	// Subject is what no stream takes, if Stream is not known.
	Subject string
}

// Error implements error.
func (e *MissingError) Error() string {
	switch {
	case e.Consumer != "":
		return fmt.Sprintf("stream %s has no consumer %s", e.Stream, e.Consumer)
	case e.Stream == "":
		return "no stream takes the subject " + e.Subject
	}
	return "there is no stream " + e.Stream
}

// Is reports whether target is semel.ErrStoreUnavailable.
func (*MissingError) Is(target error) bool { return target == semel.ErrStoreUnavailable }

// streamOf returns a stream. If it does not exist and create is true, it is made
// with these subjects: in files, one copy, and with the server's other defaults.
func streamOf(ctx context.Context, js jetstream.JetStream, name string, create bool, subjects []string) (jetstream.Stream, error) {
	stream, err := js.Stream(ctx, name)
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return stream, err
	}
	if !create || len(subjects) == 0 {
		return nil, &MissingError{Stream: name}
	}
	stream, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: subjects, Storage: jetstream.FileStorage})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
		stream, err = js.Stream(ctx, name)
	}
	return stream, err
}
