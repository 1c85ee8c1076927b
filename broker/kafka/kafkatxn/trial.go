package kafkatxn

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/operator"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/repartition"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/pipeline"
)

// Trial tries options with example messages. A session decides each message in a
// transaction of its own, as in Run. Only the brokers are missing: what it writes is
// returned, each commit succeeds, and the caller says what time it is. One goroutine uses
// it at a time.
type Trial struct {
	s    *session
	now  time.Time
	ends map[string]map[int32]int64  // of partitions
	read map[cluster.Partition]int64 // offsets that the open transaction commits
	done map[string]map[int32]kgo.EpochOffset
	// written are the records of the open transaction but for those of changelogs.
	written []*kgo.Record
	aside   pipeline.Event // of the last message that was parked or dropped
	early   []*kgo.Record  // what the time of the last message has released
	// copier chooses partitions with a Repartition, and sent is how many messages came from
	// each partition then.
	copier *copier
	sent   map[cluster.Partition]int64
}

// TrialOutcome is what became of a message.
type TrialOutcome struct {
	// Key is that of the message. It is zero if the message has none.
	Key semel.Key
	// Decision is Fresh, Duplicate, Late or Superseded.
	Decision semel.Decision
	// Held says that the message takes effect later, unless another one replaces it.
	Held bool
	// Filtered says that the FilterMap filtered the message out.
	Filtered bool
	// Reason is why the message is parked, or else dropped or a reason to stop. It is
	// empty for other messages. Err has the details.
	Reason pipeline.Reason
	Err    error
	// Body is that of the message behind the FilterMap.
	Body []byte
	// Outputs are the records that were written for the message.
	Outputs []*kgo.Record
}

// NewTrial returns a Trial that begins at a time. Early results are left out. partitions is
// how many the first input has; with a Repartition, the slowest of them decides which
// windows are closed. The error is that of NewTransactor.
func NewTrial(opts *TransactorOptions, now time.Time, partitions int32) (*Trial, error) {
	t := &Trial{now: now, sent: map[cluster.Partition]int64{}, ends: map[string]map[int32]int64{}, read: map[cluster.Partition]int64{}, done: map[string]map[int32]kgo.EpochOffset{}}
	o := *opts
	o.Client = []kgo.Opt{kgo.SeedBrokers("")} // it is not used
	o.State.Dir = ""                          // what it tries is in memory
	o.Limits.Records, o.Observer = 1, trialObserver{t}
	o.hooks.clock = func() time.Time { return t.now }
	tr, err := NewTransactor(&o)
	if err != nil {
		return nil, err
	}
	tr.chain.Times.Early = 0
	tr.clock, tr.topics, tr.sources = clock.New(o.hooks.clock, time.Time{}), map[string]state.ID{}, map[string]int32{}
	tr.identities = map[string]string{}
	for _, input := range tr.inputs {
		tr.sources[input] = 0 // of which nothing comes
		tr.identities[input] = input
	}
	tr.sources[tr.inputs[0]] = partitions
	for n := range partitions {
		t.sent[cluster.Partition{Topic: tr.inputs[0], Number: n}] = 0
	}
	tr.copyPartitions = max(partitions, 1)
	if of, ok := tr.source.(*repartitioned); ok {
		t.copier = newCopier(of, 0)
		t.copier.forget()
	}
	t.s = newSession(tr, 0)
	t.s.brokers, t.s.work.env.Produce = trialBrokers{t}, t.write
	return t, nil
}

// Send decides a message, which arrives at a time that is not before the last one. A
// message without a time has that of its arrival.
func (t *Trial) Send(ctx context.Context, now time.Time, m *semel.Message) (TrialOutcome, error) {
	t.now, t.aside = now, pipeline.Event{}
	id := cluster.Partition{Topic: t.s.t.inputs[0], Number: m.Origin.Partition}
	if slices.Contains(t.s.t.inputs, m.Origin.Source) {
		id.Topic = m.Origin.Source
	}
	r := record.Of(m, id.Topic)
	if r.Partition = id.Number; r.Timestamp.IsZero() {
		r.Timestamp = now
	}
	r.Timestamp = time.UnixMilli(r.Timestamp.UnixMilli()) // as records have it
	id, note := t.place(ctx, id, r)
	t.assign(id)
	if err := t.tell(); err != nil {
		return TrialOutcome{}, err
	}
	note()
	r.Offset = t.next(id)
	if err := t.foresee(ctx, t.s.parts[id], r); err != nil {
		return TrialOutcome{}, err
	}
	t.read[id] = r.Offset + 1

	w, of := &t.s.work, *r  // the record may become its output
	t.s.t.hooks.results = 0 // what becomes due comes with Pass
	err := t.transact(ctx, kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: id.Topic, Partitions: []kgo.FetchPartition{{Partition: id.Number, Records: []*kgo.Record{r}}}}}}})
	t.s.t.hooks.results = mostResults
	c := &w.env.Counts
	o := TrialOutcome{Decision: semel.Fresh, Held: c.Held > 0, Filtered: c.Filtered > 0, Reason: pipeline.Reason(t.aside.Reason), Err: t.aside.Err, Body: r.Value, Outputs: t.outputs()}
	switch {
	case c.Duplicate+c.Again > 0:
		o.Decision = semel.Duplicate
	case c.Late > 0:
		o.Decision = semel.Late
	case c.Superseded > 0 && !o.Held:
		o.Decision = semel.Superseded
	}
	x := w.env.Open(&of)
	_ = w.env.Identify(t.s.parts[id].Keys, &x) // the session has told why there is no key
	o.Key = w.env.KeyOf(&x)
	if stopped, ok := errors.AsType[*pipeline.StoppedError](err); ok {
		o.Reason, o.Err, err = stopped.Reason, stopped.Err, nil
	} else if errors.Is(err, pipeline.ErrStopped) {
		o.Reason, o.Err, err = pipeline.ReasonPermanent, err, nil
	}
	return o, err
}

// place returns the partition in which a session reads a message of a partition, and a function
// that notes how far that one has come then.
func (t *Trial) place(ctx context.Context, from cluster.Partition, r *kgo.Record) (to cluster.Partition, note func()) {
	c := t.copier
	if c == nil {
		return from, func() {}
	}
	t.sent[from]++
	_, number, when, _ := c.partitioner.Choose(ctx, r) // the session meets an error of the FilterMap again
	return cluster.Partition{Topic: c.to, Number: number}, func() { c.noteTime(from, when, t.now) }
}

// foresee moves the watermark by a record that is decided next. With Keep.First, a session
// releases what is due of the record's key before it decides the record. Here that is a
// transaction of its own, so that its outputs are separate from those of the record.
func (t *Trial) foresee(ctx context.Context, p *part, r *kgo.Record) error {
	if !p.Foresee(r, t.s.t.now()) {
		return nil
	}
	return t.release(ctx, &t.early)
}

// Pass lets time pass until a time, and returns the records that are written since the
// last message: results of windows, or of messages that were held. An error is that of a
// message that was held and then parked, or of the Aggregator.
func (t *Trial) Pass(ctx context.Context, now time.Time) (released []*kgo.Record, err error) {
	released, t.early = t.early, nil
	if err := t.tell(); err != nil {
		return released, err
	}
	step := max(lookEvery, now.Sub(t.now)/mostLooks)
	for {
		if err == nil {
			err = t.settle(ctx, &released)
		}
		idle := t.s.t.chain.Times.Idle >= semel.Forever || !t.open()
		if err != nil || idle || !t.now.Before(now) {
			t.now = now
			return released, err
		}
		if t.now = t.now.Add(step); t.now.After(now) {
			t.now = now
		}
	}
}

// open reports whether a state has values, for which a session looks.
func (t *Trial) open() bool {
	return t.s.anyPart(func(p *part) bool { return p.Store.Open() > 0 })
}

// mostLooks bounds how often one Pass looks for quiet partitions.
const mostLooks = 100_000

// settle looks for quiet partitions, as a session does, and writes the results that are due.
func (t *Trial) settle(ctx context.Context, released *[]*kgo.Record) error {
	if t.s.t.chain.Times.Idle < semel.Forever && t.open() {
		t.s.t.source.settle(t.s, t.s.t.now(), t.sent, t.listEnds())
	}
	return t.release(ctx, released)
}

// release writes the results that are due.
func (t *Trial) release(ctx context.Context, released *[]*kgo.Record) error {
	for t.s.due() {
		t.aside = pipeline.Event{}
		if err := t.transact(ctx, nil); err != nil {
			return err
		}
		*released = append(*released, t.outputs()...)
		if t.aside.Err != nil {
			return t.aside.Err
		}
	}
	return nil
}

// tell lets the copier say to each partition how far the messages have come.
func (t *Trial) tell() error {
	if t.copier == nil {
		return nil
	}
	for id, p := range t.s.parts {
		if err := p.Clock.Progress(repartition.Progress(id.Topic, id.Number, t.copier.times.Append(nil), t.now)); err != nil {
			return err
		}
	}
	return nil
}

// listEnds returns the ends of the partitions, up to which all is read.
func (t *Trial) listEnds() kadm.ListedOffsets {
	ends := kadm.ListedOffsets{}
	for id := range t.s.parts {
		if ends[id.Topic] == nil {
			ends[id.Topic] = map[int32]kadm.ListedOffset{}
		}
		ends[id.Topic][id.Number] = kadm.ListedOffset{Offset: t.next(id)}
	}
	return ends
}

// transact is a transaction of the session.
func (t *Trial) transact(ctx context.Context, fetches kgo.Fetches) error {
	t.written = nil
	if err := t.s.transact(ctx, ctx, ctx, fetches); err != nil {
		t.s.work.env.Counts = operator.Counts{}
		t.written = nil
		return err
	}
	return nil
}

// assign gives the session a partition.
func (t *Trial) assign(id cluster.Partition) {
	if t.s.parts[id] != nil {
		return
	}
	at := &slot{}
	_ = restorer{t.s.t}.load(context.Background(), id, at) // without a copy on disk nothing fails
	at.keys.Begin()
	p := &part{Chain: operator.Chain{Partition: operator.Partition{ID: id, Keys: at.keys, Store: at.store, Clock: at.clock}}, slot: at, given: true, ready: true}
	p.Begin(t.s.t.chain, t.s.work.env)
	t.s.parts[id] = p
}

// next returns the offset of the next record in a partition.
func (t *Trial) next(id cluster.Partition) int64 { return t.done[id.Topic][id.Number].Offset }

// write takes a record of the open transaction.
func (t *Trial) write(r *kgo.Record) {
	if t.ends[r.Topic] == nil {
		t.ends[r.Topic] = map[int32]int64{}
	}
	r.Offset = t.ends[r.Topic][r.Partition]
	t.ends[r.Topic][r.Partition]++
	t.written = append(t.written, r)
}

// outputs returns the records that the last transaction wrote, but for parked ones and
// those of changelogs.
func (t *Trial) outputs() []*kgo.Record {
	internal := append([]string{t.s.t.chain.Parked}, t.s.t.inputs...)
	internal = append(internal, t.s.t.changelogs.names(t.s.t.decided...)...)
	return slices.DeleteFunc(t.written, func(r *kgo.Record) bool { return slices.Contains(internal, r.Topic) })
}

// trialBrokers are the brokers of a Trial.
type trialBrokers struct{ t *Trial }

var _ brokers = trialBrokers{}

func (trialBrokers) Begin() error { return nil }

func (trialBrokers) Flush(context.Context) error { return nil }

func (b trialBrokers) End(_ context.Context, commit kgo.TransactionEndTry) (bool, error) {
	t := b.t
	if commit == kgo.TryCommit {
		for id, offset := range t.read {
			if t.done[id.Topic] == nil {
				t.done[id.Topic] = map[int32]kgo.EpochOffset{}
			}
			t.done[id.Topic][id.Number] = kgo.EpochOffset{Offset: offset}
		}
	}
	clear(t.read)
	return commit == kgo.TryCommit, nil
}

func (b trialBrokers) CommittedOffsets() map[string]map[int32]kgo.EpochOffset { return b.t.done }

// readAgain implements brokers. A transaction of a Trial has one record, and no rest.
func (trialBrokers) readAgain(map[cluster.Partition]kgo.EpochOffset) {}

// trialObserver notes why a message was parked or dropped.
type trialObserver struct{ t *Trial }

func (trialObserver) Observe(semel.Event) {}

func (o trialObserver) ObservePipeline(e pipeline.Event) {
	if e.Kind == pipeline.EventParked || e.Kind == pipeline.EventDropped {
		o.t.aside = e
	}
}
