package faults

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/store/redisstore"
	"github.com/semel-dev/semel/store/tiered"
)

// Kinds of stores.
const (
	onRedis      = "redis"
	onCompact    = "redis compact"
	onPostgres   = "postgres"
	onDual       = "redis above postgres"
	onDisk       = "embedded"
	onMarkFirst  = "mark before work" // deliberately broken
	redisTimeout = time.Second
)

// setting says where the records are. It is handed to worker processes.
type setting struct {
	Kind string
	// Redis and Postgres are addresses, Dir is the directory of the embedded
	// store.
	Redis, Postgres, Dir string
	// Master is set if Redis is the address of Sentinels.
	Master string
	// Began is about when the inputs were made, in milliseconds, where numbered
	// keys are kept by the time of their messages; else 0.
	Began int64
}

// opened is a store with what belongs to it.
type opened struct {
	semel.Store
	// postgres is the store in PostgreSQL, or nil: the effects of its
	// transactions are rows there.
	postgres *pgstore.Store
	// bare: effects should leave no result, for the form that has none.
	bare    bool
	closers []func()
}

func (o *opened) close() {
	for i := len(o.closers); i > 0; i-- {
		o.closers[i-1]()
	}
}

// patiently calls a function again that changes nothing, while a server does not answer in time:
// this machine or the server may stand still for longer than redisTimeout.
func patiently(ctx context.Context, call func() error) error {
	for try := 1; ; try++ {
		err := call()
		if err == nil || try == 20 || semel.Classify(err) == semel.ClassPermanent || pause(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

// open opens the store. The caller closes it.
func (s setting) open(ctx context.Context) (o *opened, err error) {
	err = patiently(ctx, func() error {
		o, err = s.tryOpen(ctx)
		return err
	})
	return o, err
}

func (s setting) tryOpen(ctx context.Context) (_ *opened, err error) {
	o := &opened{bare: s.Kind == onCompact}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	switch s.Kind {
	case onRedis, onCompact:
		o.Store, err = s.redis(ctx, o)
	case onPostgres:
		o.Store, err = s.inPostgres(ctx, o)
	case onDual:
		var cache, durable semel.Store
		if cache, err = s.redis(ctx, o); err != nil {
			return nil, err
		}
		if durable, err = s.inPostgres(ctx, o); err != nil {
			return nil, err
		}
		o.Store, err = tiered.Dual(cache, durable, nil)
	case onDisk, onMarkFirst:
		var embedded *logstore.Store
		if embedded, err = logstore.Open(s.Dir, nil); err != nil {
			return nil, err
		}
		o.closers = append(o.closers, func() { _ = embedded.Close() })
		o.Store = embedded
		if s.Kind == onMarkFirst {
			o.Store = markFirst{embedded}
		}
	default:
		err = fmt.Errorf("no store is called %q", s.Kind)
	}
	return o, err
}

func (s setting) redis(ctx context.Context, o *opened) (semel.Store, error) {
	client, err := redisstore.NewClient(ctx, s.Redis, &redisstore.ClientOptions{Master: s.Master, Timeout: redisTimeout, ConnectTimeout: redisTimeout})
	if err != nil {
		return nil, err
	}
	o.closers = append(o.closers, client.Close)
	opts := &redisstore.Options{Persistence: redisstore.Synced}
	if s.Kind == onCompact {
		opts.Compact = &redisstore.Compact{Window: semel.DefaultWindow}
	}
	return redisstore.New(ctx, client, opts)
}

func (s setting) inPostgres(ctx context.Context, o *opened) (semel.Store, error) {
	opts := &pgstore.Options{}
	if s.Began != 0 {
		opts.MessageTime = s.messageTime
	}
	store, err := pgstore.Connect(ctx, s.Postgres, opts)
	if err != nil {
		return nil, err
	}
	o.closers = append(o.closers, func() { _ = store.Close() })
	o.postgres = store
	return store, nil
}

// messageTime spreads inputs over the last two days, and so over partitions.
func (s setting) messageTime(key semel.Key) (time.Time, bool) {
	n, err := strconv.Atoi(key.ID)
	return time.UnixMilli(s.Began).Add(-time.Duration(n%48) * time.Hour), err == nil
}

// markFirst is the mistake that this project is about: a key is marked when it
// is first seen, before the work.
type markFirst struct{ semel.Store }

func (m markFirst) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	marks := make([]semel.ClaimRequest, len(reqs))
	for i, req := range reqs {
		marks[i] = req
		marks[i].Done = true
		marks[i].Hold = false
	}
	if err := m.Store.Claim(ctx, marks, answers); err != nil {
		return err
	}
	for i := range answers {
		if answers[i].Decision == semel.Fresh {
			answers[i].Claim = semel.Claim{Token: 1, Attempt: 1, LeaseEnd: time.Now().Add(reqs[i].Lease)}
		}
	}
	return nil
}

func (m markFirst) Complete(context.Context, []semel.CompleteRequest, []error) error { return nil }

func (m markFirst) Release(context.Context, []semel.ReleaseRequest, []error) error { return nil }

func (m markFirst) Extend(_ context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	for i, req := range reqs {
		answers[i].LeaseEnd = time.Now().Add(req.Lease)
	}
	return nil
}

// states looks up what became of keys, a batch at a time.
func (o *opened) states(ctx context.Context, keys []semel.Key) ([]semel.Record, error) {
	looker, ok := semel.As[semel.Inspector](o.Store)
	if !ok {
		return nil, errors.New("the store cannot look keys up")
	}
	records := make([]semel.Record, len(keys))
	for from := 0; from < len(keys); from += 500 {
		to := min(from+500, len(keys))
		if err := patiently(ctx, func() error { return looker.Look(ctx, keys[from:to], records[from:to]) }); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// keyOf returns the key of an input, which is named scope/id.
func keyOf(input string) semel.Key {
	scope, id, _ := strings.Cut(input, "/")
	return semel.Key{Scope: scope, ID: id}
}

// keysOf returns the keys of inputs.
func keysOf(inputs []string) []semel.Key {
	keys := make([]semel.Key, len(inputs))
	for i, input := range inputs {
		keys[i] = keyOf(input)
	}
	return keys
}
