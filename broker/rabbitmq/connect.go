package rabbitmq

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/semel-dev/semel"
)

const (
	// connectLimit bounds the connection to one server.
	connectLimit = 10 * time.Second
	// heartbeat is how often both sides show that they are there. A connection
	// without a sign for three times that long is lost.
	heartbeat = 5 * time.Second
	// writeLimit is how long the server may refuse to read before the connection
	// counts as lost.
	writeLimit = 20 * time.Second
)

// Client says how to reach the servers.
type Client struct {
	// Addrs are the addresses of nodes of one cluster, host:port. They are tried in
	// this order.
	Addrs []string
	// VHost is the virtual host. Defaults to /.
	VHost string
	// User and Password default to guest, which servers accept from their own
	// machine only.
	User, Password string
	// TLS enables TLS. Defaults to none.
	TLS *tls.Config
}

// host returns the virtual host.
func (c *Client) host() string { return cmp.Or(c.VHost, "/") }

// check reports what is missing.
func (c *Client) check() error {
	if len(c.Addrs) == 0 {
		return fmt.Errorf("rabbitmq: Client.Addrs is required: %w", semel.ErrInvalidRequest)
	}
	return nil
}

// link is a connection. Closing raw ends every call on it.
type link struct {
	conn *amqp.Connection
	raw  net.Conn
	// alarm is the latest alarm of the server: it is out of memory or disk.
	alarm atomic.Pointer[amqp.Blocking]
}

// connect connects to the first server that accepts. It blocks until then, or until
// ctx ends.
func (c *Client) connect(ctx context.Context) (*link, error) {
	var failed []error
	for _, addr := range c.Addrs {
		l, err := c.dial(ctx, addr)
		if err == nil {
			return l, nil
		}
		if passes(err) {
			err = &passingError{err}
		}
		failed = append(failed, fmt.Errorf("connect to %s: %w", addr, err))
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(failed...)
}

// passingError is an error in the handshake that passes by itself. It wraps
// semel.ErrStoreUnavailable.
type passingError struct{ error }

// Unwrap returns the cause.
func (e *passingError) Unwrap() error { return e.error }

// Is reports whether target is semel.ErrStoreUnavailable.
func (*passingError) Is(target error) bool { return target == semel.ErrStoreUnavailable }

// passes reports whether an error in the handshake passes by itself: the server ended
// in the middle of it, or cannot serve now. The client library reports a connection that
// was cut as a frame error.
func passes(err error) bool {
	refused, ok := errors.AsType[*amqp.Error](err)
	if !ok {
		return false
	}
	switch refused.Code {
	case amqp.FrameError, amqp.ConnectionForced, amqp.UnexpectedFrame, amqp.ResourceError, amqp.InternalError:
		return true
	}
	return false
}

func (c *Client) dial(ctx context.Context, addr string) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	l := &link{}
	release := func() bool { return true }
	config := amqp.Config{
		SASL:  []amqp.Authentication{&amqp.PlainAuth{Username: cmp.Or(c.User, "guest"), Password: cmp.Or(c.Password, "guest")}},
		Vhost: c.host(), Heartbeat: heartbeat, Properties: amqp.NewConnectionProperties(),
		Dial: func(network, addr string) (net.Conn, error) {
			var dialer net.Dialer
			raw, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			l.raw = limited{raw}
			release = context.AfterFunc(ctx, func() { _ = raw.Close() }) // ends the handshake
			return l.raw, nil
		},
	}
	config.Properties.SetClientConnectionName("semel")
	scheme := "amqp"
	if c.TLS != nil {
		scheme, config.TLSClientConfig = "amqps", c.TLS.Clone()
	}
	conn, err := amqp.DialConfig((&url.URL{Scheme: scheme, Host: addr}).String(), config)
	if !release() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if l.raw != nil {
			_ = l.raw.Close()
		}
		return nil, err
	}
	l.conn = conn
	return l, nil
}

// close closes the connection. It waits for the server until ctx ends.
func (l *link) close(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = l.raw.Close() })()
	if err := l.conn.Close(); err != nil && !errors.Is(err, amqp.ErrClosed) {
		return err
	}
	return nil
}

// limited is a connection whose writes do not wait forever. A server that is out of
// memory or disk stops reading from publishers.
type limited struct{ net.Conn }

// Write implements net.Conn.
func (c limited) Write(data []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return 0, err
	}
	return c.Conn.Write(data)
}

// MissingError says that a queue or exchange does not exist. It wraps
// semel.ErrStoreUnavailable, because what is missing may be created at any time.
type MissingError struct{ Queue, Exchange string }

// Error implements error.
func (e *MissingError) Error() string {
	if e.Queue != "" {
		return "there is no queue " + e.Queue
	}
	return "there is no exchange " + e.Exchange
}

// Is reports whether target is semel.ErrStoreUnavailable.
func (*MissingError) Is(target error) bool { return target == semel.ErrStoreUnavailable }

// missing returns a *MissingError instead of the server's answer.
func missing(err error, queue, exchange string) error {
	var answer *amqp.Error
	if errors.As(err, &answer) && answer.Code == amqp.NotFound && answer.Server {
		return &MissingError{Queue: queue, Exchange: exchange}
	}
	return err
}

// on calls fn with a channel of its own, which an error closes.
func (l *link) on(fn func(*amqp.Channel) error) error {
	ch, err := l.conn.Channel()
	if err != nil {
		return err
	}
	defer func() { _ = ch.Close() }() // an error of fn has closed it
	return fn(ch)
}

// needQueue looks up a queue. If it does not exist and create is true, it makes a
// quorum queue without a delivery limit that a message could reach.
func (l *link) needQueue(name string, create bool) error {
	err := l.on(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return missing(err, name, "")
	})
	if absent := new(MissingError); !create || !errors.As(err, &absent) {
		return err
	}
	args := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum}
	if l.major() >= 4 { // earlier servers have no limit by default
		args[limitArg] = int64(unreachedLimit)
	}
	return l.on(func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, true, false, false, false, args)
		return err
	})
}

// needExchange looks up an exchange. If it does not exist and create is true, it
// makes a durable topic exchange.
func (l *link) needExchange(name string, create bool) error {
	err := l.on(func(ch *amqp.Channel) error {
		return missing(ch.ExchangeDeclarePassive(name, amqp.ExchangeTopic, true, false, false, false, nil), "", name)
	})
	if absent := new(MissingError); !create || !errors.As(err, &absent) {
		return err
	}
	return l.on(func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(name, amqp.ExchangeTopic, true, false, false, false, nil)
	})
}
