package suite

import (
	"context"
	"errors"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// plainRedis is a session that drops duplicates as guides show: SET NX EX before the effect and
// SET EX after it, each in one pipeline for a batch. No command compares anything. So it has no
// fencing: a consumer that was too slow overwrites the key of its successor. It bounds what any
// consumer can reach that writes each key to Redis twice.
type plainRedis struct {
	client rueidis.Client
	sink   pipeline.Sink
}

var _ pipeline.Session = (*plainRedis)(nil)

// Process implements pipeline.Session.
func (s *plainRedis) Process(ctx context.Context, items []*pipeline.Item) {
	fresh := make([]*pipeline.Item, 0, len(items))
	for i, answer := range s.set(ctx, items, true) {
		it, err := items[i], answer.Error()
		switch {
		case err == nil:
			it.Decision, it.Err = semel.Fresh, nil
			fresh = append(fresh, it)
		case rueidis.IsRedisNil(err):
			it.Decision, it.Err = semel.Duplicate, nil
		default:
			it.Err = &pipeline.StoreError{Err: err}
		}
	}
	if len(fresh) == 0 {
		return
	}
	s.sink.Deliver(ctx, fresh)
	for i, answer := range s.set(ctx, fresh, false) {
		fresh[i].Err = errors.Join(fresh[i].Err, answer.Error())
	}
}

func (s *plainRedis) set(ctx context.Context, items []*pipeline.Item, claim bool) []rueidis.RedisResult {
	commands := make(rueidis.Commands, len(items))
	for i, it := range items {
		set := s.client.B().Set().Key(it.Call.Key.ID)
		if claim {
			commands[i] = set.Value("claimed").Nx().Ex(semel.DefaultLease).Build()
		} else {
			commands[i] = set.Value("done").Ex(remembered).Build()
		}
	}
	return s.client.DoMulti(ctx, commands...)
}

// Abandon implements pipeline.Session.
func (s *plainRedis) Abandon(context.Context, []*pipeline.Item) {}

// BindScope implements pipeline.Session.
func (s *plainRedis) BindScope(context.Context, string, semel.ScopeOwner) error { return nil }

// Traits implements pipeline.Session.
func (s *plainRedis) Traits() pipeline.SinkTraits { return s.sink.Traits() }

// Close implements pipeline.Session.
func (s *plainRedis) Close(ctx context.Context) error {
	s.client.Close()
	return s.sink.Close(ctx)
}

// consumePlainRedis is a consumer with such a session.
func (b broker) consumePlainRedis(name string) rival {
	return rival{
		work:        "Peer: a bare SET NX EX of each key before, and a SET EX after, pipelined for the batch, without any comparison",
		peerVersion: linked("github.com/redis/rueidis"),
		figures:     []figure{{name: name + "-plain", value: name, unit: "messages/s"}},
		peer: func(ctx context.Context) (_ map[string]float64, err error) {
			server, err := startRedis(ctx)
			if err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, server.Close()) }()
			client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
			if err != nil {
				return nil, err
			}
			return b.measure(ctx, name, b.input(), true, func(sink pipeline.Sink) (pipeline.Session, error) {
				return &plainRedis{client: client, sink: sink}, nil
			})
		},
	}
}
