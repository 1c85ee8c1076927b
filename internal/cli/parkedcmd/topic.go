package parkedcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// backAtOnce is the number of messages that are written back before their
// outcomes are reported.
const backAtOnce = 500

// giveBack writes messages of a topic back to their origin, for the process that
// runs the pipeline. It reports the outcome of each.
func (r *retry) giveBack(ctx context.Context, topic facts.ParkedTopic) error {
	limit, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	left := 0
	for list := range slices.Chunk(r.list, backAtOnce) {
		places, errs := topic.Redrive(limit, list, keyrecord.Actor())
		for i, m := range list {
			outcome, reason, failure := facts.Redriven, "", ""
			switch o, err := places[i], errs[i]; {
			case errors.Is(err, pipeline.ErrNotParked):
				outcome = facts.SettledByOther
				if by, ok := topic.Settled(m.ID); ok {
					reason = facts.ByHand(by)
				}
			case err != nil:
				outcome, failure = facts.NotRedriven, term.InOneLine(err).Error()
				left++
			default:
				reason = fmt.Sprintf("written to %s/%d at %d, for the running pipeline", o.Source, o.Partition, o.Offset)
			}
			if err := r.report(r.out(), m, outcome, reason, failure); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if left > 0 {
		return fmt.Errorf("%s: not settled: %d of %s", r.spec.Name, left, term.Plural(len(r.list), "message"))
	}
	return nil
}

// refused returns why a message will not be redriven, if that is known in
// advance.
func (r *retry) refused(m *pipeline.Parked) error {
	if topic, ok := r.letters.(facts.ParkedTopic); ok {
		return topic.Redrivable(m)
	}
	return nil
}

// lookInSource returns the records of the messages' keys, in the partitions to which they go
// back, from a source that has them. If the pipeline has never run, nothing is known.
func (r *retry) lookInSource(ctx context.Context) ([]semel.Record, error) {
	source, ok := r.spec.Source.(config.TransactionalSource)
	if !ok {
		return nil, fmt.Errorf("the source of %s has no keys: %w", r.spec.Name, semel.ErrInvalidRequest)
	}
	var keys []config.OriginKey
	var of []int // the message of each
	for i, m := range r.list {
		if !isMissing(m) {
			keys = append(keys, config.OriginKey{Key: m.Key, Source: m.Message.Origin.Source, Partition: m.Message.Origin.Partition})
			of = append(of, i)
		}
	}
	known, err := source.Records(ctx, r.conf, r.spec, keys)
	if err != nil {
		return nil, fmt.Errorf("read the changelog of %s: %w", r.spec.Name, term.InOneLine(err))
	}
	records := make([]semel.Record, len(r.list))
	for n, i := range of {
		records[i] = known[n]
	}
	return records, nil
}
