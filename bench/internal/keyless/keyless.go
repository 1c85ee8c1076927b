// Package keyless has the yardstick for keys: a pipeline's session without any.
package keyless

import (
	"context"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Session delivers everything, also duplicates.
type Session struct{ pipeline.Sink }

// Process implements pipeline.Session.
func (s Session) Process(ctx context.Context, items []*pipeline.Item) {
	for _, it := range items {
		it.Decision, it.Attempt = semel.Fresh, it.Tries+1
	}
	s.Deliver(ctx, items)
}

// Abandon implements pipeline.Session.
func (Session) Abandon(context.Context, []*pipeline.Item) {}
