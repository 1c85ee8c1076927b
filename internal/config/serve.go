package config

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
)

// Serve is the section "serve": a server with which programs in any language use a store.
// A number, size or duration of 0 means the default of the code that uses it.
type Serve struct {
	// At is the place of the section.
	At schema.Place
	// Listen is the address of the server, and Socket a unix socket instead.
	Listen, Socket string
	TLS            *ServerTLS
	// Store is the store of the keys.
	Store schema.Reference
	// Callers may send requests. Without any, everybody who can connect may.
	Callers []*ServeCaller
	// Lease, Window and OnLeaseExpired are for claims that do not say.
	Lease, Window  time.Duration
	OnLeaseExpired string
	// The limits.
	MaxBody, MaxResult, MaxMemory                              int64
	MaxBatch, MaxID, MaxConnections, MaxWaiters, KeysPerCaller int
	BodyTimeout                                                time.Duration
}

// DefaultServeListen is the default of Serve.Listen.
const DefaultServeListen = "127.0.0.1:4196"

// ServeCaller is a program that uses the server.
type ServeCaller struct {
	Name string
	// Tokens are the SHA-256 digests of its bearer tokens, in hexadecimal digits.
	Tokens []string
	// Certificate is its name in a client certificate.
	Certificate string
	Role        string
	Scopes      []string
	Expires     time.Time
}

// Address returns the address or socket that the server listens on, for people.
func (s *Serve) Address() string {
	if s.Socket != "" {
		return "unix:" + s.Socket
	}
	return cmp.Or(s.Listen, DefaultServeListen)
}

// Exposed reports whether other machines can reach the server.
func (s *Serve) Exposed() bool {
	return s.Socket == "" && !IsLoopback(HostOf(cmp.Or(s.Listen, DefaultServeListen)))
}

// LeaseOr returns the lease, or the default.
func (s *Serve) LeaseOr() time.Duration { return cmp.Or(s.Lease, semel.DefaultLease) }

// WindowOr returns the window, or the default.
func (s *Serve) WindowOr() time.Duration { return cmp.Or(s.Window, semel.DefaultWindow) }

// Holds reports whether a key becomes unknown when its holder is lost.
func (s *Serve) Holds() bool { return s.OnLeaseExpired != "retry" }

// readServe reads the section "serve".
func readServe(v schema.Value) *Serve {
	s := &Serve{At: v.Place()}
	v.Mapping(serveMapping(s))
	return s
}

func serveMapping(s *Serve) schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		{Name: "listen", Doc: "Address of the server.", Form: schema.Form{Scalar: schema.ScalarText}, Shown: DefaultServeListen, Read: func(v schema.Value) {
			v.Text(&s.Listen)
			v.CheckListen(s.Listen)
		}},
		schema.PathField("socket", &s.Socket, "Unix socket to listen on instead, with mode 0660.").Means("none"),
		schema.StoreField("store", &s.Store, "Store of the keys.").Means("the only one"),
		ServerTLSField(&s.TLS),
		{Name: "callers", Doc: "Programs that may send requests, by name. They are required if other machines can reach the server. SIGHUP reads them again.",
			Form: schema.Form{Named: &schema.Form{Members: func() schema.Mapping { return serveCallerMapping(&ServeCaller{}) }}},
			Read: func(v schema.Value) {
				readNamed(v, "caller", func(name string, _ schema.Place, member schema.Value) {
					c := &ServeCaller{Name: name}
					member.Mapping(serveCallerMapping(c))
					s.Callers = append(s.Callers, c)
				})
			}},
		schema.DurationField("lease", &s.Lease, "Lease of claims that do not say: how long a dead holder keeps its claim.").Means("30s"),
		schema.WindowField("window", &s.Window, "Window of keys whose requests do not say: how long they are remembered.").Means("24h"),
		schema.ChoiceField("on_lease_expired", &s.OnLeaseExpired, "For claims that do not say: `hold` makes the key unknown when the lease ends without a completion, `retry` lets the next claim have it.", "hold", "retry").Or("hold"),
		schema.SizeField("max_body", &s.MaxBody, "The longest body of a request.").Means("4MiB"),
		schema.NumberField("max_batch", &s.MaxBatch, 1, 10_000, "The most items in a request, and records in a page of a list.").Means("1000"),
		schema.SizeField("max_result", &s.MaxResult, "The longest result that is kept.").Means("1MiB, or what the store keeps"),
		schema.NumberField("max_id", &s.MaxID, 1, semel.MaxKeyBytes, "The longest id, in bytes.").Means("1024"),
		schema.SizeField("max_memory", &s.MaxMemory, "Memory for all bodies and answers in progress. Further requests get 503.").Means("256MiB"),
		schema.NumberField("max_connections", &s.MaxConnections, 1, 1_000_000, "The most connections. Further ones are closed.").Means("10000"),
		schema.NumberField("max_waiters", &s.MaxWaiters, 1, 1_000_000, "The most claims that wait (`wait`). Further ones are answered immediately.").Means("1024"),
		schema.NumberField("max_keys_per_caller", &s.KeysPerCaller, 1, 1<<31-1, "New keys that one caller may use in an hour, as this process counts them. Claims of further ones get 429.").Means("no limit"),
		schema.DurationField("body_timeout", &s.BodyTimeout, "How long a body may take to arrive, and an answer to be read.").Means("30s"),
	}, Check: func(v schema.Value, there schema.Members) {
		_, listen := there["listen"]
		if _, socket := there["socket"]; listen && socket {
			there["socket"].Wrong("listen and socket exclude each other: keep one")
		}
		if there["tls"].Node != nil && s.Socket != "" {
			there["tls"].Wrong("a unix socket has no TLS: leave it out")
		}
		for _, c := range s.Callers {
			if c.Certificate != "" && (s.TLS == nil || s.TLS.ClientCA == "") {
				there["callers"].Wrong("%s has a certificate: write tls: { certificate, key, client_ca }", c.Name)
			}
		}
	}}
}

func serveCallerMapping(c *ServeCaller) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			parsedList("tokens", &c.Tokens, parseDigest, "SHA-256 digests of its bearer tokens, in 64 hexadecimal digits, as `sha256sum` prints them for the token without a line end. Two at a time allow a change."),
			schema.TextField("certificate", &c.Certificate, "Its name in a client certificate: `uri:…`, `email:…`, `dns:…` or `subject:…`."),
			schema.ChoiceField("role", &c.Role, "`worker` claims, completes, releases, extends and looks up. `viewer` looks up and lists, without results. `operator` does that all, resolves and removes.", "worker", "viewer", "operator").Need(),
			schema.TextsField("scopes", &c.Scopes, "Scopes of its keys. `payments/*` stands for all that begin so, and `*` for all.").Need(),
			{Name: "expires", Doc: "Day on which its credentials end, in UTC: `2027-01-31`.", Form: schema.Form{Scalar: schema.ScalarText}, Shown: "never", Read: func(v schema.Value) {
				schema.Quantity(v, &c.Expires, "a day", func(text string) (time.Time, error) {
					day, err := time.Parse(time.DateOnly, text)
					if err != nil {
						return day, errors.New("not a day: write it like 2027-01-31")
					}
					return day, nil
				})
			}},
		},
		Check: func(v schema.Value, there schema.Members) {
			if _, tokens := there["tokens"]; !tokens && there["certificate"].Node == nil {
				v.Wrong("it has no credentials: write tokens or certificate")
			}
		},
	}
}

// checkServe reports what the section lacks that only the whole file shows.
func checkServe(d *schema.Document, f *File) {
	s := f.Serve
	if s == nil {
		return
	}
	c := &Checker{Document: d, File: f}
	if s.Store.Name == "" {
		if len(f.Stores) != 1 {
			c.Report(s.At, "serve", "store is missing: name one of the stores")
			return
		}
		s.Store.Name = f.Stores[0].Name
	}
	const path = "serve.store"
	if store, ok := c.storeOf(s.Store, path); ok && store.Spec.About().Filter != nil {
		c.Report(s.Store.At, path, "%s is a filter, which has no claims: name a store of another kind", store.Name)
	}
	var digests, certificates []string
	for _, caller := range s.Callers {
		for _, digest := range caller.Tokens {
			if slices.Contains(digests, digest) {
				c.Report(s.At, "serve.callers", "the token %.8s… of %s is there twice: give each caller its own", digest, caller.Name)
			}
			digests = append(digests, digest)
		}
		if name := caller.Certificate; name != "" {
			if slices.Contains(certificates, name) {
				c.Report(s.At, "serve.callers", "the certificate %s of %s is there twice: give each caller its own", name, caller.Name)
			}
			certificates = append(certificates, name)
		}
	}
}
