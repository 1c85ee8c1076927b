package kafka

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/pipeline"
)

// owned is a partition from its assignment to its revocation. If its log is replaced by
// a shorter one, later records belong to a new owned.
type owned struct {
	topic     string
	partition int32
	ordered   *pipeline.Partition
	mark      pipeline.Watermark

	mu sync.Mutex // guards the fields below; before that of earlier
	// earlier is the previous assignment, if it was lost. Records that were in progress
	// then are settled there.
	earlier   *owned
	identity  string  // of the topic of the records, or ""
	signed    string  // identity of the topic for which the offset was committed, or ""
	replaced  bool    // the committed offset is that of an earlier topic of the name
	committed int64   // -1 while unknown
	next      int64   // the offset after the last record that was read; -1 while unknown
	epochs    []epoch // of records that were read and are not committed
}

// epoch is the leader epoch of records from an offset on.
type epoch struct {
	from   int64
	leader int32
}

func newOwned(topic string, partition int32) *owned {
	return &owned{
		topic: topic, partition: partition, committed: -1, next: -1,
		ordered: pipeline.NewPartition(topic + "/" + strconv.Itoa(int(partition))),
	}
}

// read notes records of a topic.
func (p *owned) read(records []*kgo.Record, positions []int64, identity string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.identity != identity { // an earlier assignment may be of another topic
		p.identity, p.earlier = identity, nil
	}
	p.next = positions[len(positions)-1] + 1
	p.mark.Read(positions, p.next)
	for _, r := range records {
		if n := len(p.epochs); n == 0 || p.epochs[n-1].leader != r.LeaderEpoch {
			p.epochs = append(p.epochs, epoch{r.Offset, r.LeaderEpoch})
		}
	}
}

// due returns the offset to commit, if there is one.
func (p *owned) due() (kgo.EpochOffset, bool) {
	at := p.settled()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.earlier != nil && p.next >= 0 { // otherwise other members may have committed more
		if before := p.earlier.settled(); before.Offset > at.Offset {
			at = before
		}
	}
	return at, at.Offset > p.committed
}

// caughtUp reports whether all records that were read are settled.
func (p *owned) caughtUp() bool {
	low, ok := p.mark.Low()
	p.mu.Lock()
	defer p.mu.Unlock()
	return ok && low == p.next
}

// settled returns the offset below which all records are settled, or -1 if none was
// read.
func (p *owned) settled() kgo.EpochOffset {
	at := kgo.EpochOffset{Epoch: -1, Offset: -1}
	low, ok := p.mark.Low()
	if !ok {
		return at
	}
	at.Offset = low
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.epochs) > 1 && p.epochs[1].from < low {
		p.epochs = p.epochs[1:]
	}
	if len(p.epochs) > 0 && p.epochs[0].from < low {
		at.Epoch = p.epochs[0].leader
	}
	return at
}

// furthest returns p or the assignment before it, whichever has settled more.
func (p *owned) furthest() *owned {
	p.mu.Lock()
	before := p.earlier
	p.earlier = nil
	p.mu.Unlock()
	if before != nil && before.settled().Offset > p.settled().Offset {
		return before
	}
	return p
}

func (p *owned) isCommitted(offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.committed = max(p.committed, offset)
}

// assigned creates a pipeline.Partition for each partition, before the client fetches
// from it.
func (s *Source) assigned(_ context.Context, client *kgo.Client, of map[string][]int32) {
	s.joined.Store(true)
	s.mu.Lock()
	n, found := 0, []string(nil)
	for topic, partitions := range of {
		if s.parts[topic] == nil {
			s.parts[topic] = map[int32]*owned{}
			found = append(found, topic)
		}
		for _, p := range partitions {
			id := cluster.Partition{Topic: topic, Number: p}
			given := newOwned(topic, p)
			if given.earlier = s.earlier[id]; given.earlier != nil {
				given.identity = given.earlier.identity
			}
			delete(s.earlier, id)
			s.parts[topic][p] = given
			n++
		}
	}
	client.ResumeFetchPartitions(of) // they may have been paused when they were revoked
	s.mu.Unlock()
	if n > 0 && s.opts.Pattern != nil && len(found) > 0 {
		slices.Sort(found)
		s.tell(n, "partitions assigned, also of "+strings.Join(found, ", "), nil)
	} else if n > 0 {
		s.tell(n, "partitions assigned", nil)
	}
}

// startAgain forgets what was read of a topic that was deleted. Its offsets are not committed
// any more: another topic of the same name would be read from them. The reading goroutine calls
// it.
func (s *Source) startAgain(topic string) {
	delete(s.ids, topic)
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, p := range s.parts[topic] {
		forget(p)
		s.parts[topic][n] = newOwned(topic, n)
	}
	for id := range s.earlier {
		if id.Topic == topic {
			delete(s.earlier, id)
		}
	}
}

// signature says to which topic of which cluster a committed offset belongs. Brokers before Kafka
// 4.1 keep offsets by the topic's name alone, and tools copy offsets to another cluster together
// with their metadata.
type signature struct{ topic, cluster string }

const (
	ofTopic   = "topic id "
	ofCluster = " of cluster "
)

// String returns the metadata of the offset.
func (s signature) String() string {
	if s.cluster == "" {
		return ofTopic + s.topic
	}
	return ofTopic + s.topic + ofCluster + s.cluster
}

// parseSignature reads the metadata of an offset, which another program may have committed.
func parseSignature(metadata string) (s signature, ok bool) {
	text, ok := strings.CutPrefix(metadata, ofTopic)
	s.topic, s.cluster, _ = strings.Cut(text, ofCluster)
	return s, ok
}

// signing returns a context for a commit that notes to which topics the offsets belong, if brokers
// take that.
func (s *Source) signing(ctx context.Context, of []*owned) context.Context {
	notes := map[cluster.Partition]string{}
	s.mu.Lock()
	here := s.cluster
	s.mu.Unlock()
	for _, p := range of {
		p.mu.Lock()
		if p.identity != "" {
			notes[cluster.Partition{Topic: p.topic, Number: p.partition}] = signature{p.identity, here}.String()
		}
		p.mu.Unlock()
	}
	return kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for i := range req.Topics {
			topic := &req.Topics[i]
			for j := range topic.Partitions {
				if s.unsigned {
					topic.Partitions[j].Metadata = new("") // without it, the client sends its name
				} else if note, ok := notes[cluster.Partition{Topic: topic.Topic, Number: topic.Partitions[j].Partition}]; ok {
					topic.Partitions[j].Metadata = &note
				}
			}
		}
		return nil
	})
}

// fetched notes the committed offsets of assigned partitions. An offset of an earlier topic of the
// name does not count.
func (s *Source) fetched(ctx context.Context, client *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	signed := map[*owned]signature{}
	note := func(topic string, partition int32, offset int64, metadata *string) {
		if p := s.find(topic, partition); p != nil && offset >= 0 {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.next < 0 {
				p.committed, p.next = offset, offset
			}
			if metadata != nil {
				if by, ok := parseSignature(*metadata); ok {
					signed[p] = by
				}
			}
		}
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			note(t.Topic, p.Partition, p.Offset, p.Metadata)
		}
	}
	for _, g := range resp.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				note(t.Topic, p.Partition, p.Offset, p.Metadata)
			}
		}
	}
	return s.compare(ctx, client, signed)
}

// compare finds the partitions whose offsets were committed for an earlier topic of the name. It
// is an error if the broker does not know a topic yet: the group session is tried again. A broker
// that still knows the earlier topic is noticed when records are read. An offset that was signed
// in another cluster was copied to this one, for the topic that is here: it counts as it is.
func (s *Source) compare(ctx context.Context, client *kgo.Client, signed map[*owned]signature) error {
	var topics []string
	for p := range signed {
		if !slices.Contains(topics, p.topic) {
			topics = append(topics, p.topic)
		}
	}
	ids, here, err := cluster.Present(ctx, client, topics)
	if err != nil {
		return err
	}
	if here != "" {
		s.mu.Lock()
		s.cluster = here
		s.mu.Unlock()
	}
	copied := 0
	for p, was := range signed {
		if was.cluster != "" && here != "" && was.cluster != here {
			copied++
			continue
		}
		id, known := ids[p.topic]
		if !known {
			return fmt.Errorf("kafka: group %s: the broker does not know topic %s, of which an offset is committed, or not yet", s.opts.Group, p.topic)
		}
		p.mu.Lock()
		if p.signed = was.topic; id != "" && id != was.topic {
			p.signed, p.replaced, p.committed, p.next = "", true, -1, -1
		}
		p.mu.Unlock()
	}
	if copied > 0 {
		s.tell(copied, "offsets were copied from another cluster, and count as they are", nil)
	}
	return nil
}

// ofEarlier reports whether the committed offset is that of an earlier topic than the one with an
// identity.
func (p *owned) ofEarlier(identity string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return identity != "" && p.signed != "" && p.signed != identity
}

// restart drops the records of a partition whose committed offset is that of an earlier topic. Read
// then begins at its start.
func (s *Source) restart(p *owned, records []*kgo.Record) {
	forget(p)
	s.mu.Lock()
	s.parts[p.topic][p.partition] = newOwned(p.topic, p.partition) // none is revoked before poll returns
	s.mu.Unlock()
	s.again = append(s.again, cluster.Partition{Topic: p.topic, Number: p.partition})
	for _, r := range records {
		r.Recycle()
	}
}

// fromStart reads partitions from their start after records of them showed that the committed
// offset is that of an earlier topic. With ResetFail it is an error. The reading goroutine calls
// it after a poll.
func (s *Source) fromStart(of []cluster.Partition) error {
	start := map[string]map[int32]kgo.EpochOffset{}
	for _, id := range of {
		if s.opts.Reset == ResetFail {
			return fmt.Errorf("kafka: group %s: %w", s.opts.Group, &replacedError{id.Topic, id.Number})
		}
		if start[id.Topic] == nil {
			start[id.Topic] = map[int32]kgo.EpochOffset{}
		}
		start[id.Topic][id.Number] = kgo.EpochOffset{Epoch: -1} // the client finds the start if offset 0 was deleted
		s.tellStart(id.Topic, id.Number)
	}
	s.client.SetOffsets(start) // partitions that have been revoked are left out
	return nil
}

func (s *Source) tellStart(topic string, partition int32) {
	s.tell(1, fmt.Sprintf("%s/%d is read from its start: the committed offset is of an earlier topic of that name", topic, partition), nil)
}

// replacedError says that a committed offset is of an earlier topic of the name.
type replacedError struct {
	topic     string
	partition int32
}

func (e *replacedError) Error() string {
	return fmt.Sprintf("topic %s was deleted and made again, and the committed offset of partition %d is of the former one: set the offsets of the group to where it shall read", e.topic, e.partition)
}

// adjusted returns where to begin: at the start if the committed offset is that of an earlier topic
// of the name. With ResetFail it is an error.
func (s *Source) adjusted(_ context.Context, offsets map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	for topic, partitions := range offsets {
		for number := range partitions {
			p := s.find(topic, number)
			if p == nil {
				continue
			}
			p.mu.Lock()
			replaced := p.replaced
			p.mu.Unlock()
			if replaced && s.opts.Reset == ResetFail {
				return nil, &replacedError{topic, number}
			}
			if replaced {
				partitions[number] = kgo.NewOffset().AtStart()
				s.tellStart(topic, number)
			}
		}
	}
	return offsets, nil
}

// current returns the partition that records belong to, or nil if it was revoked. It
// reports records that were deleted before they were read.
func (s *Source) current(of *kgo.FetchTopicPartition) *owned {
	s.mu.Lock()
	p := s.parts[of.Topic][of.Partition]
	if p == nil {
		s.mu.Unlock()
		return nil
	}
	p.mu.Lock()
	next := p.next
	p.mu.Unlock()
	first := of.Records[0].Offset
	older := p
	if next > first {
		p = newOwned(of.Topic, of.Partition)
		s.parts[of.Topic][of.Partition] = p
		s.client.ResumeFetchPartitions(map[string][]int32{of.Topic: {of.Partition}})
	}
	s.mu.Unlock()
	switch {
	case p != older:
		forget(older)
		s.tell(1, fmt.Sprintf("%s/%d goes back from offset %d to %d", of.Topic, of.Partition, next, first), nil)
	case next >= 0 && of.LogStartOffset > next:
		s.tell(1, fmt.Sprintf("%s/%d: offsets %d to %d were deleted before they were read", of.Topic, of.Partition, next, of.LogStartOffset-1), nil)
	}
	return p
}

// revoked gives partitions up, after the records in progress are settled and committed.
func (s *Source) revoked(ctx context.Context, _ *kgo.Client, of map[string][]int32) {
	parts := s.take(of)
	if len(parts) == 0 {
		return
	}
	// The group waits about a minute. Records that are not settled by then are read
	// again.
	ctx, cancel := context.WithTimeout(ctx, 45*time.Second)
	defer cancel()
	var closing sync.WaitGroup
	for _, p := range parts {
		closing.Go(func() { _ = p.ordered.Close(ctx) }) // an error means that some records are read again
	}
	closing.Wait()
	_ = s.commitSurely(ctx, func() []*owned { return parts }) // it was reported
	s.tell(len(parts), "partitions revoked", nil)
}

// lost forgets partitions that other members may already have. If they are assigned
// again, the offsets settled until then are committed.
func (s *Source) lost(_ context.Context, _ *kgo.Client, of map[string][]int32) {
	parts := s.take(of)
	for _, p := range parts {
		forget(p)
	}
	s.mu.Lock()
	for _, p := range parts {
		s.earlier[cluster.Partition{Topic: p.topic, Number: p.partition}] = p.furthest()
	}
	s.mu.Unlock()
	if len(parts) > 0 {
		s.tell(len(parts), "partitions lost", nil)
	}
}

// forget closes a partition without waiting for the records in progress.
func forget(p *owned) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.ordered.Close(ctx)
}

// take removes partitions and returns them.
func (s *Source) take(of map[string][]int32) []*owned {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []*owned
	for topic, partitions := range of {
		for _, p := range partitions {
			if at := s.parts[topic][p]; at != nil {
				parts = append(parts, at)
				delete(s.parts[topic], p)
			}
		}
		if len(s.parts[topic]) == 0 { // it may not come again
			delete(s.parts, topic)
		}
	}
	return parts
}

func (s *Source) find(topic string, partition int32) *owned {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parts[topic][partition]
}

func (s *Source) all() []*owned {
	s.mu.Lock()
	defer s.mu.Unlock()
	var parts []*owned
	for _, partitions := range s.parts {
		for _, p := range partitions {
			parts = append(parts, p)
		}
	}
	return parts
}

// Traits implements pipeline.Source.
func (s *Source) Traits() pipeline.SourceTraits {
	return pipeline.SourceTraits{Positions: true, Pause: s.Pause, Lag: s.Lag}
}

// Pause stops or resumes reading from a partition. It ignores a revoked partition,
// because the member may have it again as another pipeline.Partition.
func (s *Source) Pause(partition *pipeline.Partition, paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, partitions := range s.parts {
		for number, p := range partitions {
			if p.ordered != partition {
				continue
			}
			of := map[string][]int32{topic: {number}}
			if paused {
				s.client.PauseFetchPartitions(of)
			} else {
				s.client.ResumeFetchPartitions(of)
			}
			return
		}
	}
}
