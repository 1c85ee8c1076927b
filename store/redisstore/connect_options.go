package redisstore

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	neturl "net/url"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
)

// These are the defaults of [ClientOptions].
const (
	defaultConnectTimeout = 2 * time.Second
	defaultTimeout        = 3 * time.Second
)

// clientName is the name that CLIENT LIST shows.
const clientName = "semel"

// ClientOptions are the options of [NewClient]. The zero value is valid.
type ClientOptions struct {
	// Username and Password are the credentials of an ACL user. Password alone
	// is that of the default user. They override the credentials of the URL.
	// Default to those of the URL.
	Username, Password string
	// Master is the name of the master that the Sentinels of the URL monitor.
	// Defaults to none: the hosts of the URL are the servers themselves.
	Master string
	// SentinelUsername and SentinelPassword are the credentials for the
	// Sentinels. Default to none.
	SentinelUsername, SentinelPassword string
	// TLS is the TLS configuration of the connections. Without a ServerName, each
	// certificate is verified for the host that the client dials. Defaults to TLS 1.2 or
	// later with the system's authorities if the URL begins with rediss, otherwise to none.
	TLS *tls.Config
	// ConnectTimeout limits one connection attempt. TLS and log-in have the
	// same limit each. Defaults to 2 s. Must be at least 1 ms.
	ConnectTimeout time.Duration
	// Timeout limits how long a call waits for its answer. An earlier deadline
	// of the context counts. Connections that do not answer are closed a second
	// or two later. Defaults to 3 s. Must be at least 1 ms.
	Timeout time.Duration

	database int // as in the URL
}

// resolve returns a copy that is completed from a URL, and the parts of the URL.
func (o *ClientOptions) resolve(url string) (ClientOptions, target, error) {
	var filled ClientOptions
	if o != nil {
		filled = *o
	}
	t, err := parseURL(url)
	return filled, t, errors.Join(err, filled.complete(t))
}

// complete fills unset fields from the URL and the defaults, and names every
// field that is out of its bounds.
func (o *ClientOptions) complete(t target) error {
	o.Username = cmp.Or(o.Username, t.username)
	o.Password = cmp.Or(o.Password, t.password)
	o.database = t.database
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, defaultConnectTimeout)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	if o.TLS == nil && t.secure {
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	wrong := invalid.In("redisstore: ClientOptions.")
	if o.Username != "" && o.Password == "" {
		wrong.Add("Password: the user %q has none", o.Username)
	}
	if o.ConnectTimeout < time.Millisecond {
		wrong.Add("ConnectTimeout: %v is shorter than 1ms", o.ConnectTimeout)
	}
	if o.Timeout < time.Millisecond {
		wrong.Add("Timeout: %v is shorter than 1ms", o.Timeout)
	}
	return wrong.Err()
}

// target is what a URL names.
type target struct {
	hosts              []string
	username, password string
	database           int
	secure             bool
}

// CheckURL returns an error if NewClient cannot use a URL. The error wraps
// ErrInvalidRequest and quotes nothing of the URL. CheckURL connects to nothing.
func CheckURL(url string) error {
	_, err := parseURL(url)
	return err
}

// parseURL reads a URL. Its errors quote nothing of the URL: if a password has
// characters that should have been escaped, any part of the URL may be the
// password.
func parseURL(raw string) (target, error) {
	var t target
	fail := func(what string) (target, error) {
		return target{}, fmt.Errorf("redisstore: the URL %s; write redis[s]://[user[:password]@]host[:port][,host[:port]…][/database] "+
			"with special characters in user and password as %%XX: %w", what, semel.ErrInvalidRequest)
	}
	scheme, rest, found := strings.Cut(raw, "://")
	switch {
	case found && (scheme == "redis" || scheme == "valkey"):
	case found && (scheme == "rediss" || scheme == "valkeys"):
		t.secure = true
	default:
		return fail("does not begin with redis:// or rediss://")
	}
	authority, path, _ := strings.Cut(rest, "/")
	if strings.ContainsAny(rest, "?#") {
		return fail("has a query or a fragment; use the options of the client instead")
	}
	hosts := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		user, err := neturl.Parse("redis://" + authority[:at] + "@host")
		if err != nil || user.User == nil {
			return fail("has a user or password that cannot be read")
		}
		t.username = user.User.Username()
		t.password, _ = user.User.Password() // empty if the URL has none
		hosts = authority[at+1:]
	}
	for host := range strings.SplitSeq(hosts, ",") {
		address, ok := hostPort(host)
		if !ok {
			return fail("has a host that cannot be read")
		}
		t.hosts = append(t.hosts, address)
	}
	if path != "" {
		database, err := strconv.ParseUint(path, 10, 31)
		if err != nil {
			return fail("has a database that is not a number")
		}
		t.database = int(database)
	}
	return t, nil
}

// hostPort completes host, host:port, [v6] and [v6]:port with the default port.
func hostPort(s string) (string, bool) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port, err = net.SplitHostPort(s + ":6379")
	}
	number, notNumber := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || notNumber != nil || number == 0 {
		return "", false
	}
	return net.JoinHostPort(host, port), true
}
