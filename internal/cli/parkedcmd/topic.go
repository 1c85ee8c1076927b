package parkedcmd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/internal/cli/term"
	kafkakind "github.com/semel-dev/semel/internal/kind/kafka"
	"github.com/semel-dev/semel/pipeline"
)

// backAtOnce is the number of messages that are written back before their
// outcomes are reported.
const backAtOnce = 500

// giveBack writes messages of a topic back to their origin, for the process that
// runs the pipeline. It reports the outcome of each.
func (r *retry) giveBack(ctx context.Context, topic *kafka.DeadLetterTopic) error {
	limit, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	left := 0
	for list := range slices.Chunk(r.list, backAtOnce) {
		places, errs := topic.Redrive(limit, list, keyrecord.Actor())
		for i, m := range list {
			outcome, reason, failure := outcomeRedriven, "", ""
			switch o, err := places[i], errs[i]; {
			case errors.Is(err, pipeline.ErrNotParked):
				outcome = outcomeOther
				if by, ok := topic.Settled(m.ID); ok {
					reason = byHand(by)
				}
			case err != nil:
				outcome, failure = outcomeLeft, term.InOneLine(err).Error()
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
	if topic, ok := r.letters.(*kafka.DeadLetterTopic); ok {
		return topic.Redrivable(m)
	}
	return nil
}

// lookInKafka returns the changelog's records of the messages' keys, in the
// partitions to which they go back. If the pipeline has never run, nothing is
// known.
func (r *retry) lookInKafka(ctx context.Context) ([]semel.Record, error) {
	var keys []semel.Key
	for _, m := range r.list {
		if !isMissing(m) && !slices.Contains(keys, m.Key) {
			keys = append(keys, m.Key)
		}
	}
	records := make([]semel.Record, len(r.list))
	known, err := kafkakind.Look(ctx, r.conf, r.spec, keys)
	if errors.Is(err, kafkatxn.ErrNoChangelog) {
		return records, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the changelog of %s: %w", r.spec.Name, term.InOneLine(err))
	}
	for i, m := range r.list {
		o := &m.Message.Origin
		for _, k := range known {
			// After a repartition stage a key has one partition, whatever its records
			// had.
			here := kafkakind.Repartitions(r.spec) || k.Topic == o.Source && k.Partition == o.Partition
			if k.Key == m.Key && here {
				records[i] = semel.Record{Key: k.Key, State: semel.Done, FirstSeen: k.FirstSeen, Expires: k.Expires}
			}
		}
	}
	return records, nil
}
