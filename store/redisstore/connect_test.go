package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/services/servicestest"
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
		client, err := Connect(t.Context(), raw, nil)
		if client != nil || !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%q: got %v, %v; want an invalid request", raw, client, err)
		}
		if strings.Contains(fmt.Sprint(err), canary) {
			t.Errorf("the error of %q quotes the secret: %v", raw, err)
		}
	}
}

func TestAllBadConnectOptionsAreNamedAtOnce(t *testing.T) {
	t.Parallel()
	_, err := Connect(t.Context(), "redis://host", &ConnectOptions{
		Username: "u", Database: -1, ClientName: "a b", ConnectTimeout: time.Microsecond, Timeout: -time.Second,
	})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatalf("got %v; want an invalid request", err)
	}
	for _, field := range []string{"Password", "Database", "ClientName", "ConnectTimeout", "Timeout"} {
		if !strings.Contains(err.Error(), "ConnectOptions."+field+":") {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
}

// connect connects to a server of the test.
// unhurried has a server answer within a minute where the options do not say
// otherwise: one that is there may be slow to.
func unhurried(opts *ConnectOptions) *ConnectOptions {
	var o ConnectOptions
	if opts != nil {
		o = *opts
	}
	o.Timeout, o.ConnectTimeout = cmp.Or(o.Timeout, time.Minute), cmp.Or(o.ConnectTimeout, time.Minute)
	return &o
}

func connect(t testing.TB, url string, opts *ConnectOptions) *Client {
	t.Helper()
	client, err := Connect(t.Context(), url, unhurried(opts))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func ping(ctx context.Context, c *Client) error {
	return c.Do(ctx, c.B().Ping().Build()).Error()
}

func TestConnectUsesDatabaseAndNameOfURLAndOptions(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	client := connect(t, server.URL()+"/5", &ConnectOptions{ClientName: "orders-7"})
	info, err := client.Do(t.Context(), client.B().ClientInfo().Build()).ToString()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{" name=orders-7 ", " db=5 "} {
		if !strings.Contains(info, want) {
			t.Errorf("CLIENT INFO has no %q: %s", want, info)
		}
	}
}

func TestConnectToNobodySaysUnavailable(t *testing.T) {
	t.Parallel()
	addr := servicestest.FreeAddr(t)
	for _, opts := range []*ConnectOptions{nil, {Master: "mymaster"}} {
		_, err := Connect(t.Context(), "redis://:"+canary+"@"+addr, opts)
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
	_, err := Connect(t.Context(), "redis://"+silent(t), &ConnectOptions{ConnectTimeout: 100 * time.Millisecond})
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
	_, err := Connect(ctx, "redis://"+silent(t), nil)
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
		_, err := Connect(t.Context(), url, nil)
		if !errors.Is(err, semel.ErrStoreUnavailable) || strings.Contains(fmt.Sprint(err), canary) {
			t.Errorf("got %v; want unavailable, without the password", err)
		}
	}
	client := connect(t, "redis://:"+canary+"@"+server.Addr(), nil)
	if err := ping(t.Context(), client); err != nil {
		t.Error(err)
	}
}

func TestClosedClientSaysSo(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	client := connect(t, server.URL(), nil)
	client.Close()
	client.Close()
	if err := ping(t.Context(), client); !errors.Is(err, semel.ErrClosed) {
		t.Errorf("got %v; want closed", err)
	}
}
