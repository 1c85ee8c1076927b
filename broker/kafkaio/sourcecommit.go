package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// commitNowAndThen commits what is settled until ctx ends. What is on its way
// then goes on until sending ends.
func (s *Source) commitNowAndThen(ctx, sending context.Context) {
	ticker := time.NewTicker(s.opts.CommitEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.idle:
		case <-ctx.Done():
			return
		}
		_ = s.commit(sending, s.all) // it was told, and comes again with the next one
		if !pause(ctx, s.opts.CommitEvery/4) {
			return
		}
	}
}

// commitSurely commits until it succeeds, others have the partitions, or ctx
// ends.
func (s *Source) commitSurely(ctx context.Context, which func() []*owned) error {
	for n := 0; ; n++ {
		err := s.commit(ctx, which)
		if err == nil || forgotten(err) || errors.Is(err, kerr.FencedInstanceID) || errors.Is(err, kgo.ErrClientClosed) || refused(err) {
			return err
		}
		if !pause(ctx, min(50*time.Millisecond<<min(n, 5), time.Second)) {
			return err
		}
	}
}

// forgotten reports whether the group took the member for dead: its partitions are
// given to others, or will be.
func forgotten(err error) bool {
	return errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.FencedMemberEpoch)
}

// commit commits what is settled and not yet committed of the partitions that
// which returns once no other commit runs: none that began before a partition was
// given away ends after it. An error is told to the observer; the next commit
// says the same again.
func (s *Source) commit(ctx context.Context, which func() []*owned) error {
	s.committing.Lock()
	defer s.committing.Unlock()
	offsets := map[string]map[int32]kgo.EpochOffset{}
	var of []*owned
	for _, p := range which() {
		at, ok := p.due()
		if !ok {
			continue
		}
		if offsets[p.topic] == nil {
			offsets[p.topic] = map[int32]kgo.EpochOffset{}
		}
		offsets[p.topic][p.partition] = at
		of = append(of, p)
	}
	if len(of) == 0 {
		return nil
	}
	failed := s.send(ctx, offsets)
	var errs []error
	for _, p := range of {
		if err := failed(p.topic, p.partition); err != nil {
			errs = append(errs, err)
			continue
		}
		p.isCommitted(offsets[p.topic][p.partition].Offset)
	}
	err := errors.Join(errs...)
	if err != nil && ctx.Err() == nil {
		s.tell(len(errs), "offsets not committed, trying again", err)
	}
	return err
}

// send commits offsets and returns what became of each partition.
func (s *Source) send(ctx context.Context, offsets map[string]map[int32]kgo.EpochOffset) func(string, int32) error {
	result := map[string]map[int32]error{}
	var all error
	s.client.CommitOffsetsSync(ctx, offsets, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if all = err; err != nil {
			return
		}
		for _, t := range resp.Topics {
			result[t.Topic] = map[int32]error{}
			for _, p := range t.Partitions {
				result[t.Topic][p.Partition] = kerr.ErrorForCode(p.ErrorCode)
			}
		}
	})
	return func(topic string, partition int32) error {
		if all != nil {
			return fmt.Errorf("kafka: commit: %w", all)
		}
		err, answered := result[topic][partition]
		switch {
		case !answered:
			return fmt.Errorf("kafka: commit %s/%d: no answer", topic, partition)
		case err != nil:
			return fmt.Errorf("kafka: commit %s/%d: %w", topic, partition, err)
		}
		return nil
	}
}
