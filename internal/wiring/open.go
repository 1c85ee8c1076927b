package wiring

import (
	"context"
	"fmt"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/store/redisstore"
	"github.com/semel-dev/semel/store/tiered"
)

func openMemory(spec *config.Memory) (semel.Store, error) {
	store, err := memstore.New(&memstore.Options{MaxKeys: spec.MaxKeys, KeepIDs: spec.KeepIDs, MaxResult: spec.MaxResult})
	if err != nil {
		return nil, err // not store: a nil *Store in an interface is no nil
	}
	return store, nil
}

func (w *opening) embedded(spec *config.Embedded) (semel.Store, error) {
	fsync, err := logstore.ParseFsync(spec.Fsync)
	if err != nil {
		return nil, err
	}
	store, err := logstore.Open(spec.Path, &logstore.Options{
		Fsync: fsync, FsyncInterval: spec.FsyncInterval, KeepIDs: spec.KeepIDs, MaxResult: spec.MaxResult,
	})
	if err != nil {
		return nil, err
	}
	w.onClose(store.Close)
	return store, nil
}

func (w *opening) redis(ctx context.Context, spec *config.Redis) (semel.Store, error) {
	store, closing, err := openRedis(ctx, spec)
	if err != nil {
		return nil, err
	}
	w.onClose(closing)
	return store, nil
}

// openRedis opens a store with connections of its own.
func openRedis(ctx context.Context, spec *config.Redis) (_ semel.Store, closing func() error, err error) {
	opts, err := redisOptions(spec)
	if err != nil {
		return nil, nil, err
	}
	client, err := connectRedis(ctx, spec)
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

func redisOptions(spec *config.Redis) (*redisstore.Options, error) {
	persistence, err := redisPersistence(spec.Persistence)
	if err != nil {
		return nil, err
	}
	opts := &redisstore.Options{
		Prefix: spec.Prefix, Persistence: persistence, MaxResult: spec.MaxResult,
		KeepIDs: spec.KeepIDs, LegacyPrefix: spec.LegacyPrefix,
	}
	if c := spec.Compact; c != nil {
		opts.Compact = &redisstore.Compact{Window: c.Window, Slices: c.Slices, Expect: c.Expect, Grace: c.Grace}
	}
	return opts, nil
}

func redisPersistence(name string) (redisstore.Persistence, error) {
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

// connectRedis connects to the servers of a store. The caller closes the client.
func connectRedis(ctx context.Context, spec *config.Redis) (*redisstore.Client, error) {
	opts := &redisstore.ConnectOptions{
		Username: spec.Username, Password: spec.Password.Reveal(), Database: spec.Database,
		ConnectTimeout: spec.ConnectTimeout, Timeout: spec.Timeout,
	}
	if t := spec.TLS; t != nil {
		config, err := redisstore.TLSFiles{CA: t.CA, Certificate: t.Certificate, Key: t.Key, ServerName: t.ServerName}.Config()
		if err != nil {
			return nil, err
		}
		config.InsecureSkipVerify = t.InsecureSkipVerify
		opts.TLS = config
	}
	url := spec.URL.Reveal()
	switch s := spec.Sentinel; {
	case s != nil:
		url = "redis://" + strings.Join(s.Addresses, ",")
		opts.Master, opts.SentinelUsername, opts.SentinelPassword = s.Master, s.Username, s.Password.Reveal()
	case spec.Cluster != nil:
		url = "redis://" + strings.Join(spec.Cluster, ",")
	}
	return redisstore.Connect(ctx, url, opts)
}

func (w *opening) postgres(ctx context.Context, spec *config.Postgres) (semel.Store, error) {
	store, err := pgstore.Connect(ctx, spec.DSN.Reveal(), &pgstore.Options{
		Names: names(spec), Cleanup: pgstore.Cleanup(spec.Cleanup), Generation: spec.Generation,
		KeepIDs: spec.KeepIDs, MaxResult: spec.MaxResult, Prepare: spec.Prepare,
	})
	if err != nil {
		return nil, err
	}
	w.onClose(store.Close)
	return store, nil
}

func names(spec *config.Postgres) pgstore.Names {
	return pgstore.Names{Schema: spec.Schema, Prefix: spec.Prefix}
}

// tiered opens a stack from below: while the server that decides does not answer
// there is nothing to open above it. The layers above may come later.
func (w *opening) tiered(ctx context.Context, name string, spec *config.Tiered) (semel.Store, error) {
	last := len(spec.Layers) - 1
	durable, err := w.store(ctx, spec.Layers[last].Name)
	if err != nil {
		return nil, layerError(spec.Layers[last].Name, err)
	}
	opts := &tiered.Options{
		SoleWriter: spec.SeesEveryWriter, MaxAge: spec.MaxAge, Timeout: spec.LayerTimeout,
	}
	if opts.OnOutage, err = outagePolicy(spec.OnStoreError); err != nil {
		return nil, err
	}
	if w.opts.Observe != nil {
		opts.Observe = func(event tiered.Event) {
			event.Err = w.file.RedactError(event.Err)
			w.opts.Observe(name, event)
		}
	}
	for _, reference := range spec.Layers[:last] {
		layer, err := w.layer(ctx, reference.Name)
		if err != nil {
			return nil, layerError(reference.Name, err)
		}
		opts.Layers = append(opts.Layers, layer)
	}
	store, err := tiered.New(durable, opts)
	if err != nil {
		return nil, err
	}
	return store, nil
}

func layerError(name string, err error) error { return fmt.Errorf("its layer %s: %w", name, err) }

func outagePolicy(name string) (tiered.OutagePolicy, error) {
	switch name {
	case "stop":
		return tiered.Stop, nil
	case "wait":
		return tiered.Wait, nil
	case "pass":
		return tiered.Pass, nil
	}
	return 0, fmt.Errorf("on_store_error %q is not stop, wait or pass: %w", name, semel.ErrInvalidRequest)
}

func (w *opening) layer(ctx context.Context, name string) (layer tiered.Layer, err error) {
	layer.Name = name
	s, ok := w.file.Store(name)
	if !ok {
		return layer, fmt.Errorf("there is no store %q: %w", name, semel.ErrInvalidRequest)
	}
	switch spec := s.Spec.(type) {
	case *config.Filter:
		layer.Filter, err = w.filter(ctx, s.Name, spec)
	case *config.Redis:
		layer.Cache, err = w.cache(ctx, spec)
	default:
		layer.Cache, err = w.store(ctx, name)
	}
	return layer, err
}

// cache opens a store in Redis for a layer, or has it opened when its server
// answers.
func (w *opening) cache(ctx context.Context, spec *config.Redis) (semel.Store, error) {
	opts, err := redisOptions(spec)
	if err != nil {
		return nil, err
	}
	traits, err := opts.Traits()
	if err != nil {
		return nil, err
	}
	cache, err := tiered.OpenCache(ctx, traits, func(ctx context.Context) (semel.Store, func() error, error) { return openRedis(ctx, spec) })
	if err != nil {
		return nil, err
	}
	w.onClose(cache.Close)
	return cache, nil
}

func (w *opening) filter(ctx context.Context, name string, spec *config.Filter) (tiered.Filter, error) {
	if spec.Redis.Name == "" {
		return memoryFilter(spec)
	}
	redis, err := filterServer(w.file, spec)
	if err != nil {
		return nil, err
	}
	filter, err := tiered.OpenFilter(ctx, func(ctx context.Context) (tiered.Filter, func() error, error) {
		return redisFilter(ctx, name, spec, redis)
	})
	if err != nil {
		return nil, err
	}
	w.onClose(filter.Close)
	return filter, nil
}

func redisFilter(ctx context.Context, name string, spec *config.Filter, redis *config.Redis) (tiered.Filter, func() error, error) {
	client, err := connectRedis(ctx, redis)
	if err != nil {
		return nil, nil, err
	}
	filter, err := redisstore.NewFilter(ctx, client, filterOptions(name, spec, redis))
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return filter, closer(client), nil
}

// alone opens a filter that decides.
func (w *opening) alone(ctx context.Context, name string) (tiered.Filter, error) {
	s, _ := w.file.Store(name)
	if s == nil || s.Spec.Kind() != "filter" {
		return nil, fmt.Errorf("there is no filter %q: %w", name, semel.ErrInvalidRequest)
	}
	spec := s.Spec.(*config.Filter)
	if spec.Redis.Name == "" {
		return tiered.NewMemoryFilter(&tiered.FilterOptions{Window: spec.Window, Capacity: int(spec.Expect), ErrorRate: spec.Rate, Alone: true})
	}
	redis, err := filterServer(w.file, spec)
	if err != nil {
		return nil, err
	}
	filter, closing, err := redisFilter(ctx, name, spec, redis)
	if err != nil {
		return nil, err
	}
	w.onClose(closing)
	return filter, nil
}

func memoryFilter(spec *config.Filter) (tiered.Filter, error) {
	return tiered.NewMemoryFilter(&tiered.FilterOptions{Window: spec.Window, Capacity: int(spec.Expect), ErrorRate: spec.Rate})
}

// filterServer finds the store on whose server a filter is.
func filterServer(f *config.File, spec *config.Filter) (*config.Redis, error) {
	server, ok := f.Store(spec.Redis.Name)
	if !ok {
		return nil, fmt.Errorf("there is no store %q: %w", spec.Redis.Name, semel.ErrInvalidRequest)
	}
	redis, ok := server.Spec.(*config.Redis)
	if !ok {
		return nil, fmt.Errorf("%s is no store of the kind redis: %w", spec.Redis.Name, semel.ErrInvalidRequest)
	}
	return redis, nil
}

// filterOptions keeps the filters of one server apart by their names.
func filterOptions(name string, spec *config.Filter, redis *config.Redis) *redisstore.FilterOptions {
	prefix := redis.Prefix
	if prefix == "" {
		prefix = redisstore.DefaultPrefix
	}
	return &redisstore.FilterOptions{
		Prefix: prefix + "filter:" + name + ":", Rate: spec.Rate, Window: spec.Window,
		// A slice is half a window; twice the even pace may fall into one.
		Capacity: spec.Expect,
	}
}
