package kafkatxn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// rowWriter writes rows in transactions of a producer.
func (b *bubble) rowWriter(id string) *kgo.Client {
	b.Helper()
	writer, err := kgo.NewClient(append(b.Reach(), kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	kafkatest.Must(b.T, err)
	b.Cleanup(writer.Close)
	return writer
}

// openRows returns a writer whose transaction with rows is open.
func (b *bubble) openRows(id string, rows ...*kgo.Record) *kgo.Client {
	b.Helper()
	writer := b.rowWriter(id)
	kafkatest.Must(b.T, writer.BeginTransaction())
	kafkatest.Must(b.T, writer.ProduceSync(b.Context(), rows...).FirstErr())
	return writer
}

// noted returns the offsets that are noted as those of waiting records.
func (b *bubble) noted() (list []string) {
	b.Helper()
	committed, err := kadm.NewClient(b.Client).FetchOffsets(b.Context(), "g")
	kafkatest.Must(b.T, err)
	committed.Each(func(at kadm.OffsetResponse) {
		if offsets, ok := strings.CutPrefix(at.Metadata, pending.Prefix); ok {
			offsets, _, _ = strings.Cut(offsets, pending.End)
			list = append(list, fmt.Sprintf("%d:%s", at.Partition, offsets))
		}
	})
	slices.Sort(list)
	return list
}

// While a record waits for its row, others continue, except those with its id or record key.
func TestARecordThatWaitsLetsOthersPass(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ killed, inside bool }{{}, {killed: true}, {true, true}} {
		killed := c.killed
		inBubble(t, 2, func(b *bubble) {
			read := func(r *kgo.Record) *kgo.Record { return r }
			if c.inside {
				read = enveloped
			}
			b.tableTopic(1)
			b.Write(customer(0, "ann", "Ann", time.Now()), read(order(0, "0", "ann")))
			opts := b.joining(&stream.Table{Missing: stream.MissingWait})
			opts.Key.Rule = rule(t, ".id")
			if c.inside {
				opts.Unwrap = opener(openEnvelope)
			}
			opts.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
				row, err := opts.Tables[0].Row(&d.Message)
				return fmt.Appendf(nil, "%s/%d=%s", d.RecordKey, d.Origin.Offset, row), true, err
			}
			say := func(partition int32, key, id, customer string) *kgo.Record {
				return read(kafkatest.Record(partition, key, fmt.Sprintf(`{"id":%q,"c":%q}`, id, customer)))
			}
			b.Write(say(0, "first", "0", "ann"))
			p := b.start(opts)
			p.Wait(2, kafkatest.Settled) // one of them has no id and is parked
			writer := b.openRows("rows", customer(0, "bob", "Bob", time.Now()))
			b.Write(
				say(0, "a", "1", "bob"), // waits
				say(0, "b", "2", "ann"), // passes
				say(0, "a", "3", "ann"), // has the record key
				say(0, "c", "1", "ann"), // has the id
				say(0, "c", "5", "ann"), // is behind that
				say(0, "d", "6", ""),    // has no key of a row, so that nothing can come
				say(0, "", "7", "x"),    // waits
				say(1, "a", "8", "ann"), // is in another partition
				say(1, "f", "9", "bob")) // waits
			p.Wait(2+3, kafkatest.Settled)
			if got, want := b.bodies("out"), "a/0=Ann b/3=Ann first/1=Ann"; got != want {
				t.Errorf("outputs %q, want %q", got, want)
			}
			if got, want := fmt.Sprint(b.noted()), "[0:2,4,5,6,8 1:1]"; got != want {
				t.Errorf("%s wait, want %s", got, want)
			}
			if killed {
				p.Kill()
				p = nil
			}
			kafkatest.Must(t, writer.EndTransaction(b.Context(), kgo.TryCommit))
			n := 5 + 6
			if killed {
				n, p = 6, b.start(opts)
			}
			p.Wait(n, kafkatest.Settled)
			b.Write(say(0, "a", "1", "ann"), say(1, "g", "10", "ann"))
			p.Wait(n+2, kafkatest.Settled)
			p.Stop()
			if got, want := b.bodies("out"), "a/0=Ann a/2=Bob a/4=Ann b/3=Ann c/6=Ann f/1=Bob first/1=Ann g/2=Ann"; got != want {
				t.Errorf("outputs %q, want %q", got, want)
			}
			want := `{"c":"ann"} {"id":"6","c":""} {"id":"7","c":"x"}`
			if c.inside {
				zero := strconv.FormatInt(time.Time{}.UnixMilli(), 10)
				want = zero + "<" + strings.ReplaceAll(want, "} {", "}> "+zero+"<{") + ">"
			}
			if got := b.bodies("aside"); got != want {
				t.Errorf("parked %q, want %q", got, want)
			}
			if list := b.noted(); len(list) > 0 {
				t.Errorf("%v wait at the end", list)
			}
		})
	}
}

// A transaction that takes records which waited is aborted, because one of its outputs
// cannot be written. They wait again.
func TestRecordsWaitAgainAfterAnAbort(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.tableTopic(1)
		b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "0", "ann"))
		opts := b.joining(&stream.Table{Missing: stream.MissingWait})
		join := opts.FilterMap
		opts.FilterMap = nil
		opts.Transform = func(_ context.Context, d pipeline.Delivery) ([]*kgo.Record, error) {
			body, _, err := join(context.Background(), d)
			out := &kgo.Record{Value: body}
			if bytes.HasSuffix(body, []byte("Bob")) {
				out.Topic = "nowhere"
			}
			return []*kgo.Record{out}, err
		}
		p := b.start(opts)
		p.Wait(1, kafkatest.Settled)
		writer := b.openRows("rows", customer(0, "bob", "Bob", time.Now()), customer(0, "eve", "Eve", time.Now()))
		b.Write(order(0, "1", "eve"), order(0, "2", "bob"), order(0, "3", "ann"))
		p.Wait(2, kafkatest.Settled)
		kafkatest.Must(t, writer.EndTransaction(b.Context(), kgo.TryCommit))
		p.Wait(4, kafkatest.Settled)
		p.Stop()
		if got, want := b.bodies("out")+"; "+b.bodies("aside"), `0=Ann 1=Eve 3=Ann; {"c":"bob"}`; got != want {
			t.Errorf("outputs and parked %q, want %q", got, want)
		}
	})
}

// More records wait than a note takes. The partition then waits for the table.
func TestManyRecordsWait(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.tableTopic(1)
		b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "first", "ann"))
		p := b.start(b.joining(&stream.Table{Missing: stream.MissingWait}))
		p.Wait(1, kafkatest.Settled)
		writer := b.openRows("rows", customer(0, "bob", "Bob", time.Now()))
		var orders []*kgo.Record
		for i := range pending.Most {
			orders = append(orders, order(0, fmt.Sprint(i), "bob"))
		}
		b.Write(append(orders, order(0, "other", "ann"))...)
		p.Wait(2, kafkatest.Settled)
		b.Write(order(0, "more", "bob"), order(0, "last", "ann"))
		if kafkatest.Within(20*time.Second, func() bool { time.Sleep(time.Second); return kafkatest.Settled(p.Events) > 2 }) {
			t.Error("more records wait than a note takes")
		}
		kafkatest.Must(t, writer.EndTransaction(b.Context(), kgo.TryCommit))
		p.Wait(pending.Most+4, kafkatest.Settled)
		p.Stop()
		if n := len(b.Read("out")); n != pending.Most+4 {
			t.Errorf("%d outputs, want %d", n, pending.Most+4)
		}
		if n := len(b.Read("aside")); n > 0 {
			t.Errorf("%d records are parked", n)
		}
	})
}

// TestABrokerThatTakesNoNotesIsRefused has a broker that takes less metadata with an offset
// than the offsets of waiting records need.
func TestABrokerThatTakesNoNotesIsRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.tableTopic(1)
		b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "first", "ann"))
		p := b.start(b.joining(&stream.Table{Missing: stream.MissingWait}))
		p.Wait(1, kafkatest.Settled)
		b.Cluster.ControlKey(int16(kmsg.TxnOffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			commit := req.(*kmsg.TxnOffsetCommitRequest)
			resp := commit.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
			long := false
			for _, topic := range commit.Topics {
				answer := kmsg.TxnOffsetCommitResponseTopic{Topic: topic.Topic}
				for _, part := range topic.Partitions {
					code := int16(0)
					if part.Metadata != nil && len(*part.Metadata) > 250 {
						code, long = kerr.OffsetMetadataTooLarge.Code, true
					}
					answer.Partitions = append(answer.Partitions, kmsg.TxnOffsetCommitResponseTopicPartition{Partition: part.Partition, ErrorCode: code})
				}
				resp.Topics = append(resp.Topics, answer)
			}
			return resp, nil, long
		})
		b.openRows("rows", customer(0, "bob", "Bob", time.Now()))
		for i := range 60 {
			b.Write(order(0, fmt.Sprint(i), "bob"))
		}
		select {
		case <-p.Done:
		case <-time.After(time.Minute): // of the bubble
			t.Fatal("the program goes on")
		}
		if !errors.Is(p.Err, semel.ErrInvalidRequest) || !strings.Contains(p.Err.Error(), "offset.metadata.max.bytes") {
			t.Errorf("Run: %v", p.Err)
		}
	})
}

// Programs are killed while records wait for rows of open transactions. Each record has its
// effect once, and those of a record key in order.
func TestProgramsAreKilledWhileRecordsWait(t *testing.T) {
	t.Parallel()
	seed := kafkatest.NewSeed(t)
	inRealTime(t, 2, func(b *bubble) {
		random := rand.New(rand.NewPCG(seed, 7))
		rounds, waited := 12, 0
		if testing.Short() {
			rounds = 5
		}
		b.tableTopic(1)
		writer := b.rowWriter("rows")
		opts := b.joining(&stream.Table{Missing: stream.MissingWait})
		opts.Key.Rule = rule(t, ".id")
		opts.Member.Sessions = 2
		opts.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
			if _, err := opts.Tables[0].Row(&d.Message); err != nil {
				return nil, false, err
			}
			return d.Body, !strings.Contains(string(d.Body), `"drop":true`), nil
		}
		number, drops := 0, 0
		say := func(row string, settles bool) {
			key, drop := random.IntN(20), !settles && random.IntN(10) == 0
			if settles { // a key of its own
				key = 100 + random.IntN(20)
			}
			r := kafkatest.Record(int32(key%2), fmt.Sprint(key), fmt.Sprintf(`{"id":%d,"c":%q,"drop":%t}`, number, row, drop))
			if number++; drop {
				drops++
			}
			b.Write(r)
			if random.IntN(4) == 0 {
				b.Write(kafkatest.Record(r.Partition, string(r.Key), string(r.Value)))
			}
		}
		row := func(name string) {
			kafkatest.Must(t, writer.ProduceSync(b.Context(), customer(0, name, name, time.Now())).FirstErr())
		}
		kafkatest.Must(t, writer.BeginTransaction())
		row("r-1")
		kafkatest.Must(t, writer.EndTransaction(b.Context(), kgo.TryCommit))
		for round := range rounds {
			line := b.NewLine()
			p := b.startOn(line, opts)
			say("r-1", true)
			p.Wait(1, kafkatest.Settled)
			kafkatest.Must(t, writer.BeginTransaction())
			row(fmt.Sprint("r", round))
			before := kafkatest.Settled(p.Events)
			for range 40 {
				say(fmt.Sprint("r", random.IntN(round+2)-1), false)
			}
			say("r-1", true)
			if kafkatest.Within(10*time.Second, func() bool { return kafkatest.Settled(p.Events) > before && len(b.noted()) > 0 }) {
				waited++
			}
			if random.IntN(2) == 0 { // killed at a request that takes what waited
				kinds := []kmsg.Key{kmsg.Produce, kmsg.AddOffsetsToTxn, kmsg.TxnOffsetCommit, kmsg.EndTxn}
				at := kafkatest.Once(kinds[random.IntN(len(kinds))], 1+random.IntN(3))
				if random.IntN(2) == 0 {
					line.On(at, nil)
				} else {
					line.On(nil, at)
				}
				kafkatest.Must(t, writer.EndTransaction(b.Context(), kgo.TryCommit))
				settled := kafkatest.Settled(p.Events)
				kafkatest.Within(300*time.Millisecond, func() bool { return kafkatest.Settled(p.Events) > settled })
				p.Kill()
			} else {
				p.Kill()
				kafkatest.Must(t, writer.EndTransaction(b.Context(), kgo.TryCommit))
			}
		}
		p := b.start(opts)
		outputs := func() int { return len(b.Read("out")) }
		if !kafkatest.Within(5*time.Minute, func() bool {
			messages, partitions := b.Lag(p.tr)
			return partitions == 2 && messages == 0 && len(b.noted()) == 0 && outputs() >= number-drops
		}) {
			t.Errorf("%d outputs of %d, and %v wait", outputs(), number-drops, b.noted())
		}
		p.Stop()
		if waited == 0 {
			t.Error("no record waited")
		}
		t.Logf("records waited in %d of %d rounds", waited, rounds)
		last := map[string]int{}
		seen := map[int]bool{}
		for _, r := range b.Read("out") {
			var id int
			_, err := fmt.Sscanf(string(r.Value), `{"id":%d,`, &id)
			kafkatest.Must(t, err)
			if seen[id] {
				t.Errorf("%d has two effects", id)
			}
			seen[id] = true
			if before, ok := last[string(r.Key)]; ok && id < before {
				t.Errorf("with record key %s, %d comes after %d", r.Key, id, before)
			}
			last[string(r.Key)] = id
		}
		if len(seen) != number-drops {
			t.Errorf("%d records had an effect, want %d", len(seen), number-drops)
		}
		if list := b.Read("aside"); len(list) > 0 {
			t.Errorf("%d are parked, the first is %s with %s", len(list), list[0].Value, headersOf(list[0]))
		}
	})
}

// A record that comes after a reading of the tables began needs another one. Here its row
// is in a transaction that is open when the first reading has ended.
func TestARecordWaitsForAReadingThatBeginsLater(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.tableTopic(1)
		b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "0", "ann"))
		p := b.start(b.joining(&stream.Table{Missing: stream.MissingWait}))
		p.Wait(1, kafkatest.Settled)
		begin := func(name string) (end func()) {
			writer := b.openRows(name, customer(0, name, name, time.Now()))
			return func() { kafkatest.Must(t, writer.EndTransaction(b.Context(), kgo.TryCommit)) }
		}
		bob := begin("bob")
		b.Write(order(0, "1", "bob"))
		time.Sleep(time.Second) // a reading has begun
		eve := begin("eve")
		b.Write(order(0, "2", "eve"))
		time.Sleep(time.Second)
		bob()
		p.Wait(2, kafkatest.Settled)
		time.Sleep(time.Second)
		if got, want := b.bodies("out")+"; "+b.bodies("aside"), "0=Ann 1=bob; "; got != want {
			t.Errorf("outputs and parked %q, want %q", got, want)
		}
		eve()
		p.Wait(3, kafkatest.Settled)
		p.Stop()
		if got, want := b.bodies("out")+"; "+b.bodies("aside"), "0=Ann 1=bob 2=eve; "; got != want {
			t.Errorf("outputs and parked %q, want %q", got, want)
		}
	})
}

// With a local table, a reading of one partition says nothing about another, whose records
// were read together with those of the first.
func TestAReadingOfOnePartitionParksNothingOfAnother(t *testing.T) {
	t.Parallel()
	for _, open := range []int32{0, 1} {
		for _, keeps := range []bool{false, true} { // others pass, or wait too
			inBubble(t, 2, func(b *bubble) {
				b.tableTopic(2)
				now := time.Now()
				b.Write(customer(0, "ann", "Ann", now), customer(1, "ann1", "Ann", now), order(open, "0", "no"))
				opts := b.joining(&stream.Table{Local: true, Missing: stream.MissingWait})
				if keeps {
					opts.Keep = &stream.Keep{Newest: rule(t, ".v")}
				}
				entered, leave := make(chan struct{}, 1), make(chan struct{})
				join := opts.FilterMap
				opts.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
					if bytes.Equal(d.RecordKey, []byte("gate")) {
						select {
						case entered <- struct{}{}:
						default:
						}
						<-leave
					}
					return join(context.Background(), d)
				}
				say := func(partition int32, id, customer string) *kgo.Record {
					return kafkatest.Record(partition, id, fmt.Sprintf(`{"c":%q,"v":%q}`, customer, id))
				}
				p := b.start(opts)
				p.Wait(1, kafkatest.Settled)
				b.Write(say(0, "gate", "ann"))
				<-entered
				b.Write(say(0, "a", "ann")) // the client waits for the session with these
				time.Sleep(time.Second)
				writer := b.openRows("rows", customer(open, "bob", "Bob", now))
				b.Write(say(1-open, "none", "x"), say(open, "late", "bob"))
				time.Sleep(time.Second)
				close(leave)
				time.Sleep(20 * time.Second)
				kafkatest.Must(t, writer.EndTransaction(b.Context(), kgo.TryCommit))
				p.Wait(5, kafkatest.Settled)
				p.Stop()
				if got, want := b.bodies("out"), "a=Ann gate=Ann late=Bob"; got != want {
					t.Errorf("with an open transaction in partition %d, outputs %q, want %q", open, got, want)
				}
			})
		}
	}
}

// Records that wait are neither skipped if their topic lost them, nor if something else
// writes the metadata of offsets.
func TestRecordsThatWaitAndAreLostAreRefused(t *testing.T) {
	t.Parallel()
	for want, loses := range map[string]func(b *bubble, adm *kadm.Client) error{
		"records of [in] that waited for rows were deleted before they were joined": func(b *bubble, adm *kadm.Client) error {
			upTo := kadm.Offsets{}
			upTo.AddOffset("in", 0, 2, -1)
			_, err := adm.DeleteRecords(b.Context(), upTo)
			return err
		},
		`the metadata "waiting for rows: x" of its offset of in/0 is not what Semel writes`: func(b *bubble, adm *kadm.Client) error {
			info := b.Cluster.GroupInfo("g")
			b.takeOut(info, []string{*info.Members[0].InstanceID})
			offsets := kadm.Offsets{}
			offsets.Add(kadm.Offset{Topic: "in", At: 3, LeaderEpoch: -1, Metadata: pending.Prefix + "x"})
			return adm.CommitAllOffsets(b.Context(), "g", offsets)
		},
	} {
		inBubble(t, 1, func(b *bubble) {
			b.tableTopic(1)
			b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "0", "ann"))
			opts := b.joining(&stream.Table{Missing: stream.MissingWait})
			p := b.start(opts)
			p.Wait(1, kafkatest.Settled)
			b.openRows("rows", customer(0, "bob", "Bob", time.Now()))
			b.Write(order(0, "1", "bob"), order(0, "2", "ann"))
			p.Wait(2, kafkatest.Settled)
			p.Stop()
			kafkatest.Must(t, loses(b, kadm.NewClient(b.Client)))
			p = b.start(opts)
			<-p.Done
			if p.Err == nil || !strings.Contains(p.Err.Error(), want) {
				t.Errorf("it ended with %v, want %q", p.Err, want)
			}
		})
	}
}

// Compaction may delete a record that waits. A restart says so, and continues without it.
func TestARecordThatIsCompactedAwayWhileItWaitsIsReported(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]*kgo.Record{"others wait": {order(0, "b", "eve"), order(0, "z", "ann")}, "none waits": {order(0, "z", "ann")}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				b.tableTopic(1)
				adm := kadm.NewClient(b.Client)
				_, err := adm.AlterTopicConfigs(b.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "cleanup.policy", Value: kadm.StringPtr("compact")}}, "in")
				kafkatest.Must(t, err)
				b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "first", "ann"))
				opts := b.joining(&stream.Table{Missing: stream.MissingWait})
				p := b.start(opts)
				p.Wait(1, kafkatest.Settled)
				writer := b.openRows("rows", customer(0, "bob", "Bob", time.Now()), customer(0, "eve", "Eve", time.Now()))
				b.Write(order(0, "a", "bob")) // waits, and is compacted away
				for _, r := range more {
					b.Write(r)
				}
				p.Wait(2, kafkatest.Settled)
				p.Stop()
				for _, r := range []*kgo.Record{order(0, "a", "ann"), order(0, "last", "ann")} {
					b.Write(r)
				}
				b.Cluster.Compact()
				kafkatest.Must(t, writer.EndTransaction(b.Context(), kgo.TryCommit))
				p = b.start(opts)
				p.Wait(len(more)-1+2, kafkatest.Settled)
				p.Stop()
				if told := strings.Join(p.Events.Log, "\n"); !strings.Contains(told, "the records of in/0 at [1] waited for rows, and the broker has them no longer") {
					t.Errorf("no event says that a record is gone: %s", told)
				}
				if list := b.noted(); len(list) > 0 {
					t.Errorf("%v wait at the end", list)
				}
				want := "a=Ann b=Eve first=Ann last=Ann z=Ann"
				if len(more) == 1 {
					want = "a=Ann first=Ann last=Ann z=Ann"
				}
				if got := b.bodies("out"); got != want {
					t.Errorf("outputs %q, want %q", got, want)
				}
			})
		})
	}
}

// Records that wait are not lost because of options with which none waits.
func TestOptionsThatLetNoneWaitAreRefusedWhileRecordsWait(t *testing.T) {
	t.Parallel()
	for _, change := range []func(o *TransactorOptions){
		func(o *TransactorOptions) { o.Tables, o.FilterMap = nil, nil },
		func(o *TransactorOptions) { o.Tables[0].Missing = stream.MissingPark },
		func(o *TransactorOptions) { o.Repartition = &Repartition{} },
		func(o *TransactorOptions) { o.Repartition, o.Group = &Repartition{}, "new" }, // which has the offsets of g
	} {
		inBubble(t, 1, func(b *bubble) {
			b.tableTopic(1)
			b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "0", "ann"))
			opts := b.joining(&stream.Table{Missing: stream.MissingWait})
			p := b.start(opts)
			p.Wait(1, kafkatest.Settled)
			writer := b.openRows("rows", customer(0, "bob", "Bob", time.Now()))
			b.Write(order(0, "1", "bob"), order(0, "2", "ann"))
			p.Wait(2, kafkatest.Settled)
			p.Stop()
			kafkatest.Must(t, writer.EndTransaction(b.Context(), kgo.TryCommit))
			adm := kadm.NewClient(b.Client)
			committed, err := adm.FetchOffsets(b.Context(), "g")
			kafkatest.Must(t, err)
			kafkatest.Must(t, adm.CommitAllOffsets(b.Context(), repartitionGroup("new"), committed.Offsets()))
			changed := b.joining(&stream.Table{Missing: stream.MissingWait})
			change(&changed)
			p = b.start(changed)
			<-p.Done
			if !errors.Is(p.Err, semel.ErrInvalidRequest) || !strings.Contains(p.Err.Error(), "1 records of in/0 wait for rows") {
				t.Errorf("Run: %v", p.Err)
			}
			p = b.start(b.joining(&stream.Table{Missing: stream.MissingWait}))
			p.Wait(1, kafkatest.Settled)
			p.Stop()
			if got, want := b.bodies("out"), "0=Ann 1=Bob 2=Ann"; got != want {
				t.Errorf("outputs %q, want %q", got, want)
			}
		})
	}
}
