// Package redis is the kind of store that keeps keys in Redis or Valkey.
package redis

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/semel-dev/semel"
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
	// Username, Password, Database and TLS apply to Cluster and Sentinel. A URL
	// contains its own.
	Username string
	Password schema.Secret
	Database int
	TLS      *config.TLS
	// ConnectTimeout limits connecting, Timeout one call. 0 means the store's
	// default.
	ConnectTimeout, Timeout time.Duration
	// Prefix is the prefix of its key names in Redis.
	Prefix string
	// Persistence is how the server persists data: volatile, logged or synced.
	Persistence string
	KeepIDs     bool
	MaxResult   int64
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
	Slices int           // 0 is the store's default
	Expect int64         // 0 is the store's default
	Grace  time.Duration // 0 is the store's default
}

// NewStore returns an empty Store.
func NewStore() config.Spec { return &Store{} }

// Kind implements config.Kind.
func (*Store) Kind() string { return "redis" }

// Fields implements config.Kind.
func (s *Store) Fields() schema.Mapping {
	return schema.Mapping{
		Doc: "Keys in Redis or Valkey, shared by processes. One of `url`, `cluster` and `sentinel` says where.",
		Fields: []schema.Field{
			{Name: "url", Doc: "Address of one server, `redis://user:password@host:6379/0`, or `rediss://` for TLS.", Form: schema.Form{Scalar: schema.ScalarAddress}, Read: func(v schema.Value) { redisURL(v, &s.URL) }},
			schema.AddressesField("cluster", &s.Cluster, "Addresses of some nodes of a cluster, `host:port`."),
			schema.PartField("sentinel", func() schema.Mapping { s.Sentinel = &Sentinel{}; return sentinel(s.Sentinel) }, "Sentinels, which know the primary."),
			schema.TextField("username", &s.Username, "User name, with `cluster` and `sentinel`."),
			schema.SecretField("password", &s.Password, "Password, with `cluster` and `sentinel`."),
			schema.NumberField("database", &s.Database, 0, 1<<20, "Number of the database, with `sentinel`.").Means("0"),
			config.TLSField(&s.TLS),
			schema.DurationField("connect_timeout", &s.ConnectTimeout, "How long making a connection may take.").Means("2s"),
			schema.DurationField("timeout", &s.Timeout, "How long one call may take.").Means("3s"),
			{Name: "prefix", Doc: "What the names of its keys begin with.", Form: schema.Form{Scalar: schema.ScalarText}, Shown: "semel:", Read: func(v schema.Value) { redisPrefix(v, &s.Prefix) }},
			schema.ChoiceField("persistence", &s.Persistence, "What the server is known to keep over its end: nothing for sure, what its log has (`appendfsync everysec`), or all (`appendfsync always`).",
				"volatile", "logged", "synced").Or("volatile"),
			config.KeepIDsField(&s.KeepIDs),
			config.MaxResultField(&s.MaxResult).Means("1MiB"),
			schema.PartField("compact", func() schema.Mapping { s.Compact = &Compact{}; return compact(s.Compact) }, "Keep keys that are done in 64 bits each.").Means("off"),
		},
		OneOf: [][]string{{"url", "cluster", "sentinel"}},
		Check: func(_ schema.Value, there schema.Members) { s.check(there) },
	}
}

func (s *Store) check(there schema.Members) {
	if _, hasURL := there["url"]; hasURL {
		for _, name := range []string{"username", "password", "database"} {
			if of, ok := there[name]; ok {
				of.Wrong("the url has room for it, redis://user:password@host:port/database: leave one of the two")
			}
		}
	}
	if username, ok := there["username"]; ok && s.Password.IsZero() && s.URL.IsZero() {
		username.Wrong("there is no password for it")
	}
	if database, ok := there["database"]; ok && s.Cluster != nil && s.Database != 0 {
		database.Wrong("a cluster has database 0 alone")
	}
	if _, ok := there["tls"]; ok && schema.HasScheme(s.URL.Reveal(), "redis", "valkey") {
		there["tls"].Wrong("a url that begins with redis:// uses no TLS: write rediss://")
	}
}

func redisURL(v schema.Value, target *schema.Secret) {
	v.Address(target)
	switch text := target.Reveal(); {
	case text == "":
	case !schema.HasScheme(text, "redis", "rediss", "valkey", "valkeys"):
		v.Wrong("it is no address of a Redis server: write redis://user:password@host:6379/0, or rediss:// for TLS")
	case strings.HasPrefix(target.String(), schema.HiddenText):
		v.Wrong("it cannot be understood: in a password write %%2F for /, %%3F for ?, %%23 for # and %%40 for @")
	case strings.ContainsAny(text, "?#"):
		v.Wrong("it has a query: what is to be set beside user, password, host and database has a field of its own")
	}
}

// redisPrefix reads the prefix of names in Redis. It refuses braces, because they
// choose the slot of a name in a cluster. The store chooses the slot.
func redisPrefix(v schema.Value, target *string) {
	v.Text(target)
	if strings.ContainsAny(*target, "{}") {
		v.Wrong("it must not have braces")
	}
}

func sentinel(s *Sentinel) schema.Mapping {
	return schema.Mapping{Fields: []schema.Field{
		schema.AddressesField("addresses", &s.Addresses, "Addresses of the Sentinels, `host:port`.").Need(),
		schema.TextField("master", &s.Master, "Name of the set of servers they watch.").Need(),
		schema.TextField("username", &s.Username, "User name at the Sentinels."),
		schema.SecretField("password", &s.Password, "Password at the Sentinels."),
	}}
}

func compact(c *Compact) schema.Mapping {
	return schema.Mapping{
		Fields: []schema.Field{
			schema.DurationField("window", &c.Window, "How long keys are remembered.").Need(),
			schema.NumberField("slices", &c.Slices, 1, 64, "How many parts the window has: keys are forgotten a part at a time.").Means("4"),
			schema.CountField("expect", &c.Expect, "How many keys a window has.").Means("1,048,576"),
			schema.DurationField("grace", &c.Grace, "How long a key keeps its full record first.").Means("30s"),
		},
		Check: func(_ schema.Value, there schema.Members) {
			if c.Grace > 0 && c.Grace >= c.Window && c.Window > 0 {
				there["grace"].Wrong("it must be shorter than the window")
			}
		},
	}
}

// About implements config.Spec.
func (s *Store) About() config.StoreAbout {
	address := "Redis, " + s.URL.String()
	switch {
	case s.Sentinel != nil:
		address = fmt.Sprintf("Redis, the master %s of the Sentinels %s", s.Sentinel.Master, strings.Join(s.Sentinel.Addresses, ", "))
	case s.Cluster != nil:
		address = "Redis, the cluster " + strings.Join(s.Cluster, ", ")
	}
	return config.StoreAbout{Upper: true, Shared: true, Place: s.place(), PlaceName: "server and prefix", Address: address, BestEffort: true}
}

// place identifies where a store keeps its keys, as far as the configuration
// tells.
func (s *Store) place() string {
	parts := []string{s.Prefix, s.URL.Reveal()}
	parts = append(parts, s.Cluster...)
	if s.Sentinel != nil {
		parts = append(parts, s.Sentinel.Master, fmt.Sprint(s.Database))
		parts = append(parts, s.Sentinel.Addresses...)
	}
	if len(parts) == 2 && parts[1] == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00"))) // the parts may contain a password
	return string(sum[:])
}

// Lint implements config.Spec.
func (s *Store) Lint(l *config.Linter, of *config.Store) {
	if l.Pipeline == nil {
		if s.TLS != nil && s.TLS.InsecureSkipVerify {
			l.Unverified("stores." + of.Name + ".redis.tls.insecure_skip_verify")
		}
		return
	}
	if window := l.Pipeline.Window; s.Compact != nil && s.Compact.Window != window {
		l.Notice(l.At("window"), fmt.Sprintf("%s, and redis.compact.window of %s is %s", schema.Duration(window), of.Name, schema.Duration(s.Compact.Window)), "keys of another window keep their full records", "the same window in both")
	}
	if l.Decides(of) {
		s.lintDecider(l, of)
	}
}

// lintDecider checks what the server may lose.
func (s *Store) lintDecider(l *config.Linter, of *config.Store) {
	path := l.At("store")
	severity, cost := semel.Warning, ""
	switch s.Persistence {
	case "volatile":
		cost = "failover, eviction and restart may forget keys: what comes again has its effect again"
	case "logged":
		cost = "failover, and a crash within a second of a write, may forget keys: what comes again has its effect again"
	default:
		severity, cost = semel.Notice, "failover to a replica may forget keys: what comes again has its effect again"
	}
	l.Add(severity, config.Repeat, path, of.Name+" is Redis with persistence: "+s.Persistence, cost, "postgres, alone or below Redis in a tiered store; or persistence: synced, if the server has appendfsync always")
	if l.Holds() && s.Persistence == "volatile" {
		l.Add(semel.Warning, config.Repeat, l.At("on_lease_expired"), "hold, in a Redis that may forget", "a key that is held may be forgotten, and its message run again", "postgres, or persistence: synced")
	}
}

// CheckAddress implements config.AddressChecker.
func (s *Store) CheckAddress(files bool) (field string, err error) {
	if !s.URL.IsZero() {
		err = redisstore.CheckURL(s.URL.Reveal())
	}
	if t := s.TLS; t != nil && err == nil && files {
		_, err = redisstore.TLSFiles{CA: t.CA, Certificate: t.Certificate, Key: t.Key, ServerName: t.ServerName}.Config()
		return "tls", err
	}
	return "url", err
}

// Open implements config.Spec.
func (s *Store) Open(ctx context.Context, env *config.StoreEnv) (semel.Store, error) {
	store, closing, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	env.OnClose(closing)
	return store, nil
}

// open opens a store with its own connections.
func (s *Store) open(ctx context.Context) (_ semel.Store, closing func() error, err error) {
	opts, err := s.options()
	if err != nil {
		return nil, nil, err
	}
	client, err := s.Connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	store, err := redisstore.New(ctx, client, opts)
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return store, closer(client), nil
}

func closer(client *redisstore.Client) func() error {
	return func() error { client.Close(); return nil }
}

func (s *Store) options() (*redisstore.Options, error) {
	kept, err := persistence(s.Persistence)
	if err != nil {
		return nil, err
	}
	opts := &redisstore.Options{
		Prefix: s.Prefix, Persistence: kept, MaxResult: s.MaxResult,
		KeepIDs: s.KeepIDs,
	}
	if c := s.Compact; c != nil {
		opts.Compact = &redisstore.Compact{Window: c.Window, Slices: c.Slices, Expect: c.Expect, Grace: c.Grace}
	}
	return opts, nil
}

func persistence(name string) (redisstore.Persistence, error) {
	switch name {
	case "volatile":
		return redisstore.Volatile, nil
	case "logged":
		return redisstore.Logged, nil
	case "synced":
		return redisstore.Synced, nil
	}
	return 0, fmt.Errorf("persistence %q is not volatile, logged or synced: %w", name, semel.ErrInvalidRequest)
}

// Connect connects to the servers of a store. The caller must close the client.
func (s *Store) Connect(ctx context.Context) (*redisstore.Client, error) {
	opts := &redisstore.ClientOptions{
		Username: s.Username, Password: s.Password.Reveal(), Database: s.Database,
		ConnectTimeout: s.ConnectTimeout, Timeout: s.Timeout,
	}
	if t := s.TLS; t != nil {
		config, err := redisstore.TLSFiles{CA: t.CA, Certificate: t.Certificate, Key: t.Key, ServerName: t.ServerName}.Config()
		if err != nil {
			return nil, err
		}
		config.InsecureSkipVerify = t.InsecureSkipVerify
		opts.TLS = config
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
	opts, err := s.options()
	if err != nil {
		return layer, err
	}
	traits, err := opts.Traits()
	if err != nil {
		return layer, err
	}
	cache, err := tiered.OpenCache(ctx, traits, func(ctx context.Context) (semel.Store, func() error, error) { return s.open(ctx) })
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
	x.TLS(s.TLS)
	x.Fail("", s.examine(ctx, x))
}

func (s *Store) examine(ctx context.Context, x *config.Examination) error {
	opts, err := s.options()
	if err != nil {
		return err
	}
	client, err := s.Connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	findings, err := redisstore.Examine(ctx, client, opts)
	x.Add(findings)
	return err
}

var _ config.AddressChecker = (*Store)(nil)
