package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func TestURLNamesHostsUserAndDatabase(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]target{
		"redis://localhost":                        {hosts: []string{"localhost:6379"}},
		"rediss://cache.example:6380/3":            {hosts: []string{"cache.example:6380"}, database: 3, secure: true},
		"redis://:s%40cret@h:1":                    {hosts: []string{"h:1"}, password: "s@cret"},
		"redis://semel:p%2Fw@h":                    {hosts: []string{"h:6379"}, username: "semel", password: "p/w"},
		"redis://a:7000,b,[::1]:7002":              {hosts: []string{"a:7000", "b:6379", "[::1]:7002"}},
		"valkeys://u:p@s1:26379,s2:26379,s3:26379": {hosts: []string{"s1:26379", "s2:26379", "s3:26379"}, username: "u", password: "p", secure: true},
		"redis://[fe80::1]":                        {hosts: []string{"[fe80::1]:6379"}},
	} {
		got, err := parseURL(raw)
		if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s is read as %+v, error %v; want %+v", raw, got, err, want)
		}
	}
}

const canary = "c4naryS3cret"

func TestBadURLIsRefusedWithoutQuotingIt(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{
		"", "localhost:6379", "http://:" + canary + "@host", "redis://", "redis://,", "redis://:" + canary + "@",
		"redis://:x/" + canary + "@host", "redis://:x#" + canary + "@host", "redis://:x?" + canary + "@host",
		"redis://:" + canary + "%zz@host", "redis://host:" + canary, "redis://host:0", "redis://host:70000",
		"redis://host/" + canary, "redis://host/-1", "redis://user:" + canary + "@host:port",
		"redis://:" + canary + "@@[host", "redis://:\x01" + canary + "@host", "redis://host/0?password=" + canary,
	} {
		client, err := NewClient(t.Context(), raw, nil)
		if client != nil || !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%q: got %v, %v; want an invalid request", raw, client, err)
		}
		if strings.Contains(fmt.Sprint(err), canary) {
			t.Errorf("the error of %q quotes the secret: %v", raw, err)
		}
	}
}

func TestAllBadClientOptionsAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := NewClient(t.Context(), "redis://host", &ClientOptions{
		Username: "u", ConnectTimeout: time.Microsecond, Timeout: -time.Second,
	})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatalf("got %v; want an invalid request", err)
	}
	for _, field := range []string{"Password", "ConnectTimeout", "Timeout"} {
		if !strings.Contains(err.Error(), "ClientOptions."+field+":") {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
}

func TestConnectNamesBadOptionsOfStoreAndClientTogether(t *testing.T) {
	t.Parallel()
	_, err := Connect(t.Context(), "http://:"+canary+"@host", &Options{MaxResult: -1, Client: &ClientOptions{Timeout: -1}})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatalf("got %v; want an invalid request", err)
	}
	for _, want := range []string{"Options.MaxResult:", "ClientOptions.Timeout:", "redis://"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %q: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), canary) {
		t.Errorf("the error quotes the secret: %v", err)
	}
}

// Close ends the store's own connections, and not those of a client that was
// passed to New.
func TestCloseEndsOnlyConnectionsOfTheStore(t *testing.T) {
	t.Parallel()
	opts := &Options{Prefix: servicestest.Prefix(), Client: unhurried(nil)}
	connected, err := Connect(t.Context(), servers.Redis(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	client := connect(t, servers.Redis(t), nil)
	if _, err := New(t.Context(), client, opts); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("New with Options.Client is answered %v; want an invalid request", err)
	}
	given, err := New(t.Context(), client, &Options{Prefix: opts.Prefix})
	if err != nil {
		t.Fatal(err)
	}
	for _, store := range []*Store{connected, given} {
		if err := store.Ready(t.Context()); err != nil {
			t.Errorf("Ready of an open store: %v", err)
		}
		for range 2 {
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := store.Ready(t.Context()); !errors.Is(err, semel.ErrClosed) {
			t.Errorf("Ready of a closed store: %v; want ErrClosed", err)
		}
	}
	if err := ping(t.Context(), connected.owned); !errors.Is(err, semel.ErrClosed) {
		t.Errorf("the connection of the store: %v; want ErrClosed", err)
	}
	if err := ping(t.Context(), client); err != nil {
		t.Errorf("the client that was given: %v", err)
	}
}

// unhurried gives a server a minute to answer unless the options set a
// time-out, because a running server may be slow.
func unhurried(opts *ClientOptions) *ClientOptions {
	var o ClientOptions
	if opts != nil {
		o = *opts
	}
	o.Timeout, o.ConnectTimeout = cmp.Or(o.Timeout, time.Minute), cmp.Or(o.ConnectTimeout, time.Minute)
	return &o
}

// connect connects to a test server.
func connect(t testing.TB, url string, opts *ClientOptions) *Client {
	t.Helper()
	client, err := NewClient(t.Context(), url, unhurried(opts))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func ping(ctx context.Context, c *Client) error {
	return c.Do(ctx, c.B().Ping().Build()).Error()
}

func TestCancelledDialDoesNotFailOtherCallers(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	opts, target, err := unhurried(nil).resolve(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	// The client dials a further connection for some of the keys. The first of
	// these dials waits until its caller gives up.
	option := opts.client(target.hosts, t.Context())
	dial, began := option.DialCtxFn, make(chan struct{})
	var dials atomic.Int32
	option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
		if dials.Add(1) == 2 {
			close(began)
			<-ctx.Done()
			for range 10_000 { // until the others wait for this dial, as a rule
				runtime.Gosched()
			}
		}
		return dial(ctx, addr, d, config)
	}
	inner, err := rueidis.NewClient(option)
	if err != nil {
		t.Fatal(err)
	}
	client := &Client{Client: inner, timeout: opts.Timeout}
	t.Cleanup(client.Close)
	exists := func(ctx context.Context, keys string) error {
		for _, key := range keys {
			if err := client.Do(ctx, client.B().Exists().Key(string(key)).Build()).Error(); err != nil {
				return err
			}
		}
		return nil
	}
	const keys = "abcdefghijklmnop"
	impatient, giveUp := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := exists(impatient, keys); !errors.Is(err, context.Canceled) {
			t.Errorf("the caller that gave up got %v", err)
		}
	})
	<-began
	for range 8 {
		wg.Go(func() {
			if err := exists(t.Context(), keys); err != nil {
				t.Errorf("another caller got %v", err)
			}
		})
	}
	giveUp()
	wg.Wait()
	if s := client.Status(); s.Open {
		t.Errorf("the circuit is open: %+v", s)
	}
}

func TestConnectionHasItsNameAndTheDatabaseOfTheURL(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	client := connect(t, server.URL()+"/5", nil)
	info, err := client.Do(t.Context(), client.B().ClientInfo().Build()).ToString()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" name=semel ", " db=5 "} {
		if !strings.Contains(info, want) {
			t.Errorf("CLIENT INFO has no %q: %s", want, info)
		}
	}
}

func TestConnectWithoutAServerIsUnavailable(t *testing.T) {
	t.Parallel()
	addr := servicestest.FreeAddr(t)
	for _, opts := range []*ClientOptions{nil, {Master: "mymaster"}} {
		_, err := NewClient(t.Context(), "redis://:"+canary+"@"+addr, opts)
		if !errors.Is(err, semel.ErrStoreUnavailable) || semel.Classify(err) != semel.ClassRetryable {
			t.Errorf("got %v of class %v; want the store to be unavailable", err, semel.Classify(err))
		}
		if strings.Contains(err.Error(), canary) || !strings.Contains(err.Error(), addr) {
			t.Errorf("the error should have the address and not the password: %v", err)
		}
	}
}

// silent accepts connections and never answers.
func silent(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener.Addr().String()
}

func TestConnectToASilentServerEndsInTime(t *testing.T) {
	t.Parallel()
	began := time.Now()
	_, err := NewClient(t.Context(), "redis://"+silent(t), &ClientOptions{ConnectTimeout: 100 * time.Millisecond})
	if !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("got %v; want the store to be unavailable", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestCancelledConnectDoesNotDial(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("no longer wanted")
	cancel(reason)
	_, err := NewClient(ctx, "redis://"+silent(t), nil)
	if !errors.Is(err, reason) || !errors.Is(err, semel.ErrStoreUnavailable) {
		t.Errorf("got %v; want the cause, and unavailable", err)
	}
}

func TestWrongPasswordIsRefusedWithoutShowingIt(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	admin := connect(t, server.URL(), nil)
	if err := admin.Do(t.Context(), admin.B().Arbitrary("CONFIG", "SET", "requirepass", canary).Build()).Error(); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"redis://:wrong" + canary + "@" + server.Addr(), "redis://" + server.Addr()} {
		_, err := NewClient(t.Context(), url, nil)
		if !errors.Is(err, semel.ErrStoreUnavailable) || strings.Contains(fmt.Sprint(err), canary) {
			t.Errorf("got %v; want unavailable, without the password", err)
		}
	}
	client := connect(t, "redis://:"+canary+"@"+server.Addr(), nil)
	if err := ping(t.Context(), client); err != nil {
		t.Error(err)
	}
}

func TestAClosedClientReturnsErrClosed(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	client := connect(t, server.URL(), nil)
	client.Close()
	client.Close()
	if err := ping(t.Context(), client); !errors.Is(err, semel.ErrClosed) {
		t.Errorf("got %v; want closed", err)
	}
}
