//go:build !files

// Package kind lists the kinds of sources, sinks and stores of the program. Each
// one is a package below this one; see DESIGN.md.
package kind

import (
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/expr"
	"github.com/semel-dev/semel/internal/kind/embedded"
	"github.com/semel-dev/semel/internal/kind/file"
	"github.com/semel-dev/semel/internal/kind/filter"
	"github.com/semel-dev/semel/internal/kind/http"
	"github.com/semel-dev/semel/internal/kind/kafka"
	"github.com/semel-dev/semel/internal/kind/memory"
	"github.com/semel-dev/semel/internal/kind/nats"
	"github.com/semel-dev/semel/internal/kind/postgres"
	"github.com/semel-dev/semel/internal/kind/rabbitmq"
	"github.com/semel-dev/semel/internal/kind/redis"
	"github.com/semel-dev/semel/internal/kind/sqs"
	"github.com/semel-dev/semel/internal/kind/stdout"
	"github.com/semel-dev/semel/internal/kind/tiered"
	"github.com/semel-dev/semel/internal/kind/webhook"
)

// All returns every kind, in the order of messages and listings.
func All() *config.Kinds {
	return &config.Kinds{
		Sources: []func() config.Source{file.NewSource, http.NewSource, kafka.NewSource, nats.NewSource, postgres.NewOutbox, rabbitmq.NewSource, sqs.NewSource},
		Sinks:   []func() config.Sink{file.NewSink, stdout.NewSink, webhook.NewSink, postgres.NewSink, kafka.NewSink, nats.NewSink, rabbitmq.NewSink, sqs.NewSink},
		Stores:  []func() config.StoreKind{memory.NewStore, embedded.NewStore, redis.NewStore, postgres.NewStore, tiered.NewStore, filter.NewStore},

		Directory: embedded.At, Memory: memory.NewStore,
		Expressions: expr.Compile,
	}
}
