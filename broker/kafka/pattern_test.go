package kafka

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
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
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func patternOf(t *testing.T, text string) *Pattern {
	t.Helper()
	p, err := NewPattern(text)
	kafkatest.Must(t, err)
	return p
}

func TestAPatternMatchesWholeNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ pattern, matches, not, prefix string }{
		{"orders-.*", "orders-eu orders-", "my-orders-eu orders", "orders-"},
		{"^orders-.*$", "orders-eu", "my-orders-eu", "orders-"},
		{"a|b", "a b", "ab ba", ""},
		{"eu[.]orders", "eu.orders", "eu-orders eu.orders.old", "eu.orders"},
		{"(?i)orders", "Orders ORDERS", "orders-1", ""},
		{`\Qeu.orders-`, "eu.orders-", "eu-orders- eu.orders-)$", "eu.orders-"},
		{`\Qeu.\Eorders|us`, "eu.orders us", "eu-orders", ""},
	} {
		p := patternOf(t, c.pattern)
		for topic := range strings.FieldsSeq(c.matches) {
			if !p.Matches(topic) {
				t.Errorf("%s does not match %s", p, topic)
			}
		}
		for topic := range strings.FieldsSeq(c.not) {
			if p.Matches(topic) {
				t.Errorf("%s matches %s", p, topic)
			}
		}
		if p.Prefix() != c.prefix {
			t.Errorf("what matches %s begins with %q, want %q", p, p.Prefix(), c.prefix)
		}
	}
	for _, text := range []string{"a(", "a)|(b", "*"} {
		if _, err := NewPattern(text); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func FuzzPattern(f *testing.F) {
	for _, text := range []string{"orders-.*", `\Qorders-`, `\Qa\E|b`, "a)|(b", "(?i)a{2,3}$", `\`, "(?s).(?-s:.)|[^a]"} {
		f.Add(text, "orders-a")
	}
	f.Fuzz(func(t *testing.T, text, topic string) {
		alone, invalid := regexp.Compile(text)
		p, err := NewPattern(text)
		switch {
		case err != nil && !errors.Is(err, semel.ErrInvalidRequest):
			t.Fatal(err)
		case err != nil:
			return // the whole may be too large, although a part is not
		case invalid != nil:
			t.Fatalf("%q is valid only as a part: %v", text, invalid)
		}
		alone.Longest()
		at := alone.FindStringIndex(topic)
		if whole := at != nil && at[0] == 0 && at[1] == len(topic); whole != p.Matches(topic) {
			t.Fatalf("%q: %q matches as a whole: %v, and the pattern says %v", text, topic, whole, p.Matches(topic))
		}
		if p.Matches(topic) && !strings.HasPrefix(topic, p.Prefix()) {
			t.Fatalf("%q matches %q, which does not begin with %q", text, topic, p.Prefix())
		}
	})
}

func TestASourceReadsAListOrAPattern(t *testing.T) {
	t.Parallel()
	for _, reset := range []Reset{ResetEnd, ResetFail} {
		_, err := OpenSource(t.Context(), &SourceOptions{Client: []kgo.Opt{kgo.ClientID("c")}, Group: "g", Topics: []string{"in"}, Pattern: patternOf(t, "in"), Reset: reset})
		if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "Topics, Pattern: one of them must be empty") || !strings.Contains(err.Error(), "Reset: with a Pattern") {
			t.Errorf("%v", err)
		}
	}
}

// create makes a topic with two partitions, and writes numbered records to it.
func (b *bubble) create(topic string, n int) {
	b.Helper()
	_, err := kadm.NewClient(b.Client).CreateTopic(b.Context(), 2, 1, nil, topic)
	kafkatest.Must(b.T, err)
	client, err := kgo.NewClient(append(b.Reach(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...) // another one may know an earlier topic of that name
	kafkatest.Must(b.T, err)
	defer client.Close()
	for i := range n {
		kafkatest.Must(b.T, client.ProduceSync(b.Context(), &kgo.Record{Topic: topic, Partition: int32(i % 2), Value: []byte(topic)}).FirstErr())
	}
}

// from returns the topics of items, with the number of their items.
func from(items []*pipeline.Item) map[string]int {
	topics := map[string]int{}
	for _, it := range items {
		topics[it.Message.Origin.Source]++
	}
	return topics
}

func TestNewTopicsThatMatchAreReadFromTheirStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(o *SourceOptions)
	}{
		{"member", func(*SourceOptions) {}},
		{"static member", func(o *SourceOptions) { o.Instance = "one" }},
		{"broker divides", func(o *SourceOptions) { o.ServerSide = true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				open := func() *member {
					return b.join(func(o *SourceOptions) {
						o.Topics, o.Pattern = nil, patternOf(t, "orders-.*")
						c.change(o)
					})
				}
				m := open()
				b.create("my-orders-1", 2)
				m.none(time.Minute) // nothing matches
				if what, ends := m.WaitsFor(b.Context()); what != "a topic that matches orders-.*, and that this user may describe" || ends {
					b.Errorf("it waits for %q, %v", what, ends)
				}
				kafkatest.Must(b.T, m.Ready(b.Context()))
				for i, topic := range []string{"orders-a", "orders-b"} {
					b.create(topic, 4)
					begun := time.Now()
					items := m.get(4)
					if took := time.Since(begun); took > foundWithin || len(from(items)) != 1 || from(items)[topic] != 4 {
						b.Errorf("topic %d: %v after %v", i, from(items), took)
					}
					m.ack(items...)
				}
				b.create("orders-c", 4) // while no member reads
				m.leave()
				if c.name == "static member" {
					time.Sleep(time.Second) // it is still a member of the group
				}
				m = open()
				items := m.get(4)
				if got := from(items); got["orders-c"] != 4 {
					b.Errorf("after a restart: %v", got)
				}
				m.ack(items...)
				m.none(time.Minute)
				m.leave()
			})
		})
	}
}

// TestMembersShareTheTopicsThatMatch runs in real time: in a bubble, a client that commits while
// another one joins holds the clock up.
func TestMembersShareTheTopicsThatMatch(t *testing.T) {
	t.Parallel()
	inRealTime(t, 2, func(b *bubble) {
		byPattern := func(o *SourceOptions) {
			patiently(o)
			o.Topics, o.Pattern = nil, patternOf(t, "orders-.*")
		}
		b.create("orders-a", 4)
		one, two := b.join(byPattern), b.join(byPattern)
		b.create("orders-b", 10)
		b.create("orders-c", 10)
		ctx, cancel := context.WithTimeout(b.Context(), foundWithin)
		defer cancel()
		var mu sync.Mutex // guards got
		got := map[string]int{}
		var reading sync.WaitGroup
		for _, m := range []*member{one, two} {
			reading.Go(func() {
				for ctx.Err() == nil {
					items, _ := m.Read(ctx) // until ctx ends
					_ = m.Ack(ctx, items)
					mu.Lock()
					for topic, n := range from(items) {
						got[topic] += n
					}
					if got["orders-a"] >= 4 && got["orders-b"] >= 10 && got["orders-c"] >= 10 {
						cancel()
					}
					mu.Unlock()
				}
			})
		}
		reading.Wait()
		one.leave()
		two.leave()
		if got["orders-a"] < 4 || got["orders-b"] < 10 || got["orders-c"] < 10 {
			b.Errorf("the members read %v", got)
		}
	})
}

// TestATopicThatMatchesMayBeDeletedAndCreatedAgain also restarts the member, which must read the
// new topic neither from an offset of the old one nor twice.
func TestATopicThatMatchesMayBeDeletedAndCreatedAgain(t *testing.T) {
	t.Parallel()
	for _, instance := range []string{"", "one"} {
		inBubble(t, 2, func(b *bubble) {
			open := func() *member {
				return b.join(func(o *SourceOptions) {
					o.Topics, o.Pattern, o.Instance = nil, patternOf(t, "orders-.*"), instance
				})
			}
			b.create("orders-a", 4)
			b.create("orders-b", 8)
			m := open()
			items := m.get(12)
			m.ack(items[:10]...) // two are in progress
			adm := kadm.NewClient(b.Client)
			remove := func(topic string) {
				b.Helper()
				_, err := adm.DeleteTopics(b.Context(), topic)
				kafkatest.Must(b.T, err)
			}
			remove("orders-b")
			b.create("orders-b", 6) // fewer records than the old one had
			again := m.get(6)
			if got := from(again); got["orders-b"] != 6 || again[0].Message.Origin.Offset != 0 {
				b.Errorf("the new topic: %v from offset %d", got, again[0].Message.Origin.Offset)
			}
			old := items[slices.IndexFunc(items, func(it *pipeline.Item) bool { return it.Message.Origin.Source == "orders-b" })]
			if id := again[0].Message.Origin.Identity; id == "" || id == old.Message.Origin.Identity {
				b.Errorf("its identity is %q, and was %q", id, old.Message.Origin.Identity)
			}
			if log := strings.Join(m.events.Log, "\n"); !strings.Contains(log, "topic orders-b was deleted") {
				b.Errorf("it is not said that the topic was deleted:\n%s", log)
			}
			m.ack(items[10:]...) // of the old topic
			m.ack(again[:2]...)
			m.leave()
			m = open()
			rest := m.get(4)
			for _, it := range rest {
				if it.Message.Origin.Source == "orders-b" {
					continue
				}
				b.Errorf("read again: %+v", it.Message.Origin)
			}
			m.ack(rest...)
			b.create("orders-c", 2)
			m.ack(m.get(2)...)
			begun := time.Now()
			m.leave()
			if took := time.Since(begun); took > 10*time.Second {
				b.Errorf("Close took %v", took)
			}
		})
	}
}

// TestAnOffsetOfAnEarlierTopicSkipsNothing has a member that commits late, by the topic's name. A
// member that demands an offset gets an error, because no offset exists.
func TestAnOffsetOfAnEarlierTopicSkipsNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern string
		divides bool
		reset   Reset
	}{{"orders-.*", false, ResetStart}, {"orders-.*", true, ResetStart}, {"", false, ResetStart}, {"", true, ResetStart}, {"", false, ResetEnd}, {"", false, ResetFail}} {
		inBubble(t, 2, func(b *bubble) {
			reset := ResetStart // at first there are no offsets
			open := func() *member {
				return b.join(func(o *SourceOptions) {
					o.Topics, o.ServerSide, o.Reset = []string{"orders-a", "orders-b"}, c.divides, reset
					if c.pattern != "" {
						o.Topics, o.Pattern = nil, patternOf(t, c.pattern)
					}
				})
			}
			b.create("orders-a", 8)
			b.create("orders-b", 8)
			m := open()
			m.ack(m.get(16)...)
			m.leave()
			reset = c.reset
			adm := kadm.NewClient(b.Client)
			old, err := adm.FetchOffsets(b.Context(), "g")
			kafkatest.Must(b.T, err)
			_, err = adm.DeleteTopics(b.Context(), "orders-b")
			kafkatest.Must(b.T, err)
			b.create("orders-b", 20)                 // more records than the old one had
			late, err := kgo.NewClient(b.Reach()...) // another one has the id of the earlier topic
			kafkatest.Must(b.T, err)
			defer late.Close()
			kafkatest.Must(b.T, kadm.NewClient(late).CommitAllOffsets(b.Context(), "g", old.Offsets()))
			m = open()
			if c.reset == ResetFail {
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				defer cancel()
				if _, err := m.Read(ctx); err == nil || !strings.Contains(err.Error(), "topic orders-b was deleted and made again") {
					b.Errorf("with ResetFail: %v", err)
				}
				m.leave()
				return
			}
			items := m.get(20)
			if got := from(items); got["orders-b"] != 20 {
				b.Errorf("after an offset of the earlier topic: %v", got)
			}
			m.ack(items...)
			m.leave()
			m = open()
			m.none(time.Minute) // the offsets of the new topic count
			m.leave()
		})
	}
}

// TestACopiedOffsetCountsAsItIs has offsets with the metadata that another cluster's offsets had, as
// MirrorMaker 2 copies them, and offsets of other tools. An offset of this cluster does not count
// for another topic.
func TestACopiedOffsetCountsAsItIs(t *testing.T) {
	t.Parallel()
	for metadata, begin := range map[string]int64{
		"topic id AAAAAAAAAAAAAAAAAAAAAQ of cluster another": 2,
		"topic id AAAAAAAAAAAAAAAAAAAAAQ of cluster HERE":    0,
		"topic id AAAAAAAAAAAAAAAAAAAAAQ":                    0, // of a cluster without an id
		"topic id THIS of cluster HERE":                      2,
		"topic id THIS of cluster another":                   2, // a copy keeps no topic id
		"topic id THIS":                                      2,
		"":                                                   2,
		"a tool":                                             2,
	} {
		inBubble(t, 1, func(b *bubble) {
			b.create("orders-a", 8)
			adm := kadm.NewClient(b.Client)
			about, err := adm.BrokerMetadata(b.Context())
			kafkatest.Must(b.T, err)
			topics, err := adm.ListTopics(b.Context(), "orders-a")
			kafkatest.Must(b.T, err)
			if about.Cluster == "" {
				b.Fatal("the cluster has no id")
			}
			offsets := kadm.Offsets{}
			metadata = strings.NewReplacer("HERE", about.Cluster, "THIS", topics["orders-a"].ID.String()).Replace(metadata)
			for number := range int32(2) { // each partition has 4 records
				offsets.Add(kadm.Offset{Topic: "orders-a", Partition: number, At: 2, LeaderEpoch: -1, Metadata: metadata})
			}
			kafkatest.Must(b.T, adm.CommitAllOffsets(b.Context(), "g", offsets))
			m := b.join(func(o *SourceOptions) { o.Topics, o.Reset = []string{"orders-a"}, ResetFail })
			if begin == 0 {
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				defer cancel()
				if _, err := m.Read(ctx); err == nil || !strings.Contains(err.Error(), "topic orders-a was deleted and made again") {
					b.Errorf("%q: %v", metadata, err)
				}
				m.leave()
				return
			}
			items := m.get(4)
			if first := items[0].Message.Origin.Offset; first != begin {
				b.Errorf("%q: it begins at %d, want %d", metadata, first, begin)
			}
			m.ack(items...)
			m.leave()
			now, err := adm.FetchOffsets(b.Context(), "g")
			kafkatest.Must(b.T, err)
			committed, _ := now.Lookup("orders-a", 0)
			if want := "topic id " + topics["orders-a"].ID.String() + " of cluster " + about.Cluster; committed.Metadata != want || committed.At != 4 {
				b.Errorf("%q: committed is %d %q, want 4 %q", metadata, committed.At, committed.Metadata, want)
			}
		})
	}
}

// TestAnOffsetOfAnEarlierTopicIsNoticedOfALaggingBroker has a broker that does not know the new topic yet
// when the committed offset is compared, or still knows the earlier one.
func TestAnOffsetOfAnEarlierTopicIsNoticedOfALaggingBroker(t *testing.T) {
	t.Parallel()
	for _, reset := range []Reset{ResetStart, ResetEnd, ResetFail} {
		for _, earlier := range []bool{false, true} {
			inBubble(t, 2, func(b *bubble) {
				now := ResetStart // at first there are no offsets
				open := func() *member {
					// Only the comparison asks for orders-b alone.
					return b.join(func(o *SourceOptions) { o.Topics, o.Reset = []string{"orders-a", "orders-b"}, now })
				}
				b.create("orders-a", 0)
				b.create("orders-b", 8)
				m := open()
				m.ack(m.get(8)...)
				m.leave()
				adm := kadm.NewClient(b.Client)
				old, err := adm.FetchOffsets(b.Context(), "g")
				kafkatest.Must(b.T, err)
				id := b.Cluster.TopicInfo("orders-b").TopicID
				_, err = adm.DeleteTopics(b.Context(), "orders-b")
				kafkatest.Must(b.T, err)
				b.create("orders-b", 20)
				late, err := kgo.NewClient(b.Reach()...) // another one has the id of the earlier topic
				kafkatest.Must(b.T, err)
				defer late.Close()
				offsets := old.Offsets()
				for number := range int32(2) {
					offsets.AddOffset("orders-a", number, 0, -1)
				}
				kafkatest.Must(b.T, kadm.NewClient(late).CommitAllOffsets(b.Context(), "g", offsets))
				var lagging atomic.Int32
				asks := int32(2)
				if earlier {
					asks = 1
				}
				lagging.Store(asks)
				b.Cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
					b.Cluster.KeepControl()
					asked := req.(*kmsg.MetadataRequest)
					if len(asked.Topics) != 1 || asked.Topics[0].Topic == nil || *asked.Topics[0].Topic != "orders-b" || lagging.Add(-1) < 0 {
						return nil, nil, false
					}
					answer := asked.ResponseKind().(*kmsg.MetadataResponse)
					topic := kmsg.NewMetadataResponseTopic()
					topic.Topic, topic.ErrorCode = asked.Topics[0].Topic, kerr.UnknownTopicOrPartition.Code
					if earlier {
						topic.TopicID, topic.ErrorCode = id, 0
					}
					answer.Topics = append(answer.Topics, topic)
					return answer, nil, true
				})
				now = reset
				m = open()
				if reset == ResetFail {
					ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
					defer cancel()
					if items, err := m.Read(ctx); err == nil || !strings.Contains(err.Error(), "topic orders-b was deleted and made again") {
						b.Errorf("with ResetFail: %d records, %v", len(items), err)
					}
					m.leave()
					return
				}
				m.ack(m.get(20)...)
				if lagging.Load() > 0 {
					b.Error("no client asked the lagging broker")
				}
				m.leave()
				m = open()
				m.none(time.Minute) // the offsets of the new topic count
				m.leave()
			})
		}
	}
}

// TestADeletedTopicDoesNotEndAPatternOnOldBrokers has records without the id of their topic, which
// brokers no longer know.
func TestADeletedTopicDoesNotEndAPatternOnOldBrokers(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		b.create("orders-a", 4)
		m := b.join(func(o *SourceOptions) { o.Topics, o.Pattern = nil, patternOf(t, "orders-.*") })
		m.ack(m.get(4)...)
		records := []kgo.FetchPartition{{Records: []*kgo.Record{{}}}}
		delete(m.ids, "orders-a")
		for range 3 {
			fetches := kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "orders-b", Partitions: records}, {Topic: "orders-a", Partitions: records}}}}
			if err := m.identify(b.Context(), fetches); err != nil || fetches.NumRecords() != 1 || fetches[0].Topics[0].Topic != "orders-a" || m.ids["orders-a"] == "" {
				b.Errorf("%d records of topics with the ids %v, %v", fetches.NumRecords(), m.ids, err)
			}
			if !slices.Equal(m.left, []string{"orders-b"}) {
				b.Errorf("it leaves %q", m.left)
			}
			m.none(20 * time.Second)
		}
		b.create("orders-b", 4)
		items := m.get(4)
		m.ack(items...)
		if got := from(items); got["orders-b"] != 4 {
			b.Errorf("when it is there again: %v", got)
		}
		m.leave()
	})
}

// TestADeletedTopicHoldsUpNoOther has a real broker. The topic is created again when the client has
// given the old one up.
func TestADeletedTopicHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: it waits until a client gives up a topic: make test-full, or go test ./broker/kafka -run " + t.Name())
	}
	for _, divides := range []bool{false, true} {
		t.Run(fmt.Sprintf("broker divides %v", divides), func(t *testing.T) {
			t.Parallel()
			deletedTopic(t, divides)
		})
	}
}

func deletedTopic(t *testing.T, divides bool) {
	t.Helper()
	addr, name := servers.Kafka(t), servicestest.Topic()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.UnknownTopicRetries(-1))
	kafkatest.Must(t, err)
	t.Cleanup(client.Close)
	adm := kadm.NewClient(client)
	create := func(topic string) {
		t.Helper()
		_, err := adm.CreateTopic(t.Context(), 2, 1, nil, topic)
		kafkatest.Must(t, err)
		writer, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.UnknownTopicRetries(-1))
		kafkatest.Must(t, err)
		defer writer.Close()
		for i := range 4 {
			kafkatest.Must(t, writer.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Key: []byte{byte(i)}, Value: []byte(topic)}).FirstErr())
		}
	}
	events := &kafkatest.Events{}
	source, err := OpenSource(t.Context(), &SourceOptions{Group: name, Client: []kgo.Opt{kgo.SeedBrokers(addr)}, Pattern: patternOf(t, name+"-.*"), Instance: "one", ServerSide: divides, Observer: events})
	kafkatest.Must(t, err)
	got := map[string]int{}
	reads := func(topic string, n int, within time.Duration) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		for got[topic] < n && ctx.Err() == nil {
			items, err := source.Read(ctx)
			if err != nil && ctx.Err() == nil {
				t.Fatal(err)
			}
			kafkatest.Must(t, source.Ack(t.Context(), items))
			for topic, n := range from(items) {
				got[topic] += n
			}
		}
		if got[topic] != n {
			t.Errorf("%d records of %s, want %d", got[topic], topic, n)
		}
	}
	a, b := name+"-a", name+"-b"
	create(a)
	create(b)
	reads(a, 4, foundWithin)
	reads(b, 4, foundWithin)
	_, err = adm.DeleteTopics(t.Context(), b)
	kafkatest.Must(t, err)
	for i := range 10 {
		kafkatest.Must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: a, Value: []byte("more")}).FirstErr())
		reads(a, 5+i, 10*time.Second)
	}
	reads(b, 4, 0)
	if !kafkatest.Within(foundWithin, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = source.Read(ctx)
		return !slices.Contains(source.client.GetConsumeTopics(), b)
	}) {
		t.Errorf("the client does not give up %s", b)
	}
	create(b)
	reads(b, 8, foundWithin)
	kafkatest.Must(t, source.Close(t.Context()))
	var all []cluster.Partition
	for _, topic := range []string{a, b} {
		all = append(all, cluster.Partition{Topic: topic, Number: 0}, cluster.Partition{Topic: topic, Number: 1})
	}
	lags, err := cluster.Lag(t.Context(), adm, name, false, all, nil)
	kafkatest.Must(t, err)
	for _, lag := range lags {
		if lag.Messages != 0 {
			t.Errorf("the lag of %s/%d is %d", lag.Source, lag.Partition, lag.Messages)
		}
	}
	if len(lags) != len(all) {
		t.Errorf("the lag of %d partitions is known", len(lags))
	}
	if t.Failed() {
		t.Log(strings.Join(events.Log, "\n"))
	}
}

// TestATopicOfAListThatWasMadeAgainIsReadFromItsStart has a real broker. The member commits what it
// has read of the old topic, and the new one has more records than that.
func TestATopicOfAListThatWasMadeAgainIsReadFromItsStart(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: it waits until the source gives up a topic: make test-full, or go test ./broker/kafka -run " + t.Name())
	}
	addr, topic := servers.Kafka(t), servicestest.Topic()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	kafkatest.Must(t, err)
	t.Cleanup(client.Close)
	adm := kadm.NewClient(client)
	create := func(n int) {
		t.Helper()
		if !kafkatest.Within(time.Minute, func() bool { // brokers delete a topic bit by bit
			_, err = adm.CreateTopic(t.Context(), 1, 1, nil, topic)
			return err == nil
		}) {
			t.Fatal(err)
		}
		writer, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.UnknownTopicRetries(-1))
		kafkatest.Must(t, err)
		defer writer.Close()
		for i := range n {
			kafkatest.Must(t, writer.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte{byte(i)}}).FirstErr())
		}
	}
	open := func() *Source {
		t.Helper()
		source, err := OpenSource(t.Context(), &SourceOptions{Group: topic, Client: []kgo.Opt{kgo.SeedBrokers(addr)}, Topics: []string{topic}})
		kafkatest.Must(t, err)
		return source
	}
	read := func(source *Source, n int) (items []*pipeline.Item, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		for len(items) < n && err == nil {
			var some []*pipeline.Item
			some, err = source.Read(ctx)
			items = append(items, some...)
		}
		return items, err
	}
	create(4)
	source := open()
	items, err := read(source, 4)
	kafkatest.Must(t, err)
	_, err = adm.DeleteTopics(t.Context(), topic)
	kafkatest.Must(t, err)
	create(20)
	kafkatest.Must(t, source.Ack(t.Context(), items)) // of the old topic
	if items, err := read(source, 1); err == nil || !strings.Contains(err.Error(), "was deleted; if it was recreated, restart to read it") {
		t.Fatalf("after the topic was made again: %d records, %v", len(items), err)
	}
	_ = source.Close(t.Context()) // brokers may refuse to commit for the old topic
	source = open()
	if items, err = read(source, 20); err != nil || items[0].Message.Origin.Offset != 0 {
		t.Errorf("the new topic: %d records, %v", len(items), err)
	}
	kafkatest.Must(t, source.Close(t.Context()))
}

// requests counts what a client sends.
type requests struct {
	mu   sync.Mutex
	sent map[int16]int
}

func (r *requests) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent[key]++
}

func (r *requests) of(kind kmsg.Key) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent[kind.Int16()]
}

// TestAMemberWithoutTopicsMakesNoRebalance has a real broker with other topics, which have no owner in
// the group. The only topic that matches is deleted.
func TestAMemberWithoutTopicsMakesNoRebalance(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("slow: it waits until a client gives up a topic: make test-full, or go test ./broker/kafka -run " + t.Name())
	}
	addr, name := servers.Kafka(t), servicestest.Topic()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.UnknownTopicRetries(-1))
	kafkatest.Must(t, err)
	t.Cleanup(client.Close)
	adm, only := kadm.NewClient(client), name+"-orders-1"
	for _, topic := range []string{name + "-other", only} {
		_, err := adm.CreateTopic(t.Context(), 1, 1, nil, topic)
		kafkatest.Must(t, err)
	}
	kafkatest.Must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: only, Value: []byte("x")}).FirstErr())
	sent := &requests{sent: map[int16]int{}}
	source, err := OpenSource(t.Context(), &SourceOptions{
		Group: name, Client: []kgo.Opt{kgo.SeedBrokers(addr), kgo.WithHooks(sent)}, Pattern: patternOf(t, name+"-orders-.*"), Instance: "one",
	})
	kafkatest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	reading, first := make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(reading)
		for ctx.Err() == nil {
			if items, _ := source.Read(ctx); len(items) > 0 { // until ctx ends
				first <- struct{}{}
			}
		}
	}()
	<-first
	_, err = adm.DeleteTopics(t.Context(), only)
	kafkatest.Must(t, err)
	if !kafkatest.Within(2*foundWithin, func() bool { return len(source.client.GetConsumeTopics()) == 0 }) {
		t.Fatalf("it still reads %q", source.client.GetConsumeTopics())
	}
	// It looks for partitions without an owner every cluster.WholeEvery, and for topics every
	// lookEvery.
	joins, looks := sent.of(kmsg.JoinGroup), sent.of(kmsg.Metadata)
	if !kafkatest.Within(2*time.Minute, func() bool { return sent.of(kmsg.Metadata) >= looks+3 }) {
		t.Fatalf("it sent %v", sent.sent)
	}
	if more := sent.of(kmsg.JoinGroup) - joins; more > 2 {
		t.Errorf("it joined the group %d times more", more)
	}
	cancel()
	<-reading
	if len(source.unknown)+len(source.ids)+len(source.parts) > 0 {
		t.Errorf("of the topic are left: %v, %v, %v", source.unknown, source.ids, source.parts)
	}
	kafkatest.Must(t, source.Close(t.Context()))
}

func TestTheDoctorWarnsOfBrokersWithoutTopicIDs(t *testing.T) {
	t.Parallel()
	for version, warns := range map[*kversion.Versions]bool{kversion.V3_0_0(): true, kversion.V3_9_0(): false} {
		inBubble(t, 1, func(b *bubble) {
			for _, group := range []string{"g", ""} { // "" reads nothing
				findings, err := Examine(b.Context(), append(b.Reach(), kgo.MaxVersions(version)), &ExamineOptions{Group: group, Output: "out"})
				kafkatest.Must(b.T, err)
				lines := kafkatest.Found(findings)
				if got := slices.ContainsFunc(lines, func(line string) bool {
					return strings.HasPrefix(line, "warning topic ids: the brokers send none with records")
				}); got != (warns && group != "") {
					b.Errorf("group %q, it warns: %v\n%s", group, got, strings.Join(lines, "\n"))
				}
			}
		}, kfake.MaxVersions(version))
	}
}

func TestTheDoctorListsTheTopicsThatMatch(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		examine := func() []string {
			findings, err := Examine(b.Context(), b.Reach(), &ExamineOptions{Group: "g", Pattern: patternOf(t, "orders-.*"), Window: time.Hour})
			kafkatest.Must(b.T, err)
			return kafkatest.Found(findings)
		}
		kafkatest.Has(b.T, examine(), "warning topics that match orders-.*: none now")
		b.create("orders-b", 0)
		b.create("orders-a", 0)
		kafkatest.Has(b.T, examine(), "fine topics that match orders-.*: 2 now: orders-a, orders-b", "warning orders-a")
		for i := range 12 {
			b.create(fmt.Sprintf("bills-%02d", i), 0)
		}
		b.create("_bills", 0)
		findings, err := Examine(b.Context(), b.Reach(), &ExamineOptions{Group: "g", Parked: "aside", Pattern: patternOf(t, ".*bills.*"), Window: time.Hour})
		kafkatest.Must(b.T, err)
		lines := kafkatest.Found(findings)
		kafkatest.Has(b.T, lines, "fine topics that match .*bills.*: 13 now: _bills, bills-00", "warning topics that match .*bills.*: also _bills", "warning 13 topics: _bills, bills-00, bills-01", "warning 13 topics: _bills, bills-00, bills-01, bills-02, bills-03, bills-04, bills-05, bills-06, bills-07, bills-08 and others retention.ms: 168h0m0s")
		if n := len(lines); n > 20 {
			b.Errorf("there are %d findings of 13 topics:\n%s", n, strings.Join(lines, "\n"))
		}
		for i := range 12 {
			kafkatest.Must(b.T, b.Cluster.DeleteTopic(fmt.Sprintf("bills-%02d", i)))
		}
		kafkatest.Must(b.T, b.Cluster.DeleteTopic("_bills"))
		topics, err := MatchingTopics(b.Context(), b.Reach(), patternOf(t, ".*"))
		kafkatest.Must(b.T, err)
		if want := []string{"aside", "in", "orders-a", "orders-b", "out"}; !slices.Equal(topics, want) {
			b.Errorf("all topics are %q, want %q", topics, want)
		}
	})
}
