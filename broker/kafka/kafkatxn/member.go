package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// member is a member of a group with a transactional producer: a session or a copier. One
// goroutine runs it.
type member struct {
	t           *Transactor
	group, name string
	client      *kgo.GroupTransactSession
	disconnect  context.CancelFunc // cuts the client's connections
	tooBig      int                // consecutive transactions that brokers refused for a size
}

// waitsFor notes what the member waits for now; "" means nothing.
func (m *member) waitsFor(what string, records int) { m.t.health.waitsFor(m.name, what, records) }

// persist restarts live until ctx ends or the member cannot continue. The
// pauses are shorter than a session. Otherwise the group would expel the member and
// rebalance twice, which aborts the transactions of other members.
func (m *member) persist(ctx context.Context, live func(ctx context.Context) error) error {
	t := m.t
	if t.hooks.hold != nil {
		select {
		case <-t.hooks.hold:
		case <-ctx.Done():
		}
	}
	longest := min(5*time.Second, t.timeouts.Session/4)
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
		t.health.failed(m.name, err)
		t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "a member restarts", Err: err})
		if failures > 1 && retry.Sleep(ctx, retry.Backoff(failures, 20*time.Millisecond, longest)) != nil {
			return nil
		}
	}
	return nil
}

// serve opens a client and works with it until ctx ends, the client is unusable or the member is
// replaced. The last calls may be made a while after ctx has ended.
func (m *member) serve(ctx context.Context, open func(ctx context.Context) error, loop func(ctx, last context.Context) error) error {
	last, cancel := cluster.Lasting(ctx, m.t.timeouts.Shutdown)
	defer cancel()
	m.waitsFor("the assignment of partitions by the group", 0)
	defer m.waitsFor("", 0)
	err := open(ctx)
	if err == nil {
		err = loop(ctx, last)
	}
	if m.replaced(ctx, err) {
		return fmt.Errorf("kafka: %w: %w", kafka.ErrFenced, err)
	}
	return err
}

// fatal reports whether a restart does not help against an error. A login without a token, while the
// issuer does not answer, is refused and may succeed later.
func fatal(err error) bool {
	if errors.Is(err, kerr.SaslAuthenticationFailed) && errors.Is(err, semel.ErrStoreUnavailable) {
		return false
	}
	return cluster.IsFinal(err) || cluster.IsAny(err,
		kerr.TransactionalIDAuthorizationFailed, kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed,
		kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed, kerr.InvalidTransactionTimeout,
		kerr.InvalidSessionTimeout, kerr.InconsistentGroupProtocol, kerr.InvalidGroupID, pipeline.ErrStopped, cluster.ErrOutOfRange, kafka.ErrFenced)
}

// join makes the client. It may be there even with an error.
func (m *member) join(ctx context.Context, more []kgo.Opt) (err error) {
	t := m.t
	var life context.Context
	life, m.disconnect = context.WithCancel(context.WithoutCancel(ctx))
	m.client, err = kgo.NewGroupTransactSession(t.clientOptions(append(more,
		kgo.WithContext(life), kgo.ConsumerGroup(m.group), kgo.InstanceID(t.member.Instance+"-"+m.name),
		kgo.TransactionalID(t.member.TransactionalID+"-"+m.name), kgo.TransactionTimeout(t.timeouts.Transaction),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.SessionTimeout(t.timeouts.Session), kgo.HeartbeatInterval(min(3*time.Second, t.timeouts.Session/3)),
		kgo.RebalanceTimeout(m.rebalanceTimeout()),
		// Several fetches are in memory, and the collector allows as much garbage
		// again. Larger fetches were not faster.
		kgo.FetchMaxBytes(2<<20), kgo.FetchMaxPartitionBytes(512<<10),
		// Outputs that brokers have not taken. No record is larger; see cluster.Limits.
		kgo.MaxBufferedRecords(20_000), kgo.MaxBufferedBytes(64<<20),
	)...)...)
	if err != nil {
		m.disconnect()
		m.client = nil
		return fmt.Errorf("kafka: %w", err)
	}
	// Asking for the producer's id ends the transactions of a predecessor.
	if _, _, err := m.client.Client().ProducerID(ctx); err != nil {
		return fmt.Errorf("kafka: producer %s-%s: %w", t.member.TransactionalID, m.name, err)
	}
	go cluster.KeepWhole(life, m.client.Client(), m.group)
	return nil
}

// rebalanceTimeout is how long a rebalance waits for members.
func (m *member) rebalanceTimeout() time.Duration { return max(30*time.Second, m.t.timeouts.Session) }

// replaced reports whether an error of a client means that another process took its
// name. A fenced producer or an ended transaction can also mean that the transaction
// was open for too long. So the group is asked who has the name: a later process joins
// soon after it has fenced the producer. The member in the group may be an earlier id
// of this very member, so the name must stay taken (see cluster.NameTaken). It blocks
// until the answer is known, because a restart would take the name from the other
// process.
func (m *member) replaced(ctx context.Context, err error) bool {
	t := m.t
	fenced := errors.Is(err, kerr.FencedInstanceID)
	patience := time.Second // until the later process is in the group
	switch {
	case m.client == nil:
		return false
	case fenced:
		patience = t.timeouts.Session // until a broker answers
	case errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidTxnState), errors.Is(err, kerr.InvalidProducerEpoch):
	default:
		return false
	}
	var taken cluster.NameTaken
	// A member that was expelled learns its new id at the end of the rebalance that it joins.
	rebalanced := time.Now().Add(2 * m.rebalanceTimeout())
	for until := time.Now().Add(patience); ; {
		groups, err := t.adm().DescribeGroups(ctx, m.group)
		if err == nil {
			err = groups.Error()
		}
		now := time.Now()
		if err == nil {
			other := m.anotherHas(groups[m.group].Members)
			switch {
			case other && groups[m.group].State != "Stable" && now.Before(rebalanced):
				until = now.Add(t.timeouts.Session)
			case other && taken.Lasts(now, t.timeouts.Session):
				return true
			case other:
				until = now.Add(t.timeouts.Session)
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
func (m *member) anotherHas(members []kadm.DescribedGroupMember) bool {
	own, _ := m.client.Client().GroupMetadata()
	return slices.ContainsFunc(members, func(other kadm.DescribedGroupMember) bool {
		return other.InstanceID != nil && *other.InstanceID == m.t.member.Instance+"-"+m.name && other.MemberID != own
	})
}

// close closes the client, and cuts its connections if that takes too long.
func (m *member) close() {
	if m.client == nil {
		return
	}
	timer := time.AfterFunc(leaveTime, m.disconnect)
	m.client.Close()
	timer.Stop()
	m.disconnect()
	m.client = nil
}

// refusedSize classifies an error of a producer that had these limits. It returns nil
// if the error is not about a size. The client restarts with the present limits. If
// they have not changed after several refusals, a restart would change nothing.
func (m *member) refusedSize(ctx context.Context, had cluster.Limits, cause error) error {
	t := m.t
	if !cluster.IsTooLarge(cause) {
		return nil
	}
	m.tooBig++
	if err := t.readLimits(ctx, t.adm()); err != nil {
		return err
	}
	if m.tooBig < mostRefusals || !maps.Equal(had, *t.topicLimits.Load()) {
		return fmt.Errorf("kafka: %w: %w", errAgain, cause)
	}
	return fmt.Errorf("kafka: %w: %w: the brokers take less than max.message.bytes of that topic says, or it may not be seen: allow DescribeConfigs on the topic, or raise it", pipeline.ErrStopped, cause)
}

// mostRefusals is how many consecutive times brokers may refuse, for its size, a record
// that fits the visible limits.
const mostRefusals = 5

// leaveTime is how long a client may take to close. It waits for a rebalance in
// progress.
const leaveTime = time.Second

// silent reports whether an error means that no broker answered.
func silent(err error) bool {
	_, answered := errors.AsType[*kerr.Error](err)
	_, missing := errors.AsType[*cluster.MissingTopicError](err)
	answered = answered || missing
	return err != nil && !answered && !cluster.IsFinal(err) && !errors.Is(err, errAgain)
}

// joined reports whether a client is in its group.
func joined(client *kgo.GroupTransactSession) bool {
	member, _ := client.Client().GroupMetadata()
	return member != ""
}
