package kafka

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

// member is a Source under test with its reports.
type member struct {
	*Source
	b      *bubble
	line   *kafkatest.Line
	events *kafkatest.Events
}

func (b *bubble) join(change func(o *SourceOptions)) *member {
	b.Helper()
	m := &member{b: b, events: &kafkatest.Events{}, line: b.NewLine()}
	opts := &SourceOptions{
		Group: "g", Topics: []string{"in"}, SessionTimeout: 2 * time.Second, CommitEvery: 100 * time.Millisecond, Observer: m.events,
		Client: append(b.ClientOn(m.line), kgo.MetadataMinAge(50*time.Millisecond), kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond })),
	}
	if change != nil {
		change(opts)
	}
	source, err := OpenSource(b.Context(), opts)
	if err != nil {
		b.Fatal(err)
	}
	m.Source = source
	b.LogIfFailed(m.events)
	return m
}

// patiently has a member in real time not be taken for dead while the machine is
// busy elsewhere.
func patiently(o *SourceOptions) { o.SessionTimeout = 30 * time.Second }

// get reads until n items have come.
func (m *member) get(n int) []*pipeline.Item {
	m.b.Helper()
	ctx, cancel := context.WithTimeout(m.b.Context(), 3*time.Minute)
	defer cancel()
	var all []*pipeline.Item
	for len(all) < n {
		items, err := m.Read(ctx)
		if err != nil {
			m.b.Fatalf("after %d of %d items: %v", len(all), n, err)
		}
		all = append(all, items...)
	}
	return all
}

// none checks that nothing comes.
func (m *member) none(most time.Duration) {
	m.b.Helper()
	ctx, cancel := context.WithTimeout(m.b.Context(), most)
	defer cancel()
	if items, err := m.Read(ctx); len(items) > 0 || !errors.Is(err, context.DeadlineExceeded) {
		m.b.Errorf("%d items came, and the error %v; want none", len(items), err)
	}
}

func (m *member) ack(items ...*pipeline.Item) {
	m.b.Helper()
	if err := m.Ack(m.b.Context(), items); err != nil {
		m.b.Error(err)
	}
}

func (m *member) leave() {
	m.b.Helper()
	ctx, cancel := context.WithTimeout(m.b.Context(), 3*time.Minute)
	defer cancel()
	if err := m.Close(ctx); err != nil {
		m.b.Error(err)
	}
}

// committed returns the offset that the group has committed, and -1 for none.
func (b *bubble) committed(partition int32) int64 {
	b.Helper()
	offsets, err := kadm.NewClient(b.Client).FetchOffsets(b.Context(), "g")
	if err != nil {
		b.Fatal(err)
	}
	if o, ok := offsets.Lookup("in", partition); ok {
		return o.At
	}
	return -1
}

// becomes waits until an offset is committed.
func (b *bubble) becomes(partition int32, want int64) {
	b.Helper()
	if !kafkatest.Within(time.Minute, func() bool { return b.committed(partition) == want }) {
		b.Errorf("offset %d of partition %d is committed, want %d", b.committed(partition), partition, want)
	}
}

func bodies(items []*pipeline.Item) []string {
	var list []string
	for _, it := range items {
		list = append(list, string(it.Message.Body))
	}
	return list
}

// of returns the items of one partition.
func of(items []*pipeline.Item, partition int32) []*pipeline.Item {
	return slices.DeleteFunc(slices.Clone(items), func(it *pipeline.Item) bool { return it.Message.Origin.Partition != partition })
}

func TestOffsetsAreCommittedUpToTheFirstThatIsNotSettled(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 10, 1)...)
		m := b.join(nil)
		items := m.get(10)
		b.becomes(0, 0) // where it began is known even before anything is settled
		m.ack(items[1], items[3], items[2])
		m.ack(items[0])
		b.becomes(0, 4)
		m.ack(items[5:]...)
		b.becomes(0, 4)
		m.leave()
		m = b.join(nil)
		again := m.get(6)
		if got := bodies(again); got[0] != "value 4" {
			t.Errorf("%v came again, want those from value 4 on", got)
		}
		m.ack(again...)
		m.leave()
		b.becomes(0, 10)
	})
}

// TestOffsetsAreCommittedWhenTheEndIsReached: what is committed then is not read again after a crash,
// and the group has no lag.
func TestOffsetsAreCommittedWhenTheEndIsReached(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		var commits atomic.Int32
		b.Cluster.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			commits.Add(1)
			return nil, nil, false
		})
		b.Write(kafkatest.Numbered(0, 3, 1)...)
		m := b.join(func(o *SourceOptions) { o.CommitEvery = time.Minute })
		items := m.get(3)
		m.ack(items[:2]...)
		_ = retry.Sleep(b.Context(), 30*time.Second) // as the bubble counts it
		if n := commits.Load(); n > 0 {
			t.Errorf("%d commits while a message was under way", n)
		}
		m.ack(items[2])
		_ = retry.Sleep(b.Context(), time.Second)
		if got := b.committed(0); got != 3 {
			t.Errorf("offset %d is committed a second after all was done, want 3", got)
		}
		for i := range 60 { // one a second
			b.Write(kafkatest.Numbered(3+i, 1, 1)...)
			m.ack(m.get(1)...)
			_ = retry.Sleep(b.Context(), time.Second)
		}
		if n := commits.Load(); n > 6 {
			t.Errorf("%d commits in a minute, want about four", n)
		}
		m.leave()
		b.becomes(0, 63)
	})
}

func TestSourceDistinguishesNilFromEmptyKeysAndValues(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.Write(
			&kgo.Record{Topic: "in", Key: []byte("k")},
			&kgo.Record{Topic: "in", Key: []byte{}, Value: []byte{}},
			&kgo.Record{Topic: "in", Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a"}, {Key: pipeline.RedriveHeader, Value: []byte("2")}}},
		)
		m := b.join(nil)
		items := m.get(3)
		defer m.leave()
		if body := items[0].Message.Body; body != nil {
			t.Errorf("a tombstone has the body %q", body)
		}
		if m := items[1].Message; m.RecordKey == nil || m.Body == nil {
			t.Errorf("empty key and body are nil: %v, %v", m.RecordKey, m.Body)
		}
		last := items[2]
		if last.Message.RecordKey != nil || len(last.Message.Headers) != 3 || last.Redrive != 2 {
			t.Errorf("key %v, headers %v, redriven %d times", last.Message.RecordKey, last.Message.Headers, last.Redrive)
		}
	})
}

// TestARevokedPartitionEndsItsWorkBeforeItIsGivenUp has a second member join while an
// item is being delivered.
func TestARevokedPartitionEndsItsWorkBeforeItIsGivenUp(t *testing.T) {
	t.Parallel()
	inRealTime(t, 2, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 20, 2)...)
		first := b.join(patiently)
		started, finish := make(chan struct{}), make(chan struct{})
		var once sync.Once
		var delivered sync.Map
		ctx, cancel := context.WithCancel(b.Context())
		run := b.pipelineOf(ctx, first, func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			if _, again := delivered.LoadOrStore(string(m.Body), true); again {
				t.Errorf("%s was delivered twice", m.Body)
			}
			once.Do(func() { close(started) })
			<-finish
			return semel.Result{}, nil
		})
		<-started
		second := b.join(patiently)
		go func() {
			defer close(finish)
			if !kafkatest.Within(3*time.Minute, func() bool { return len(first.all()) == 1 }) {
				t.Error("the first member is not asked for a partition")
			}
			kafkatest.Within(500*time.Millisecond, func() bool { return false }) // in which the second may read too early
		}()
		rest := make(chan []*pipeline.Item)
		reading, stopReading := context.WithCancel(b.Context())
		go func() {
			var all []*pipeline.Item
			for reading.Err() == nil {
				items, _ := second.Read(reading)
				second.ack(items...)
				all = append(all, items...)
			}
			rest <- all
		}()
		total := func() (n int64) { return b.committed(0) + b.committed(1) }
		if !kafkatest.Within(3*time.Minute, func() bool { return total() == 20 }) {
			t.Errorf("%d offsets are committed, want 20", total())
		}
		stopReading()
		for _, it := range <-rest {
			if _, twice := delivered.Load(string(it.Message.Body)); twice {
				t.Errorf("%s was delivered here and read there", it.Message.Body)
			}
		}
		cancel()
		if err := <-run; err != nil {
			t.Error(err)
		}
		second.leave()
	})
}

// pipelineOf runs a pipeline with a handler until ctx ends.
func (b *bubble) pipelineOf(ctx context.Context, source pipeline.Source, handle pipeline.Handler) <-chan error {
	b.Helper()
	runner, err := pipeline.NewRunner(source, &each{pipeline.NewHandler(handle)}, &pipeline.Options{
		Key: kafkatest.RecordKey(b), DeadLetters: noParker{}, Failure: pipeline.Failure{From: time.Millisecond, To: 2 * time.Millisecond}, Shutdown: 5 * time.Second,
	})
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- runner.Run(ctx) }()
	return ended
}

// each is a session without keys.
type each struct{ pipeline.Sink }

func (e *each) Process(ctx context.Context, items []*pipeline.Item) {
	for _, it := range items {
		it.Decision, it.Attempt = semel.Fresh, it.Attempt+1
	}
	e.Deliver(ctx, items)
}

func (e *each) Abandon(context.Context, []*pipeline.Item)               {}
func (*each) BindScope(context.Context, string, semel.ScopeOwner) error { return nil }

type noParker struct{}

func (noParker) Park(context.Context, []pipeline.Parked) error {
	return errors.New("nothing is parked here")
}

// TestReassignedPartitionDoesNotRepeatWorkInProgress has a partition come again
// after sessions ended while no broker was there.
func TestReassignedPartitionDoesNotRepeatWorkInProgress(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 5, 1)...)
		m := b.join(nil)
		before := m.get(5)
		b.becomes(0, 0)
		m.line.Sever(true)
		reading, stop := context.WithTimeout(b.Context(), 10*time.Second)
		_, _ = m.Read(reading)
		stop()
		m.ack(before[3], before[0])
		m.line.Mend()
		after := m.get(5)
		if before[0].Partition == after[0].Partition || !before[0].Partition.Closed() {
			t.Error("the partition came again as the pipeline.Partition that was lost")
		}
		b.becomes(0, 1)
		m.ack(before[1])
		b.becomes(0, 2)
		m.ack(after[2], after[3], after[4]) // the first two of this life are not settled
		<-time.After(3 * time.Second)
		b.becomes(0, 2)
		m.ack(before[2])
		b.becomes(0, 4)
		m.ack(after...)
		b.becomes(0, 5)
		m.leave()
	})
}

// TestReassignedPartitionIsNoLongerPaused pauses a partition, loses it, and reads its successor.
func TestReassignedPartitionIsNoLongerPaused(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 4, 2)...)
		m := b.join(nil)
		items := m.get(4)
		partition := of(items, 0)[0].Partition
		m.Pause(partition, true)
		b.Write(kafkatest.Numbered(4, 2, 2)...)
		more := m.get(1)
		if got := more[0].Message.Origin.Partition; got != 1 || len(more) != 1 {
			t.Errorf("%d items of partition %d came while partition 0 is paused", len(more), got)
		}
		m.none(3 * time.Second)
		m.Pause(partition, false)
		if got := bodies(m.get(1)); got[0] != "value 4" {
			t.Errorf("%v came after the pause", got)
		}
		m.Pause(partition, true)
		m.line.Sever(true)
		reading, stop := context.WithTimeout(b.Context(), 10*time.Second)
		_, _ = m.Read(reading)
		stop()
		m.line.Mend()
		again := m.get(6)
		m.Pause(partition, true) // it is too late for this one
		b.Write(kafkatest.Numbered(6, 2, 2)...)
		m.get(2)
		m.ack(again...)
		m.leave()
	})
}

func TestRefusedCommitIsRetried(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]*kerr.Error{
		"coordinator loads": kerr.CoordinatorLoadInProgress, "not the coordinator": kerr.NotCoordinator, "rebalance": kerr.RebalanceInProgress,
		"unknown": kerr.UnknownServerError, "timed out": kerr.RequestTimedOut,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				b.Write(kafkatest.Numbered(0, 5, 1)...)
				m := b.join(nil)
				items := m.get(5)
				b.becomes(0, 0)
				b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: err, Count: 3})
				m.ack(items...)
				b.becomes(0, 5)
				b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: err, Count: 3})
				b.Write(kafkatest.Numbered(5, 5, 1)...)
				m.ack(m.get(5)...)
				m.leave() // it must not leave before that is committed
				if got := b.committed(0); got != 10 {
					t.Errorf("offset %d is committed after a clean end, want 10", got)
				}
			})
		})
	}
}

// TestGroupMemberWithoutCommitRightsClosesWithoutAnError has the group refuse the member, whose
// records come again to the next one.
func TestGroupMemberWithoutCommitRightsClosesWithoutAnError(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 5, 1)...)
		m := b.join(nil)
		items := m.get(5)
		fault := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.GroupAuthorizationFailed, Count: -1})
		m.ack(items...)
		m.leave()
		if log := strings.Join(m.events.Log, "\n"); !strings.Contains(log, "offsets not committed") {
			t.Errorf("it was not reported:\n%s", log)
		}
		fault.Remove()
		again := b.join(nil)
		again.ack(again.get(5)...)
		again.leave()
		b.becomes(0, 5)
	})
}

// TestGroupMemberForgottenByTheGroupClosesWithoutAnError: other members have its partitions,
// and get again the records that it could not commit.
func TestGroupMemberForgottenByTheGroupClosesWithoutAnError(t *testing.T) {
	t.Parallel()
	for _, err := range []*kerr.Error{kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.FencedMemberEpoch} {
		t.Run(err.Message, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				b.Write(kafkatest.Numbered(0, 5, 1)...)
				m := b.join(nil)
				items := m.get(5)
				b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: err, Count: 1000})
				m.ack(items...)
				m.leave()
			})
		})
	}
}

func TestAllBadOptionsOfASourceAreNamed(t *testing.T) {
	t.Parallel()
	_, err := OpenSource(t.Context(), &SourceOptions{SessionTimeout: -1, Reset: 9})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("the error is %v", err)
	}
	for _, field := range []string{"Client", "Group", "Topics", "SessionTimeout", "Reset"} {
		if !strings.Contains(err.Error(), "SourceOptions."+field) {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}

func TestSourceRefusesAPoolForDecompressedBytes(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		_, err := OpenSource(b.Context(), &SourceOptions{Client: append(b.Reach(), kgo.WithPools(kafkatest.BytesPool{})), Group: "g", Topics: []string{"in"}})
		if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "kgo.WithPools") {
			t.Errorf("the error is %v", err)
		}
	})
}

func TestLeaderEpochsAreCommitted(t *testing.T) {
	t.Parallel()
	p := newOwned("t", 3)
	var positions []int64
	var records []*kgo.Record
	for i := range 10 {
		records = append(records, &kgo.Record{Offset: int64(i), LeaderEpoch: int32(i / 4)})
		positions = append(positions, int64(i))
	}
	p.read(records, positions, "")
	for i, want := range []int32{0, 0, 0, 0, 1, 1, 1, 1, 2, 2} {
		p.mark.Settle(int64(i))
		if at, ok := p.due(); !ok || at.Offset != int64(i+1) || at.Epoch != want {
			t.Errorf("after %d: %s, %v, want epoch %d", i, strconv.Itoa(int(at.Offset))+"/"+strconv.Itoa(int(at.Epoch)), ok, want)
		}
	}
}

func TestLagCountsUncommittedRecords(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		b.Write(kafkatest.Numbered(0, 20, 2)...)
		m := b.join(nil)
		items := m.get(20)
		if n, parts := b.Lag(m); n != 20 || parts != 2 {
			b.Errorf("%d behind in %d partitions, want 20 in 2", n, parts)
		}
		m.ack(items[:20]...)
		time.Sleep(time.Second)
		b.Write(kafkatest.Numbered(20, 7, 2)...)
		if n, _ := b.Lag(m); n != 7 {
			b.Errorf("%d behind, want the 7 that came later", n)
		}
		other := b.join(nil)
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Second)
		defer cancel()
		var reading sync.WaitGroup
		for _, of := range []*member{m, other} {
			reading.Go(func() {
				for ctx.Err() == nil {
					_, _ = of.Read(ctx) // so that it takes part in the rebalance
				}
			})
		}
		reading.Wait()
		if _, parts := b.Lag(m); parts != 1 {
			b.Errorf("a member reports %d partitions, want its own 1", parts)
		}
		m.leave()
		other.leave()
	})
}
