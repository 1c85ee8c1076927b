package kafkatxn

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/operator"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/vfs"
)

// Transform returns the output records of a fresh message, or none. A record without a
// topic goes to TransactorOptions.Output. One goroutine of each session calls it. The
// message is only valid during the call, but its bytes (RecordKey, Body and header
// values) may be used in the output records. Side effects outside of the output records
// can happen more than once.
//
// An error from [semel.Permanent] is not retried. The context ends when half of
// Timeouts.Shutdown has passed since the context of Run ended. The next run repeats what
// fails then.
type Transform func(ctx context.Context, m pipeline.Delivery) ([]*kgo.Record, error)

// TransactorOptions are the options of NewTransactor. Client, Group, Inputs,
// Output and Key are required.
type TransactorOptions struct {
	// Name is the pipeline's name, for people and metrics. Defaults to Group.
	Name string
	// Client configures how to reach the brokers: seed brokers, TLS, SASL. The
	// Transactor creates several clients with it. It cannot change the settings that
	// transactions need, and Run refuses a pool for decompressed bytes.
	Client []kgo.Opt
	// Group is the consumer group.
	Group string
	// Member names the members of the group that run in this process.
	Member Member
	// Inputs are the topics to read. A key belongs to one topic: the same key in two
	// topics has an effect in each.
	Inputs []string
	// Repartition adds a stage that brings all records of a key to one partition before
	// they are decided. It is for inputs that may have records of a key in several
	// partitions. All inputs then share their keys. Defaults to none.
	Repartition *Repartition
	// Output is the topic to write to, and how its records are written.
	Output Output
	// State is where the keys are.
	State StateOptions
	// Parked is the dead-letter topic. It is created if it is missing. Required if any
	// policy parks messages.
	Parked string
	// Unwrap returns the message inside a message: see pipeline.Options. Key, times, FilterMap,
	// Tables, Transform, Aggregate and output have that message. Defaults to nil.
	Unwrap pipeline.Unwrapper
	// Key says how the id of a message is found.
	Key KeyOptions
	// Window is how long a key is remembered after its first record. Duplicates do not
	// prolong it. Must be above 0; semel.Forever is allowed. Defaults to 24 hours.
	Window time.Duration
	// EventTime makes windows count by the times of records instead of the clock.
	// Defaults to nil: the clock counts.
	EventTime *EventTime
	// FilterMap filters and changes the records that are fresh, before Transform. A record
	// that it filters out is remembered. A record for which it takes longer than
	// Timeouts.Transaction fails, and its context then ends. Defaults to none.
	FilterMap pipeline.FilterMap
	// Transform makes the output records. Defaults to passing records on.
	Transform Transform
	// Aggregate writes the results of windows instead of records. Records with one group
	// key must be in one partition; a Repartition brings them there. The open windows are in a topic of their own, named
	// Group and "-state" (with several Inputs also a dash and the input), which is
	// created as the changelog is. Failure and Parked apply to records that cannot be added.
	// Defaults to none.
	Aggregate *stream.Aggregate
	// Keep says which record of a key takes effect, instead of the first one. Records that
	// are held, and versions, are in the topic named Group and "-state", too. It cannot be
	// combined with Aggregate. Failure and Parked apply to records that cannot be held.
	// Defaults to none.
	Keep *stream.Keep
	// Tables are topics whose rows FilterMap and Transform use, by Table.Row. No record is
	// decided before all rows are read that were there when the group assigned its
	// partition. A *stream.RowError from FilterMap or Transform is treated by the policy of
	// the table. Rows are in memory. Defaults to none.
	Tables []*stream.Table
	// Failure is the policy for messages whose FilterMap or Transform failed. It also
	// applies if an output is too large for its topic, or its topic does not exist or may
	// not be written. Its pauses pass inside the transaction, so they are short: Attempts defaults
	// to 3, From and To to 10 ms and 100 ms. A message that cannot be parked, because there
	// is no Parked or it is too large for it, stops the Transactor: nothing is lost.
	Failure pipeline.Failure
	// Limits end a transaction, whichever is reached first.
	Limits Limits
	// Timeouts are those of transactions, group sessions and the shutdown.
	Timeouts Timeouts
	// Reset is where to start in partitions without a committed offset. Defaults to
	// kafka.ResetStart.
	Reset kafka.Reset
	// Observer receives events about the pipeline, with counts. Defaults to none.
	Observer pipeline.Observer

	hooks // of the tests
}

// hooks are set by tests.
type hooks struct {
	files      vfs.FS
	clock      func() time.Time
	hold       chan struct{} // sessions start when it is closed
	skipSample bool          // the inputs are not sampled
	results    int           // how many results one transaction writes
	slack      int64         // how long a changelog of a state is not rewritten; 0 is the default
	fileSize   int64         // how large a file of its copy becomes; 0 is the default
	spill      int64         // how many keys leave memory together, with copies of that size; 0 is the default
}

// KeyOptions say how the id of a message is found.
type KeyOptions struct {
	// Rule finds the id. The id is unique within Scope.
	Rule  *key.Rule
	Scope string
	// SameScope says that the scope has keys that another rule found, and that both
	// rules find the same ids. Without it, Run returns a *semel.ScopeError for such a
	// changelog. Changes of the rule are noticed by a checksum of 16 bits.
	SameScope bool
	// OnMissing is the policy for records without a key. Defaults to
	// pipeline.MissingPark.
	OnMissing pipeline.Missing
}

// Member says how the members that run in this process are named in their group, and how many
// there are.
type Member struct {
	// Instance is unique among the processes of the group, and stays the same after a
	// restart. The broker then returns the partitions immediately, and ends the
	// transactions that the previous process left open. Defaults to Group and "-0".
	Instance string
	// TransactionalID is the prefix of the names of the transactional producers.
	// Defaults to Instance.
	TransactionalID string
	// Sessions is how many members of the group run in this process. Each has a share of
	// the partitions and a transaction of its own, so some work while others commit.
	// Defaults to 2.
	Sessions int
}

// Output is where and how output records are written.
type Output struct {
	Topic string
	// Compression is the codec of all records that are written. Defaults to none.
	Compression kgo.CompressionCodec
	// SamePartition writes to the partition with the number of the partition that was
	// read. Otherwise the hash of the record key chooses, as in Kafka's own client.
	// Defaults to false.
	SamePartition bool
	// KeyHeaders adds headers that name the key, also to the records that Transform
	// returns. Defaults to false: a record is passed on unchanged, except for headers
	// that say why it was parked before.
	KeyHeaders bool
}

// EventTime makes windows count by the times of records. The present is the greatest
// time that a partition had. A record from the future counts as of now.
type EventTime struct {
	// Grace is how much older than the newest record a record may be before it is late.
	// Defaults to 0.
	Grace time.Duration
	// OnLate is the policy for late records whose keys are no longer remembered.
	// Defaults to pipeline.Park.
	OnLate pipeline.Then
	// DeliverLate delivers such records, instead of OnLate. They are remembered from
	// their own time on: a copy that is older than the newest record by more than Window
	// and Grace is delivered again. Defaults to false.
	DeliverLate bool
}

// Limits are the limits of one transaction. With a FilterMap or a Transform, a transaction
// ends after the record that passes Interval, or some that were read with it.
type Limits struct {
	// Interval is how long a transaction is open. Defaults to 100 ms.
	Interval time.Duration
	// Records is how many records it takes. Defaults to 100,000.
	Records int
	// Bytes is how many bytes of keys and values it takes. Defaults to 64 MiB.
	Bytes int64
}

// Timeouts are the timeouts of a Transactor.
type Timeouts struct {
	// Transaction is when the broker aborts a transaction of a silent producer. Readers
	// of the output wait that long for a process that never returns. Must be longer than
	// twice Limits.Interval. Defaults to 10 s.
	Transaction time.Duration
	// Session is when the group gives the partitions of a silent member to others.
	// Defaults to 10 s.
	Session time.Duration
	// Shutdown is how long Run may take after its context ended. Defaults to 25 s.
	Shutdown time.Duration
}

// StateOptions say where the keys are: in a changelog, with copies on disk.
type StateOptions struct {
	// Changelog is the topic that holds the keys. With several Inputs, each input has a
	// changelog of its own, named Changelog, a dash and the input. A missing changelog is
	// created if the group has read nothing yet. It has as many partitions as the input,
	// or as the topic of Repartition. A changelog with keys of another topic is refused,
	// so two inputs cannot share one. Defaults to Group and "-keys".
	Changelog string
	// Dir is a directory for a copy of the state. A restart reads only what the copy
	// lacks. One process uses it. Defaults to none.
	Dir string
	// Standby keeps the keys of all partitions in this process, including those that
	// other members work on, and follows what they commit. A partition that comes to
	// this process starts after the end of the changelog is read, instead of all of it.
	// It costs the memory, and with Dir the disk, of all partitions. Defaults to false.
	Standby bool
}

func (o *TransactorOptions) defaults() {
	set(&o.Name, o.Group)
	set(&o.Member.Instance, o.Group+"-0")
	set(&o.Member.TransactionalID, o.Member.Instance)
	set(&o.State.Changelog, o.Group+"-keys")
	set(&o.Window, 24*time.Hour)
	set(&o.Failure.Attempts, 3)
	set(&o.Failure.From, 10*time.Millisecond)
	set(&o.Failure.To, max(100*time.Millisecond, o.Failure.From))
	set(&o.Limits.Interval, 100*time.Millisecond)
	set(&o.Limits.Records, 100_000)
	set(&o.Limits.Bytes, 64<<20)
	set(&o.Timeouts.Transaction, 10*time.Second)
	set(&o.Timeouts.Session, 10*time.Second)
	set(&o.Member.Sessions, 2)
	set(&o.Timeouts.Shutdown, 25*time.Second)
	o.Repartition = withDefaults(o.Repartition, func(r *Repartition) *Repartition { return r.withDefaults(o.Group) })
	o.Aggregate = withDefaults(o.Aggregate, (*stream.Aggregate).WithDefaults)
	o.Keep = withDefaults(o.Keep, (*stream.Keep).WithDefaults)
	set(&o.results, mostResults)
	if o.files == nil {
		o.files = vfs.OS{}
	}
}

// withDefaults returns a copy of options with their defaults, or nil without them.
func withDefaults[T any](options *T, defaults func(*T) *T) *T {
	if options == nil {
		return nil
	}
	return defaults(options)
}

// set gives a field its default.
func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *TransactorOptions) validate() error {
	wrong := invalid.In("kafka: TransactorOptions.")
	for name, missing := range map[string]bool{
		"Client": len(o.Client) == 0, "Group": o.Group == "", "Inputs": len(o.Inputs) == 0, "Output.Topic": o.Output.Topic == "", "Key.Rule": o.Key.Rule == nil,
	} {
		if missing {
			wrong.Add("%s is missing", name)
		}
	}
	for name, n := range map[string]int64{
		"Window": int64(o.Window), "Limits.Interval": int64(o.Limits.Interval), "Limits.Records": int64(o.Limits.Records), "Limits.Bytes": o.Limits.Bytes,
		"Timeouts.Session": int64(o.Timeouts.Session), "Timeouts.Shutdown": int64(o.Timeouts.Shutdown), "Member.Sessions": int64(o.Member.Sessions),
		"Failure.Attempts": int64(o.Failure.Attempts), "Failure.From": int64(o.Failure.From),
	} {
		if n < 1 {
			wrong.Add("%s: %d is below 1", name, n)
		}
	}
	if o.Timeouts.Transaction <= 2*o.Limits.Interval {
		wrong.Add("Timeouts.Transaction: %v is not longer than twice the Limits.Interval of %v", o.Timeouts.Transaction, o.Limits.Interval)
	}
	if o.Failure.To < o.Failure.From || time.Duration(o.Failure.Attempts)*o.Failure.To > o.Timeouts.Transaction/4 {
		wrong.Add("Failure: %d pauses of up to %v do not fit into a quarter of the Timeouts.Transaction of %v", o.Failure.Attempts, o.Failure.To, o.Timeouts.Transaction)
	}
	if o.Failure.Then > pipeline.Stop {
		wrong.Add("Failure.Then: %d is not Park, Drop or Stop", o.Failure.Then)
	}
	if e := o.EventTime; e != nil {
		if e.Grace < 0 {
			wrong.Add("EventTime.Grace: %v is negative", e.Grace)
		}
		if e.OnLate > pipeline.Stop {
			wrong.Add("EventTime.OnLate: %d is not Park, Drop or Stop", e.OnLate)
		}
		if e.DeliverLate && e.OnLate != pipeline.Park {
			wrong.Add("EventTime.DeliverLate: it contradicts OnLate: %s", e.OnLate)
		}
	}
	if o.Key.OnMissing > pipeline.MissingHash {
		wrong.Add("Key.OnMissing: %d is no such policy", o.Key.OnMissing)
	}
	if o.Reset > kafka.ResetFail {
		wrong.Add("Reset: %d is no such policy", o.Reset)
	}
	unreadable := o.Unwrap != nil && o.Key.OnMissing != pipeline.MissingDrop && o.Key.OnMissing != pipeline.MissingStop
	if o.Parked == "" && (unreadable || o.Key.OnMissing == pipeline.MissingPark || o.EventTime != nil && o.EventTime.OnLate == pipeline.Park && !o.EventTime.DeliverLate || (o.Transform != nil || o.FilterMap != nil) && o.Failure.Then == pipeline.Park || o.hasState() || o.parksWithoutRow()) {
		wrong.Add("Parked is missing, and a policy parks messages")
	}
	if o.Repartition != nil {
		if name := o.Repartition.Topic; slices.Contains(append([]string{o.Output.Topic, o.Parked, o.State.Changelog}, o.Inputs...), name) {
			wrong.Add("Repartition.Topic: %s is another topic of the pipeline; it needs one of its own", name)
		}
	}
	if o.Aggregate != nil {
		o.validateAggregate(wrong)
	}
	if o.Keep != nil {
		o.validateKeep(wrong)
	}
	o.validateTables(wrong)
	if slices.Contains(o.Inputs, o.Output.Topic) || slices.Contains(o.Inputs, o.Parked) || o.Output.Topic == o.Parked {
		wrong.Add("Inputs, Output.Topic, Parked: one topic cannot be two of them")
	}
	for _, topic := range o.decided() {
		others := append([]string{o.Output.Topic, o.Parked}, o.Inputs...)
		for i, name := range o.changelogNames(topic) {
			if field := [...]string{"State.Changelog", "Group"}[i]; slices.Contains(others, name) {
				wrong.Add("%s: %s is another topic of the pipeline; it needs one of its own", field, name)
			}
			others = append(others, name)
		}
	}
	return wrong.Err()
}

// chain returns the operators and the options that they need.
func (o *TransactorOptions) chain() *operator.Plan {
	c := &operator.Options{
		Name: o.Name, Group: o.Group, Rule: o.Key.Rule, Scope: o.Key.Scope, OnMissing: o.Key.OnMissing, Unwrap: o.Unwrap, Window: o.Window,
		Keep: o.Keep, Tables: o.Tables, FilterMap: o.FilterMap, Aggregate: o.Aggregate, Transform: o.Transform,
		Output: o.Output.Topic, SamePartition: o.Output.SamePartition, KeyHeaders: o.Output.KeyHeaders,
		Parked: o.Parked, Failure: o.Failure, Most: o.Timeouts.Transaction,
	}
	if e := o.EventTime; e != nil {
		c.Times, c.Late, c.DeliverLate = operator.Times{On: true, Keys: true, Grace: e.Grace}, e.OnLate, e.DeliverLate
	}
	if o.Repartition != nil {
		c.Inputs = o.Inputs
	}
	return operator.NewPlan(c)
}

// decided returns the topics whose records sessions decide.
func (o *TransactorOptions) decided() []string {
	if o.Repartition != nil {
		return []string{o.Repartition.Topic}
	}
	return o.Inputs
}

// changelogNames returns the names of the changelogs of a topic that is decided: that of its keys,
// and that of the state of an operator if there is one.
func (o *TransactorOptions) changelogNames(topic string) []string {
	of := ""
	if len(o.decided()) > 1 {
		of = "-" + topic
	}
	names := []string{o.State.Changelog + of}
	if o.hasState() {
		names = append(names, o.Group+"-state"+of)
	}
	return names
}

// hasState reports whether an operator has a state.
func (o *TransactorOptions) hasState() bool { return o.chain().HasState() }

func (o *TransactorOptions) validateAggregate(wrong *invalid.List) {
	wrong.Join(o.Aggregate.Validate())
	switch {
	case o.Repartition != nil && len(o.Tables) > 0:
		wrong.Add("Aggregate: with Repartition, a message is sent to the partition of its group key before it is joined with a row of Tables. Join messages with one pipeline, and aggregate its output with another")
	case o.Transform != nil:
		wrong.Add("Aggregate: it replaces the Transform. Transform messages with a pipeline before it")
	case o.Output.KeyHeaders:
		wrong.Add("Aggregate: a result has no key of a message, so Output.KeyHeaders cannot name it")
	}
}

func (o *TransactorOptions) validateKeep(wrong *invalid.List) {
	wrong.Join(o.Keep.Validate())
	if o.Aggregate != nil {
		wrong.Add("Keep: it cannot be combined with Aggregate: keep messages with one pipeline, and aggregate its output with another")
	}
	if o.Keep.First != nil && o.EventTime != nil {
		wrong.Add("EventTime: Keep.First has the times by which keys are remembered, and a Grace and a policy of its own: leave it out")
	}
	if o.Keep.Holds() && o.Transform != nil {
		wrong.Add("Keep: messages that are held have no Transform. Transform them with a pipeline behind it")
	}
}

func (o *TransactorOptions) validateTables(wrong *invalid.List) {
	if len(o.Tables) > 0 && o.FilterMap == nil && o.Transform == nil {
		wrong.Add("Tables: there is no FilterMap or Transform that uses them")
	}
	for i, t := range o.Tables {
		if t == nil {
			wrong.Add("Tables: number %d is nil", i)
			continue
		}
		wrong.Join(t.Validate())
		for _, other := range o.Tables[:i] {
			switch {
			case other == nil:
			case other.Title() == t.Title():
				wrong.Add("Tables: two have the name %s", t.Title())
			case other.Topic == t.Topic && (other.Local != t.Local || other.History != t.History):
				wrong.Add("Tables: %s and %s have one topic, so Local and History must be the same", other.Title(), t.Title())
			}
		}
		if t.Topic != "" && slices.Contains(append([]string{o.Output.Topic, o.Parked}, o.Inputs...), t.Topic) {
			wrong.Add("Tables: %s is another topic of the pipeline", t.Topic)
		}
		if t.Local && o.Repartition != nil {
			wrong.Add("Tables: %s cannot be Local with Repartition, which moves messages to other partitions", t.Title())
		}
	}
}

// parksWithoutRow reports whether a table parks messages.
func (o *TransactorOptions) parksWithoutRow() bool {
	return slices.ContainsFunc(o.Tables, func(t *stream.Table) bool {
		return t != nil && (t.History > 0 || t.Missing == stream.MissingPark || t.Missing == stream.MissingWait)
	})
}

// linger is how long outputs wait for a full batch, since each batch costs the brokers
// an append and a fetch by each replica. It is well below an interval, so that early
// outputs are not written together with the changelog at the end. The broker adds one
// partition at a time to a transaction, and the second would be retried after a pause.
func (l Limits) linger() time.Duration {
	return min(l.Interval/3, 100*time.Millisecond)
}
