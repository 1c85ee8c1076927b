package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/pipeline"
)

// SourceOptions are the options of OpenSource. Client, Group and Topics are
// required.
type SourceOptions struct {
	// Name is the pipeline's name, for the observer.
	Name string
	// Client is how to reach the brokers: seed brokers, TLS, SASL. What reading
	// rests on is set after it.
	Client []kgo.Opt
	Group  string
	Topics []string
	// Instance makes this a static member: after a restart within SessionTimeout
	// it has its partitions back at once. Each process needs one of its own.
	// Defaults to "": a member that leaves when it ends.
	Instance string
	// SessionTimeout is when the group gives the partitions of a silent member
	// to others. Defaults to 10 s.
	SessionTimeout time.Duration
	// Reset says where to read partitions of which nothing is committed. What was
	// committed and is no longer there is always read from the oldest record on,
	// except with ResetFail. Defaults to ResetStart.
	Reset Reset
	// ServerSide joins by the protocol of KIP-848, in which the broker assigns.
	// Brokers before 4.3 can refuse a commit in it that is as good as lost.
	ServerSide bool
	// MaxPoll is the most records that one Read returns. Defaults to 2,000.
	MaxPoll int
	// CommitEvery is how often offsets are committed, and four times as often at
	// most where all that was read of a partition is settled: who has caught up
	// says so soon. Defaults to 1 s.
	CommitEvery time.Duration
	// Observer is told of partitions that come and go, and of offsets that were
	// lost. Defaults to none.
	Observer pipeline.Observer
}

// Source reads topics as a member of a group, always read_committed. Each partition
// of Kafka is a pipeline.Partition. Offsets are committed up to the last record before which
// all are settled; when a partition is taken away, what is under way in it is
// waited for and committed before.
type Source struct {
	opts   SourceOptions
	client *kgo.Client
	cut    context.CancelFunc // ends all that the client does, also what it waits for
	stop   context.CancelFunc // ends the commits now and then
	give   context.CancelFunc // gives up the one that is on its way
	done   chan struct{}      // closed behind the last
	idle   chan struct{}      // has room for one word that a partition has caught up

	unknown map[string]time.Time // since when; of the goroutine that reads
	fenced  nameTaken            // of the goroutine that reads
	joined  atomic.Bool          // the group gave an assignment since the last poll
	blocks  pipeline.Blocks
	room    recordPool
	read    []int64 // room for offsets; of the goroutine that reads

	committing sync.Mutex // held while offsets are committed; before mu

	mu      sync.Mutex // guards the fields below
	parts   map[string]map[int32]*owned
	earlier map[partitionKey]*owned // that were lost and did not come again
}

var (
	_ pipeline.Source = (*Source)(nil)
	_ semel.Readier   = (*Source)(nil)
)

// OpenSource joins the group. It blocks until a broker has answered. All options
// that are wrong are named in one error, which wraps semel.ErrInvalidRequest.
func OpenSource(ctx context.Context, opts *SourceOptions) (*Source, error) {
	s := &Source{parts: map[string]map[int32]*owned{}, earlier: map[partitionKey]*owned{}, unknown: map[string]time.Time{}}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	set(&o.SessionTimeout, 10*time.Second)
	set(&o.MaxPoll, 2000)
	set(&o.CommitEvery, time.Second)
	if err := o.validate(); err != nil {
		return nil, err
	}
	living, cut := context.WithCancel(context.Background())
	s.cut = cut
	all := append([]kgo.Opt{kgo.FetchMaxWait(500 * time.Millisecond)}, o.Client...) // a partition that is added waits as long
	all = append(all,
		kgo.WithContext(living),
		kgo.ConsumerGroup(o.Group), kgo.ConsumeTopics(o.Topics...), kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.WithPools(&s.room), kgo.DisableAutoCommit(), kgo.SessionTimeout(o.SessionTimeout), kgo.HeartbeatInterval(min(3*time.Second, o.SessionTimeout/3)),
		kgo.OnPartitionsAssigned(s.assigned), kgo.OnPartitionsRevoked(s.revoked), kgo.OnPartitionsLost(s.lost), kgo.OnOffsetsFetched(s.fetched),
		// What a poll returned must belong to the partitions that are there when it is
		// looked at, and not to later ones of the same partitions.
		kgo.BlockRebalanceOnPoll(),
	)
	all = append(all, o.Reset.options()...)
	if o.Instance != "" {
		all = append(all, kgo.InstanceID(o.Instance))
	}
	if o.ServerSide {
		all = append(all, kgo.ServerSideBalancer())
	}
	var err error
	if s.client, err = kgo.NewClient(all...); err != nil {
		cut()
		return nil, fmt.Errorf("kafkaio: %w: %w", semel.ErrInvalidRequest, err)
	}
	if err := reach(ctx, s.client); err != nil {
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
		go keepWhole(committing, s.client, o.Group)
	}
	return s, nil
}

func (o *SourceOptions) validate() error {
	wrong := invalid.In("kafkaio: SourceOptions.")
	for name, missing := range map[string]bool{"Client": len(o.Client) == 0, "Group": o.Group == "", "Topics": len(o.Topics) == 0} {
		if missing {
			wrong.Add("%s is missing", name)
		}
	}
	if o.SessionTimeout < 0 || o.MaxPoll < 0 || o.CommitEvery < 0 {
		wrong.Add("SessionTimeout, MaxPoll, CommitEvery: %v, %d, %v: none may be negative", o.SessionTimeout, o.MaxPoll, o.CommitEvery)
	}
	if o.Reset > ResetFail {
		wrong.Add("Reset: %d is no such policy", o.Reset)
	}
	return wrong.Err()
}

// Ready implements semel.Readier.
func (s *Source) Ready(ctx context.Context) error {
	if err := s.client.Ping(ctx); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	return nil
}

// Read implements pipeline.Source.
func (s *Source) Read(ctx context.Context) ([]*pipeline.Item, error) {
	for tries := 0; ; tries++ {
		items, err := s.poll(ctx)
		if len(items) > 0 || err != nil {
			return items, err
		}
		// There was an error that the client mends, or a partition was taken away.
		pause(ctx, min(10*time.Millisecond<<min(tries, 8), 2*time.Second))
	}
}

// poll waits for records. No partition is given or taken between the poll and
// its return.
func (s *Source) poll(ctx context.Context) ([]*pipeline.Item, error) {
	fetches := s.client.PollRecords(ctx, s.opts.MaxPoll)
	defer s.client.AllowRebalance()
	if err := s.errorOf(ctx, fetches); err != nil {
		return nil, err
	}
	return s.items(fetches), nil
}

// errorOf returns what reading cannot go on with. The rest the client mends.
func (s *Source) errorOf(ctx context.Context, fetches kgo.Fetches) error {
	var fatal error
	// The group has taken this member, before what is in fetches or behind it.
	joined := s.joined.Swap(false)
	if joined {
		s.fenced = nameTaken{}
	}
	fetches.EachError(func(topic string, partition int32, err error) {
		var lost *kgo.ErrDataLoss
		var group *kgo.ErrGroupSession
		switch {
		case ctx.Err() != nil:
			fatal = context.Cause(ctx)
		case errors.As(err, &lost):
			s.tell(1, "offsets were not there any more", err)
		case errors.Is(err, kerr.FencedInstanceID):
			if !joined && s.fenced.lasts(time.Now(), s.opts.SessionTimeout) {
				fatal = fmt.Errorf("%w: %s", ErrFenced, s.opts.Instance)
			} else {
				s.tell(1, "trying again", err)
			}
		case errors.Is(err, kerr.UnknownTopicID):
			fatal = s.unknownTopic(topic, err)
		case refused(err) && errors.As(err, &group):
			fatal = fmt.Errorf("kafka: group %s: %w", s.opts.Group, err)
		case errors.As(err, &group), kerr.IsRetriable(err):
			s.tell(1, "trying again", err)
		default:
			fatal = fmt.Errorf("kafka: %s/%d: %w", topic, partition, err)
		}
	})
	return fatal
}

// nameTaken is since when, and until when, the group has said that another member
// has the name of this one.
type nameTaken struct{ from, to time.Time }

// lasts notes that the group said so, and reports whether it did for two sessions.
// A broker that was killed while the group was divided may know an earlier id of
// this very member, to which nobody answers: it ends with its session, and this
// member joins again.
func (f *nameTaken) lasts(now time.Time, session time.Duration) bool {
	if now.Sub(f.to) > max(2*session, 30*time.Second) { // the client asks more often
		f.from = now
	}
	f.to = now
	return now.Sub(f.from) >= 2*session
}

// unknownTopic returns an error if brokers have not known a topic for a while: one
// that has just started may not know it yet.
func (s *Source) unknownTopic(topic string, err error) error {
	since, ok := s.unknown[topic]
	if !ok {
		s.unknown[topic] = time.Now()
		s.tell(1, "trying again", err)
	}
	if !ok || time.Since(since) < 10*time.Second {
		return nil
	}
	return fmt.Errorf("kafka: topic %s was deleted; if it was made anew, start again to read it: %w", topic, err)
}

// items makes items of records, in one piece of memory.
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
			return // taken away: whoever has it reads them
		}
		positions := s.read[:0]
		for _, r := range of.Records {
			it := &slab[len(items)]
			fill(&it.Message, r)
			it.Partition, it.Ref = p.ordered, p
			if len(r.Headers) > 0 {
				it.Redrive = redrivesOf(&it.Message)
			}
			positions = append(positions, r.Offset)
			items = append(items, it)
		}
		p.read(of.Records, positions)
		s.read = positions
		for _, r := range of.Records {
			r.Recycle() // items have its bytes, which are not the pool's
		}
	})
	return items
}

// Ack implements pipeline.Source. Offsets are committed now and then.
func (s *Source) Ack(_ context.Context, items []*pipeline.Item) error {
	var some [256]int64
	positions, caughtUp := some[:0], false
	for i, it := range items {
		positions = append(positions, it.Message.Origin.Offset)
		if len(positions) == len(some) || i+1 == len(items) || items[i+1].Ref != it.Ref {
			p := it.Ref.(*owned)
			p.mark.SettleAll(positions)
			positions, caughtUp = positions[:0], caughtUp || p.caughtUp()
		}
	}
	if caughtUp {
		select {
		case s.idle <- struct{}{}:
		default: // it was said, and nobody has heard it yet
		}
	}
	return nil
}

// Return implements pipeline.Source: what is not settled is behind the committed
// offset.
func (s *Source) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }

// Close implements pipeline.Source. A static member keeps its place for a while,
// another one leaves.
func (s *Source) Close(ctx context.Context) error {
	// A commit that is given up on its way may arrive behind the next one.
	s.stop()
	select {
	case <-s.done:
	case <-ctx.Done():
	}
	s.give()
	<-s.done
	err := s.commitSurely(ctx, s.all)
	if forgotten(err) {
		err = nil // it was told, and what is not committed comes again to others
	}
	if ctx.Err() == nil {
		_ = s.client.LeaveGroupContext(ctx) // the group notices without it
	}
	s.close(ctx)
	return err
}

// close closes the client. When ctx ends it is cut off, also where it has taken
// partitions away and waits for a broker to commit what is settled in them.
func (s *Source) close(ctx context.Context) {
	defer s.cut()
	defer context.AfterFunc(ctx, s.cut)()
	s.client.CloseAllowingRebalance()
}

func (s *Source) tell(count int, reason string, err error) {
	if s.opts.Observer != nil {
		s.opts.Observer.ObservePipeline(pipeline.Event{
			Kind: pipeline.EventSourceChanged, Pipeline: s.opts.Name, Count: count, Reason: reason, Err: err,
		})
	}
}
