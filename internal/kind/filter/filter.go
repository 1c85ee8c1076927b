// Package filter is the kind of store that keeps a few bits for each key, with a
// known error rate.
package filter

import (
	"context"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/filter"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/kind/redis"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/store/redisstore"
	"github.com/semel-dev/semel/store/tiered"
)

// Store keeps a few bits for each key, with a known error rate.
type Store struct {
	config.StoreBase
	// Redis is the name of the Redis store whose server holds the filter. If it has
	// no name, the filter is in process memory.
	Redis schema.Reference
	Rate  float64
	// Expect is the expected number of keys in a window.
	Expect int64
	Window time.Duration
}

// NewStore returns an empty Store.
func NewStore() config.StoreKind { return &Store{} }

// Kind implements config.Kind.
func (*Store) Kind() string { return "filter" }

// Fields implements config.Kind.
func (s *Store) Fields() schema.Mapping {
	return schema.Mapping{Doc: "A few bits for each key, with a stated error rate. It is a layer above an exact store, or the only store of a pipeline with `lossy: true`.", Fields: []schema.Field{
		schema.StoreField("redis", &s.Redis, "Store of the kind `redis`, whose server holds the filter.").Means("in memory"),
		schema.RateField("rate", &s.Rate, "The share of new keys that it takes for known, above 0 and below 1.").Need(),
		schema.CountField("expect", &s.Expect, "The expected number of keys in a window.").Need(),
		schema.DurationField("window", &s.Window, "How long keys are remembered.").Need(),
	}}
}

// About implements config.StoreKind.
func (s *Store) About() config.StoreAbout {
	return config.StoreAbout{
		Upper: true, NotLast: "a filter drops some new messages: put an exact store below it",
		Filter:    &config.FilterAbout{Rate: s.Rate, Expect: s.Expect},
		NoRecords: "is a filter, which keeps no records: there is nothing to look into",
		Server:    s.Redis,
		Shared:    s.Redis.Name != "",
		Gaps:      []string{fmt.Sprintf("more than %d keys come within the window: further keys are delivered and not remembered, so that the drop rate does not rise", s.Expect)},
	}
}

// Check implements config.StoreKind. The server of the filter must be a Redis store.
func (s *Store) Check(c *config.Checker, of *config.Store) {
	if s.Redis.Name == "" {
		return
	}
	path := "stores." + of.Name + ".filter.redis"
	server, ok := c.Find(s.Redis, path)
	if !ok {
		return
	}
	if _, ok := server.Spec.(*redis.Store); !ok && server.Spec.Kind() != "" {
		c.Report(s.Redis.At, path, "%s is %s: name a store of the kind redis, whose server holds the filter", s.Redis.Name, server.Spec.Kind())
	}
}

// Lint implements config.StoreKind.
func (s *Store) Lint(l *config.Linter, of *config.Store) {
	if l.Pipeline == nil {
		return
	}
	if l.Decides(of) {
		s.lintAlone(l, of)
	}
	if window := l.Pipeline.Window; s.Window < window {
		risk, severity, cost := config.NoRisk, doctor.Notice, "the filter forgets keys that the store below still has: it then saves no work"
		if l.Mode == config.Lossy {
			risk, severity, cost = config.Repeat, doctor.Warning, "the filter forgets a key earlier, and its message has its effect again"
		}
		l.Add(severity, risk, l.At("window"), fmt.Sprintf("%s, and that of %s is %s", schema.Duration(window), of.Name, schema.Duration(s.Window)), cost, "use the same window in both")
	}
}

// lintAlone checks a filter that decides alone.
func (s *Store) lintAlone(l *config.Linter, of *config.Store) {
	severity, found := doctor.Warning, fmt.Sprintf("%s is a filter with rate %g", of.Name, s.Rate)
	remedy := "use an exact store, unless you accept this loss"
	if !l.Pipeline.Lossy {
		severity, found = doctor.Broken, found+", and lossy is not set"
		remedy = "use an exact store, or write lossy: true if you accept this loss"
	}
	l.Deciding(severity, config.Loss, l.At("store"), found, fmt.Sprintf("about %g of the new messages are dropped", s.Rate), remedy)
	if l.Pipeline.OnLeaseExpired == "hold" {
		l.Add(doctor.Broken, config.Repeat, l.At("on_lease_expired"), "hold, in a filter", "a filter keeps no claims", "use an exact store")
	}
	if s.Redis.Name == "" {
		l.Add(doctor.Warning, config.Repeat, l.At("store"), of.Name+" is in memory", "every key is lost when the process ends", "set redis to a store, whose server then holds the filter")
	}
}

// Open implements config.StoreKind.
func (s *Store) Open(_ context.Context, env *config.StoreEnv) (semel.Store, error) {
	return nil, fmt.Errorf("%s is a filter, which keeps no records: use it above an exact store in a tiered store: %w", env.Name, semel.ErrInvalidRequest)
}

// OpenLayer opens the filter as a layer of a stack. If its server does not
// answer, the layer opens once the server answers.
func (s *Store) OpenLayer(ctx context.Context, env *config.StoreEnv) (layer tiered.Layer, err error) {
	if s.Redis.Name == "" {
		layer.Filter, err = s.inMemory(false)
		return layer, err
	}
	server, err := s.server(env.File)
	if err != nil {
		return layer, err
	}
	filter, err := tiered.OpenFilter(ctx, func(ctx context.Context) (filter.KeyFilter, func() error, error) {
		return s.inRedis(ctx, env.Name, server)
	})
	if err != nil {
		return layer, err
	}
	env.OnClose(filter.Close)
	layer.Filter = filter
	return layer, nil
}

// OpenFilter implements config.FilterStore for a filter that decides alone.
func (s *Store) OpenFilter(ctx context.Context, env *config.StoreEnv) (filter.KeyFilter, error) {
	if s.Redis.Name == "" {
		return s.inMemory(true)
	}
	server, err := s.server(env.File)
	if err != nil {
		return nil, err
	}
	filter, closing, err := s.inRedis(ctx, env.Name, server)
	if err != nil {
		return nil, err
	}
	env.OnClose(closing)
	return filter, nil
}

func (s *Store) inMemory(alone bool) (filter.KeyFilter, error) {
	return tiered.NewMemoryFilter(&tiered.FilterOptions{Window: s.Window, Capacity: int(s.Expect), ErrorRate: s.Rate, Alone: alone})
}

func (s *Store) inRedis(ctx context.Context, name string, server *redis.Store) (filter.KeyFilter, func() error, error) {
	client, err := server.Connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	filter, err := redisstore.NewFilter(ctx, client, s.options(name, server))
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return filter, func() error { client.Close(); return nil }, nil
}

// server returns the store on whose server the filter is.
func (s *Store) server(f *config.File) (*redis.Store, error) {
	of, ok := f.Store(s.Redis.Name)
	if !ok {
		return nil, fmt.Errorf("there is no store %q: %w", s.Redis.Name, semel.ErrInvalidRequest)
	}
	server, ok := of.Spec.(*redis.Store)
	if !ok {
		return nil, fmt.Errorf("%s is not a store of the kind redis: %w", s.Redis.Name, semel.ErrInvalidRequest)
	}
	return server, nil
}

// options gives each filter of a server its own name.
func (s *Store) options(name string, server *redis.Store) *redisstore.FilterOptions {
	prefix := server.Prefix
	if prefix == "" {
		prefix = redisstore.DefaultPrefix
	}
	return &redisstore.FilterOptions{
		Prefix: prefix + "filter:" + name + ":", Rate: s.Rate, Window: s.Window,
		// A slice is half a window. With uneven traffic, it may get twice the
		// average.
		Capacity: s.Expect,
	}
}

// Examine implements config.Kind. It does not create a missing filter.
func (s *Store) Examine(ctx context.Context, x *config.Examination) {
	x.Fail("", s.examine(ctx, x))
	for _, p := range x.File.Pipelines {
		if p.Store.Name != x.Store.Name {
			continue
		}
		severity, remedy := doctor.Warning, "use an exact store, unless you accept this loss"
		if !p.Lossy {
			severity, remedy = doctor.Broken, "use an exact store, or write lossy: true if you accept this loss"
		}
		x.Note(severity, "pipelines."+p.Name, "the filter decides alone", fmt.Sprintf("about %g of the new messages are dropped", s.Rate), remedy)
	}
}

func (s *Store) examine(ctx context.Context, x *config.Examination) error {
	if s.Redis.Name == "" {
		_, err := s.inMemory(false)
		if err == nil {
			x.Note(doctor.Fine, "rate", fmt.Sprintf("%g", s.Rate), "", "")
		}
		return err
	}
	server, err := s.server(x.File)
	if err != nil {
		return err
	}
	client, err := server.Connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	findings, err := redisstore.ExamineFilter(ctx, client, s.options(x.Store.Name, server))
	x.Add(findings)
	return err
}

var _ config.FilterStore = (*Store)(nil)
