package outbox

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/pipeline"
)

// shardState is what the database says of a shard.
type shardState struct {
	number int16
	epoch  int64
	owner  string        // "" if no relay owns it
	lacks  bool          // the table of shards does not have it
	oldest time.Duration // how long its oldest row waits, or 0
}

// querier is a pool or a connection.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// states reads the states of all shards.
func (sql *statements) states(ctx context.Context, from querier) ([]shardState, error) {
	rows, err := from.Query(ctx, sql.shards, shardCount)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s shardState, err error) {
		var seconds float64
		err = row.Scan(&s.number, &s.epoch, &s.owner, &s.lacks, &seconds)
		s.oldest = time.Duration(seconds * float64(time.Second))
		return s, err
	})
}

// Gauges returns the gauges of pipeline.SourceTraits. It reports all shards, also those of
// other relays, so that a shard without an owner is seen.
func (s *Source) Gauges(ctx context.Context) (list []pipeline.Gauge, err error) {
	states, err := s.sql.states(ctx, s.pool)
	if err != nil {
		return nil, fmt.Errorf("outbox: look at the shards: %w", err)
	}
	for _, of := range states {
		number := strconv.Itoa(int(of.number))
		list = append(list, pipeline.Gauge{Name: "dedup.outbox.oldest", Labels: []string{number}, Value: of.oldest.Seconds()})
		if of.owner != "" {
			list = append(list, pipeline.Gauge{Name: "dedup.outbox.owner", Labels: []string{number, of.owner}, Value: float64(of.epoch)})
		}
	}
	return list, nil
}
