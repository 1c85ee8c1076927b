// Package redis is the kind of store that keeps keys in Redis or Valkey.
package redis

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/redisstore"
	"github.com/semel-dev/semel/store/tiered"
)

// Store is a store in Redis or Valkey. Exactly one of URL, Cluster and Sentinel
// is set.
type Store struct {
	config.StoreBase
	URL      schema.Secret
	Cluster  []string
	Sentinel *Sentinel
	// Username, Password and TLS apply to Cluster and Sentinel. A URL
	// contains its own.
	Username string
	Password schema.Secret
	TLS      *config.TLS
	// Timeout limits one call. 0 means the store's default.
	Timeout time.Duration
	// Prefix is the prefix of its key names in Redis.
	Prefix string
	// Persistence is how the server persists data: volatile, logged or synced.
	Persistence string
	KeepIDs     config.IDs
	KeepOrigin  bool
	Compact     *Compact
}

// Sentinel finds the primary of a set of Redis servers.
type Sentinel struct {
	Addresses []string
	Master    string
	Username  string
	Password  schema.Secret
}

// Compact keeps done keys in few bytes each.
type Compact struct {
	Window time.Duration
	Expect int64 // 0 is the store's default
}

// NewStore returns an empty Store.
func NewStore() config.StoreKind { return &Store{} }

// Kind implements config.Kind.
func (*Store) Kind() string { return "redis" }

// Fields implements config.Kind.
func (s *Store) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Keys in Redis or Valkey, shared by processes. Set one of `url`, `cluster` and `sentinel`.",
		Fields: []schema.Field{
			{Name: "url", Doc: "Address of one server, `redis://user:password@host:6379/0`, or `rediss://` for TLS.", Form: schema.Form{Scalar: schema.ScalarAddress}, Read: func(v schema.Value) { redisURL(v, &s.URL) }},
			schema.AddressesField("cluster", &s.Cluster, "6379", "Addresses of some nodes of a cluster, `host:port`."),
			schema.PartField("sentinel", func() schema.Mapping { s.Sentinel = &Sentinel{}; return sentinel(s.Sentinel) }, "Sentinels that find the primary."),
			schema.TextField("username", &s.Username, "User name, with `cluster` and `sentinel`."),
			schema.SecretField("password", &s.Password, "Password, with `cluster` and `sentinel`."),
			config.TLSField(&s.TLS),
			schema.DurationField("timeout", &s.Timeout, "The timeout of one call. In a stack, the longest one that an upper layer sets limits the calls of all upper layers.").Means("3s; 250ms in a stack"),
			{Name: "prefix", Doc: "Prefix of its key names.", Form: schema.Form{Scalar: schema.ScalarText}, Shown: "semel:", Read: func(v schema.Value) { redisPrefix(v, &s.Prefix) }},
			schema.ChoiceField("persistence", &s.Persistence, "What survives a restart of the server: nothing for sure (`volatile`), its log (`logged`: `appendfsync everysec`), or everything (`synced`: `appendfsync always`).",
				"volatile", "logged", "synced").Or("volatile"),
			config.KeepIDsField(&s.KeepIDs),
			config.KeepOriginField(&s.KeepOrigin, "false", "A key then takes about 20 bytes and that text more in memory. It excludes `compact`."),
			schema.PartField("compact", func() schema.Mapping { s.Compact = &Compact{}; return compact(s.Compact) }, "Keep each done key in 64 bits.").Means("off"),
		},
		OneOf: [][]string{{"url", "cluster", "sentinel"}},
		Check: func(_ schema.Value, there schema.Members) { s.check(there) },
	}
}

func (s *Store) check(there schema.Members) {
	if _, hasURL := there["url"]; hasURL {
		for _, name := range []string{"username", "password"} {
			if of, ok := there[name]; ok {
				of.Wrong("write it in the url, redis://user:password@host:port/database")
			}
		}
	}
	if keep, ok := there["keep_origin"]; ok && s.KeepOrigin && s.Compact != nil {
		keep.Wrong("the compact form cannot keep origins: leave out compact, or keep_origin")
	}
	if username, ok := there["username"]; ok && s.Password.IsZero() && s.URL.IsZero() {
		username.Wrong("it needs a password: write password too")
	}
	if _, ok := there["tls"]; ok && schema.HasScheme(s.URL.Reveal(), "redis", "valkey") {
		there["tls"].Wrong("a url that starts with redis:// uses no TLS: write rediss://")
	}
}

func redisURL(v schema.Value, target *schema.Secret) {
	v.Address(target)
	switch text := target.Reveal(); {
	case text == "":
	case !schema.HasScheme(text, "redis", "rediss", "valkey", "valkeys"):
		v.Wrong("not an address of a Redis server: write redis://user:password@host:6379/0, or rediss:// for TLS")
	case strings.HasPrefix(target.String(), schema.HiddenText):
		v.Wrong("the address cannot be parsed: in a password write %%2F for /, %%3F for ?, %%23 for # and %%40 for @")
	case strings.ContainsAny(text, "?#"):
		v.Wrong("a query is not supported: use the fields of the store")
	}
}

// redisPrefix reads the prefix of names in Redis. It refuses braces, because they
// choose the slot of a name in a cluster. The store chooses the slot.
func redisPrefix(v schema.Value, target *string) {
	v.Text(target)
	if strings.ContainsAny(*target, "{}") {
		v.Wrong("braces are not allowed")
	}
}

func sentinel(s *Sentinel) schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		schema.AddressesField("addresses", &s.Addresses, "26379", "Addresses of the Sentinels, `host:port`.").Need(),
		schema.TextField("master", &s.Master, "Name of the monitored master.").Need(),
		schema.TextField("username", &s.Username, "User name for the Sentinels."),
		schema.SecretField("password", &s.Password, "Password for the Sentinels."),
	}}
}

func compact(c *Compact) schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		schema.DurationField("window", &c.Window, "How long keys are remembered.").Need(),
		schema.CountField("expect", &c.Expect, "The expected number of keys in a window.").Means("1,048,576"),
	}}
}

// About implements config.StoreKind.
func (s *Store) About() config.StoreAbout {
	address := "Redis, " + s.URL.String()
	switch {
	case s.Sentinel != nil:
		address = fmt.Sprintf("Redis, the master %s of the Sentinels %s", s.Sentinel.Master, strings.Join(s.Sentinel.Addresses, ", "))
	case s.Cluster != nil:
		address = "Redis, the cluster " + strings.Join(s.Cluster, ", ")
	}
	return config.StoreAbout{Upper: true, Shared: true, Place: s.place(), PlaceName: "server and prefix", Address: address, Timeout: s.Timeout, BestEffort: true, Origins: s.KeepOrigin}
}

// place identifies where a store keeps its keys, as far as the configuration
// tells.
func (s *Store) place() string {
	parts := []string{s.Prefix, s.URL.Reveal()}
	parts = append(parts, s.Cluster...)
	if s.Sentinel != nil {
		parts = append(parts, s.Sentinel.Master)
		parts = append(parts, s.Sentinel.Addresses...)
	}
	if len(parts) == 2 && parts[1] == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00"))) // the parts may contain a password
	return string(sum[:])
}

// Lint implements config.StoreKind.
func (s *Store) Lint(l *config.Linter, of *config.Store) {
	if l.Pipeline == nil {
		return
	}
	if window := l.Pipeline.Window; s.Compact != nil && s.Compact.Window != window {
		l.Notice(l.At("window"), fmt.Sprintf("%s, and redis.compact.window of %s is %s", schema.Duration(window), of.Name, schema.Duration(s.Compact.Window)), "keys of another window are not compacted", "use the same window in both")
	}
	if l.Decides(of) {
		s.lintDecider(l, of)
	}
}

// lintDecider checks what the server may lose.
func (s *Store) lintDecider(l *config.Linter, of *config.Store) {
	path := l.At("store")
	severity, cost := doctor.Warning, ""
	switch s.Persistence {
	case "volatile":
		cost = "failover, eviction and restart may forget keys, and repeated messages have their effect again"
	case "logged":
		cost = "failover, and a crash within a second of a write, may forget keys, and repeated messages have their effect again"
	default:
		severity, cost = doctor.Notice, "failover to a replica may forget keys, and repeated messages have their effect again"
	}
	l.Add(severity, config.Repeat, path, of.Name+" is Redis with persistence: "+s.Persistence, cost, "use postgres, alone or below Redis in a tiered store; or write persistence: synced if the server has appendfsync always")
	if l.Holds() && s.Persistence == "volatile" {
		l.Add(doctor.Warning, config.Repeat, l.At("on_lease_expired"), "hold, in a Redis that may forget", "a held key may be forgotten, and its message processed again", "use postgres, or persistence: synced")
	}
}

// CheckAddress implements config.StoreKind.
func (s *Store) CheckAddress(files bool) (field string, err error) {
	if !s.URL.IsZero() {
		err = redisstore.CheckURL(s.URL.Reveal())
	}
	if s.TLS != nil && err == nil && files {
		_, err = s.TLS.Config()
		return "tls", err
	}
	return "url", err
}

// Open implements config.StoreKind.
func (s *Store) Open(ctx context.Context, env *config.StoreEnv) (semel.Store, error) {
	store, closing, err := s.open(ctx, env.File)
	if err != nil {
		return nil, err
	}
	env.OnClose(closing)
	return store, nil
}

// open opens a store with its own connections.
func (s *Store) open(ctx context.Context, f *config.File) (_ semel.Store, closing func() error, err error) {
	client, err := s.Connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	store, err := redisstore.New(ctx, client, s.options(f))
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return store, func() error { client.Close(); return nil }, nil
}

func (s *Store) options(f *config.File) *redisstore.Options {
	opts := &redisstore.Options{Prefix: s.Prefix, KeepIDs: f.KeepsIDs(s, s.KeepIDs), MaxResult: config.MaxResult}
	switch s.Persistence {
	case "logged":
		opts.Persistence = redisstore.Logged
	case "synced":
		opts.Persistence = redisstore.Synced
	}
	if c := s.Compact; c != nil {
		opts.Compact = &redisstore.Compact{Window: c.Window, Expect: c.Expect}
	}
	return opts
}

// Connect connects to the servers of a store. The caller must close the client.
func (s *Store) Connect(ctx context.Context) (*redisstore.Client, error) {
	secured, err := s.TLS.Config()
	if err != nil {
		return nil, err
	}
	opts := &redisstore.ClientOptions{
		Username: s.Username, Password: s.Password.Reveal(), Timeout: s.Timeout, TLS: secured,
	}
	url := s.URL.Reveal()
	switch sentinel := s.Sentinel; {
	case sentinel != nil:
		url = "redis://" + strings.Join(sentinel.Addresses, ",")
		opts.Master, opts.SentinelUsername, opts.SentinelPassword = sentinel.Master, sentinel.Username, sentinel.Password.Reveal()
	case s.Cluster != nil:
		url = "redis://" + strings.Join(s.Cluster, ",")
	}
	return redisstore.NewClient(ctx, url, opts)
}

// OpenLayer opens the store as a layer of a stack. If its server does not answer,
// the layer opens once the server answers.
func (s *Store) OpenLayer(ctx context.Context, env *config.StoreEnv) (layer tiered.Layer, err error) {
	traits, err := s.options(env.File).Traits()
	if err != nil {
		return layer, err
	}
	cache, err := tiered.OpenCache(ctx, traits, func(ctx context.Context) (semel.Store, func() error, error) { return s.open(ctx, env.File) })
	if err != nil {
		return layer, err
	}
	env.OnClose(cache.Close)
	layer.Cache = cache
	return layer, nil
}

// Examine implements config.Kind. It does not open the store. Opening records the
// terms on which the prefix is used, and fails on a replica or a full server.
func (s *Store) Examine(ctx context.Context, x *config.Examination) {
	x.Fail("", s.examine(ctx, x))
}

func (s *Store) examine(ctx context.Context, x *config.Examination) error {
	client, err := s.Connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	findings, err := redisstore.Examine(ctx, client, s.options(x.File))
	x.Add(findings)
	return err
}
