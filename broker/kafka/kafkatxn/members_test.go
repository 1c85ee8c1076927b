package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/operator"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/vfs"
)

// comeAndGo writes numbers while programs with those options, one for each of
// dirs, join, leave and die at random. It returns how many were written when all
// says that all of them went through and the programs have ended.
func (b *bubble) comeAndGo(random *rand.Rand, rounds int, dirs []string, options func() TransactorOptions, write func(from, n int), all func()) int {
	b.Helper()
	programs := make([]*program, len(dirs))
	begin := func(i int) {
		opts := options()
		opts.Member.Instance, opts.State.Dir = fmt.Sprintf("g-%d", i), dirs[i]
		opts.Member.Sessions = 1 + i%2
		opts.Limits.Interval = 20 * time.Millisecond
		opts.Timeouts.Session, opts.Timeouts.Transaction, opts.Timeouts.Shutdown = time.Second, 2*time.Second, 3*time.Second
		programs[i] = b.start(opts)
		b.programs = append(b.programs, programs[i])
	}
	begin(0)
	next := 0
	for range rounds {
		from := max(0, next-random.IntN(100))
		n := 1 + random.IntN(100)
		write(from, n)
		next = max(next, from+n)
		_ = retry.Sleep(context.Background(), time.Duration(random.IntN(100))*time.Millisecond)
		i := random.IntN(len(programs))
		switch {
		case programs[i] == nil:
			begin(i)
		case random.IntN(4) > 0: // it continues
		case random.IntN(2) == 0:
			programs[i].Kill()
			<-programs[i].Done
			programs[i] = nil
		default:
			programs[i].Stop()
			programs[i] = nil
		}
	}
	if programs[0] == nil {
		begin(0)
	}
	all()
	for _, p := range programs {
		if p != nil {
			p.Stop()
		}
	}
	return next
}

// TestMembersComeAndGo checks that programs that come and go write each key once
// together, with a standby and without.
func TestMembersComeAndGo(t *testing.T) {
	t.Parallel()
	for _, standby := range []bool{false, false, false, true, true} {
		seed := kafkatest.NewSeed(t)
		t.Run(fmt.Sprintf("standby %t", standby), func(t *testing.T) {
			t.Parallel()
			inRealTime(t, 6, func(b *bubble) {
				options := func() TransactorOptions {
					opts := b.options()
					opts.State.Standby = standby
					return opts
				}
				write := func(from, n int) { b.Write(kafkatest.Numbered(from, n, 6)...) }
				dirs := []string{t.TempDir(), t.TempDir(), ""}
				b.Exactly(b.comeAndGo(rand.New(rand.NewPCG(seed, 0)), 40, dirs, options, write, func() { b.drained("g", "in") }))
			}, kfake.NumBrokers(3))
		})
	}
}

func TestCoordinatorsAndLeadersMove(t *testing.T) {
	t.Parallel()
	inRealTime(t, 4, func(b *bubble) {
		opts := b.options()
		opts.Member.Sessions = 2
		opts.Limits.Interval = 20 * time.Millisecond
		p := b.start(opts)
		for i := range 12 {
			b.Write(kafkatest.Numbered(50*i, 100, 4)...)
			b.Cluster.RehashCoordinators()
			if i%3 == 0 {
				b.Cluster.ShufflePartitionLeaders()
			}
			p.Wait(100*i, kafkatest.Settled)
		}
		b.drained("g", "in")
		p.Stop()
		b.Exactly(650)
	}, kfake.NumBrokers(3))
}

// TestTheLaterOfTwoMembersWithOneNameWorks starts a second program under the name of
// the first.
func TestTheLaterOfTwoMembersWithOneNameWorks(t *testing.T) {
	t.Parallel()
	inRealTime(t, 2, func(b *bubble) {
		opts := b.options()
		opts.Limits.Interval = 20 * time.Millisecond
		opts.Timeouts.Session = 5 * time.Second
		first := b.start(opts)
		b.Write(kafkatest.Numbered(0, 100, 2)...)
		first.Wait(100, kafkatest.Settled)
		second := b.start(opts)
		i := 0
		ended := kafkatest.Within(3*time.Minute, func() bool {
			i++
			b.Write(kafkatest.Numbered(50*i, 100, 2)...)
			b.drained("g", "in")
			select {
			case <-first.Done:
				return true
			default:
				return retry.Sleep(b.Context(), 100*time.Millisecond) != nil
			}
		})
		if !ended {
			t.Error("the first program continues")
		}
		second.Stop()
		first.Cancel()
		if <-first.Done; !errors.Is(first.Err, kafka.ErrFenced) {
			t.Errorf("the first program ended with %v", first.Err)
		}
		b.Exactly(50*i + 100)
	})
}

// TestAProgramIsNotFencedByItsEarlierMemberId has a group know another id of a member, to
// which no broker answers, as after one was killed; and refuse it once.
func TestAProgramIsNotFencedByItsEarlierMemberId(t *testing.T) {
	t.Parallel()
	start := func(b *bubble, session time.Duration) *program {
		opts := b.options()
		opts.Limits.Interval, opts.Timeouts.Session = 20*time.Millisecond, session
		p := b.start(opts)
		b.Write(kafkatest.Numbered(0, 100, 2)...)
		p.Wait(100, kafkatest.Settled)
		return p
	}
	goesOn := func(b *bubble, p *program) {
		b.Write(kafkatest.Numbered(50, 100, 2)...)
		b.drained("g", "in")
		p.Stop()
		b.Exactly(150)
	}
	t.Run("another id", func(t *testing.T) {
		t.Parallel()
		inRealTime(t, 2, func(b *bubble) {
			p := start(b, 10*time.Second) // two of them outlast the other's session and a pause of the machine
			given, cancel := context.WithTimeout(b.Context(), time.Minute)
			earlier, err := kgo.NewClient(append(b.Reach(), kgo.ConsumerGroup("g"), kgo.InstanceID("g-0-0"), kgo.ConsumeTopics("in"),
				kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.SessionTimeout(2*time.Second), kgo.HeartbeatInterval(500*time.Millisecond),
				kgo.DisableAutoCommit(), kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { cancel() }))...)
			kafkatest.Must(t, err)
			<-given.Done()
			earlier.Close() // a static member does not leave
			goesOn(b, p)
		})
	})
	t.Run("once", func(t *testing.T) {
		t.Parallel()
		inRealTime(t, 2, func(b *bubble) {
			p := start(b, 10*time.Second)
			b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.FencedInstanceID, Count: 1})
			goesOn(b, p)
		})
	})
	// A member that joins again learns its new id when the group is rebalanced, which waits for
	// members that are gone.
	t.Run("a new id during a rebalance", func(t *testing.T) {
		t.Parallel()
		inRealTime(t, 2, func(b *bubble) {
			p := start(b, time.Second)
			var asked atomic.Int32
			b.Cluster.ControlKey(int16(kmsg.DescribeGroups), func(req kmsg.Request) (kmsg.Response, error, bool) {
				b.Cluster.KeepControl()
				if asked.Add(1) > 40 { // four seconds
					return nil, nil, false
				}
				name := "g-0-0"
				member := kmsg.NewDescribeGroupsResponseGroupMember()
				member.MemberID, member.InstanceID = "new", &name
				group := kmsg.NewDescribeGroupsResponseGroup()
				group.Group, group.State, group.ProtocolType, group.Members = "g", "PreparingRebalance", "consumer", []kmsg.DescribeGroupsResponseGroupMember{member}
				answer := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
				answer.Groups = append(answer.Groups, group)
				return answer, nil, true
			})
			b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.ProducerFenced, Count: 1})
			goesOn(b, p)
			if n := asked.Load(); n <= 40 {
				t.Errorf("the group was asked %d times", n)
			}
		})
	})
}

// gate is a file system in which the state of partitions cannot be read before it is
// opened.
type gate struct {
	vfs.FS
	dir    string
	opened chan struct{}
}

func (g *gate) MkdirAll(name string) error {
	if name != g.dir {
		<-g.opened
	}
	return g.FS.MkdirAll(name)
}

// TestAPartitionThatAnotherSessionAskedForInErrorIsRead asks a session for a partition
// that it was just assigned, as another session does whose own revocation is still on
// its way.
func TestAPartitionThatAnotherSessionAskedForInErrorIsRead(t *testing.T) {
	t.Parallel()
	inRealTime(t, 2, func(b *bubble) {
		opts := b.options()
		opts.State.Dir = t.TempDir()
		files := &gate{vfs.OS{}, opts.State.Dir, make(chan struct{})}
		opts.files = files
		p := b.start(opts)
		var id cluster.Partition
		var holds *session
		if !kafkatest.Within(3*time.Minute, func() bool {
			p.tr.slots.each(func(of cluster.Partition, at *slot) {
				id = of
				holds, _ = at.holder.(*session)
			})
			return holds != nil
		}) {
			t.Fatal("no session was assigned a partition")
		}
		holds.ask(id)
		close(files.opened)
		b.Write(kafkatest.Numbered(0, 100, 2)...)
		b.drained("g", "in")
		p.Stop()
		b.Exactly(100)
	})
}

// TestAMemberRestartsBeforeItsSessionTimesOut fails again and again.
func TestAMemberRestartsBeforeItsSessionTimesOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const session = 3 * time.Second
		tr := &Transactor{chain: operator.NewPlan(&operator.Options{}), timeouts: Timeouts{Session: session}, observer: &kafkatest.Events{}}
		tr.health.observe, tr.health.silent = tr.observe, silent
		ctx, cancel := context.WithCancel(t.Context())
		var ended time.Time
		var longest time.Duration
		lives := 0
		m := member{t: tr, name: "0"}
		kafkatest.Must(t, m.persist(ctx, func(context.Context) error {
			if lives++; lives == 30 {
				cancel()
			}
			if !ended.IsZero() {
				longest = max(longest, time.Since(ended))
			}
			time.Sleep(time.Second) // in a bubble
			ended = time.Now()
			return errAgain
		}))
		if longest == 0 || longest > session/4 {
			t.Errorf("it stayed away for %v, and its session is %v", longest, session)
		}
	})
}

func TestATransactorClaimsPartitionsThatARebalanceLeftUnassigned(t *testing.T) {
	t.Parallel()
	inBubble(t, 4, func(b *bubble) {
		opts := b.options()
		opts.Member.Instance = "one"
		b.LostHalf("g", "one-0", func() bool { return b.whole("g") })
		p := b.start(opts)
		if !kafkatest.Within(4*cluster.WholeEvery, func() bool { return b.whole("g") }) {
			b.Error("a partition is nobody's")
		}
		p.Stop()
	})
}

func (b *bubble) whole(group string) bool {
	whole, err := cluster.IsWhole(b.Context(), kadm.NewClient(b.Client), group, []string{"in"})
	if err != nil {
		b.Error(err)
	}
	return whole
}
