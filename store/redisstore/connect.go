package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// Client is a connection to a server, a cluster, or a master under Sentinel. It
// is a [rueidis.Client] with two additions: Do and DoMulti have a time-out, and
// while the server does not answer, they fail immediately. Its methods may be
// called concurrently.
//
// The client never sends a command twice, unless the server said that it did
// not run the command: the client follows MOVED and ASK of a cluster. A command
// whose answer did not arrive fails with [semel.ErrOutcomeUnknown]. A command
// that was certainly not sent fails with [semel.ErrStoreUnavailable].
type Client struct {
	rueidis.Client
	timeout time.Duration
	secured bool // uses TLS
	circuit circuit
	closed  atomic.Bool
}

var _ rueidis.Client = (*Client)(nil)

// NewClient connects to the servers that a URL names:
//
//	redis://[user[:password]@]host[:port][,host[:port]…][/database]
//
// rediss:// is the same over TLS. A single host is a server or a node of a
// cluster; the client asks it which. Several hosts are nodes of one cluster. With
// [ClientOptions.Master] all hosts are Sentinels. Write special characters in
// user and password as %XX. Nil options are valid. The caller closes the client.
//
// NewClient blocks until a server has answered. When ctx ends, NewClient stops
// dialling; a server that is connected still has ConnectTimeout to answer. Errors
// about URL or options wrap [semel.ErrInvalidRequest]. If no server accepts the
// client, the error wraps [semel.ErrStoreUnavailable]. No error contains the
// password.
func NewClient(ctx context.Context, url string, opts *ClientOptions) (*Client, error) {
	o, target, err := opts.resolve(url)
	if err != nil {
		return nil, err
	}
	dialing, cancel := context.WithCancel(context.Background())
	defer context.AfterFunc(ctx, cancel)()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redisstore: connect: %w: %w", semel.ErrStoreUnavailable, context.Cause(ctx))
	}
	client, err := rueidis.NewClient(o.client(target.hosts, dialing))
	switch {
	case errors.Is(err, semel.ErrStoreUnavailable):
		return nil, fmt.Errorf("redisstore: connect: %w", err)
	case err != nil:
		return nil, fmt.Errorf("redisstore: connect: %w: %w", semel.ErrStoreUnavailable, err)
	}
	return &Client{Client: client, timeout: o.Timeout, secured: o.TLS != nil}, nil
}

// client returns the options of the client library. Dialling stops when dialing
// ends, or when the context of the command that needs the connection ends.
func (o *ClientOptions) client(hosts []string, dialing context.Context) rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress: hosts,
		Username:    o.Username,
		Password:    o.Password,
		SelectDB:    o.database,
		ClientName:  clientName,
		TLSConfig:   o.TLS,
		Sentinel: rueidis.SentinelOption{
			MasterSet:  o.Master,
			Username:   o.SentinelUsername,
			Password:   o.SentinelPassword,
			ClientName: clientName,
			TLSConfig:  o.TLS,
			Dialer:     net.Dialer{Timeout: o.ConnectTimeout},
			// A demoted master stays alive. Without this refresh, one missed
			// message of the Sentinels would bind the client to that master
			// forever.
			TopologyRefreshInterval: sentinelRefresh,
		},
		ClusterOption: rueidis.ClusterOption{MaxMovedRedirections: maxRedirections},
		Dialer:        net.Dialer{Timeout: o.ConnectTimeout},
		DialCtxFn: func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
			limited, cancel := context.WithTimeout(ctx, o.ConnectTimeout)
			defer cancel()
			defer context.AfterFunc(dialing, cancel)()
			conn, err := dial(limited, addr, d, config)
			if err != nil && ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", errAbandoned, err)
			}
			return conn, err
		},
		// The library closes connections that do not answer. Each call has the
		// client's time-out in addition.
		ConnWriteTimeout: o.Timeout,
		// A client-side cache would be a second store with its own view of
		// records.
		DisableCache: true,
		// A command that was sent may have run. The guard repeats it in a way
		// that the store recognises.
		DisableRetry: true,
		// CLIENT SETINFO needs an extra permission.
		ClientSetInfo: rueidis.DisableClientSetInfo,
	}
}

const (
	sentinelRefresh = 2 * time.Second
	// maxRedirections bounds how often one command follows MOVED and ASK. While
	// a slot moves, two redirections are usual.
	maxRedirections = 8
)

// errAbandoned marks a dial that ended because its caller gave up. All calls
// that waited for the same connection get this error too.
var errAbandoned = errors.New("the caller gave up")

// dial connects. If dial fails, nothing was sent.
func dial(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err == nil && config != nil {
		conn, err = handshake(ctx, conn, addr, config)
	}
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w: %w", addr, semel.ErrStoreUnavailable, err)
	}
	return conn, nil
}

// handshake starts TLS. Another server tells the client the addresses of
// cluster nodes and of masters under Sentinel. So the name to verify is the
// host of each connection, unless the configuration sets one name for all.
func handshake(ctx context.Context, conn net.Conn, addr string, config *tls.Config) (net.Conn, error) {
	if config.ServerName == "" {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		config = config.Clone()
		config.ServerName = host
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return secured, nil
}

// Do sends one command and waits for its answer, at most for the client's
// time-out.
func (c *Client) Do(ctx context.Context, cmd rueidis.Completed) rueidis.RedisResult {
	pass, err := c.enter()
	if err != nil {
		return rueidis.NewErrorResult(err)
	}
	limited, cancel := c.limit(ctx)
	defer cancel()
	result := []rueidis.RedisResult{c.Client.Do(limited, cmd)}
	for abandoned(limited, result) {
		result[0] = c.Client.Do(limited, cmd)
	}
	c.leave(ctx, pass, result)
	return result[0]
}

// DoMulti sends commands together and waits for their answers, at most for the
// client's time-out.
func (c *Client) DoMulti(ctx context.Context, multi ...rueidis.Completed) []rueidis.RedisResult {
	pass, err := c.enter()
	if err != nil {
		return slices.Repeat([]rueidis.RedisResult{rueidis.NewErrorResult(err)}, len(multi))
	}
	limited, cancel := c.limit(ctx)
	defer cancel()
	results := c.Client.DoMulti(limited, multi...)
	for abandoned(limited, results) {
		results = c.Client.DoMulti(limited, multi...)
	}
	c.leave(ctx, pass, results)
	return results
}

// abandoned reports whether a call sent nothing because another caller, who had
// begun to dial for both, gave up. The call may then be made again.
func abandoned(ctx context.Context, results []rueidis.RedisResult) bool {
	for i := range results {
		if !errors.Is(results[i].NonRedisError(), errAbandoned) {
			return false
		}
	}
	return len(results) > 0 && ctx.Err() == nil
}

// Close waits for running calls and closes the connections. Later calls fail
// with [semel.ErrClosed]. A second Close does nothing.
func (c *Client) Close() {
	if !c.closed.Swap(true) {
		c.Client.Close()
	}
}

// Status reports whether the server answers. It does not block.
func (c *Client) Status() Status { return c.circuit.status() }

// enter reports whether a call may be made.
func (c *Client) enter() (pass, error) {
	if c.closed.Load() {
		return pass{}, fmt.Errorf("the client is closed: %w", semel.ErrClosed)
	}
	return c.circuit.enter(time.Now())
}

// limit applies the client's time-out, unless the deadline of ctx is earlier.
func (c *Client) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= c.timeout {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, c.timeout)
}

// leave reports the result of a call to the circuit. It replaces time-outs of
// the client by errors that say so.
func (c *Client) leave(ctx context.Context, p pass, results []rueidis.RedisResult) {
	var failure error
	answered := false
	for i := range results {
		err := results[i].NonRedisError()
		if err == nil {
			answered = true
			continue
		}
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %v: %w", c.timeout, semel.ErrOutcomeUnknown)
			results[i] = rueidis.NewErrorResult(err)
		}
		failure = err
	}
	c.circuit.leave(p, time.Now(), answered, failure)
}
