package tiered

import (
	"context"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
)

// Ready returns nil if claims can be decided now, or else why not. Layers that
// do not answer are left out, so that only the durable store is asked, if it can
// tell; and under Pass not even that. It blocks at most until ctx ends and may be
// called at any time.
func (s *Store) Ready(ctx context.Context) error {
	ready, ok := semel.As[doctor.Readier](s.below)
	if !ok || s.opts.OnOutage == Pass {
		return nil
	}
	return wrap("ready", ready.Ready(ctx))
}
