package redisstore

import (
	"context"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// legacy asks which units have a mark of another scheme. It returns nil if none
// is looked for. Nothing has been sent that changes anything when it fails.
func (s *Store) legacy(ctx context.Context, reqs []semel.ClaimRequest, units []unit) ([]bool, error) {
	if s.opts.LegacyPrefix == "" {
		return nil, nil
	}
	marked := make([]bool, 0, len(units))
	for len(units) > 0 {
		commands := make([]rueidis.Completed, min(len(units), maxPipeline))
		for i := range commands {
			commands[i] = s.client.B().Exists().Key(s.opts.LegacyPrefix + reqs[units[i].at].Key.ID).Build()
		}
		units = units[len(commands):]
		for _, result := range s.client.DoMulti(ctx, commands...) {
			n, err := result.AsInt64()
			if err != nil {
				return nil, storeError("claim: look for a mark", err)
			}
			marked = append(marked, n > 0)
		}
	}
	return marked, nil
}
