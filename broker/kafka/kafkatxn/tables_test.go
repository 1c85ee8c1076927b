package kafkatxn

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// tableTopic makes the compacted topic customers.
func (b *bubble) tableTopic(partitions int32, settings ...string) {
	b.Helper()
	has := map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}
	for i := 0; i < len(settings); i += 2 {
		has[settings[i]] = &settings[i+1]
	}
	_, err := kadm.NewClient(b.Client).CreateTopic(b.Context(), partitions, 1, has, "customers")
	kafkatest.Must(b.T, err)
}

// customer returns a row; without a name it deletes the row.
func customer(partition int32, id, name string, at time.Time) *kgo.Record {
	r := &kgo.Record{Topic: "customers", Partition: partition, Key: []byte(id), Timestamp: at}
	if name != "" {
		r.Value = []byte(name)
	}
	return r
}

// order returns an order of a customer. Its id is the record key.
func order(partition int32, id, customer string) *kgo.Record {
	return kafkatest.Record(partition, id, `{"c":"`+customer+`"}`)
}

func rule(t testing.TB, text string) *key.Rule {
	t.Helper()
	r, err := key.ParseRule(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// joining returns options that write the row of each order after its record key.
func (b *bubble) joining(table *stream.Table) TransactorOptions {
	table.Topic, table.By = "customers", rule(b.T, ".c")
	opts := b.options()
	opts.Tables = []*stream.Table{table}
	opts.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
		row, err := table.Row(&d.Message)
		return fmt.Appendf(nil, "%s=%s", d.RecordKey, row), true, err
	}
	return opts
}

// bodies returns the sorted values of a topic.
func (b *bubble) bodies(topic string) string {
	var list []string
	for _, r := range b.Read(topic) {
		list = append(list, string(r.Value))
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

// TestMessagesOfOneRowInTwoPartitionsAreReported: a local table has the row in one of them.
func TestMessagesOfOneRowInTwoPartitionsAreReported(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		local bool
		other string // the customer of the message in the other partition
		told  bool
	}{
		"local": {true, "ann", true}, "global": {false, "ann", false}, "apart": {true, "eve", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				b.tableTopic(2)
				b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "1", "ann"), order(1, "2", c.other))
				opts := b.joining(&stream.Table{Local: c.local})
				opts.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) { return d.Body, true, nil }
				opts.skipSample = false
				p := b.start(opts)
				p.Wait(2, kafkatest.Settled)
				log := p.Events
				p.Stop()
				if all := strings.Join(log.Log, "\n"); strings.Contains(all, "of in in partition 0 at 0 and in 1 at 0 need one row of table customers (.c)") != c.told {
					t.Errorf("told: %t, want %t:\n%s", !c.told, c.told, all)
				}
			})
		})
	}
}

func TestRecordsAreJoinedWithAllRows(t *testing.T) {
	t.Parallel()
	for _, local := range []bool{false, true} {
		inBubble(t, 2, func(b *bubble) {
			b.tableTopic(2)
			now := time.Now()
			b.Write(customer(0, "ann", "Anna", now), customer(0, "eve", "Eve", now), customer(0, "ann", "Ann", now), customer(0, "eve", "", now), customer(1, "42", "Bob", now))
			b.Write(order(0, "1", "ann"), order(1, "2", "x"), kafkatest.Record(1, "3", `{"c":42}`), order(0, "4", "eve"), kafkatest.Record(0, "5", `{}`), order(0, "1", "ann"), kafkatest.Record(0, "6", `no`))
			p := b.start(b.joining(&stream.Table{Local: local}))
			p.Wait(7, kafkatest.Settled)
			b.Write(customer(0, "ann", "Anna Maria", now))
			kafkatest.Within(time.Minute, func() bool { return p.tr.tables.Sizes(b.Context())[0].Lag == 0 })
			b.Write(order(0, "7", "ann"))
			p.Wait(8, kafkatest.Settled)
			gauges, err := p.tr.Gauges(b.Context())
			kafkatest.Must(t, err)
			if got := fmt.Sprint(gauges); got != "[{dedup.table.rows [customers] 2} {dedup.table.lag [customers] 0}]" {
				t.Errorf("gauges %s", got)
			}
			p.Stop()
			if got, want := b.bodies("out"), "1=Ann 3=Bob 7=Anna Maria"; got != want {
				t.Errorf("outputs %q, want %q", got, want)
			}
			if got, want := b.bodies("aside"), `no {"c":"eve"} {"c":"x"} {}`; got != want {
				t.Errorf("parked %q, want %q", got, want)
			}
			for _, r := range b.Read("aside") {
				want := "semel-reason=row-missing "
				if string(r.Value) == "no" {
					want = "semel-reason=permanent "
				}
				if !strings.Contains(headersOf(r), want) {
					t.Errorf("%s has the headers %s, want %s", r.Value, headersOf(r), want)
				}
			}
		})
	}
}

func TestNoRecordIsJoinedBeforeOpenRowsAreCommitted(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.tableTopic(1)
		b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "1", "bob"), order(0, "2", "eve"))
		writer, err := kgo.NewClient(append(b.Reach(), kgo.TransactionalID("rows"), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		kafkatest.Must(t, err)
		defer writer.Close()
		transact := func(end kgo.TransactionEndTry, row *kgo.Record, while func()) {
			kafkatest.Must(t, writer.BeginTransaction())
			kafkatest.Must(t, writer.ProduceSync(b.Context(), row).FirstErr())
			while()
			kafkatest.Must(t, writer.EndTransaction(b.Context(), end))
		}
		transact(kgo.TryAbort, customer(0, "eve", "aborted", time.Now()), func() {})
		var p *program
		transact(kgo.TryCommit, customer(0, "bob", "Bob", time.Now()), func() {
			p = b.start(b.joining(&stream.Table{}))
			what := func() string { return fmt.Sprint(p.tr.Ready(b.Context())) }
			if !kafkatest.Within(time.Minute, func() bool { time.Sleep(time.Second); return strings.Contains(what(), "customers") }) {
				t.Errorf("a reader of open rows reports %s", what())
			}
			if n := p.Events.Count(pipeline.EventSettled); n > 0 {
				t.Errorf("%d records were joined before the rows were committed", n)
			}
		})
		p.Wait(2, kafkatest.Settled)
		p.Stop()
		if got, want := b.bodies("out"), "1=Bob"; got != want {
			t.Errorf("outputs %q, want %q", got, want)
		}
	})
}

func TestARecordWithoutARowIsTreatedByThePolicy(t *testing.T) {
	t.Parallel()
	for policy, want := range map[stream.Missing][3]string{
		stream.MissingPark: {"1=Ann", `{"c":"x"}`, "parked row-missing"},
		stream.MissingWait: {"1=Ann", `{"c":"x"}`, "parked row-missing"},
		stream.MissingDrop: {"1=Ann", "", "dropped row-missing"},
		stream.MissingPass: {"1=Ann 2=", "", ""},
	} {
		for _, transforms := range []bool{false, true} {
			inBubble(t, 1, func(b *bubble) {
				b.tableTopic(1)
				b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "1", "ann"), order(0, "2", "x"), order(0, "2", "x"))
				opts := b.joining(&stream.Table{Missing: policy})
				if join := opts.FilterMap; transforms {
					opts.FilterMap = nil
					opts.Transform = func(_ context.Context, d pipeline.Delivery) ([]*kgo.Record, error) {
						body, _, err := join(context.Background(), d)
						return []*kgo.Record{{Value: body}}, err
					}
				}
				if policy == stream.MissingDrop || policy == stream.MissingPass {
					opts.Parked, opts.Key.OnMissing, opts.Failure.Then = "", pipeline.MissingDrop, pipeline.Drop
				}
				p := b.start(opts)
				p.Wait(3, kafkatest.Settled)
				p.Stop()
				if got := b.bodies("out"); got != want[0] {
					t.Errorf("policy %d: outputs %q, want %q", policy, got, want[0])
				}
				parked := strings.TrimSpace(want[1] + " " + want[1]) // a parked record is not remembered
				if got := b.bodies("aside"); got != parked {
					t.Errorf("policy %d: parked %q, want %q", policy, got, parked)
				}
				for kind, name := range map[pipeline.EventKind]string{pipeline.EventParked: "parked row-missing", pipeline.EventDropped: "dropped row-missing"} {
					n := 0
					if name == want[2] {
						n = 2
					}
					if got := p.Events.Count(kind); got != n {
						t.Errorf("policy %d: %s counts %d, want %d", policy, name, got, n)
					}
				}
			})
		}
	}
}

// A table whose reader is behind is read to its end once for the records of one read.
func TestARecordWaitsForARowThatWasWrittenBeforeIt(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.tableTopic(1)
		p := b.start(b.joining(&stream.Table{Missing: stream.MissingWait}))
		for i := range 20 {
			id := fmt.Sprint(i)
			b.Write(customer(0, id, "row "+id, time.Now())) // the fetch of the table may come later
			b.Write(order(0, id, id))
		}
		p.Wait(20, kafkatest.Settled)
		p.Stop()
		if n := len(b.Read("out")); n != 20 {
			t.Errorf("%d records were joined, want 20", n)
		}
	})
}

func TestRecordsAreJoinedWithTheRowOfTheirTime(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		b.tableTopic(1, "min.compaction.lag.ms", "3600000", "delete.retention.ms", "86400000")
		now := time.Now().Truncate(time.Second)
		at := func(minutes int) time.Time { return now.Add(time.Duration(minutes) * time.Minute) }
		b.Write(customer(0, "ann", "old", at(-200)), customer(0, "ann", "new", at(-40)), customer(0, "ann", "", at(-20)), customer(0, "bob", "Bob", at(-300)))
		for i, minutes := range []int{-10, -30, -50, -90, -40} {
			r := order(0, fmt.Sprint(i), "ann")
			r.Timestamp = at(minutes)
			b.Write(r)
		}
		r := order(0, "bob", "bob")
		r.Timestamp = at(-90)
		b.Write(r)
		p := b.start(b.joining(&stream.Table{History: time.Hour}))
		p.Wait(6, kafkatest.Settled)
		p.Stop()
		if fresh, late := p.Events.Decisions(semel.Fresh), p.Events.Decisions(semel.Late); fresh != 5 || late != 1 {
			t.Errorf("%d are fresh and %d late, want 5 and 1", fresh, late)
		}
		if got, want := b.bodies("out"), "1=new 2=old 4=new bob=Bob"; got != want {
			t.Errorf("outputs %q, want %q", got, want)
		}
		reasons := map[string]string{}
		for _, r := range b.Read("aside") {
			_, reason, _ := strings.Cut(headersOf(r), "semel-reason=")
			reasons[string(r.Key)], _, _ = strings.Cut(reason, " ")
		}
		if got := fmt.Sprint(reasons); got != "map[0:row-missing 3:late]" {
			t.Errorf("parked %s", got)
		}
	})
}

func TestARestartReadsTheTableBeforeItJoins(t *testing.T) {
	t.Parallel()
	inRealTime(t, 4, func(b *bubble) {
		b.tableTopic(4)
		for i := range 200 {
			b.Write(customer(int32(i%4), fmt.Sprint(i), "old", time.Now()))
		}
		opts := b.joining(&stream.Table{Local: true})
		opts.Member.Sessions = 2
		for round := range 4 {
			for i := range 200 {
				b.Write(customer(int32(i%4), fmt.Sprint(i), fmt.Sprint("round ", round), time.Now()))
			}
			for i := range 200 {
				b.Write(order(int32(i%4), fmt.Sprintf("%d-%d", round, i), fmt.Sprint(i)))
			}
			p := b.start(opts)
			p.Wait(100, kafkatest.Settled)
			p.Kill()
		}
		p := b.start(opts)
		p.Wait(1, func(e *kafkatest.Events) int {
			if messages, _ := b.Lag(p.tr); messages > 0 {
				return 0
			}
			return len(b.Read("out")) / 800
		})
		p.Stop()
		seen := map[string]string{}
		for _, r := range b.Read("out") {
			id, row, _ := strings.Cut(string(r.Value), "=")
			if _, twice := seen[id]; twice {
				t.Errorf("%s was written twice", id)
			}
			seen[id] = row
			// A record may be joined with a later row, but never with an older one.
			round, _, _ := strings.Cut(id, "-")
			if row < "round "+round {
				t.Errorf("%s was joined with the older row %q", id, row)
			}
		}
		if len(seen) != 800 {
			t.Errorf("%d outputs, want 800", len(seen))
		}
	})
}

// A local table whose topic gains partitions is no longer partitioned as the input.
func TestATableThatGainsPartitions(t *testing.T) {
	t.Parallel()
	for _, local := range []bool{false, true} {
		inBubble(t, 1, func(b *bubble) {
			b.tableTopic(1)
			b.Write(customer(0, "ann", "Ann", time.Now()), order(0, "1", "ann"))
			p := b.start(b.joining(&stream.Table{Local: local}))
			p.Wait(1, kafkatest.Settled)
			_, err := kadm.NewClient(b.Client).CreatePartitions(b.Context(), 1, "customers")
			kafkatest.Must(t, err)
			if local {
				<-p.Done
				if p.Err == nil || !strings.Contains(p.Err.Error(), "had 1 partitions and has 2") {
					t.Errorf("it ended with %v", p.Err)
				}
				return
			}
			client, err := kgo.NewClient(append(b.Reach(), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
			kafkatest.Must(t, err)
			defer client.Close()
			kafkatest.Must(t, client.ProduceSync(b.Context(), customer(1, "bob", "Bob", time.Now())).FirstErr())
			if !kafkatest.Within(time.Minute, func() bool { time.Sleep(time.Second); return p.tr.tables.Sizes(b.Context())[0].Rows == 2 }) {
				t.Error("the row of the new partition was not read")
			}
			b.Write(order(0, "2", "bob"))
			p.Wait(2, kafkatest.Settled)
			p.Stop()
			if got, want := b.bodies("out"), "1=Ann 2=Bob"; got != want {
				t.Errorf("outputs %q, want %q", got, want)
			}
		})
	}
}

func TestUnsuitableTablesAreRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		table      *stream.Table
		partitions int32
		settings   []string
		want       string
	}{
		"counts":      {&stream.Table{Local: true}, 3, nil, "has 3 partitions and in 2"},
		"retention":   {&stream.Table{}, 2, []string{"cleanup.policy", "compact,delete", "retention.ms", "1000"}, "set cleanup.policy=compact"},
		"lag":         {&stream.Table{History: time.Hour}, 2, []string{"min.compaction.lag.ms", "0"}, "set min.compaction.lag.ms=3600000"},
		"partitioned": {&stream.Table{Local: true}, 2, nil, "not partitioned as the input"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				b.tableTopic(test.partitions, test.settings...)
				b.Write(customer(0, "ann", "Ann", time.Now()), customer(1, "bob", "Bob", time.Now()), order(1, "1", "bob"), order(1, "2", "ann"))
				opts := b.joining(test.table)
				opts.Member.Sessions = 1
				tr, err := NewTransactor(&opts)
				kafkatest.Must(t, err)
				if err := tr.Run(b.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %s", err, test.want)
				}
			})
		})
	}
}

func TestOptionsOfTablesAreChecked(t *testing.T) {
	t.Parallel()
	valid := func() TransactorOptions {
		return TransactorOptions{
			Client: []kgo.Opt{kgo.SeedBrokers("b")}, Group: "g", Inputs: []string{"in"}, Output: Output{Topic: "out"}, Parked: "p", Key: KeyOptions{Rule: kafkatest.RecordKey(t)},
			Tables:    []*stream.Table{{Topic: "a", By: rule(t, ".c")}, {Topic: "b", By: rule(t, ".c")}},
			FilterMap: func(context.Context, pipeline.Delivery) ([]byte, bool, error) { return nil, false, nil },
		}
	}
	for want, change := range map[string]func(o *TransactorOptions){
		"":                          func(*TransactorOptions) {},
		"Topic is missing":          func(o *TransactorOptions) { o.Tables[0].Topic = "" },
		"By is missing":             func(o *TransactorOptions) { o.Tables[0].By = nil },
		"History: -1ns":             func(o *TransactorOptions) { o.Tables[0].History = -1 },
		"no such policy":            func(o *TransactorOptions) { o.Tables[0].Missing = 9 },
		"two have the name":         func(o *TransactorOptions) { o.Tables[0].Name = "b" },
		"must be the same":          func(o *TransactorOptions) { o.Tables[0].Name, o.Tables[0].Topic, o.Tables[0].Local = "x", "b", true },
		"another topic":             func(o *TransactorOptions) { o.Tables[0].Topic = "out" },
		"cannot be Local":           func(o *TransactorOptions) { o.Tables[0].Local, o.Repartition = true, &Repartition{} },
		"no FilterMap or Transform": func(o *TransactorOptions) { o.FilterMap = nil },
		"number 0 is nil":           func(o *TransactorOptions) { o.Tables[0] = nil },
		"Parked is missing": func(o *TransactorOptions) {
			o.Parked, o.Key.OnMissing, o.Failure.Then = "", pipeline.MissingDrop, pipeline.Drop
		},
	} {
		opts := valid()
		change(&opts)
		_, err := NewTransactor(&opts)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
