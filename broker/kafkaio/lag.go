package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/semel-dev/semel/pipeline"
)

var (
	_ pipeline.Lagger = (*Source)(nil)
	_ pipeline.Lagger = (*Transactor)(nil)
)

// Lag implements pipeline.Lagger: for each partition that this member has, what
// lies between the offset that the group committed and the end. Markers of
// transactions count too, and so do records of transactions that are still open.
func (s *Source) Lag(ctx context.Context) ([]pipeline.Lag, error) {
	var held []partitionID
	for _, p := range s.all() {
		held = append(held, partitionID{p.topic, p.partition})
	}
	return lagOf(ctx, kadm.NewClient(s.client), s.opts.Group, s.opts.Reset, held)
}

// Lag implements pipeline.Lagger, as [Source.Lag] does. It may be called at any
// time; before Run nothing is behind. With a repartition stage it tells of both
// stages.
func (t *Transactor) Lag(ctx context.Context) ([]pipeline.Lag, error) {
	var held, copied []partitionID
	t.mu.Lock()
	for id := range t.copying {
		copied = append(copied, id)
	}
	for id, at := range t.slots {
		if _, own := at.holder.(*session); own {
			held = append(held, id)
		}
	}
	t.mu.Unlock()
	if len(held)+len(copied) == 0 {
		return nil, nil
	}
	reset := t.opts.Reset
	if t.opts.Repartition != nil {
		reset = ResetStart // it is the first stage's
	}
	adm := t.adm() // whoever has a partition has made the client before
	list, err := lagOf(ctx, adm, t.opts.Group, reset, held)
	if err != nil || len(copied) == 0 {
		return list, err
	}
	more, err := lagOf(ctx, adm, t.opts.copyGroup(), t.opts.Reset, copied)
	return append(list, more...), err
}

// lagOf asks how far a group is behind in some partitions. Those of which it
// cannot be known are left out.
func lagOf(ctx context.Context, adm *kadm.Client, group string, reset Reset, held []partitionID) ([]pipeline.Lag, error) {
	if len(held) == 0 {
		return nil, nil
	}
	var topics []string
	for _, id := range held {
		if !slices.Contains(topics, id.topic) {
			topics = append(topics, id.topic)
		}
	}
	committed, err := adm.FetchOffsetsForTopics(ctx, group, topics...)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: offsets of group %s: %w", group, err)
	}
	first, err := adm.ListStartOffsets(ctx, topics...)
	last, err2 := adm.ListEndOffsets(ctx, topics...)
	if err := errors.Join(err, err2); err != nil {
		return nil, fmt.Errorf("kafka: offsets of %v: %w", topics, err)
	}
	var list []pipeline.Lag
	for _, id := range held {
		start, ok := first.Lookup(id.topic, id.number)
		end, ok2 := last.Lookup(id.topic, id.number)
		if !ok || !ok2 || start.Err != nil || end.Err != nil {
			continue
		}
		at := start.Offset
		if c, ok := committed.Lookup(id.topic, id.number); ok && c.At >= 0 {
			at = max(c.At, at) // what was deleted is not behind any more
		} else if reset == ResetEnd {
			at = end.Offset
		}
		list = append(list, pipeline.Lag{Source: id.topic, Partition: id.number, Messages: max(end.Offset-at, 0), Bytes: pipeline.UnknownLag})
	}
	return list, nil
}
