package kafka

import (
	"context"
	"fmt"
	"strings"

	"github.com/semel-dev/semel/pipeline"
)

var _ pipeline.Waiter = (*Source)(nil)

// WaitsFor implements pipeline.Waiter. It names a group that has not accepted the
// member, or a transaction that does not end and holds up a partition, with the command
// that ends it. A partition without new records, and a member without partitions, wait
// for nothing. Ready reports missing topics and brokers that do not answer.
func (s *Source) WaitsFor(ctx context.Context) string {
	s.looking.Lock()
	defer s.looking.Unlock()
	if member, _ := s.client.GroupMetadata(); member == "" {
		return fmt.Sprintf("group %s to accept this member", s.opts.Group)
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
		return "" // if brokers did not answer, nothing is known
	}
	return strings.TrimPrefix(stalled.Error(), "kafka: ")
}
