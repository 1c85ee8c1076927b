package kafka

import (
	"context"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// patientSession is longer than a program stands still that is not killed. Else its
// partitions went to the other, which then learns their keys and copies none.
const patientSession = 30 * time.Second

// TestTakeoverWithAStandbyReadsOnlyTheEndOfTheChangelog kills one of two programs and counts
// what the other reads of the keys when it takes over.
func TestTakeoverWithAStandbyReadsOnlyTheEndOfTheChangelog(t *testing.T) {
	const before, after = 20_000, 2_000
	addr, prefix := servers.Kafka(t), servicestest.Topic()+"-"
	group := prefix + group
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(prefix+"in"), kgo.UnknownTopicRetries(-1), kgo.MaxBufferedRecords(5000))
	must(t, err)
	defer client.Close()
	adm := kadm.NewClient(client)
	_, err = adm.CreateTopic(t.Context(), inPartitions, 1, nil, prefix+"in")
	must(t, err)
	_, err = adm.CreateTopic(t.Context(), outPartitions, 1, nil, prefix+"out")
	must(t, err)
	reader := readTopic(t, addr, prefix+"out")
	defer reader.close()

	victim := newProgram(t, addr, 0)
	victim.Prefix, victim.Session = prefix, patientSession
	victim.start(t)
	kept := &standing{behind: -1}
	stop := survive(t, addr, prefix, kept)
	defer stop()

	in := &input{random: rand.New(rand.NewPCG(1, 1))}
	write := func(n int) {
		counts := make(chan int, 1)
		counts <- n
		close(counts)
		must(t, in.write(t.Context(), client, counts))
		if !within(settleFor, func() bool { return isSettled(t.Context(), adm, group, prefix+"in") }) {
			t.Fatal("the group did not commit all of the input")
		}
	}
	if !within(settleFor, func() bool { return eachHasSome(t.Context(), adm, group, 2) && kept.has(0) }) {
		t.Fatal("the partitions are not shared out")
	}
	write(before)
	if !within(settleFor, func() bool { return kept.has(before / 4) }) {
		t.Fatal("the standby does not follow")
	}
	kept.restored()
	victim.end(t, syscall.SIGKILL)
	left, err := adm.LeaveGroup(t.Context(), kadm.LeaveGroup(group).InstanceIDs("program-0-0")) // before its session ends
	must(t, err)
	must(t, left.Error())
	keys := in.keys
	write(after)
	if !within(settleFor, func() bool { return reader.read() >= in.keys }) {
		t.Errorf("a reader has %d of %d keys", reader.read(), in.keys)
	}
	compare(t, "a reader", reader, in.keys)
	read, took := kept.restored()
	// What the victim committed within the last moment may be missing in the copy.
	if took == 0 || read > keys/10 {
		t.Errorf("the survivor took over %d times and read %d keys, of %d", took, read, keys)
	}
	t.Logf("%d keys were there, about half of them the victim's; the survivor read %d when it took over", keys, read)
}

// eachHasSome reports whether a group has so many members, each with a partition.
func eachHasSome(ctx context.Context, adm *kadm.Client, group string, members int) bool {
	described, err := adm.DescribeGroups(ctx, group)
	if err != nil || described.Error() != nil || described[group].State != "Stable" || len(described[group].Members) != members {
		return false
	}
	return !slices.ContainsFunc(described[group].Members, func(m kadm.DescribedGroupMember) bool {
		assigned, ok := m.Assigned.AsConsumer()
		return !ok || len(assigned.Topics) == 0
	})
}

// survive runs a program with a standby in this process. What it returns ends it.
func survive(t *testing.T, addr, prefix string, observer pipeline.Observer) (stop func()) {
	t.Helper()
	rule, err := key.ParseRule("record-key")
	must(t, err)
	tr, err := kafkatxn.NewTransactor(&kafkatxn.TransactorOptions{
		Client: []kgo.Opt{kgo.SeedBrokers(addr)}, Group: prefix + group, Member: kafkatxn.Member{Instance: "survivor", Sessions: 1}, Inputs: []string{prefix + "in"}, Output: kafkatxn.Output{Topic: prefix + "out"},
		Key: kafkatxn.KeyOptions{Rule: rule, OnMissing: pipeline.MissingStop}, Window: time.Hour, State: kafkatxn.StateOptions{Dir: t.TempDir(), Standby: true},
		Limits: kafkatxn.Limits{Records: 750}, Timeouts: kafkatxn.Timeouts{Transaction: 5 * time.Second, Session: patientSession}, Observer: observer,
	})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- tr.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the survivor ended with %v", err)
		}
	}
}

// standing hears what a standby tells.
type standing struct {
	mu     sync.Mutex
	behind int // records; -1 before the first report
	copied int // keys that the standby read
	read   int // keys that were read for partitions that were given, and how often
	took   int
}

var keysRead = regexp.MustCompile(`(\d+) keys were read`)

func (s *standing) Observe(semel.Event) {}

func (s *standing) ObservePipeline(e pipeline.Event) {
	m := keysRead.FindStringSubmatch(e.Reason)
	if m == nil {
		return
	}
	n, _ := strconv.Atoi(m[1]) // it is digits
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Kind == pipeline.EventStandby {
		s.behind, s.copied = e.Count, s.copied+n
	} else {
		s.read, s.took = s.read+n, s.took+1
	}
}

// has reports whether the standby lacks nothing and read so many keys.
func (s *standing) has(keys int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.behind == 0 && s.copied >= keys
}

// restored returns how many keys were read for partitions that were given, and how
// often, since it was asked last.
func (s *standing) restored() (read, took int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	read, took = s.read, s.took
	s.read, s.took = 0, 0
	return read, took
}
