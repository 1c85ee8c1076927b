package kafkaio

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/vfs"
)

// Transform makes the outputs of a fresh message, which may be none. A record
// without a topic goes to TransactorOptions.Output. It is called by one goroutine
// for each session, and the message is only valid during the call; its bytes,
// RecordKey, Body and values of headers, may be used in the outputs. What it
// does outside of its outputs may happen more than once.
//
// An error that [semel.Permanent] made gives the message up at once. The context
// ends when half of Shutdown has passed since that of Run did; what fails then is
// done again by the next run.
type Transform func(ctx context.Context, m pipeline.Delivery) ([]*kgo.Record, error)

// TransactorOptions are the options of NewTransactor. Client, Group, Inputs,
// Output and Key are required.
type TransactorOptions struct {
	// Name is the pipeline's name, for people and metrics. Defaults to Group.
	Name string
	// Client is how to reach the brokers: seed brokers, TLS, SASL. Several clients
	// are made with it. What a transaction rests on is set after it and cannot be
	// changed by it.
	Client []kgo.Opt
	// Compression is that of what is written. Defaults to none.
	Compression kgo.CompressionCodec
	// Group is the consumer group. Of all programs that run it each needs an
	// Instance of its own.
	Group string
	// Instance names this process among those of the group, always the same
	// after a restart: the broker then gives it its partitions back at once, and
	// ends what its predecessor left open. Defaults to Group and "-0".
	Instance string
	// TransactionalID is what the names of the transactional producers begin
	// with. Defaults to Instance.
	TransactionalID string
	// Inputs are the topics to read. A key is one topic's own: the same key in
	// two topics has an effect in each.
	Inputs []string
	// Repartition has the keys of all inputs meet before they are decided, for
	// inputs in which copies of a key may be in several partitions. A key is then
	// one of all inputs. Defaults to none.
	Repartition *Repartition
	// Output is the topic to write to.
	Output string
	// SamePartition writes to the partition with the number of the one that was
	// read. Otherwise the record key's hash chooses, as in Kafka's own client.
	SamePartition bool
	// Changelog is the topic that holds what is remembered of the keys; with
	// several Inputs each has one, whose name is this, a dash and the input's.
	// It is made if it is missing and the group has read nothing yet, and has as
	// many partitions as the input, or as the topic of Repartition. Keys of another
	// topic in it are refused: no two inputs can share one.
	// Defaults to Group and "-keys".
	Changelog string
	// Parked is the topic for messages that are put aside. It is made if it is
	// missing. Required if anything is parked.
	Parked string
	// Key says where a message has its id, and Scope what the id is unique
	// within.
	Key   *key.Rule
	Scope string
	// KeyHeaders adds headers to the outputs, also to those of Transform, that name
	// the key of the record they were made from. Defaults to false: a record is
	// passed on as it came, but for what says that it was put aside before.
	KeyHeaders bool
	// Window is how long a key is remembered after it was first seen. Duplicates
	// do not prolong it. Must be above 0; semel.Forever is allowed. Defaults to
	// 24 hours.
	Window time.Duration
	// EventTime counts by the times of the records, and what is new is the
	// greatest time that a partition had. Otherwise the clock counts. A record
	// from the future counts as of now.
	EventTime bool
	// Grace is how much older than the newest a record may be by event time
	// before it is late. Defaults to 0.
	Grace time.Duration
	// OnLate says what becomes of records that are late, of which no entry is
	// left. OnMissing says what becomes of those without a key. They default to
	// pipeline.Park and pipeline.MissingPark.
	OnLate    pipeline.Then
	OnMissing pipeline.Missing
	// DeliverLate delivers records that are late, in place of OnLate. They are
	// remembered from their own time on: a copy of one that is behind the newest by
	// more than Window and Grace is delivered again. Defaults to false.
	DeliverLate bool
	// Transform makes the outputs. Defaults to passing records on.
	Transform Transform
	// Failure says what becomes of messages whose Transform failed, or whose output
	// is larger than its topic takes or has a topic that does not exist or may not
	// be written. Its pauses pass inside the transaction, so
	// they are short: Attempts defaults to 3, From and To to 10 ms and 100 ms.
	// What is to be parked where there is no Parked, or is larger than that takes,
	// stops the Transactor: nothing is lost.
	Failure pipeline.Failure
	// Interval, MaxRecords and MaxBytes end a transaction: what comes first.
	// Beside a Transform it ends after the record that passes Interval, or the few
	// that were read with it. They default to 100 ms, 100,000 and 64 MiB.
	Interval   time.Duration
	MaxRecords int
	MaxBytes   int64
	// TransactionTimeout is when the broker aborts a transaction of which it
	// hears nothing. Readers of the output wait that long for a process that
	// never comes back. Defaults to 10 s. Must be longer than twice Interval.
	TransactionTimeout time.Duration
	// SessionTimeout is when the group gives the partitions of a silent member
	// to others. Defaults to 10 s.
	SessionTimeout time.Duration
	// Sessions is how many members of the group run in this process, each with
	// a share of the partitions and a transaction of its own, so that some work
	// while others commit. Defaults to 2.
	Sessions int
	// Redo delivers a record again that is read again because the group's
	// offsets were set back. Otherwise it is a duplicate: its output was
	// committed together with what is remembered of its key. Defaults to false.
	Redo bool
	// Reset says where to read partitions of which nothing is committed. Defaults
	// to ResetStart.
	Reset Reset
	// StateDir is a directory for a copy of the state, which is brought up to
	// date after a restart instead of read anew. One process uses it. Defaults to
	// none.
	StateDir string
	// Standby keeps the keys of all partitions in this process, also of those that
	// others of the group work on, and follows what they commit. A partition that
	// comes to this process is at work when the end of the changelog is read, and
	// not the whole of it. It costs the memory, and with StateDir the disk, that
	// this process would need for all partitions. Defaults to false.
	Standby bool
	// SkipSample leaves out the look at a sample of the inputs by which copies
	// of one id in several partitions are found. Defaults to false.
	SkipSample bool
	// Shutdown is how long the end may take. Defaults to 25 s.
	Shutdown time.Duration
	// Observer is told what the pipeline does, in counts. Defaults to none.
	Observer pipeline.Observer

	files vfs.FS           // of the tests
	clock func() time.Time // of the tests
	hold  chan struct{}    // of the tests: sessions begin when it is closed
}

func (o *TransactorOptions) defaults() {
	set(&o.Name, o.Group)
	set(&o.Instance, o.Group+"-0")
	set(&o.TransactionalID, o.Instance)
	set(&o.Changelog, o.Group+"-keys")
	set(&o.Window, 24*time.Hour)
	set(&o.Failure.Attempts, 3)
	set(&o.Failure.From, 10*time.Millisecond)
	set(&o.Failure.To, max(100*time.Millisecond, o.Failure.From))
	set(&o.Interval, 100*time.Millisecond)
	set(&o.MaxRecords, 100_000)
	set(&o.MaxBytes, 64<<20)
	set(&o.TransactionTimeout, 10*time.Second)
	set(&o.SessionTimeout, 10*time.Second)
	set(&o.Sessions, 2)
	set(&o.Shutdown, 25*time.Second)
	if o.Repartition != nil {
		o.Repartition = o.Repartition.withDefaults(o.Group)
	}
	if o.files == nil {
		o.files = vfs.OS{}
	}
}

// set gives a field its default.
func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *TransactorOptions) validate() error {
	wrong := invalid.In("kafkaio: TransactorOptions.")
	for name, missing := range map[string]bool{
		"Client": len(o.Client) == 0, "Group": o.Group == "", "Inputs": len(o.Inputs) == 0, "Output": o.Output == "", "Key": o.Key == nil,
	} {
		if missing {
			wrong.Add("%s is missing", name)
		}
	}
	for name, n := range map[string]int64{
		"Window": int64(o.Window), "Interval": int64(o.Interval), "MaxRecords": int64(o.MaxRecords), "MaxBytes": o.MaxBytes,
		"SessionTimeout": int64(o.SessionTimeout), "Sessions": int64(o.Sessions), "Shutdown": int64(o.Shutdown),
		"Failure.Attempts": int64(o.Failure.Attempts), "Failure.From": int64(o.Failure.From),
	} {
		if n < 1 {
			wrong.Add("%s: %d is below 1", name, n)
		}
	}
	if o.Grace < 0 || o.Grace > 0 && !o.EventTime {
		wrong.Add("Grace: %v needs EventTime and cannot be negative", o.Grace)
	}
	if o.TransactionTimeout <= 2*o.Interval {
		wrong.Add("TransactionTimeout: %v is not longer than twice the Interval of %v", o.TransactionTimeout, o.Interval)
	}
	if o.Failure.To < o.Failure.From || time.Duration(o.Failure.Attempts)*o.Failure.To > o.TransactionTimeout/4 {
		wrong.Add("Failure: %d pauses of up to %v do not fit into a quarter of the TransactionTimeout of %v", o.Failure.Attempts, o.Failure.To, o.TransactionTimeout)
	}
	if o.OnLate > pipeline.Stop || o.Failure.Then > pipeline.Stop {
		wrong.Add("OnLate, Failure.Then: %d and %d are not both of Park, Drop and Stop", o.OnLate, o.Failure.Then)
	}
	if o.DeliverLate && o.OnLate != pipeline.Park {
		wrong.Add("DeliverLate: it contradicts OnLate: %s", o.OnLate)
	}
	if o.OnMissing > pipeline.MissingHash {
		wrong.Add("OnMissing: %d is no such policy", o.OnMissing)
	}
	if o.Reset > ResetFail {
		wrong.Add("Reset: %d is no such policy", o.Reset)
	}
	if o.Parked == "" && (o.OnMissing == pipeline.MissingPark || o.EventTime && o.OnLate == pipeline.Park && !o.DeliverLate || o.Transform != nil && o.Failure.Then == pipeline.Park) {
		wrong.Add("Parked is missing, and messages are to be parked")
	}
	if o.Repartition != nil {
		o.Repartition.validate(o, wrong)
	}
	if slices.Contains(o.Inputs, o.Output) || slices.Contains(o.Inputs, o.Parked) || o.Output == o.Parked {
		wrong.Add("Inputs, Output, Parked: one topic cannot be two of them")
	}
	for _, topic := range o.reads() {
		if name := o.changelogOf(topic); slices.Contains(append([]string{o.Output, o.Parked}, o.Inputs...), name) {
			wrong.Add("Changelog: %s is another topic of the pipeline; it needs one of its own", name)
		}
	}
	return wrong.Err()
}

// changelogOf returns the changelog topic of a topic that is decided.
func (o *TransactorOptions) changelogOf(topic string) string {
	if len(o.reads()) == 1 {
		return o.Changelog
	}
	return o.Changelog + "-" + topic
}

// written returns the topics that are written.
func (o *TransactorOptions) written() []string {
	list := []string{o.Output}
	if o.Parked != "" {
		list = append(list, o.Parked)
	}
	for _, topic := range o.reads() {
		list = append(list, o.changelogOf(topic))
	}
	if o.Repartition != nil {
		list = append(list, o.Repartition.Topic)
	}
	return list
}
