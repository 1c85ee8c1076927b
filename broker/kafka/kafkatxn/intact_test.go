package kafkatxn

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/test/sampletest"
)

// damage is what happens to a topic.
type damage struct {
	name string
	do   func(b *bubble, topic string)
	want string
}

// empty deletes all records of a topic.
func (b *bubble) empty(topic string) { b.deleteUpTo(topic, 1) }

// deleteUpTo deletes a share of the records of each partition.
func (b *bubble) deleteUpTo(topic string, share float64) {
	b.Helper()
	adm := kadm.NewClient(b.Client)
	ends, err := adm.ListEndOffsets(b.Context(), topic)
	kafkatest.Must(b.T, err)
	var upTo kadm.Offsets
	ends.Each(func(o kadm.ListedOffset) {
		upTo.AddOffset(topic, o.Partition, int64(float64(o.Offset)*share), -1)
	})
	answers, err := adm.DeleteRecords(b.Context(), upTo)
	kafkatest.Must(b.T, err)
	kafkatest.Must(b.T, answers.Error())
}

// makeAgain deletes a topic and makes it again, with its settings, and with some records of
// each partition.
func (b *bubble) makeAgain(topic string) {
	b.Helper()
	n := len(b.Cluster.PartitionInfos(topic))
	kafkatest.Must(b.T, b.Cluster.DeleteTopic(topic))
	kafkatest.Must(b.T, b.Cluster.CreateTopic(topic, int32(n), map[string]string{"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}))
}

// restoreOld makes a topic again with its records but the last of each partition, as a tool that
// restores a backup does.
func (b *bubble) restoreOld(topic string) {
	b.Helper()
	var records []*kgo.Record
	read := b.Read(topic)
	for i, r := range read {
		last := true
		for _, later := range read[i+1:] {
			last = last && later.Partition != r.Partition
		}
		if !last {
			records = append(records, &kgo.Record{Topic: topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp})
		}
	}
	b.makeAgain(topic)
	b.writeAnew(records...)
}

// writeAnew writes records with a new client, which knows no former topic.
func (b *bubble) writeAnew(records ...*kgo.Record) {
	b.Helper()
	client, err := kgo.NewClient(append(b.Reach(), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("in"))...)
	kafkatest.Must(b.T, err)
	defer client.Close()
	kafkatest.Must(b.T, client.ProduceSync(b.Context(), records...).FirstErr())
}

var damages = []damage{
	{"emptied", (*bubble).empty, "deleted"},
	{"half emptied", func(b *bubble, topic string) { b.deleteUpTo(topic, 0.7) }, "deleted"},
	{"made again", (*bubble).makeAgain, "was deleted and made again"},
	{"restored", (*bubble).restoreOld, "was deleted and made again"},
}

// stateful are pipelines by their kind of state, and the topics that hold it.
var stateful = []struct {
	name   string
	set    func(b *bubble) TransactorOptions
	topics []string
}{
	{"keys", (*bubble).options, []string{"g-keys"}},
	{"keys by event", func(b *bubble) TransactorOptions {
		opts := b.options()
		opts.EventTime = &EventTime{Grace: time.Minute}
		return opts
	}, []string{"g-keys"}},
	{"two stages", func(b *bubble) TransactorOptions {
		opts := b.options()
		opts.Repartition = &Repartition{}
		return opts
	}, []string{"g-keys"}},
	{"windows", func(b *bubble) TransactorOptions { return b.counting(time.Hour, 0, time.Hour) }, []string{"g-keys", "g-state"}},
	{"held records", func(b *bubble) TransactorOptions { return b.keeping(stream.Keep{Last: stream.Tumbling(time.Hour)}) }, []string{"g-state"}},
}

// more has a pipeline read some new records, in a transaction of their own.
func (b *bubble) more(opts TransactorOptions, from int) {
	b.Helper()
	var records []*kgo.Record
	for n := range 6 {
		records = append(records, counted(int32(n%2), fmt.Sprint("id", from+n), "g", 1, time.Now()))
	}
	b.writeAnew(records...)
	p := b.start(opts)
	p.Wait(6, kafkatest.Settled)
	p.Stop()
}

// acceptLoss commits the offsets of a group again, without their notes, as
// kafka-consumer-groups.sh does.
func (b *bubble) acceptLoss(group string) {
	b.Helper()
	time.Sleep(time.Minute) // in a bubble: until the group is empty
	adm := kadm.NewClient(b.Client)
	committed, err := adm.FetchOffsets(b.Context(), group)
	kafkatest.Must(b.T, err)
	var offsets kadm.Offsets
	committed.Each(func(o kadm.OffsetResponse) { offsets.AddOffset(o.Topic, o.Partition, o.At, -1) })
	kafkatest.Must(b.T, adm.CommitAllOffsets(b.Context(), group, offsets))
}

// TestStateThatIsDamagedIsRefused damages the topics that hold keys, windows and held records
// while the pipeline is stopped.
func TestStateThatIsDamagedIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range stateful {
		for _, topic := range c.topics {
			for _, d := range damages {
				for _, dir := range sampletest.OneOf(false, true) {
					t.Run(fmt.Sprint(c.name, " ", topic, " ", d.name, " ", dir), func(t *testing.T) {
						t.Parallel()
						inBubble(t, 2, func(b *bubble) {
							opts := c.set(b)
							if dir {
								opts.State.Dir = b.TempDir()
							}
							for i := range 4 {
								b.more(opts, 10*i)
							}
							d.do(b, topic)
							b.damaged(opts, topic+"/")
							b.damaged(opts, d.want)
							b.acceptLoss("g") // the way out that the error names
							b.more(opts, 100)
							b.more(opts, 110)
						})
					})
				}
			}
		}
	}
}

// TestDamageUnderARunningPipelineEndsIt damages the topics while the pipeline is idle.
func TestDamageUnderARunningPipelineEndsIt(t *testing.T) {
	t.Parallel()
	deleted := damage{"deleted", func(b *bubble, topic string) { kafkatest.Must(b.T, b.Cluster.DeleteTopic(topic)) }, "was deleted"}
	for _, c := range stateful {
		for _, topic := range c.topics {
			for _, d := range append([]damage{deleted}, damages...) {
				t.Run(fmt.Sprint(c.name, " ", topic, " ", d.name), func(t *testing.T) {
					t.Parallel()
					inBubble(t, 2, func(b *bubble) {
						opts := c.set(b)
						for i := range 4 {
							b.more(opts, 10*i)
						}
						p := b.start(opts)
						b.Write(counted(0, "last", "g", 1, time.Now()))
						p.Wait(1, kafkatest.Settled)
						select {
						case <-p.Done:
							t.Fatalf("it ended: %v", p.Err)
						case <-time.After(time.Minute):
						}
						d.do(b, topic)
						select {
						case <-p.Done:
							if p.Err == nil || !strings.Contains(p.Err.Error(), topic) || !strings.Contains(p.Err.Error(), d.want) || !errors.Is(p.Err, semel.ErrCorrupt) || errors.Is(p.Err, semel.ErrInvalidRequest) {
								t.Errorf("it ended with %v, want %q", p.Err, d.want)
							}
						case <-time.After(time.Minute):
							t.Error("it goes on")
							p.Kill()
						}
					})
				})
			}
		}
	}
}

// TestARecreatedTopicWithCommittedOffsetsIsRefused makes the input, or the topic between the stages,
// again, and the group keeps the offsets of the former one.
func TestARecreatedTopicWithCommittedOffsetsIsRefused(t *testing.T) {
	t.Parallel()
	for _, topic := range []string{"in", "g-repartition"} {
		for _, runs := range []bool{false, true} {
			t.Run(fmt.Sprint(topic, " ", runs), func(t *testing.T) {
				t.Parallel()
				inBubble(t, 2, func(b *bubble) {
					opts := b.options()
					if topic != "in" {
						opts.Repartition = &Repartition{}
					}
					b.more(opts, 0)
					var p *program
					if runs {
						p = b.start(opts)
						b.Write(counted(0, "last", "g", 1, time.Now()))
						p.Wait(1, kafkatest.Settled)
					}
					b.makeAgain(topic)
					switch {
					case runs:
					case topic == "in": // brokers delete the offsets of a topic with it
						b.more(opts, 100)
						return
					default:
						b.damaged(opts, topic+" was deleted and made again")
						return
					}
					select {
					case <-p.Done:
						if p.Err == nil || !strings.Contains(p.Err.Error(), topic+" was deleted and made again") {
							t.Errorf("it ended with %v", p.Err)
						}
					case <-time.After(time.Minute):
						t.Error("it goes on")
						p.Kill()
					}
				})
			})
		}
	}
}

// TestATableThatIsDamagedUnderARunningJoinEndsIt damages the topic of a table. Its rows would be
// joined for ever.
func TestATableThatIsDamagedUnderARunningJoinEndsIt(t *testing.T) {
	t.Parallel()
	for _, d := range []damage{
		{"deleted", func(b *bubble, topic string) { kafkatest.Must(b.T, b.Cluster.DeleteTopic(topic)) }, "was deleted"},
		{"emptied", (*bubble).empty, "has lost the records of partition 0 before offset 3"},
		{"half emptied", func(b *bubble, topic string) { b.deleteUpTo(topic, 0.5) }, "has lost the records of partition 0 before offset 1"},
		{"made again", (*bubble).makeAgain, "was deleted and made again"},
		{"restored", (*bubble).restoreOld, "was deleted and made again"},
	} {
		for _, local := range []bool{false, true} {
			t.Run(fmt.Sprint(d.name, " ", local), func(t *testing.T) {
				t.Parallel()
				inBubble(t, 2, func(b *bubble) {
					b.tableTopic(2)
					for _, key := range []string{"ann", "bob", "eve"} {
						b.Write(customer(0, key, "A", time.Now()))
					}
					p := b.start(b.joining(&stream.Table{Local: local}))
					b.Write(order(0, "1", "ann"), order(1, "2", "nobody"))
					p.Wait(2, kafkatest.Settled)
					select {
					case <-p.Done:
						t.Fatalf("it ended: %v", p.Err)
					case <-time.After(time.Minute):
					}
					d.do(b, "customers")
					select {
					case <-p.Done:
						if p.Err == nil || !strings.Contains(p.Err.Error(), "table topic customers") || !strings.Contains(p.Err.Error(), d.want) || !errors.Is(p.Err, semel.ErrCorrupt) || errors.Is(p.Err, semel.ErrInvalidRequest) {
							t.Errorf("it ended with %v, want %q", p.Err, d.want)
						}
					case <-time.After(time.Minute):
						t.Error("it goes on")
						p.Kill()
					}
				})
			})
		}
	}
}

// TestABusyPipelineIsNotDamaged commits transactions between the questions of one look for
// damage.
func TestABusyPipelineIsNotDamaged(t *testing.T) {
	t.Parallel()
	for _, c := range stateful {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				p := b.start(c.set(b))
				b.Write(counted(0, "first", "g", 1, time.Now()))
				p.Wait(1, kafkatest.Settled)
				b.Cluster.ControlKey(int16(kmsg.OffsetFetch), func(kmsg.Request) (kmsg.Response, error, bool) {
					b.Cluster.KeepControl()
					b.Sleep(3 * time.Second)
					return nil, nil, false
				})
				for n := range 60 {
					select {
					case <-p.Done:
						t.Fatalf("it ended after %d records: %v", n, p.Err)
					case <-time.After(time.Second):
					}
					b.Write(counted(int32(n%2), fmt.Sprint("id", n), "g", 1, time.Now()))
				}
				p.Wait(61, kafkatest.Settled)
				p.Stop()
			})
		})
	}
}

// TestAnOffsetOfAnEarlierInputIsRefused has a member that commits late, by the topic's name, so that
// records of the new topic would be skipped.
func TestAnOffsetOfAnEarlierInputIsRefused(t *testing.T) {
	t.Parallel()
	for _, stage := range []*Repartition{nil, {}} {
		inBubble(t, 2, func(b *bubble) {
			opts := b.options()
			group := opts.Group
			if opts.Repartition = stage; stage != nil {
				group = repartitionGroup(group)
			}
			b.more(opts, 0)
			time.Sleep(time.Minute) // in a bubble: until the group is empty
			old, err := kadm.NewClient(b.Client).FetchOffsets(b.Context(), group)
			kafkatest.Must(t, err)
			b.makeAgain("in")
			var records []*kgo.Record
			for n := range 20 {
				records = append(records, counted(int32(n%2), fmt.Sprint("new", n), "g", 1, time.Now()))
			}
			b.writeAnew(records...)
			late, err := kgo.NewClient(b.Reach()...)
			kafkatest.Must(t, err)
			defer late.Close()
			offsets := old.Offsets()
			offsets.KeepFunc(func(o kadm.Offset) bool { return o.Topic == "in" })
			kafkatest.Must(t, kadm.NewClient(late).CommitAllOffsets(b.Context(), group, offsets))
			b.damaged(opts, "topic in was deleted and made again, and group "+group+" has the offsets of the former one")
		})
	}
}

// TestOneLaggingBrokerIsNoDamage has an answer with topics that have been replaced, once at the
// start and once while the pipeline runs.
func TestOneLaggingBrokerIsNoDamage(t *testing.T) {
	t.Parallel()
	for _, stage := range []*Repartition{nil, {}} {
		for _, stale := range []string{"in", "g-keys", "g-repartition"} {
			if stage == nil && stale == "g-repartition" {
				continue
			}
			inBubble(t, 2, func(b *bubble) {
				opts := b.options()
				opts.Repartition = stage
				b.more(opts, 0)
				var lagging atomic.Bool
				b.Cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
					b.Cluster.KeepControl()
					asked := req.(*kmsg.MetadataRequest)
					if !slices.ContainsFunc(asked.Topics, func(t kmsg.MetadataRequestTopic) bool { return t.Topic != nil && *t.Topic == stale }) || !lagging.CompareAndSwap(true, false) {
						return nil, nil, false
					}
					answer := asked.ResponseKind().(*kmsg.MetadataResponse)
					for _, of := range asked.Topics {
						topic := kmsg.NewMetadataResponseTopic()
						info := b.Cluster.TopicInfo(*of.Topic)
						topic.Topic, topic.TopicID = of.Topic, info.TopicID
						if *of.Topic == stale {
							topic.TopicID[0]++
						}
						for number := range 2 {
							p := kmsg.NewMetadataResponseTopicPartition()
							p.Partition, p.Replicas, p.ISR = int32(number), []int32{0}, []int32{0}
							topic.Partitions = append(topic.Partitions, p)
						}
						answer.Topics = append(answer.Topics, topic)
					}
					broker := kmsg.NewMetadataResponseBroker()
					broker.Host, broker.Port = "127.0.0.1", 9092
					answer.Brokers = append(answer.Brokers, broker)
					return answer, nil, true
				})
				p := b.start(opts)
				b.Write(counted(0, "first", "g", 1, time.Now()))
				p.Wait(1, kafkatest.Settled)
				for range 3 {
					lagging.Store(true)
					select {
					case <-p.Done:
						t.Fatalf("%s of %v: it ended: %v", stale, stage, p.Err)
					case <-time.After(time.Minute):
					}
					if lagging.Load() {
						t.Fatalf("%s of %v: nobody asked", stale, stage)
					}
				}
				p.Stop()
			})
		}
	}
}
