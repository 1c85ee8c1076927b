package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/semel-dev/semel/pipeline"
)

var _ pipeline.Waiter = (*Source)(nil)

// WaitsFor implements pipeline.Waiter. It names a pattern that no topic matches, a group that
// has not accepted the member, or a transaction that holds up a partition. For a transaction it
// also names the command to end or show the transaction. A partition without new records, and a
// member without partitions, wait for nothing. Ready reports missing topics and brokers that do
// not answer. A coordinator ends a transaction for which the source waits.
func (s *Source) WaitsFor(ctx context.Context) (what string, ends bool) {
	s.looking.Lock()
	defer s.looking.Unlock()
	if s.opts.Pattern != nil && len(s.client.GetConsumeTopics()) == 0 {
		return fmt.Sprintf("a topic that matches %s, and that this user may describe", s.opts.Pattern), false
	}
	if member, _ := s.client.GroupMetadata(); member == "" {
		return fmt.Sprintf("group %s to accept this member", s.opts.Group), false
	}
	reading := Reading{Group: s.opts.Group, Partitions: map[string][]int32{}}
	for _, p := range s.all() {
		reading.Partitions[p.topic] = append(reading.Partitions[p.topic], p.partition)
	}
	if s.stalls == nil {
		s.stalls = NewStallWatch(s.client, 0) // the pipeline is patient
	}
	stalled, err := s.stalls.Look(ctx, []Reading{reading})
	if err != nil || stalled == nil {
		return "", false // if brokers did not answer, nothing is known
	}
	_, open := errors.AsType[*OpenError](stalled)
	return strings.TrimPrefix(stalled.Error(), "kafka: "), open
}
