package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/operator"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
	"github.com/semel-dev/semel/vfs"
)

func TestARecordIsPassedOnAsItIs(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Key.OnMissing = pipeline.MissingPass
		opts.Output.SamePartition = true
		at := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
		sent := []*kgo.Record{
			{Topic: "in", Key: []byte("a"), Value: []byte("v"), Timestamp: at, Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h", Value: nil}, {Key: "", Value: []byte{}}}},
			{Topic: "in", Key: []byte("tombstone"), Value: nil, Timestamp: at},
			{Topic: "in", Key: []byte("empty"), Value: []byte{}, Timestamp: at},
			{Topic: "in", Key: nil, Value: []byte("without key"), Timestamp: at},
			{Topic: "in", Key: nil, Value: []byte("without key"), Timestamp: at},
			{Topic: "in", Key: []byte{}, Value: []byte("empty key"), Timestamp: at},
			{Topic: "in", Key: []byte{0, 0xff}, Value: []byte("bytes"), Timestamp: at},
		}
		var want []kgo.Record
		for _, r := range sent {
			want = append(want, *r)
		}
		b.Write(sent...)
		p := b.start(opts)
		p.Wait(len(sent), kafkatest.Settled)
		p.Stop()
		got := b.Read("out")
		if len(got) != len(want) {
			t.Fatalf("%d records, want %d", len(got), len(want))
		}
		for i, r := range got {
			w := want[i]
			if string(r.Key) != string(w.Key) || (r.Key == nil) != (w.Key == nil) || string(r.Value) != string(w.Value) || (r.Value == nil) != (w.Value == nil) {
				t.Errorf("record %d is %q %q, want %q %q", i, r.Key, r.Value, w.Key, w.Value)
			}
			if !r.Timestamp.Equal(w.Timestamp) || r.Partition != 0 {
				t.Errorf("record %d has time %v in partition %d, want %v in 0", i, r.Timestamp, r.Partition, w.Timestamp)
			}
			if fmt.Sprint(r.Headers) != fmt.Sprint(w.Headers) {
				t.Errorf("record %d has headers %v, want %v", i, r.Headers, w.Headers)
			}
		}
	})
}

func TestKeyHeadersNameTheKey(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Output.KeyHeaders = true
		old := kafkatest.Record(0, "readable", "v")
		old.Headers = []kgo.RecordHeader{{Key: header.Key, Value: []byte("of the stage before")}, {Key: "mine", Value: []byte("stays")}}
		b.Write(old, kafkatest.Record(0, "\x00\xff", "v"))
		p := b.start(opts)
		p.Wait(2, kafkatest.Settled)
		p.Stop()
		for _, r := range b.Read("out") {
			got := headersOf(r)
			want := "mine=stays semel-key=readable semel-scope=s semel-pipeline=g semel-origin=in 0/0"
			if r.Key[0] == 0 {
				want = "semel-key-base64=AHMA/w== semel-scope=s semel-pipeline=g semel-origin=in 0/1"
			}
			if got != want {
				t.Errorf("headers %s, want %s", got, want)
			}
		}
	})
}

func TestWindowsEndByTheClock(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Window = 12 * time.Minute
		opts.State.Dir = t.TempDir()
		p := b.start(opts)
		send := func(n int) {
			b.Write(kafkatest.Record(0, "a", "v"))
			p.Wait(n, kafkatest.Settled)
		}
		outputs := func(want int) {
			t.Helper()
			if got := len(b.Read("out")); got != want {
				t.Errorf("%d outputs, want %d", got, want)
			}
		}
		send(1)
		time.Sleep(11*time.Minute + 30*time.Second)
		send(2)
		outputs(1)
		time.Sleep(time.Minute)
		send(3)
		outputs(2)
		time.Sleep(6 * time.Minute)
		p.Stop()
		p = b.start(opts)
		send(1)
		outputs(2)
		time.Sleep(6*time.Minute + 30*time.Second)
		p.Stop()
		opts.State.Dir = "" // what is read of the changelog may have expired too
		p = b.start(opts)
		send(1)
		outputs(3)
		p.Stop()
	})
}

func TestWindowsEndByTheTimesOfRecords(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.EventTime = &EventTime{}
		opts.Window = time.Hour
		opts.EventTime.Grace = 10 * time.Minute
		base := time.Now().Add(-48 * time.Hour).Truncate(time.Hour)
		send := func(key string, minute int) {
			r := kafkatest.Record(0, key, strconv.Itoa(minute))
			r.Timestamp = base.Add(time.Duration(minute) * time.Minute)
			b.Write(r)
		}
		done := 0
		var p *program
		restart := func(n int) {
			if p != nil {
				p.Stop()
			}
			p = b.start(opts)
			done = n
		}
		restart(0)
		check := func(n int, want string) {
			t.Helper()
			p.Wait(n-done, kafkatest.Settled)
			var got []string
			for _, r := range b.Read("out") {
				got = append(got, string(r.Key)+string(r.Value))
			}
			slices.Sort(got)
			if strings.Join(got, " ") != want {
				t.Errorf("outputs %v, want %s", got, want)
			}
		}
		send("a", 100)
		send("a", 159) // inside the window
		send("b", 152) // not the newest, but inside the grace
		send("c", 140) // late
		send("a", 95)  // late, and known
		check(5, "a100 b152")
		restart(5)
		send("d", 140) // late after a restart too
		send("a", 155)
		send("a", 161) // behind the window
		send("b", 200)
		check(9, "a100 a161 b152")
		send("e", 100_000) // from the future: as of now
		send("f", 100_001)
		check(11, "a100 a161 b152 e100000 f100001")
		p.Stop()
		if got := len(b.Read("aside")); got != 2 {
			t.Errorf("%d records were parked, want 2", got)
		}
	})
}

func TestMessagesWithoutAKey(t *testing.T) {
	t.Parallel()
	rule, err := key.ParseRule(".id")
	kafkatest.Must(t, err)
	for policy, want := range map[pipeline.Missing][3]int{
		pipeline.MissingPark: {2, 4, 0}, pipeline.MissingDrop: {2, 0, 4}, pipeline.MissingPass: {6, 0, 0}, pipeline.MissingHash: {5, 0, 0},
	} {
		t.Run(strconv.Itoa(int(policy)), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				opts.Key.Rule = rule
				opts.Key.OnMissing = policy
				b.Write(
					kafkatest.Record(0, "1", `{"id":1}`), kafkatest.Record(0, "2", `{"id":"1"}`), kafkatest.Record(0, "3", `{"id":1}`),
					kafkatest.Record(0, "4", `{"id":null}`), kafkatest.Record(0, "5", `{"no":1}`), kafkatest.Record(0, "6", `{ "no": 1 }`), kafkatest.Record(0, "7", `not json`),
				)
				p := b.start(opts)
				p.Wait(7, kafkatest.Settled)
				p.Stop()
				if got := [3]int{len(b.Read("out")), len(b.Read("aside")), p.Events.Count(pipeline.EventDropped)}; got != want {
					t.Errorf("outputs, parked, dropped: %v, want %v", got, want)
				}
			})
		})
	}
	t.Run("stop", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 1, func(b *bubble) {
			opts := b.options()
			opts.Key.Rule = rule
			opts.Key.OnMissing = pipeline.MissingStop
			b.Write(kafkatest.Record(0, "1", `{"id":1}`), kafkatest.Record(0, "2", `{}`))
			p := b.start(opts)
			<-p.Done
			for _, want := range []string{"in/0 at 1", "for \"key-missing\"", "fix the cause and start again"} {
				if !errors.Is(p.Err, pipeline.ErrStopped) || !strings.Contains(p.Err.Error(), want) {
					t.Errorf("it ended with %v, want %q", p.Err, want)
				}
			}
			if got := len(b.Read("out")); got != 0 {
				t.Errorf("%d outputs of the transaction that was not finished", got)
			}
		})
	})
}

func TestATransformMakesOutputsAndItsFailuresAreParked(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		calls := map[string]int{}
		opts := b.options()
		opts.Transform = func(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
			id := string(m.RecordKey)
			calls[id]++
			if m.Attempt != calls[id] && id != "again" {
				t.Errorf("%s is attempt %d, want %d", id, m.Attempt, calls[id])
			}
			switch id {
			case "none":
				return nil, nil
			case "two":
				return []*kgo.Record{{Key: []byte("two-1"), Value: m.Body}, {Key: []byte("two-2"), Value: m.Body}}, nil
			case "third":
				if m.Attempt < 3 {
					return nil, errors.New("not yet")
				}
			case "never", "again":
				if calls[id] <= 3 {
					return nil, errors.New("never")
				}
			case "permanent":
				return nil, semel.Permanent(errors.New("bad"))
			case "panic":
				panic("oh")
			}
			return []*kgo.Record{{Key: m.RecordKey, Value: m.Body}}, nil
		}
		b.Write(kafkatest.Record(0, "one", "v"), kafkatest.Record(0, "none", "v"), kafkatest.Record(0, "two", "v"), kafkatest.Record(0, "third", "v"), kafkatest.Record(0, "never", "v"),
			kafkatest.Record(0, "permanent", "v"), kafkatest.Record(0, "panic", "v"), kafkatest.Record(0, "again", "v"), kafkatest.Record(0, "again", "v"), kafkatest.Record(0, "none", "v"))
		p := b.start(opts)
		p.Wait(10, kafkatest.Settled)
		p.Stop()
		if got, want := strings.Join(kafkatest.KeysOf(b.Read("out")), " "), "again one third two-1 two-2"; got != want {
			t.Errorf("outputs %s, want %s", got, want)
		}
		aside := b.Read("aside")
		if got, want := strings.Join(kafkatest.KeysOf(aside), " "), "again never panic permanent"; got != want {
			t.Errorf("parked %s, want %s", got, want)
		}
		for _, r := range aside {
			var m semel.Message
			record.Fill(&m, r)
			for name, want := range map[string]string{"__connect.errors.topic": "in", "__connect.errors.partition": "0", "kafka_dlt-original-topic": "in"} {
				if got, _ := m.Header(name); string(got) != want {
					t.Errorf("header %s of %s is %q, want %q", name, r.Key, got, want)
				}
			}
		}
	})
}

func TestARecordThatIsReadAgainFindsItsOwnMark(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.options()
		b.Write(kafkatest.Numbered(0, 10, 2)...)
		b.Write(kafkatest.Numbered(0, 10, 2)...)
		p := b.start(opts)
		p.Wait(20, kafkatest.Settled)
		p.Stop()
		opts.Group, opts.State.Changelog, opts.Member.Instance = "other", "g-keys", "other-0" // which has committed nothing
		p = b.start(opts)
		p.Wait(20, kafkatest.Settled)
		p.Stop()
		if got := len(b.Read("out")); got != 10 {
			t.Errorf("%d outputs, want 10", got)
		}
	})
}

func TestContradictingOptionsAreRefused(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, b *bubble, opts TransactorOptions, want string) {
		t.Helper()
		p := b.start(opts)
		<-p.Done
		if p.Err == nil || !strings.Contains(p.Err.Error(), want) || !errors.Is(p.Err, semel.ErrInvalidRequest) {
			t.Errorf("it ended with %v, want %q", p.Err, want)
		}
	}
	t.Run("topics", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 2, func(b *bubble) {
			kafkatest.Must(t, b.Cluster.CreateTopic("g-keys", 3, nil))
			run(t, b, b.options(), "in has 2 partitions and its changelog g-keys 3")
			kafkatest.Must(t, b.Cluster.CreateTopic("compacted", 2, map[string]string{"cleanup.policy": "compact"}))
			opts := b.options()
			opts.State.Changelog = "compacted"
			run(t, b, opts, "cleanup.policy compact")
			kafkatest.Must(t, b.Cluster.CreateTopic("short", 2, map[string]string{"retention.ms": "60000"}))
			opts.State.Changelog = "short"
			run(t, b, opts, "retention.ms 60000")
		})
	})
	t.Run("settings that the brokers do not know yet", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 2, func(b *bubble) {
			kafkatest.Must(t, b.Cluster.CreateTopic("compacted", 2, map[string]string{"cleanup.policy": "compact"}))
			b.Hide("compacted", kerr.UnknownTopicOrPartition, 2)
			opts := b.options()
			opts.State.Changelog = "compacted"
			run(t, b, opts, "cleanup.policy compact")
		})
	})
	t.Run("pools", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 1, func(b *bubble) {
			opts := b.options()
			opts.Client = append(opts.Client, kgo.WithPools(kafkatest.BytesPool{}))
			tr, err := NewTransactor(&opts)
			kafkatest.Must(t, err)
			if err := tr.Run(b.Context()); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "kgo.WithPools has a pool for decompressed bytes") {
				t.Errorf("it ended with %v", err)
			}
		})
	})
	t.Run("brokers", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 1, func(b *bubble) {
			run(t, b, b.options(), "older than Kafka 2.5")
		}, kfake.MaxVersions(kversion.V2_4_0()))
	})
}

func TestAStateDirectoryInUseNamesThePipelineAndTheRemedy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := &Transactor{chain: operator.NewPlan(&operator.Options{Name: "first"}), state: StateOptions{Dir: dir}, hooks: hooks{files: vfs.OS{}}}
	lock, err := first.lockState()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	second := &Transactor{chain: operator.NewPlan(&operator.Options{Name: "second"}), state: StateOptions{Dir: dir}, hooks: hooks{files: vfs.OS{}}}
	want := fmt.Sprintf("pipeline second: state directory: %s is held by process %d: end that process, or give this one a state directory of its own", filepath.Join(dir, "LOCK"), os.Getpid())
	if _, err := second.lockState(); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestAllBadOptionsAreNamed(t *testing.T) {
	t.Parallel()
	_, err := NewTransactor(nil)
	for _, want := range []string{"Client is missing", "Group is missing", "Inputs is missing", "Output.Topic is missing", "Key.Rule is missing", "Parked is missing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, without %q", err, want)
		}
	}
	_, err = NewTransactor(&TransactorOptions{
		Window: -1, EventTime: &EventTime{Grace: -time.Second, OnLate: pipeline.Drop, DeliverLate: true}, Limits: Limits{Interval: time.Minute},
		Member: Member{Sessions: -1}, Key: KeyOptions{OnMissing: 9}, Reset: 9, Failure: pipeline.Failure{Attempts: 1000},
	})
	for _, want := range []string{"Window", "EventTime.Grace", "Timeouts.Transaction", "Member.Sessions", "Key.OnMissing", "EventTime.DeliverLate", "Reset", "Failure"} {
		if err == nil || !strings.Contains(err.Error(), "TransactorOptions."+want) {
			t.Errorf("the error is %v, without %s", err, want)
		}
	}
}

// TestDuplicatesThatDifferAreCounted when their transaction is committed.
func TestDuplicatesThatDifferAreCounted(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, o *TransactorOptions){
		"keys":       func(*testing.T, *TransactorOptions) {},
		"event time": func(_ *testing.T, o *TransactorOptions) { o.EventTime = &EventTime{} },
		"repartition": func(_ *testing.T, o *TransactorOptions) {
			o.Repartition = &Repartition{}
		},
		"aggregate": func(t *testing.T, o *TransactorOptions) { countIn(t, o, time.Hour) },
		"map": func(_ *testing.T, o *TransactorOptions) {
			o.FilterMap = func(context.Context, pipeline.Delivery) ([]byte, bool, error) { return []byte("same"), true, nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				change(t, &opts)
				p := b.start(opts)
				for _, body := range []string{`{"g":"a","n":1}`, `{"n":1, "g":"a"}`, `{"g":"a","n":2}`, `{"g":"a","n":3}`, `{"g":"a","n":1}`} {
					b.Write(kafkatest.Record(0, "k", body))
				}
				p.Wait(5, kafkatest.Settled)
				p.Stop()
				if d, got := p.Events.Decisions(semel.Duplicate), p.Events.Count(pipeline.EventDiffering); d != 4 || got != 2 {
					t.Errorf("%d of %d duplicates differ", got, d)
				}
			})
		})
	}
}

func TestLateMessagesOfAKeepRuleFollowThePolicy(t *testing.T) {
	t.Parallel()
	for then, kind := range map[pipeline.Then]pipeline.EventKind{pipeline.Park: pipeline.EventParked, pipeline.Drop: pipeline.EventDropped, pipeline.Stop: 0} {
		tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute); o.Aggregate.Late = then })
		tr.at(0, 0, "1", `{"g":"a"}`)
		tr.at(1, 120, "2", `{"g":"a"}`)
		o := tr.at(2, 0, "3", `{"g":"a"}`)
		if o.Reason != pipeline.ReasonLate || tr.aside.Kind != kind {
			t.Errorf("%v: %+v, and the event is %v", then, o, tr.aside.Kind)
		}
	}
}

// TestLateRecordsAreDeliveredIfThePolicySaysSo has no place to park records.
func TestLateRecordsAreDeliveredIfThePolicySaysSo(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Window, opts.EventTime = time.Hour, &EventTime{Grace: 10 * time.Minute, DeliverLate: true}
		opts.Key.OnMissing, opts.Parked = pipeline.MissingDrop, ""
		base := time.Now().Add(-48 * time.Hour).Truncate(time.Hour)
		late, duplicates := 0, 0
		run := func(want string, sent ...string) { // each is a key and a minute
			t.Helper()
			p := b.start(opts)
			for _, s := range sent {
				minute, err := strconv.Atoi(s[1:])
				kafkatest.Must(t, err)
				r := kafkatest.Record(0, s[:1], s[1:])
				r.Timestamp = base.Add(time.Duration(minute) * time.Minute)
				b.Write(r)
			}
			p.Wait(len(sent), kafkatest.Settled)
			p.Stop()
			late += p.Events.Decisions(semel.Late)
			duplicates += p.Events.Decisions(semel.Duplicate)
			var got []string
			for _, r := range b.Read("out") {
				got = append(got, string(r.Key)+string(r.Value))
			}
			slices.Sort(got)
			if strings.Join(got, " ") != want {
				t.Errorf("outputs %v, want %s", got, want)
			}
		}
		run("a100 c80", "a100", "c80", "c80")                                    // late, and remembered
		run("a100 c80 d81", "c80", "d81")                                        // after a restart too
		run("a100 a200 c80 c80 d81 e150", "a200", "c80", "e150", "e150", "e150") // until its window and the grace are over
		if late != 4 || duplicates != 4 {
			t.Errorf("%d late and %d duplicates, want 4 and 4", late, duplicates)
		}
	})
}
