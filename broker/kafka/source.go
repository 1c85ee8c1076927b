package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// ErrFenced says that another process runs under the same instance name. The later
// process works, and the earlier one must end. It wraps pipeline.ErrReplaced.
var ErrFenced error = fenced{}

type fenced struct{}

// Error implements error.
func (fenced) Error() string { return "another process runs under the same instance name" }

// Is reports whether target is pipeline.ErrReplaced.
func (fenced) Is(target error) bool { return target == pipeline.ErrReplaced }

// MissingTopic reports whether an error says that a topic does not exist, and which.
// Such an error wraps semel.ErrStoreUnavailable, because the topic may be created at
// any time.
func MissingTopic(err error) (topic string, missing bool) {
	if e, ok := errors.AsType[*cluster.MissingTopicError](err); ok {
		return e.Topic, true
	}
	return "", false
}

// NoBroker reports whether an error says that no broker answers. cause is the error of
// the last broker. Such an error wraps semel.ErrStoreUnavailable.
func NoBroker(err error) (cause error, none bool) {
	if e, ok := errors.AsType[*cluster.NoBrokerError](err); ok {
		return e.Err, true
	}
	return nil, false
}

// SourceOptions are the options of OpenSource. Client and Group are required, and either
// Topics or Pattern.
type SourceOptions struct {
	// Name is the pipeline's name in events.
	Name string
	// Client configures how to reach the brokers: seed brokers, TLS, SASL. It cannot
	// change the settings that reading needs, and a pool for decompressed bytes is refused.
	Client []kgo.Opt
	Group  string
	Topics []string
	// Pattern is set instead of Topics if all topics that match are read. A new one is read from
	// its start, within a minute. One that is deleted is left. Reset must be ResetStart:
	// a new topic has no offsets, and records are written to it before it is found.
	Pattern *Pattern
	// Instance makes this a static member: after a restart within SessionTimeout it
	// gets its partitions back immediately. Each process needs its own name. Defaults
	// to "": a member that leaves when it ends.
	Instance string
	// SessionTimeout is when the group gives the partitions of a silent member
	// to others. Defaults to 10 s.
	SessionTimeout time.Duration
	// Reset is where to start in partitions without a committed offset. If a committed
	// offset no longer exists, or is of an earlier topic of the name, reading starts at the
	// oldest record, except with ResetFail. Defaults to ResetStart.
	Reset Reset
	// ServerSide joins with the protocol of KIP-848, in which the broker assigns
	// partitions. Brokers before 4.3 can refuse a commit in it, and the records are
	// read again.
	ServerSide bool
	// CommitEvery is how often offsets are committed. A partition of which all records
	// are settled is committed up to four times as often, so that its lag soon shows
	// zero. Defaults to 1 s.
	CommitEvery time.Duration
	// Observer receives events about partitions that are assigned or revoked, and about
	// lost offsets. Defaults to none.
	Observer pipeline.Observer
}

// Source reads topics as a member of a group, always read_committed. Each Kafka
// partition is a pipeline.Partition. The source commits offsets up to the first record
// that is not settled. Before it gives up a partition, it waits for the records in
// progress and commits them.
type Source struct {
	opts       SourceOptions
	client     *kgo.Client
	disconnect context.CancelFunc // ends all requests of the client, even those that it waits for
	stop       context.CancelFunc // ends the periodic commits
	give       context.CancelFunc // cancels the commit in flight
	done       chan struct{}      // closed after the last commit
	idle       chan struct{}      // has room for one signal that a partition has caught up

	unknown map[string]time.Time // since when; owned by the reading goroutine
	doubted []string             // topics that match and may be deleted; owned by the reading goroutine
	left    []string             // topics that match and whose records were dropped; owned by the reading goroutine
	ids     map[string]string    // the identities of topics; owned by the reading goroutine
	again   []cluster.Partition  // whose committed offset is of an earlier topic; owned by the reading goroutine
	fenced  cluster.NameTaken    // owned by the reading goroutine
	joined  atomic.Bool          // the group gave an assignment since the last poll
	refusal atomic.Pointer[refusal]
	blocks  pipeline.Blocks
	room    record.Pool
	read    []int64 // memory for offsets; owned by the reading goroutine

	looking sync.Mutex // held while WaitsFor asks the brokers; guards stalls; before mu
	stalls  *StallWatch

	committing sync.Mutex // held while offsets are committed; before mu
	unsigned   bool       // brokers take no metadata with offsets; guarded by committing

	mu      sync.Mutex // guards the fields below
	cluster string     // its id, or "" while it is unknown or brokers have none
	parts   map[string]map[int32]*owned
	earlier map[cluster.Partition]*owned // that were lost and not assigned again
}

var (
	_ pipeline.Source = (*Source)(nil)
	_ doctor.Readier  = (*Source)(nil)
)

// OpenSource joins the group. It blocks until a broker has answered. One error names
// all invalid options and wraps semel.ErrInvalidRequest.
func OpenSource(ctx context.Context, opts *SourceOptions) (*Source, error) {
	s := &Source{parts: map[string]map[int32]*owned{}, earlier: map[cluster.Partition]*owned{}, unknown: map[string]time.Time{}, ids: map[string]string{}}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	o.SessionTimeout = cmp.Or(o.SessionTimeout, 10*time.Second)
	o.CommitEvery = cmp.Or(o.CommitEvery, time.Second)
	if err := o.validate(); err != nil {
		return nil, err
	}
	living, disconnect := context.WithCancel(context.Background())
	s.disconnect = disconnect
	all := append([]kgo.Opt{kgo.FetchMaxWait(500 * time.Millisecond)}, o.Client...) // an added partition waits as long
	all = append(all,
		kgo.WithContext(living),
		kgo.ConsumerGroup(o.Group), kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.WithPools(&s.room), kgo.DisableAutoCommit(), kgo.SessionTimeout(o.SessionTimeout), kgo.HeartbeatInterval(min(3*time.Second, o.SessionTimeout/3)),
		kgo.OnPartitionsAssigned(s.assigned), kgo.OnPartitionsRevoked(s.revoked), kgo.OnPartitionsLost(s.lost), kgo.OnOffsetsFetched(s.fetched), kgo.AdjustFetchOffsetsFn(s.adjusted),
		// The partitions of a poll must not change until its records are attributed to
		// them.
		kgo.BlockRebalanceOnPoll(),
	)
	all = append(all, o.Reset.Options()...)
	if o.Pattern != nil {
		all = append(all, o.Pattern.options()...)
	} else {
		all = append(all, kgo.ConsumeTopics(o.Topics...))
	}
	if o.Instance != "" {
		all = append(all, kgo.InstanceID(o.Instance))
	}
	if o.ServerSide {
		all = append(all, kgo.ServerSideBalancer())
	}
	var err error
	if s.client, err = kgo.NewClient(all...); err != nil {
		disconnect()
		return nil, fmt.Errorf("kafka: %w: %w", semel.ErrInvalidRequest, err)
	}
	if err = cluster.RefusePools(s.client); err == nil {
		err = cluster.Reach(ctx, s.client)
	}
	if err != nil {
		s.close(ctx)
		return nil, err
	}
	var sending, committing context.Context
	sending, s.give = context.WithCancel(context.Background())
	committing, s.stop = context.WithCancel(sending)
	s.done, s.idle = make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(s.done)
		s.commitNowAndThen(committing, sending)
	}()
	if o.Instance != "" && !o.ServerSide {
		go cluster.KeepWhole(committing, s.client, o.Group)
	}
	return s, nil
}

func (o *SourceOptions) validate() error {
	wrong := invalid.In("kafka: SourceOptions.")
	for name, missing := range map[string]bool{"Client": len(o.Client) == 0, "Group": o.Group == "", "Topics": len(o.Topics) == 0 && o.Pattern == nil} {
		if missing {
			wrong.Add("%s is missing", name)
		}
	}
	if o.Pattern != nil && len(o.Topics) > 0 {
		wrong.Add("Topics, Pattern: one of them must be empty")
	}
	switch {
	case o.Pattern == nil:
	case o.Reset == ResetEnd:
		wrong.Add("Reset: with a Pattern, records that are written to a new topic before it is found would be lost: use ResetStart")
	case o.Reset == ResetFail:
		wrong.Add("Reset: with a Pattern, each new topic has no committed offset and would end the source: use ResetStart")
	}
	if o.SessionTimeout < 0 || o.CommitEvery < 0 {
		wrong.Add("SessionTimeout, CommitEvery: %v, %v: none may be negative", o.SessionTimeout, o.CommitEvery)
	}
	if o.Reset > ResetFail {
		wrong.Add("Reset: %d is no such policy", o.Reset)
	}
	return wrong.Err()
}

// Ready implements doctor.Readier. [MissingTopic] tells whether a topic does not exist.
// The source reads the topic when it was created. It continues when the brokers accept
// what they refuse now.
func (s *Source) Ready(ctx context.Context) error {
	if err := s.isRefused(); err != nil {
		return err
	}
	return cluster.HaveTopics(ctx, s.client, s.opts.Topics...) // with a pattern none need be there
}

// Read implements pipeline.Source.
func (s *Source) Read(ctx context.Context) ([]*pipeline.Item, error) {
	for tries := 0; ; tries++ {
		items, err := s.poll(ctx)
		for _, topic := range s.left {
			s.leave(topic)
		}
		if s.left = nil; len(s.doubted) > 0 {
			s.leaveDeleted(ctx)
		}
		if again := s.again; len(again) > 0 && err == nil {
			s.again = nil
			err = s.fromStart(again)
		}
		if len(items) > 0 || err != nil {
			return items, err
		}
		// The client retries after an error, or a partition was revoked.
		_ = retry.Sleep(ctx, retry.Backoff(tries, 10*time.Millisecond, 2*time.Second))
	}
}

// maxPoll is the most records that one Read returns.
const maxPoll = 2000

// poll waits for records. No partition is assigned or revoked between the poll and its
// return.
func (s *Source) poll(ctx context.Context) ([]*pipeline.Item, error) {
	fetches := s.client.PollRecords(ctx, maxPoll)
	defer s.client.AllowRebalance()
	err := s.errorOf(ctx, fetches)
	if err == nil {
		err = s.identify(ctx, fetches)
	}
	if err != nil {
		return nil, err
	}
	return s.items(fetches), nil
}

// refusal is why brokers do not let the source read: a password or a right that an operator
// can grant at the brokers.
type refusal struct {
	err error
	at  time.Time // when the brokers said so last
}

// refusedFor is how long the source counts as refused after the brokers said so. The client
// tries again within 5 s.
const refusedFor = 15 * time.Second

// refused notes what the brokers refuse. It reports a refusal once. The client tries again.
func (s *Source) refused(topic string, partition int32, err error) {
	said := fmt.Errorf("kafka: %s/%d: %w", topic, partition, err)
	if topic == "" {
		said = fmt.Errorf("kafka: group %s: %w", s.opts.Group, err)
	}
	if last := s.refusal.Swap(&refusal{said, time.Now()}); last == nil || last.err.Error() != said.Error() || time.Since(last.at) > refusedFor {
		s.tell(1, "refused, trying again", said)
	}
}

// isRefused returns the error with which the brokers refuse the source now, or nil.
func (s *Source) isRefused() error {
	if r := s.refusal.Load(); r != nil && time.Since(r.at) <= refusedFor {
		return r.err
	}
	return nil
}

// identify notes the identities of topics. Brokers before Kafka 3.1 do not send them with
// records. identify then asks once, because the client never reads from another topic of the
// same name, and blocks until a broker has answered: the records must not be offered without.
func (s *Source) identify(ctx context.Context, fetches kgo.Fetches) error {
	var topics []string
	fetches.EachTopic(func(of kgo.FetchTopic) {
		old, known := s.ids[of.Topic]
		if id := cluster.Identity(of.TopicID); known && id != "" && old != "" && id != old { // the client reads another topic of this name
			s.startAgain(of.Topic)
			known = false
		}
		if known || !slices.ContainsFunc(of.Partitions, func(p kgo.FetchPartition) bool { return len(p.Records) > 0 }) {
			return // without records it may be an error that has no topic
		}
		if id := cluster.Identity(of.TopicID); id != "" {
			s.ids[of.Topic] = id
		} else {
			topics = append(topics, of.Topic)
		}
	})
	for tries := 0; len(topics) > 0; tries++ {
		ids, err := cluster.Identities(ctx, s.client, topics...)
		if err == nil {
			maps.Copy(s.ids, ids)
			break
		}
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case s.opts.Pattern != nil && cluster.IsAny(err, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID):
			topics = s.drop(ctx, fetches, topics)
		case cluster.IsAny(err, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID):
			if err := s.unknownTopic(topics[0], err); err != nil {
				return err
			}
		default:
			s.tell(1, "trying again", err)
		}
		_ = retry.Sleep(ctx, retry.Backoff(tries, 10*time.Millisecond, 2*time.Second))
	}
	return nil
}

// drop drops the records of topics that brokers have not known for a while, and returns the others.
// The client then leaves a dropped topic. If it is there after all, its records are read again.
func (s *Source) drop(ctx context.Context, fetches kgo.Fetches, topics []string) []string {
	ids, _, err := cluster.Present(ctx, s.client, topics)
	if err != nil {
		return topics // nothing is known
	}
	return slices.DeleteFunc(topics, func(topic string) bool {
		if _, there := ids[topic]; there || !s.unknownFor(topic, 2*time.Second) {
			return false
		}
		for i := range fetches {
			fetches[i].Topics = slices.DeleteFunc(fetches[i].Topics, func(of kgo.FetchTopic) bool { return of.Topic == topic })
		}
		s.left = append(s.left, topic)
		return true
	})
}

// unknownFor notes that brokers do not know a topic, and reports whether that has lasted.
func (s *Source) unknownFor(topic string, least time.Duration) bool {
	since, ok := s.unknown[topic]
	if !ok {
		s.unknown[topic] = time.Now()
	}
	return ok && time.Since(since) >= least
}

// errorOf returns an error that ends reading. The client retries after all others.
func (s *Source) errorOf(ctx context.Context, fetches kgo.Fetches) error {
	var fatal error
	// The group accepted this member before or after the errors in fetches.
	joined := s.joined.Swap(false)
	if joined {
		s.fenced = cluster.NameTaken{}
		s.refusal.Store(nil)
		s.forgetOthers()
	}
	fetches.EachError(func(topic string, partition int32, err error) {
		var lost *kgo.ErrDataLoss
		var group *kgo.ErrGroupSession
		var replaced *replacedError
		switch {
		case ctx.Err() != nil:
			fatal = context.Cause(ctx)
		case errors.As(err, &replaced):
			fatal = fmt.Errorf("kafka: group %s: %w", s.opts.Group, replaced)
		case errors.As(err, &lost):
			s.tell(1, "committed offsets no longer exist", err)
		case errors.Is(err, kerr.FencedInstanceID):
			if !joined && s.fenced.Lasts(time.Now(), s.opts.SessionTimeout) {
				fatal = fmt.Errorf("%w: %s", ErrFenced, s.opts.Instance)
			} else {
				s.tell(1, "trying again", err)
			}
		case s.opts.Pattern != nil && cluster.IsAny(err, kerr.UnknownTopicID, kerr.UnknownTopicOrPartition):
			if !slices.Contains(s.doubted, topic) {
				s.doubted = append(s.doubted, topic)
			}
		case errors.Is(err, kerr.UnknownTopicID):
			fatal = s.unknownTopic(topic, err)
		case cluster.Refused(err):
			if joined && errors.As(err, &group) {
				return // perhaps from before it was accepted; a refusal that lasts is said again
			}
			s.refused(topic, partition, err)
		case cluster.Invalid(err):
			fatal = fmt.Errorf("kafka: group %s: %w: %w", s.opts.Group, semel.ErrInvalidRequest, err)
		case errors.As(err, &group), kerr.IsRetriable(err):
			s.tell(1, "trying again", err)
		default:
			fatal = fmt.Errorf("kafka: %s/%d: %w", topic, partition, err)
		}
	})
	return fatal
}

// forgetOthers forgets topics of a pattern of which this member has no partition. They may not come
// again.
func (s *Source) forgetOthers() {
	if s.opts.Pattern == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.ids, func(topic, _ string) bool { return s.parts[topic] == nil })
	maps.DeleteFunc(s.unknown, func(topic string, _ time.Time) bool { return s.parts[topic] == nil })
}

// unknownTopic returns an error if brokers have not known a topic for a while. A broker
// that has just started may not know it yet.
func (s *Source) unknownTopic(topic string, err error) error {
	delete(s.ids, topic)
	since, ok := s.unknown[topic]
	if !ok {
		s.unknown[topic] = time.Now()
		s.tell(1, "trying again", err)
	}
	if !ok || time.Since(since) < 10*time.Second {
		return nil
	}
	return fmt.Errorf("kafka: topic %s was deleted; if it was recreated, restart to read it: %w", topic, err)
}

// leaveDeleted leaves topics that match and were deleted. If there is another topic of that name
// now, the client finds it and reads it from its start. A broker that has just started may not
// know a topic yet.
func (s *Source) leaveDeleted(ctx context.Context) {
	topics := s.doubted
	s.doubted = nil
	for _, topic := range topics {
		if !s.unknownFor(topic, 2*time.Second) {
			continue
		}
		s.unknown[topic] = time.Now() // ask again later
		ids, err := cluster.Identities(ctx, s.client, topic)
		switch known := s.ids[topic]; {
		case err != nil && !cluster.IsAny(err, kerr.UnknownTopicOrPartition, kerr.UnknownTopicID):
			continue // nothing is known
		case err == nil && known != "" && ids[topic] == known:
			continue
		}
		s.leave(topic)
	}
}

// leave leaves a topic. If there is one of its name, the client finds it.
func (s *Source) leave(topic string) {
	s.startAgain(topic)
	delete(s.unknown, topic)
	s.tell(1, "topic "+topic+" was deleted or created again", nil)
	s.client.PurgeTopicsFromClient(topic)
}

// items makes items of records, in one allocation.
func (s *Source) items(fetches kgo.Fetches) []*pipeline.Item {
	n := fetches.NumRecords()
	if n == 0 {
		return nil
	}
	slab := s.blocks.Items(n)
	items := make([]*pipeline.Item, 0, n)
	fetches.EachPartition(func(of kgo.FetchTopicPartition) {
		if len(of.Records) == 0 {
			return
		}
		delete(s.unknown, of.Topic)
		p := s.current(&of)
		if p == nil {
			return // revoked: its new owner reads them
		}
		positions, identity := s.read[:0], s.ids[of.Topic]
		if p.ofEarlier(identity) {
			s.restart(p, of.Records)
			return
		}
		for _, r := range of.Records {
			it := &slab[len(items)]
			record.Fill(&it.Message, r)
			it.Message.Origin.Identity = identity
			it.Partition, it.Ref = p.ordered, p
			if len(r.Headers) > 0 {
				it.Redrive = header.Redrives(&it.Message)
			}
			positions = append(positions, r.Offset)
			items = append(items, it)
		}
		p.read(of.Records, positions, identity)
		s.read = positions
		for _, r := range of.Records {
			r.Recycle() // items use its bytes, which do not belong to the pool
		}
	})
	return items
}

// Ack implements pipeline.Source. Offsets are committed periodically.
func (s *Source) Ack(_ context.Context, items []*pipeline.Item) error {
	var some [256]int64
	positions, caughtUp := some[:0], false
	for i, it := range items {
		positions = append(positions, it.Message.Origin.Offset)
		if len(positions) == len(some) || i+1 == len(items) || items[i+1].Ref != it.Ref {
			p := it.Ref.(*owned)
			p.mark.Settle(positions...)
			positions, caughtUp = positions[:0], caughtUp || p.caughtUp()
		}
	}
	if caughtUp {
		select {
		case s.idle <- struct{}{}:
		default: // a signal is pending
		}
	}
	return nil
}

// Return implements pipeline.Source. Records that are not settled are above the
// committed offset.
func (s *Source) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }

// Close implements pipeline.Source. A static member keeps its place for a while;
// another member leaves the group.
func (s *Source) Close(ctx context.Context) error {
	// A commit that is abandoned in flight may arrive after the next one.
	s.stop()
	select {
	case <-s.done:
	case <-ctx.Done():
	}
	s.give()
	<-s.done
	err := s.commitSurely(ctx, s.all)
	if forgotten(err) || cluster.Refused(err) {
		err = nil // it was reported, and the rest is read again
	}
	if ctx.Err() == nil {
		_ = s.client.LeaveGroupContext(ctx) // the group notices its end anyway
	}
	s.close(ctx)
	return err
}

// close closes the client. When ctx ends, it cuts the connections, even if the client
// waits for a broker to commit offsets of revoked partitions.
func (s *Source) close(ctx context.Context) {
	defer s.disconnect()
	defer context.AfterFunc(ctx, s.disconnect)()
	s.client.CloseAllowingRebalance()
}

func (s *Source) tell(count int, reason string, err error) {
	if s.opts.Observer != nil {
		s.opts.Observer.ObservePipeline(pipeline.Event{
			Kind: pipeline.EventSourceChanged, Pipeline: s.opts.Name, Count: count, Reason: reason, Err: err,
		})
	}
}

// commitNowAndThen commits settled offsets until ctx ends. A commit in flight may
// continue until sending ends.
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
		_ = s.commit(sending, s.all) // it was reported, and the next commit repeats it
		if retry.Sleep(ctx, s.opts.CommitEvery/4) != nil {
			return
		}
	}
}

// commitSurely commits until it succeeds, other members have the partitions, or ctx
// ends.
func (s *Source) commitSurely(ctx context.Context, which func() []*owned) error {
	for n := 0; ; n++ {
		err := s.commit(ctx, which)
		gone := n > 5 && cluster.IsAny(err, kerr.UnknownTopicID, kerr.UnknownTopicOrPartition)
		if err == nil || gone || forgotten(err) || errors.Is(err, kerr.FencedInstanceID) || errors.Is(err, kgo.ErrClientClosed) || cluster.Refused(err) || cluster.Invalid(err) {
			return err
		}
		if retry.Sleep(ctx, retry.Backoff(n, 50*time.Millisecond, time.Second)) != nil {
			return err
		}
	}
}

// forgotten reports whether the group has expelled the member: its partitions go to
// others.
func forgotten(err error) bool {
	return errors.Is(err, kerr.UnknownMemberID) || errors.Is(err, kerr.IllegalGeneration) || errors.Is(err, kerr.FencedMemberEpoch)
}

// commit commits the settled offsets of the partitions that which returns. It calls
// which when no other commit runs, so that no commit of a revoked partition ends after
// it. It reports an error to the observer; the next commit repeats the offsets.
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
	failed := s.send(s.signing(ctx, of), offsets)
	tooLarge := func(p *owned) bool { return errors.Is(failed(p.topic, p.partition), kerr.OffsetMetadataTooLarge) }
	if !s.unsigned && slices.ContainsFunc(of, tooLarge) {
		s.unsigned = true
		s.tell(len(of), "offsets are committed without the id of their topic, so one of a topic that is made again is not noticed: raise offset.metadata.max.bytes of the brokers and restart", kerr.OffsetMetadataTooLarge)
		failed = s.send(s.signing(ctx, of), offsets)
	}
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

// send commits offsets and returns the result of each partition.
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

// Lag returns the backlog, as in pipeline.SourceTraits. For each partition of this member
// it returns the distance from the committed offset to the end. Records that are settled and
// not committed yet, such as those behind one that waits for its next try, do not count.
// Transaction markers and records of open transactions count.
func (s *Source) Lag(ctx context.Context) ([]pipeline.Lag, error) {
	var held []cluster.Partition
	of := map[cluster.Partition]*owned{}
	for _, p := range s.all() {
		id := cluster.Partition{Topic: p.topic, Number: p.partition}
		held = append(held, id)
		of[id] = p
	}
	return cluster.Lag(ctx, kadm.NewClient(s.client), s.opts.Group, s.opts.Reset == ResetEnd, held, func(id cluster.Partition) (low, ahead int64) {
		low, ahead, _ = of[id].mark.Ahead()
		return low, ahead
	})
}

// Reset is where to start in a partition if the group has committed no offset, or one
// that no longer exists.
type Reset uint8

const (
	// ResetStart reads from the oldest record.
	ResetStart Reset = iota
	// ResetEnd reads only new records. Existing records are skipped, and records that
	// are written while no member reads are lost.
	ResetEnd
	// ResetFail stops with an error.
	ResetFail
)

// Options returns the policy as client options.
func (r Reset) Options() []kgo.Opt {
	start := kgo.NewOffset().AtStart()
	switch r {
	case ResetEnd:
		return []kgo.Opt{kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd()), kgo.ConsumeResetOffset(start)}
	case ResetFail:
		return []kgo.Opt{kgo.ConsumeStartOffset(start.AtCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset())}
	default:
		return []kgo.Opt{kgo.ConsumeStartOffset(start), kgo.ConsumeResetOffset(start)}
	}
}
