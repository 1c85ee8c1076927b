package kafkaio

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
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/vfs"
)

// keysOf returns the keys of records in the order in which they were written to
// their partitions.
func keysOf(records []*kgo.Record) []string {
	var keys []string
	for _, r := range records {
		keys = append(keys, string(r.Key))
	}
	slices.Sort(keys)
	return keys
}

func TestARecordIsPassedOnAsItIs(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.OnMissing = pipeline.MissingPass
		opts.SamePartition = true
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
		b.write(sent...)
		p := b.start(opts)
		p.wait(len(sent), settled)
		p.stop()
		got := b.read("out")
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
		opts.KeyHeaders = true
		old := record(0, "readable", "v")
		old.Headers = []kgo.RecordHeader{{Key: headerKey, Value: []byte("of the stage before")}, {Key: "mine", Value: []byte("stays")}}
		b.write(old, record(0, "\x00\xff", "v"))
		p := b.start(opts)
		p.wait(2, settled)
		p.stop()
		for _, r := range b.read("out") {
			got := fmt.Sprintf("%s", r.Headers)
			want := "[{mine stays} {semel-key readable} {semel-scope s} {semel-pipeline g}]"
			if r.Key[0] == 0 {
				want = "[{semel-key-base64 AHMA/w==} {semel-scope s} {semel-pipeline g}]"
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
		opts.Window = time.Hour
		opts.StateDir = t.TempDir()
		p := b.start(opts)
		send := func(n int) {
			b.write(record(0, "a", "v"))
			p.wait(n, settled)
		}
		outputs := func(want int) {
			t.Helper()
			if got := len(b.read("out")); got != want {
				t.Errorf("%d outputs, want %d", got, want)
			}
		}
		send(1)
		time.Sleep(59 * time.Minute)
		send(2)
		outputs(1)
		time.Sleep(2 * time.Minute)
		send(3)
		outputs(2)
		time.Sleep(30 * time.Minute)
		p.stop()
		p = b.start(opts)
		send(1)
		outputs(2)
		time.Sleep(31 * time.Minute)
		p.stop()
		opts.StateDir = "" // what is read of the changelog may have expired too
		p = b.start(opts)
		send(1)
		outputs(3)
		p.stop()
	})
}

func TestWindowsEndByTheTimesOfRecords(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.EventTime = true
		opts.Window = time.Hour
		opts.Grace = 10 * time.Minute
		base := time.Now().Add(-48 * time.Hour).Truncate(time.Hour)
		send := func(key string, minute int) {
			r := record(0, key, strconv.Itoa(minute))
			r.Timestamp = base.Add(time.Duration(minute) * time.Minute)
			b.write(r)
		}
		done := 0
		var p *program
		restart := func(n int) {
			if p != nil {
				p.stop()
			}
			p = b.start(opts)
			done = n
		}
		restart(0)
		check := func(n int, want string) {
			t.Helper()
			p.wait(n-done, settled)
			var got []string
			for _, r := range b.read("out") {
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
		p.stop()
		if got := len(b.read("aside")); got != 2 {
			t.Errorf("%d records were put aside, want 2", got)
		}
	})
}

func TestMessagesWithoutAKey(t *testing.T) {
	t.Parallel()
	rule, err := key.ParseRule(".id")
	must(t, err)
	for policy, want := range map[pipeline.Missing][3]int{
		pipeline.MissingPark: {2, 4, 0}, pipeline.MissingDrop: {2, 0, 4}, pipeline.MissingPass: {6, 0, 0}, pipeline.MissingHash: {5, 0, 0},
	} {
		t.Run(strconv.Itoa(int(policy)), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				opts.Key = rule
				opts.OnMissing = policy
				b.write(
					record(0, "1", `{"id":1}`), record(0, "2", `{"id":"1"}`), record(0, "3", `{"id":1}`),
					record(0, "4", `{"id":null}`), record(0, "5", `{"no":1}`), record(0, "6", `{ "no": 1 }`), record(0, "7", `not json`),
				)
				p := b.start(opts)
				p.wait(7, settled)
				p.stop()
				if got := [3]int{len(b.read("out")), len(b.read("aside")), p.events.count(pipeline.EventDropped)}; got != want {
					t.Errorf("outputs, put aside, dropped: %v, want %v", got, want)
				}
			})
		})
	}
	t.Run("stop", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 1, func(b *bubble) {
			opts := b.options()
			opts.Key = rule
			opts.OnMissing = pipeline.MissingStop
			b.write(record(0, "1", `{"id":1}`), record(0, "2", `{}`))
			p := b.start(opts)
			<-p.done
			for _, want := range []string{"in/0 at 1", "for \"key-missing\"", "fix the cause and start again"} {
				if !errors.Is(p.err, pipeline.ErrStopped) || !strings.Contains(p.err.Error(), want) {
					t.Errorf("it ended with %v, want %q", p.err, want)
				}
			}
			if got := len(b.read("out")); got != 0 {
				t.Errorf("%d outputs of the transaction that was not finished", got)
			}
		})
	})
}

func TestATransformMakesOutputsAndItsFailuresArePutAside(t *testing.T) {
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
		b.write(record(0, "one", "v"), record(0, "none", "v"), record(0, "two", "v"), record(0, "third", "v"), record(0, "never", "v"),
			record(0, "permanent", "v"), record(0, "panic", "v"), record(0, "again", "v"), record(0, "again", "v"), record(0, "none", "v"))
		p := b.start(opts)
		p.wait(10, settled)
		p.stop()
		if got, want := strings.Join(keysOf(b.read("out")), " "), "again one third two-1 two-2"; got != want {
			t.Errorf("outputs %s, want %s", got, want)
		}
		aside := b.read("aside")
		if got, want := strings.Join(keysOf(aside), " "), "again never panic permanent"; got != want {
			t.Errorf("put aside %s, want %s", got, want)
		}
		for _, r := range aside {
			var m semel.Message
			fill(&m, r)
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
	for _, redo := range []bool{false, true} {
		t.Run(strconv.FormatBool(redo), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				opts := b.options()
				opts.Redo = redo
				b.write(numbered(0, 10, 2)...)
				b.write(numbered(0, 10, 2)...)
				p := b.start(opts)
				p.wait(20, settled)
				p.stop()
				opts.Group, opts.Changelog, opts.Instance = "other", "g-keys", "other-0" // which has committed nothing
				p = b.start(opts)
				p.wait(20, settled)
				p.stop()
				want := 10
				if redo {
					want = 20
				}
				if got := len(b.read("out")); got != want {
					t.Errorf("%d outputs, want %d", got, want)
				}
			})
		})
	}
}

func TestWhatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	run := func(t *testing.T, b *bubble, opts TransactorOptions, want string) {
		t.Helper()
		p := b.start(opts)
		<-p.done
		if p.err == nil || !strings.Contains(p.err.Error(), want) || !errors.Is(p.err, semel.ErrInvalidRequest) {
			t.Errorf("it ended with %v, want %q", p.err, want)
		}
	}
	t.Run("topics", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 2, func(b *bubble) {
			opts := b.options()
			opts.Inputs = []string{"nowhere"}
			run(t, b, opts, "topic nowhere does not exist: invalid request: make it: kafka-topics.sh --create --topic nowhere")
			must(t, b.cluster.CreateTopic("g-keys", 3, nil))
			run(t, b, b.options(), "in has 2 partitions and its changelog g-keys 3")
			must(t, b.cluster.CreateTopic("compacted", 2, map[string]string{"cleanup.policy": "compact"}))
			opts = b.options()
			opts.Changelog = "compacted"
			run(t, b, opts, "cleanup.policy compact")
			must(t, b.cluster.CreateTopic("short", 2, map[string]string{"retention.ms": "60000"}))
			opts.Changelog = "short"
			run(t, b, opts, "retention.ms 60000")
		})
	})
	t.Run("settings that the brokers do not know yet", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 2, func(b *bubble) {
			must(t, b.cluster.CreateTopic("compacted", 2, map[string]string{"cleanup.policy": "compact"}))
			b.hide("compacted", kerr.UnknownTopicOrPartition, 2)
			opts := b.options()
			opts.Changelog = "compacted"
			run(t, b, opts, "cleanup.policy compact")
		})
	})
	t.Run("brokers", func(t *testing.T) {
		t.Parallel()
		inBubble(t, 1, func(b *bubble) {
			run(t, b, b.options(), "older than Kafka 2.5")
		}, kfake.MaxVersions(kversion.V2_4_0()))
	})
}

func TestAStateDirectoryInUseNamesThePipelineAndTheWayOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := &Transactor{opts: TransactorOptions{Name: "first", StateDir: dir, files: vfs.OS{}}}
	lock, err := first.lockState()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	second := &Transactor{opts: TransactorOptions{Name: "second", StateDir: dir, files: vfs.OS{}}}
	want := fmt.Sprintf("pipeline second: state directory: %s is held by process %d: end that process, or give this one a state directory of its own", filepath.Join(dir, "LOCK"), os.Getpid())
	if _, err := second.lockState(); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestAllBadOptionsAreNamed(t *testing.T) {
	t.Parallel()
	_, err := NewTransactor(nil)
	for _, want := range []string{"Client is missing", "Group is missing", "Inputs is missing", "Output is missing", "Key is missing", "Parked is missing"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, without %q", err, want)
		}
	}
	_, err = NewTransactor(&TransactorOptions{
		Window: -1, Grace: time.Second, Interval: time.Minute, Sessions: -1, OnMissing: 9, OnLate: pipeline.Drop, DeliverLate: true, Reset: 9, Failure: pipeline.Failure{Attempts: 1000},
	})
	for _, want := range []string{"Window", "Grace", "TransactionTimeout", "Sessions", "OnMissing", "DeliverLate", "Reset", "Failure"} {
		if err == nil || !strings.Contains(err.Error(), "TransactorOptions."+want) {
			t.Errorf("the error is %v, without %s", err, want)
		}
	}
}
