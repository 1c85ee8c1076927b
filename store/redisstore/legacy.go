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
	commands := make([]rueidis.Completed, len(units))
	for i := range units {
		commands[i] = s.client.B().Exists().Key(s.opts.LegacyPrefix + reqs[units[i].at].Key.ID).Build()
	}
	marked := make([]bool, len(units))
	for i, result := range s.client.DoMulti(ctx, commands...) {
		n, err := result.AsInt64()
		if err != nil {
			return nil, storeError("claim: look for a mark", err)
		}
		marked[i] = n > 0
	}
	return marked, nil
}
