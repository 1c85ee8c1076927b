package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/marks"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/watermarks"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// session is one member of the group with a transactional producer. One goroutine runs
// it. The client's callbacks note changes, and the session handles them when no
// transaction is open.
type session struct {
	t    *Transactor
	name string

	client     *kgo.GroupTransactSession
	brokers    brokers            // the client; a Trial has none
	disconnect context.CancelFunc // cuts the client's connections
	limits     cluster.Limits     // of the client
	tooBig     int                // consecutive transactions that brokers refused for a size
	aborts     int                // consecutive transactions that were aborted for an error
	parts      map[cluster.Partition]*part
	work       worker
	looked     int64 // when quiet partitions were last looked for, in milliseconds
	idle       watermarks.IdleFinder
	// previewed is when early results were last written.
	previewed time.Time
	// restoring is the goroutine that brings parts up to date, if one runs.
	restoring *restoring
	// restores says what that goroutine waits for.
	restores atomic.Pointer[string]
	readings pending.Readings // of the tables

	mu       sync.Mutex          // guards the fields below
	assigned []cluster.Partition // new partitions, which are paused
	gone     []cluster.Partition // revoked or lost
	wanted   []cluster.Partition // assigned to another session of this process
	revoked  bool                // a partition is gone: the open transaction cannot commit
	wake     func()              // ends the wait for records
}

// brokers are what a transaction needs.
type brokers interface {
	Begin() error
	Flush(ctx context.Context) error
	End(ctx context.Context, commit kgo.TransactionEndTry) (committed bool, err error)
	CommittedOffsets() map[string]map[int32]kgo.EpochOffset
	// readAgain reads the rest of partitions again, which a commit left out.
	readAgain(rest map[cluster.Partition]kgo.EpochOffset)
}

// member is a client as the brokers of a session.
type member struct{ *kgo.GroupTransactSession }

var _ brokers = member{}

// Flush implements brokers.
func (m member) Flush(ctx context.Context) error { return m.Client().Flush(ctx) }

// CommittedOffsets implements brokers.
func (m member) CommittedOffsets() map[string]map[int32]kgo.EpochOffset {
	return m.Client().CommittedOffsets()
}

// readAgain implements brokers.
func (m member) readAgain(rest map[cluster.Partition]kgo.EpochOffset) {
	cluster.ReadAgain(m.Client(), rest)
}

// part is a partition that was assigned to a session.
type part struct {
	id    cluster.Partition
	slot  *slot
	given bool // by the current client
	ready bool // up to date
	// verify says that the first changelog record to be read must be the last one that
	// was applied.
	verify bool
	// quiet is since when the partition has had no new records, in milliseconds; 0 if that is
	// not known.
	quiet int64
	// origins is what was found of them, until the partition is read up to an end; or nil.
	origins *watermarks.IdleOrigins
	// waits are the records that wait for rows. rowsRead says that the tables were read to
	// their end since the records that are being decided were read.
	waits    pending.Queue
	rowsRead bool
	// The fields below belong to the open transaction.
	touched bool
	marks   marks.Note    // of its commit
	changes []*kgo.Record // of the changelog
	windows []*kgo.Record // of the changelog of windows
}

func newSession(t *Transactor, number int) *session {
	s := &session{t: t, name: strconv.Itoa(number), parts: map[cluster.Partition]*part{}}
	s.work.init(s)
	return s
}

// errAgain says that a session must restart with the brokers' state.
var errAgain = errors.New("kafka: restart with the state of the brokers")

// run works until ctx ends or it cannot continue.
func (s *session) run(ctx context.Context) error {
	defer s.releaseAll()
	return s.t.persist(ctx, s.name, s.live)
}

// persist restarts live of a member until ctx ends or the member cannot continue. Its
// pauses are shorter than a session. Otherwise the group would expel the member and
// rebalance twice, which aborts the transactions of other members.
func (t *Transactor) persist(ctx context.Context, name string, live func(ctx context.Context) error) error {
	longest := min(5*time.Second, t.opts.Timeouts.Session/4)
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		err := live(ctx)
		switch {
		case err == nil:
			return nil
		case fatal(err):
			return err
		case ctx.Err() != nil:
			return nil
		}
		if time.Since(began) > 10*time.Second {
			failures = 0
		}
		failures++
		t.health.Failed(name, err)
		t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "a member restarts", Err: err})
		if failures > 1 && retry.Sleep(ctx, retry.Backoff(failures, 20*time.Millisecond, longest)) != nil {
			return nil
		}
	}
	return nil
}

// fatal reports whether a restart does not help against an error.
func fatal(err error) bool {
	return cluster.IsFinal(err) || cluster.IsAny(err,
		kerr.TransactionalIDAuthorizationFailed, kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed,
		kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.InvalidTransactionTimeout,
		kerr.InvalidSessionTimeout, kerr.InconsistentGroupProtocol, kerr.InvalidGroupID, pipeline.ErrStopped, cluster.ErrOutOfRange, kafka.ErrFenced)
}

// linger is how long outputs wait for a full batch, since each batch costs the brokers
// an append and a fetch by each replica. It is well below an interval, so that early
// outputs are not written together with the changelog at the end: the broker adds one
// partition at a time to a transaction, and the second would be retried after a pause.
func (o *TransactorOptions) linger() time.Duration {
	return min(o.Limits.Interval/3, 100*time.Millisecond)
}

func (s *session) open(ctx context.Context) error {
	o := &s.t.opts
	manual := map[string]bool{o.Output.Topic: o.Output.SamePartition}
	for _, topic := range o.reads() {
		manual[o.changelogOf(topic)] = true
		if o.hasState() {
			manual[o.windowsOf(topic)] = true
		}
	}
	more := o.start()
	if o.hasState() {
		more = append(more, kgo.KeepControlRecords()) // the end of a partition may be a marker
	}
	if o.Aggregate != nil {
		more = append(more, kgo.WithPools(&record.Pool{}))
	}
	s.mu.Lock()
	s.assigned, s.gone, s.revoked = nil, nil, false
	s.mu.Unlock()
	var err error
	s.limits = *s.t.limits.Load()
	s.client, s.disconnect, err = s.t.join(ctx, o.Group, s.name, append(more, kgo.ProducerLinger(o.linger()),
		kgo.ProducerBatchMaxBytesFn(s.limits.Client),
		kgo.ConsumeTopics(o.reads()...), kgo.RecordPartitioner(cluster.Partitioner(manual)),
		kgo.OnPartitionsAssigned(s.onAssigned), kgo.OnPartitionsRevoked(s.onRevoked), kgo.OnPartitionsLost(s.onLost)))
	s.brokers = member{s.client}
	return err
}

// join returns a client that is a member of a group and a transactional producer, and a
// function that cuts its connections. The client may be non-nil even with an error.
func (t *Transactor) join(ctx context.Context, group, name string, more []kgo.Opt) (*kgo.GroupTransactSession, context.CancelFunc, error) {
	o := &t.opts
	life, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	client, err := kgo.NewGroupTransactSession(t.clientOptions(append(more,
		kgo.WithContext(life), kgo.ConsumerGroup(group), kgo.InstanceID(o.Member.Instance+"-"+name),
		kgo.TransactionalID(o.Member.TransactionalID+"-"+name), kgo.TransactionTimeout(o.Timeouts.Transaction),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.SessionTimeout(o.Timeouts.Session), kgo.HeartbeatInterval(min(3*time.Second, o.Timeouts.Session/3)),
		kgo.RebalanceTimeout(max(30*time.Second, o.Timeouts.Session)),
		// Several fetches are in memory, and the collector allows as much garbage
		// again. Larger fetches were not faster.
		kgo.FetchMaxBytes(2<<20), kgo.FetchMaxPartitionBytes(512<<10),
		// Outputs that brokers have not taken. No record is larger; see cluster.Limits.
		kgo.MaxBufferedRecords(20_000), kgo.MaxBufferedBytes(64<<20),
	)...)...)
	if err != nil {
		disconnect()
		return nil, nil, fmt.Errorf("kafka: %w", err)
	}
	// Asking for the producer's id ends the transactions of a predecessor.
	if _, _, err := client.Client().ProducerID(ctx); err != nil {
		return client, disconnect, fmt.Errorf("kafka: producer %s-%s: %w", o.Member.TransactionalID, name, err)
	}
	go cluster.KeepWhole(life, client.Client(), group)
	return client, disconnect, nil
}

// live runs one client from its start to its end.
func (s *session) live(ctx context.Context) error {
	defer s.leave()
	last, cancel := cluster.Lasting(ctx, s.t.opts.Timeouts.Shutdown)
	defer cancel()
	s.waitsFor("the assignment of partitions by the group", 0)
	defer s.waitsFor("", 0)
	err := s.open(ctx)
	if err == nil {
		err = s.loop(ctx, last)
	}
	if s.t.replaced(ctx, s.client, s.t.opts.Group, s.name, err) {
		return fmt.Errorf("kafka: %w: %w", kafka.ErrFenced, err)
	}
	if s.t.opts.Repartition != nil && errors.Is(err, cluster.ErrOutOfRange) {
		return s.t.lost(ctx, err)
	}
	return err
}

// loop works until ctx ends or the client is unusable.
func (s *session) loop(ctx, last context.Context) error {
	calls, cancel := cluster.Lasting(ctx, s.t.opts.Timeouts.Shutdown/2) // the rest of the time is for the commit
	defer cancel()
	s.work.produce = func(r *kgo.Record) { s.client.Produce(last, r, s.work.promise) }
	for {
		if err := s.settle(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		s.look(ctx)
		s.readRows(ctx)
		var fetches kgo.Fetches
		if !s.rowsDue() {
			fetches = s.poll(ctx, s.patience())
		}
		if s.interrupted() {
			if err := s.rewind(last); err != nil {
				return err
			}
			continue
		}
		if err := cluster.FetchError(fetches); err != nil {
			return err
		}
		if fetches.NumRecords() == 0 && !s.due() && !s.rowsDue() {
			switch {
			case s.restoring != nil:
				s.waitsFor(*s.restores.Load(), 0)
			case !s.pending() && joined(s.client):
				s.succeeded()
				s.waitsFor("", 0)
			}
			continue
		}
		if err := s.transact(ctx, calls, last, fetches); err != nil {
			return err
		}
	}
}

// waitsFor notes what the session waits for now; "" means nothing.
func (s *session) waitsFor(what string, records int) { s.t.health.WaitsFor(s.name, what, records) }

// replaced reports whether an error of a client means that another process took its
// name. A fenced producer or an ended transaction can also mean that the transaction
// was open for too long. So the group is asked who has the name: a later process joins
// soon after it has fenced the producer. The member in the group may be an earlier id
// of this very member, so the name must stay taken (see cluster.NameTaken). It blocks
// until the answer is known, because a restart would take the name from the other
// process.
func (t *Transactor) replaced(ctx context.Context, client *kgo.GroupTransactSession, group, name string, err error) bool {
	fenced := errors.Is(err, kerr.FencedInstanceID)
	patience := time.Second // until the later process is in the group
	switch {
	case client == nil:
		return false
	case fenced:
		patience = t.opts.Timeouts.Session // until a broker answers
	case errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidTxnState), errors.Is(err, kerr.InvalidProducerEpoch):
	default:
		return false
	}
	var taken cluster.NameTaken
	for until := time.Now().Add(patience); ; {
		groups, err := t.adm().DescribeGroups(ctx, group)
		if err == nil {
			err = groups.Error()
		}
		now := time.Now()
		if err == nil {
			other := t.anotherHas(client, groups[group].Members, name)
			switch {
			case other && taken.Lasts(now, t.opts.Timeouts.Session):
				return true
			case other:
				until = now.Add(t.opts.Timeouts.Session)
			case fenced || !taken.From.IsZero():
				return false // the name is this member's, or free
			}
		}
		if now.After(until) || retry.Sleep(ctx, 100*time.Millisecond) != nil {
			return false
		}
	}
}

// anotherHas reports whether another member of the group has a client's name.
func (t *Transactor) anotherHas(client *kgo.GroupTransactSession, members []kadm.DescribedGroupMember, name string) bool {
	own, _ := client.Client().GroupMetadata()
	return slices.ContainsFunc(members, func(m kadm.DescribedGroupMember) bool {
		return m.InstanceID != nil && *m.InstanceID == t.opts.Member.Instance+"-"+name && m.MemberID != own
	})
}

// leaveTime is how long a client may take to close. It waits for a rebalance in
// progress.
const leaveTime = time.Second

// leave closes the client. The member keeps its place in the group.
func (s *session) leave() {
	s.stopRestoring()
	s.readings.Stop()
	if s.client != nil {
		closeWithin(leaveTime, s.client, s.disconnect)
		s.client = nil
	}
	for _, p := range s.parts {
		p.given, p.ready = false, false
		if p.slot != nil && p.slot.state != nil {
			p.drop()
		}
	}
}

// drop discards what the open transaction adds.
func (p *part) drop() {
	p.slot.drop()
	p.waits.Drop()
}

// closeWithin closes a client, and cuts its connections if that takes too long.
func closeWithin(most time.Duration, client *kgo.GroupTransactSession, disconnect context.CancelFunc) {
	timer := time.AfterFunc(most, disconnect)
	client.Close()
	timer.Stop()
	disconnect()
}

// releaseAll gives up all partitions.
func (s *session) releaseAll() {
	for id := range s.parts {
		s.drop(id)
	}
}

func (s *session) drop(id cluster.Partition) {
	s.t.release(id, s)
	delete(s.parts, id)
}

// poll waits for records until most has passed or partitions have changed.
func (s *session) poll(ctx context.Context, most time.Duration) kgo.Fetches {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	s.mu.Lock()
	s.wake = cancel
	s.mu.Unlock()
	if s.pending() || s.rowsDue() {
		cancel()
	}
	return s.client.PollRecords(ctx, s.work.room())
}

// interrupted reports whether the open transaction cannot commit.
func (s *session) interrupted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revoked
}

// pending reports whether there are changes to settle.
func (s *session) pending() bool {
	if s.restoring != nil {
		select {
		case <-s.restoring.done:
			return true
		default:
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revoked || len(s.assigned) > 0 || len(s.gone) > 0 || len(s.wanted) > 0
}

// The client calls onAssigned, onRevoked and onLost from its own goroutine.
func (s *session) onAssigned(_ context.Context, client *kgo.Client, given map[string][]int32) {
	if len(given) == 0 {
		return
	}
	client.PauseFetchPartitions(given)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.assigned = append(s.assigned, partitionsOf(given)...)
	s.wakeUp()
}

func (s *session) onRevoked(ctx context.Context, client *kgo.Client, taken map[string][]int32) {
	if len(taken) > 0 { // a cooperative rebalance starts with an empty assignment
		s.onLost(ctx, client, taken)
	}
}

func (s *session) onLost(_ context.Context, _ *kgo.Client, taken map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range partitionsOf(taken) {
		s.gone = append(s.gone, id)
		s.assigned = slices.DeleteFunc(s.assigned, func(other cluster.Partition) bool { return other == id }) // revoked before settle ran
	}
	s.revoked = true
	s.wakeUp()
}

// ask is called by another session that was assigned a partition of this one.
func (s *session) ask(id cluster.Partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = append(s.wanted, id)
	s.wakeUp()
}

func (s *session) wakeUp() {
	if s.wake != nil {
		s.wake()
	}
}

func partitionsOf(topics map[string][]int32) []cluster.Partition {
	var list []cluster.Partition
	for topic, numbers := range topics {
		for _, n := range numbers {
			list = append(list, cluster.Partition{Topic: topic, Number: n})
		}
	}
	return list
}

// settle handles changes. No transaction is open. Another session may ask for a partition
// that this session owns. Its revocation may still come, or the client has left it out
// because an earlier one was not handled yet. Only the group knows the owner, so this session
// gives the partition up and joins again.
func (s *session) settle(ctx context.Context) error {
	s.mu.Lock()
	assigned, gone, wanted := s.assigned, s.gone, s.wanted
	s.assigned, s.gone, s.wanted = nil, nil, nil
	s.mu.Unlock()
	var disputed bool
	for _, id := range wanted {
		p := s.parts[id]
		disputed = disputed || p != nil && p.given && !slices.Contains(gone, id) && !slices.Contains(assigned, id)
	}
	gone = append(gone, wanted...)
	if len(gone) > 0 || len(assigned) > 0 {
		s.t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: fmt.Sprintf("%d partitions given, %d taken", len(assigned), len(gone))})
		s.stopRestoring()
	}
	for _, id := range gone {
		s.drop(id)
	}
	for _, id := range assigned {
		s.parts[id] = &part{id: id, given: true}
	}
	for id, p := range s.parts {
		// The standby should follow partitions of an earlier client that were not
		// assigned again.
		if s.t.opts.State.Standby && len(assigned) > 0 && !p.given {
			s.drop(id)
		}
	}
	if disputed {
		return fmt.Errorf("kafka: two sessions of this process were assigned a partition: %w", errAgain)
	}
	return s.restore(ctx)
}

// rewind returns to the committed offsets, and lets the next transaction commit again.
func (s *session) rewind(last context.Context) error {
	s.mu.Lock()
	s.revoked = false
	s.mu.Unlock()
	if _, err := s.brokers.End(last, kgo.TryAbort); err != nil {
		return fmt.Errorf("kafka: rewind: %w", err)
	}
	return nil
}
