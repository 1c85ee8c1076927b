package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/repartition"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

// repartitioned returns options with the stage, and the member id of a JSON body
// as key.
func (b *bubble) repartitioned() TransactorOptions {
	b.Helper()
	opts := b.options()
	rule, err := key.ParseRule(".id")
	kafkatest.Must(b.T, err)
	opts.Key.Rule = rule
	opts.Repartition = &Repartition{}
	opts.skipSample = false
	return opts
}

// scattered returns records with the ids from to from+n-1, twice each: in two
// partitions, with two record keys.
func scattered(from, n, partitions int) (list []*kgo.Record) {
	for i := from; i < from+n; i++ {
		for copies := range 2 {
			list = append(list, kafkatest.Record(int32((i+copies)%partitions), fmt.Sprint("key", i+copies), fmt.Sprintf(`{"id":%d}`, i)))
		}
	}
	return list
}

// lastRecords returns the offset of the last committed record of each partition
// of a topic.
func (b *bubble) lastRecords(topic string) map[int32]int64 {
	b.Helper()
	last, ends := map[int32]int64{}, map[int32]int64{}
	from := map[int32]kgo.Offset{}
	for _, p := range b.Cluster.PartitionInfos(topic) {
		if p.LogStartOffset < p.HighWatermark {
			from[p.Partition], ends[p.Partition] = kgo.NewOffset().At(p.LogStartOffset), p.HighWatermark
		}
	}
	client, err := kgo.NewClient(append(b.Reach(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())...)
	kafkatest.Must(b.T, err)
	defer client.Close()
	for len(ends) > 0 {
		for r := range client.PollFetches(b.Context()).RecordsAll() {
			if !r.Attrs.IsControl() {
				last[r.Partition] = r.Offset
			}
			if r.Offset+1 >= ends[r.Partition] {
				delete(ends, r.Partition)
			}
		}
	}
	return last
}

// drained waits until a group has committed all records of a topic. A group waits
// half a minute for members that died while it divided partitions.
func (b *bubble) drained(group, topic string) {
	b.Helper()
	last := b.lastRecords(topic)
	var waits time.Time
	if !kafkatest.Within(10*time.Minute, func() bool {
		info := b.Cluster.GroupInfo(group)
		out := b.toTakeOut(info)
		switch {
		case len(out) == 0:
			waits = time.Time{}
		case waits.IsZero():
			waits = time.Now()
		case time.Since(waits) > 75*time.Second: // Kafka ends it after 30
			b.takeOut(info, out)
			waits = time.Time{}
		}
		for number, offset := range last {
			if info == nil || info.Commits[topic][number].Offset <= offset {
				return false
			}
		}
		return true
	}) {
		b.Errorf("%s has not read all of %s, %v: %+v", group, topic, last, b.Cluster.GroupInfo(group))
	}
}

// toTakeOut returns the members that keep the broker in process from continuing, if that lasts.
// It begins the time for joining again with each member that joins. Members that join again in
// turn keep the group from ever doing without a dead member. If the connection of a member is
// gone when the broker answers its join, no session of the member starts, so a dead member may
// keep its partitions for ever.
func (b *bubble) toTakeOut(info *kfake.GroupInfo) (instances []string) {
	if info == nil || info.State != "PreparingRebalance" && info.State != "Stable" {
		return nil
	}
	for _, m := range info.Members {
		lives := slices.ContainsFunc(b.programs, func(p *program) bool {
			select {
			case <-p.Done:
				return false
			default:
				return strings.HasPrefix(*m.InstanceID, p.tr.member.Instance+"-")
			}
		})
		if info.State != "Stable" || len(b.programs) > 0 && !lives {
			instances = append(instances, *m.InstanceID)
		}
	}
	return instances
}

// takeOut takes members out of a group, which those that live notice.
func (b *bubble) takeOut(info *kfake.GroupInfo, instances []string) {
	b.Helper()
	b.Logf("group %s waits for a dead member in %+v: %v leave", info.Group, info.Members, instances)
	leave := kadm.LeaveGroup(info.Group)
	leave.InstanceIDs(instances...)
	if _, err := kadm.NewClient(b.Client).LeaveGroup(b.Context(), leave); err != nil {
		b.Error(err)
	}
}

// through waits until both stages have done all that was written.
func (b *bubble) through() {
	b.Helper()
	b.drained("g-repartition", "in")
	b.drained("g", "g-repartition")
}

// eachOnce checks that the output holds the ids 0 to n-1 once each, each as one
// of its copies was.
func (b *bubble) eachOnce(n int) {
	b.Helper()
	seen := map[string]int{}
	for _, r := range b.Read("out") {
		seen[string(r.Value)]++
		if !strings.HasPrefix(string(r.Key), "key") || len(r.Headers) != 0 {
			b.Errorf("%s has key %q and headers %v", r.Value, r.Key, r.Headers)
		}
	}
	for i := range n {
		if got := seen[fmt.Sprintf(`{"id":%d}`, i)]; got != 1 {
			b.Errorf("id %d is there %d times", i, got)
		}
	}
	if len(seen) != n {
		b.Errorf("there are %d ids, want %d", len(seen), n)
	}
}

func TestCopiesInSeveralPartitionsAreDeduplicated(t *testing.T) {
	t.Parallel()
	inBubble(t, 4, func(b *bubble) {
		opts := b.repartitioned()
		b.Write(scattered(0, 100, 4)...)
		p := b.start(opts)
		p.Wait(200, kafkatest.Settled)
		b.Write(scattered(50, 100, 4)...)
		p.Wait(400, kafkatest.Settled)
		p.Stop()
		b.eachOnce(150)
		if got := p.Events.Decisions(semel.Duplicate); got != 250 {
			t.Errorf("%d duplicates, want 250", got)
		}
		if got := len(b.Cluster.PartitionInfos("g-repartition")); got != 4 {
			t.Errorf("the topic has %d partitions", got)
		}
	})
}

func TestBothStagesTellHowFarTheyAreBehind(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.repartitioned()
		opts.Observer = &kafkatest.Events{}
		tr, err := NewTransactor(&opts)
		kafkatest.Must(t, err)
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error)
		go func() { done <- tr.Run(ctx) }()
		b.Write(scattered(0, 10, 2)...)
		b.through()
		sources := map[string]int{}
		list, err := tr.Lag(ctx)
		kafkatest.Must(t, err)
		for _, lag := range list {
			sources[lag.Source]++
			if lag.Messages > 1 { // the marker of the last transaction
				t.Errorf("%+v", lag)
			}
		}
		if len(sources) != 2 || sources["in"] != 2 || sources["g-repartition"] != 2 {
			t.Errorf("partitions that are reported: %v", sources)
		}
		cancel()
		kafkatest.Must(t, <-done)
		if list, err := tr.Lag(b.Context()); err != nil || len(list) != 0 {
			t.Errorf("at the end %v, %v", list, err)
		}
	})
}

func TestWithTheStageTheKeysOfAllInputsMeet(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		kafkatest.Must(t, b.Cluster.CreateTopic("in2", 3, nil))
		opts := b.repartitioned()
		opts.Inputs = []string{"in", "in2"}
		kafkatest.Must(t, b.Cluster.CreateTopic("between", 5, nil))
		opts.Repartition = &Repartition{Topic: "between"}
		for _, r := range scattered(0, 20, 2) {
			other := *r
			other.Topic = "in2"
			b.Write(r, &other)
		}
		p := b.start(opts)
		p.Wait(80, kafkatest.Settled)
		p.Stop()
		b.eachOnce(20)
		if got := len(b.Cluster.PartitionInfos("between")); got != 5 {
			t.Errorf("the topic has %d partitions", got)
		}
	})
}

// TestARecordComesThroughAsItWas sends records of all kinds through both stages.
func TestARecordComesThroughAsItWas(t *testing.T) {
	t.Parallel()
	for _, to := range []string{"out", "aside"} {
		t.Run(to, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				opts := b.repartitioned()
				opts.Output.SamePartition = true
				var origins []semel.Origin
				opts.Transform = func(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
					origins = append(origins, m.Origin)
					if to == "aside" {
						return nil, semel.Permanent(errors.New("no"))
					}
					return []*kgo.Record{record.Of(&m.Message, "")}, nil
				}
				rule, err := key.ParseRule("header:id")
				kafkatest.Must(t, err)
				opts.Key.Rule = rule
				at := time.Now().Add(-48 * time.Hour).Truncate(time.Millisecond)
				sent := []*kgo.Record{
					{Key: []byte("a"), Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h"}, {Key: repartition.Header, Value: []byte("mine")}}},
					{Key: []byte("tombstone"), Value: nil},
					{Key: []byte("empty"), Value: []byte{}},
					{Key: nil, Value: []byte("null key")},
					{Key: []byte{}, Value: []byte("empty key"), Headers: []kgo.RecordHeader{{Key: repartition.Header}}},
					{Key: []byte{0, 0xff}, Value: []byte("bytes")},
				}
				want := map[string]string{}
				for i, r := range sent {
					r.Topic, r.Partition, r.Timestamp = "in", int32(i%2), at
					r.Headers = append(r.Headers, kgo.RecordHeader{Key: "id", Value: []byte(strconv.Itoa(i))})
					want[strconv.Itoa(i)] = shown(r, r.Headers)
				}
				b.Write(sent...)
				p := b.start(opts)
				p.Wait(len(sent), kafkatest.Settled)
				p.Stop()
				got := b.Read(to)
				if len(got) != len(sent) {
					t.Fatalf("%d records, want %d", len(got), len(sent))
				}
				for _, r := range got {
					var m semel.Message
					record.Fill(&m, r)
					id := record.Header(&m, "id")
					i, _ := strconv.Atoi(id)
					if to == "aside" {
						from, ok := record.ParkedOrigin(&m)
						if !ok || from != (semel.Origin{Source: "in", Partition: int32(i % 2), Offset: int64(i / 2)}) {
							t.Errorf("%s comes from %+v", id, from)
						}
						r.Partition = int32(i % 2) // it was free
					}
					if text := shown(r, record.AppendOwn(nil, r.Headers, "")); text != want[id] {
						t.Errorf("got  %s\nwant %s", text, want[id])
					}
				}
				slices.SortFunc(origins, func(a, b semel.Origin) int {
					return int(a.Offset*2+int64(a.Partition)) - int(b.Offset*2+int64(b.Partition))
				})
				for i, o := range origins {
					if o != (semel.Origin{Source: "in", Partition: int32(i % 2), Offset: int64(i / 2)}) {
						t.Errorf("message %d comes from %+v", i, o)
					}
				}
			})
		})
	}
}

func shown(r *kgo.Record, headers []kgo.RecordHeader) string {
	return fmt.Sprintf("%#v %#v %v %d %q", r.Key, r.Value, r.Timestamp.UnixMilli(), r.Partition, headers)
}

// TestRecordsWithoutAKeyFollowThePolicy checks that they are neither lost in the
// first stage nor hold it up.
func TestRecordsWithoutAKeyFollowThePolicy(t *testing.T) {
	t.Parallel()
	for policy, want := range map[pipeline.Missing][2]int{ // outputs and parked
		pipeline.MissingPark: {1, 4},
		pipeline.MissingDrop: {1, 0},
		pipeline.MissingPass: {5, 0},
		pipeline.MissingHash: {4, 0},
	} {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			inBubble(t, 3, func(b *bubble) {
				opts := b.repartitioned()
				opts.Key.OnMissing = policy
				tombstone := kafkatest.Record(2, "t", "")
				tombstone.Value = nil
				b.Write(kafkatest.Record(0, "a", "no json"), kafkatest.Record(1, "b", "no json"), kafkatest.Record(2, "", `{"id":""}`), tombstone, kafkatest.Record(1, "c", `{"id":1}`))
				p := b.start(opts)
				p.Wait(5, kafkatest.Settled)
				p.Stop()
				if got := [2]int{len(b.Read("out")), len(b.Read("aside"))}; got != want {
					t.Errorf("with %v there are %v outputs and parked, want %v", policy, got, want)
				}
			})
		})
	}
	t.Run("stop", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 3, func(b *bubble) {
			opts := b.repartitioned()
			opts.Key.OnMissing = pipeline.MissingStop
			b.Write(kafkatest.Record(1, "b", `{"id":7}`), kafkatest.Record(1, "b", "no json"))
			for range 2 { // it stays where it is
				p := b.start(opts)
				<-p.Done
				if p.Err == nil || !errors.Is(p.Err, pipeline.ErrStopped) || !strings.Contains(p.Err.Error(), "in/1 at 1") {
					t.Errorf("it ended with %v", p.Err)
				}
			}
		})
	})
}

// TestOrderIsKeptPerID sends versions of ids, which are no copies of each other,
// through the stage while the window is over again and again.
func TestOrderIsKeptPerID(t *testing.T) {
	t.Parallel()
	inBubble(t, 4, func(b *bubble) {
		opts := b.repartitioned()
		opts.Window = time.Millisecond
		opts.Limits.Records = 7
		opts.Limits.Interval = 10 * time.Millisecond
		p := b.start(opts)
		for version := range 60 {
			var list []*kgo.Record
			for id := range 8 {
				list = append(list, kafkatest.Record(int32(id%4), fmt.Sprint("key", id), fmt.Sprintf(`{"id":%d,"version":%d}`, id, version)))
			}
			b.Write(list...)
			time.Sleep(3 * time.Millisecond)
		}
		b.through()
		p.Stop()
		last := map[string]int{}
		for _, r := range b.Read("out") { // by record key, so each id is in one partition
			var id string
			var version int
			if _, err := fmt.Sscanf(string(r.Value), `{"id":%1s,"version":%d}`, &id, &version); err != nil {
				t.Fatal(err)
			}
			if version < last[id] {
				t.Errorf("version %d of %s comes after %d", version, id, last[id])
			}
			last[id] = version
		}
	})
}

// TestCrashesBetweenTheStages ends the program at each step of both transactions.
func TestCrashesBetweenTheStages(t *testing.T) {
	t.Parallel()
	for _, kind := range []kmsg.Key{kmsg.Produce, kmsg.AddPartitionsToTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn} {
		for _, nth := range []int{1, 2, 3, 4} {
			for _, before := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/%d/%v", kind.Name(), nth, before), func(t *testing.T) {
					t.Parallel()
					inBubble(t, 3, func(b *bubble) {
						opts := b.repartitioned()
						opts.State.Dir = t.TempDir()
						opts.Limits.Interval = 20 * time.Millisecond
						b.Write(scattered(0, 40, 3)...)
						line, cut := b.NewLine(), kafkatest.Once(kind, nth)
						if before {
							line.On(cut, nil)
						} else {
							line.On(nil, cut)
						}
						p := b.startOn(line, opts)
						kafkatest.Within(2*time.Second, func() bool { return kafkatest.Settled(p.Events) >= 80 })
						p.Kill()
						b.Write(scattered(20, 40, 3)...)
						<-p.Done
						p = b.start(opts)
						b.through()
						p.Stop()
						b.eachOnce(60)
					})
				})
			}
		}
	}
}

// TestCommittedRecordsOfTheRepartitionTopicAreDeleted checks that the topic between the stages does not
// grow, and that neither a restart nor what is deleted loses anything.
func TestCommittedRecordsOfTheRepartitionTopicAreDeleted(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.repartitioned()
		p := b.start(opts)
		for i := range 3 {
			b.Write(scattered(10*i, 10, 2)...)
			p.Wait(20*(i+1), kafkatest.Settled)
			b.through()
			time.Sleep(tidyEvery + time.Second)
			for _, part := range b.Cluster.PartitionInfos("g-repartition") {
				if part.HighWatermark-part.LogStartOffset > 1 { // the marker of the last transaction
					t.Errorf("partition %d has records from %d to %d", part.Partition, part.LogStartOffset, part.HighWatermark)
				}
			}
		}
		p.Stop()
		p = b.start(opts)
		b.Write(scattered(20, 20, 2)...)
		p.Wait(40, kafkatest.Settled)
		p.Stop()
		b.eachOnce(40)
	})
}
