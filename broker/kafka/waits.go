package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/semel-dev/semel/pipeline"
)

var _ pipeline.PatientWaiter = (*Source)(nil)

// WaitsFor implements pipeline.Waiter. It names a group that has not accepted the
// member, or a transaction that holds up a partition, with the command that ends or
// shows it. A partition without new records, and a member without partitions, wait
// for nothing. Ready reports missing topics and brokers that do not answer.
func (s *Source) WaitsFor(ctx context.Context) string {
	s.looking.Lock()
	defer s.looking.Unlock()
	s.passing.Store(false)
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
	_, open := errors.AsType[*OpenError](stalled)
	s.passing.Store(open)
	return strings.TrimPrefix(stalled.Error(), "kafka: ")
}

// EndsByItself implements pipeline.PatientWaiter: a coordinator ends the transaction for
// which the source waits.
func (s *Source) EndsByItself() bool { return s.passing.Load() }
