package tables

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// running is a Reader of the topic rows with two partitions, at a broker in a bubble.
type running struct {
	*kafkatest.Rig
	adm   *kadm.Client
	table *stream.Table
	told  []string // what keeps the Reader from reading
	ended chan error
}

// inBubble calls fn with a Reader that does not run yet.
func inBubble(t *testing.T, table *stream.Table, fn func(b *running, r *Reader)) {
	t.Helper()
	rule, err := key.ParseRule(".customer")
	kafkatest.Must(t, err)
	synctest.Test(t, func(t *testing.T) {
		kafkatest.Virtual(t, 2, func(rig *kafkatest.Rig) {
			b := &running{Rig: rig, adm: kadm.NewClient(rig.Client), table: table, ended: make(chan error, 1)}
			_, err := b.adm.CreateTopic(b.Context(), 2, 1, map[string]*string{"cleanup.policy": kadm.StringPtr("compact")}, "rows")
			kafkatest.Must(b.T, err)
			table.Name, table.Topic, table.By = "customers", "rows", rule
			b.start(fn)
		})
	})
}

func (b *running) start(fn func(b *running, r *Reader)) {
	b.Helper()
	topics, err := b.adm.ListTopics(b.Context(), "rows")
	kafkatest.Must(b.T, err)
	r, err := New(Options{
		Tables: []*stream.Table{b.table}, Topics: topics, Admin: b.adm,
		Client:  func(more ...kgo.Opt) []kgo.Opt { return append(b.Reach(), more...) },
		Now:     func() int64 { return time.Now().UnixMilli() },
		Observe: func(reason string, err error) { b.told = append(b.told, fmt.Sprintf("%s: %v", reason, err)) },
	})
	kafkatest.Must(b.T, err)
	fn(b, r)
}

// run runs a Reader until the end of fn, and returns the error of Run.
func (b *running) run(r *Reader, fn func()) error {
	ctx, cancel := context.WithCancel(b.Context())
	go func() { b.ended <- r.Run(ctx) }()
	fn()
	cancel()
	return <-b.ended
}

func (b *running) row(partition int32, key, value string, at time.Time) *kgo.Record {
	r := &kgo.Record{Topic: "rows", Partition: partition, Key: []byte(key), Timestamp: at}
	if value != "" {
		r.Value = []byte(value)
	}
	return r
}

// toEnd reads the rows for messages of partitions.
func (b *running) toEnd(r *Reader, numbers ...int32) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	kafkatest.Must(b.T, r.ReadToEnd(ctx, numbers, func(string) {}))
}

// find returns the row of a customer for a message of a partition.
func (b *running) find(r *Reader, partition int32, customer string, at time.Time) (string, error) {
	row, err := r.rowsOf(r.logs["rows"], b.table.History)([]byte(customer), &semel.Message{Time: at, Origin: semel.Origin{Source: "in", Partition: partition}})
	return string(row), err
}

func TestRowsOfAllPartitionsAreFound(t *testing.T) {
	t.Parallel()
	inBubble(t, &stream.Table{}, func(b *running, r *Reader) {
		now := time.Now()
		b.Write(b.row(0, "ann", "Ann", now), b.row(1, "bob", "Bob", now), b.row(0, "eve", "Eve", now), b.row(0, "eve", "", now))
		if err := b.run(r, func() {
			b.toEnd(r, 0)
			for customer, want := range map[string]string{"ann": "Ann", "bob": "Bob", "eve": "", "none": ""} {
				if got, err := b.find(r, 0, customer, now); got != want || err != nil {
					b.Errorf("%s: %q, %v; want %q", customer, got, err, want)
				}
			}
			b.Write(b.row(1, "bob", "Robert", now))
			b.toEnd(r, 0)
			if got, err := b.find(r, 1, "bob", now); got != "Robert" || err != nil {
				b.Errorf("the new row is %q, %v", got, err)
			}
			if sizes := r.Sizes(b.Context()); len(sizes) != 1 || sizes[0] != (Size{Table: b.table.Title(), Rows: 2}) {
				b.Errorf("sizes %+v", sizes)
			}
		}); err != nil || len(b.told) > 0 {
			b.Errorf("it ended with %v, and told %q", err, b.told)
		}
	})
}

// TestRowsOfAnotherPartitionAreNotGuessed has a table whose rows are in the partitions of
// the messages.
func TestRowsOfAnotherPartitionAreNotGuessed(t *testing.T) {
	t.Parallel()
	inBubble(t, &stream.Table{Local: true}, func(b *running, r *Reader) {
		now := time.Now()
		b.Write(b.row(0, "ann", "Ann", now), b.row(1, "bob", "Bob", now))
		if err := b.run(r, func() {
			b.toEnd(r, 0)
			if got, err := b.find(r, 0, "ann", now); got != "Ann" || err != nil {
				b.Errorf("%q, %v", got, err)
			}
			b.toEnd(r, 0, 1)
			if got, err := b.find(r, 0, "bob", now); !errors.Is(err, ErrElsewhere) || !strings.HasPrefix(err.Error(), `the row "bob" is in partition 1 of rows, and the message in partition 0 of in: `) {
				b.Errorf("%q, %v", got, err)
			}
			if got, err := b.find(r, 0, "none", now); got != "" || err != nil {
				b.Errorf("a row that is nowhere: %q, %v", got, err)
			}
		}); err != nil {
			b.Error(err)
		}
	})
}

func TestAMessageGetsTheRowOfItsTime(t *testing.T) {
	t.Parallel()
	inBubble(t, &stream.Table{History: time.Hour}, func(b *running, r *Reader) {
		now := time.Now()
		b.Write(b.row(0, "ann", "old", now.Add(-50*time.Minute)), b.row(0, "ann", "new", now.Add(-10*time.Minute)))
		if err := b.run(r, func() {
			b.toEnd(r, 0)
			for ago, want := range map[time.Duration]string{0: "new", 10 * time.Minute: "new", 20 * time.Minute: "old", 55 * time.Minute: ""} {
				if got, err := b.find(r, 0, "ann", now.Add(-ago)); got != want || err != nil {
					b.Errorf("%v ago: %q, %v; want %q", ago, got, err, want)
				}
			}
			if got, err := b.find(r, 0, "ann", now.Add(-2*time.Hour)); !errors.Is(err, semel.ErrLate) || !strings.Contains(err.Error(), "former rows are kept for 1h0m0s (history)") {
				b.Errorf("before the history: %q, %v", got, err)
			}
			if got, err := b.find(r, 0, "ann", time.Time{}); !errors.As(err, new(*semel.PermanentError)) {
				b.Errorf("without a time: %q, %v", got, err)
			}
		}); err != nil {
			b.Error(err)
		}
	})
}

// TestRowsOfAnOpenTransactionAreWaitedFor ends the transaction of a writer while a Reader
// reads to the end.
func TestRowsOfAnOpenTransactionAreWaitedFor(t *testing.T) {
	t.Parallel()
	inBubble(t, &stream.Table{}, func(b *running, r *Reader) {
		now := time.Now()
		writer, err := kgo.NewClient(append(b.Reach(), kgo.TransactionalID("rows"), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		kafkatest.Must(b.T, err)
		defer writer.Close()
		kafkatest.Must(b.T, writer.BeginTransaction())
		kafkatest.Must(b.T, writer.ProduceSync(b.Context(), b.row(0, "ann", "Ann", now)).FirstErr())
		if err := b.run(r, func() {
			patient, cancel := context.WithTimeout(b.Context(), time.Second)
			defer cancel()
			var told []string
			err := r.ReadToEnd(patient, nil, func(text string) { told = append(told, text) })
			if !errors.Is(err, context.DeadlineExceeded) || !strings.HasPrefix(err.Error(), "kafka: table topic rows: partition 0 is read up to offset 0 of 1: ") {
				b.Errorf("while it is open: %v", err)
			}
			if len(told) != 1 || told[0] != "the rows of table topic rows, of which partition 0 is read up to offset 0 of 1" {
				b.Errorf("told %q", told)
			}
			kafkatest.Must(b.T, writer.EndTransaction(b.Context(), kgo.TryCommit))
			b.toEnd(r, 0)
			if got, err := b.find(r, 0, "ann", now); got != "Ann" || err != nil {
				b.Errorf("%q, %v", got, err)
			}
		}); err != nil {
			b.Error(err)
		}
	})
}

// TestNewPartitionsAreRead adds a partition to the topic of a table.
func TestNewPartitionsAreRead(t *testing.T) {
	t.Parallel()
	for local, want := range map[bool]string{false: "", true: "kafka: table topic rows had 2 partitions and has 3: rows and messages are no longer in the same partitions"} {
		inBubble(t, &stream.Table{Local: local}, func(b *running, r *Reader) {
			now := time.Now()
			err := b.run(r, func() {
				b.toEnd(r, 0)
				_, err := b.adm.CreatePartitions(b.Context(), 1, "rows")
				kafkatest.Must(b.T, err)
				time.Sleep(3 * lookEvery) // in a bubble
				if !local {
					b.Write(b.row(2, "eve", "Eve", now))
					b.toEnd(r, 0)
					if got, err := b.find(r, 0, "eve", now); got != "Eve" || err != nil {
						b.Errorf("%q, %v", got, err)
					}
				}
			})
			if want == "" && err != nil || want != "" && (!errors.Is(err, semel.ErrInvalidRequest) || !strings.HasPrefix(err.Error(), want)) {
				b.Errorf("it ended with %v, want %q", err, want)
			}
		})
	}
}

// TestLostRowsEndTheReader deletes the topic, and records of it.
func TestLostRowsEndTheReader(t *testing.T) {
	t.Parallel()
	for want, loses := range map[string]func(b *running) error{
		"kafka: table topic rows was deleted while its rows were in use": func(b *running) error {
			_, err := b.adm.DeleteTopics(b.Context(), "rows")
			return err
		},
		"kafka: table topic rows has lost the records of partition 0 before offset 2 while its rows were in use": func(b *running) error {
			upTo := kadm.Offsets{}
			upTo.AddOffset("rows", 0, 2, -1)
			_, err := b.adm.DeleteRecords(b.Context(), upTo)
			return err
		},
	} {
		inBubble(t, &stream.Table{}, func(b *running, r *Reader) {
			now := time.Now()
			b.Write(b.row(0, "ann", "Ann", now), b.row(0, "bob", "Bob", now), b.row(0, "eve", "Eve", now))
			err := b.run(r, func() {
				b.toEnd(r, 0)
				kafkatest.Must(b.T, loses(b))
				time.Sleep(5 * lookEvery) // in a bubble
			})
			if !errors.Is(err, semel.ErrCorrupt) || !strings.HasPrefix(err.Error(), want) {
				b.Errorf("it ended with %v, want %q", err, want)
			}
		})
	}
}

// TestErrorsOfFetchesAreFinalOrRetried has the errors of a partition.
func TestErrorsOfFetchesAreFinalOrRetried(t *testing.T) {
	t.Parallel()
	for cause, want := range map[error]string{
		context.DeadlineExceeded:      "",
		kerr.NotLeaderForPartition:    "kafka: table topic rows/1: ",
		kerr.OffsetOutOfRange:         "final kafka: table topic rows/1: records were deleted before they were read, or the topic was created again: start the pipeline again, which reads all rows",
		kerr.TopicAuthorizationFailed: "final kafka: table topic rows: allow Read on it",
	} {
		fetches := kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "rows", Partitions: []kgo.FetchPartition{{Partition: 1, Err: cause}}}}}}
		err := (&Reader{}).failure(fetches)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if err != nil && (errors.Is(err, semel.ErrCorrupt) || errors.Is(err, semel.ErrInvalidRequest)) {
			got = "final " + got
		}
		if (want == "") != (err == nil) || !strings.HasPrefix(got, want) {
			t.Errorf("%v: %q, want %q", cause, got, want)
		}
	}
}
