package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/tables"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/coarse"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/vfs"
)

var _ doctor.Readier = (*Transactor)(nil)

// NewTransactor returns a Transactor. It connects in Run. The error names all invalid
// options and wraps semel.ErrInvalidRequest.
func NewTransactor(opts *TransactorOptions) (*Transactor, error) {
	var o TransactorOptions
	if opts != nil {
		o = *opts
	}
	o.defaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	t := &Transactor{
		chain: o.chain(), inputs: o.Inputs, decided: o.decided(),
		client: o.Client, compression: o.Output.Compression, reset: o.Reset, sameKeys: o.Key.SameScope,
		member: o.Member, state: o.State, limits: o.Limits, timeouts: o.Timeouts, observer: o.Observer, hooks: o.hooks,
		contents: coarse.New(), slots: slots{keep: o.State.Standby, list: map[cluster.Partition]*slot{}}, copying: map[cluster.Partition]string{},
	}
	t.health.observe, t.health.silent = t.observe, silent
	var err error
	if t.windows, err = keys.NewWindowing(o.Window, t.chain.Times.Keys, t.chain.Times.Grace); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	names := map[string][]string{}
	for _, topic := range t.decided {
		names[topic] = o.changelogNames(topic)
	}
	t.changelogs = newChangelogs(names, stateContents(t.chain.Holds()), t.changelogRetention(), t.windows.Retention())
	t.chain.StateOf = func(topic string) string { return t.changelogs[topic][1].name }
	t.source = direct{t}
	if r := o.Repartition; r != nil {
		t.source, t.header = &repartitioned{t, r.Topic, repartitionGroup(o.Group)}, keys.AppendInputs(nil, o.Inputs)
	}
	return t, nil
}

// Run moves records until ctx ends. Then it finishes or aborts the open transactions
// and returns nil. The group keeps its place for a while, so that a restart gets its
// partitions back. Run blocks. An error means that it cannot continue: something is missing or
// refused, topics lost the state (semel.ErrCorrupt), another process took its place
// (kafka.ErrFenced), or a policy stopped it at a message (pipeline.ErrStopped). Rebalances, lost
// connections and restarts of brokers are not errors.
//
// Call it once.
func (t *Transactor) Run(ctx context.Context) error {
	t.clock = clock.New(t.hooks.clock, time.Time{})
	lock, err := t.lockState()
	if err != nil {
		return err
	}
	defer lock.Close()
	// A barrier may be written twice, but its write must be cancellable.
	t.admin, err = kgo.NewClient(t.clientOptions(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite())...)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	defer t.admin.Close()
	if err := cluster.RefusePools(t.admin); err != nil {
		return err
	}
	t.health.begin(t.admin)
	defer t.watch(ctx)()
	if err := (checks{t}).prepare(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if err := t.openTables(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var running sync.WaitGroup
	runs := append(t.members(), losses{t}.watchIntact)
	errs := make([]error, len(runs))
	for i, run := range runs {
		running.Go(func() {
			if errs[i] = run(ctx); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	running.Go(func() { t.watchStalls(ctx) })
	if t.state.Standby {
		running.Go(func() { newStandby(t).run(ctx) })
	}
	running.Go(func() { trimmer{t}.trim(ctx) })
	running.Go(func() { t.source.tidy(ctx) })
	running.Wait()
	t.slots.close()
	return errors.Join(errs...)
}

// run works until ctx ends or it cannot continue.
type run func(ctx context.Context) error

// members returns what runs the members of this process, and reads their tables.
func (t *Transactor) members() (list []run) {
	if t.tables != nil {
		list = append(list, t.tables.Run)
	}
	for i := range t.member.Sessions {
		list = append(append(list, newSession(t, i).run), t.source.members(i)...)
	}
	return list
}

func (t *Transactor) lockState() (io.Closer, error) {
	if t.state.Dir == "" {
		return io.NopCloser(nil), nil
	}
	if err := t.hooks.files.MkdirAll(t.state.Dir); err != nil {
		return nil, fmt.Errorf("kafka: pipeline %s: state directory: %w", t.chain.Name, err)
	}
	lock, err := t.hooks.files.Lock(filepath.Join(t.state.Dir, "LOCK"), "process "+strconv.Itoa(os.Getpid()))
	if _, held := errors.AsType[*vfs.LockedError](err); held {
		return nil, fmt.Errorf("kafka: pipeline %s: state directory: %w: end that process, or give this one a state directory of its own", t.chain.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: pipeline %s: state directory: %w", t.chain.Name, err)
	}
	return lock, nil
}

// Lag returns the backlog, as [kafka.Source.Lag] does. It may be called at any
// time; before Run it returns nothing. With a repartition stage it includes both
// stages.
func (t *Transactor) Lag(ctx context.Context) ([]pipeline.Lag, error) {
	held, copied := t.held()
	if len(held)+len(copied) == 0 {
		return nil, nil
	}
	adm := t.adm() // a member with partitions has created the client before
	list, err := cluster.Lag(ctx, adm, t.chain.Group, t.source.fromEnd(), held, nil)
	if err != nil || len(copied) == 0 {
		return list, err
	}
	more, err := cluster.Lag(ctx, adm, repartitionGroup(t.chain.Group), t.reset == kafka.ResetEnd, copied, nil)
	return append(list, more...), err
}

// watchStalls looks for partitions that are held up, until ctx ends.
func (t *Transactor) watchStalls(ctx context.Context) {
	w := kafka.NewStallWatch(t.admin, min(t.timeouts.Transaction, 5*time.Second)) // with a look before and after, less than 10 s
	every := min(t.timeouts.Transaction/4, 2*time.Second)
	for retry.Sleep(ctx, every) == nil {
		patient, cancel := context.WithTimeout(ctx, every)
		stalled, err := w.Look(patient, t.readings())
		cancel()
		if err == nil {
			t.health.stalls(stalled)
		}
		if ctx.Err() == nil {
			t.health.answered(err)
		}
	}
}

// readings returns the partitions that the members of this process read.
func (t *Transactor) readings() []kafka.Reading {
	decided := kafka.Reading{Group: t.chain.Group, Partitions: map[string][]int32{}, Changelogs: func(topic string) []string { return t.changelogs.names(topic) }}
	copied := kafka.Reading{Group: repartitionGroup(t.chain.Group), Partitions: map[string][]int32{}}
	held, copying := t.held()
	for _, id := range held {
		decided.Partitions[id.Topic] = append(decided.Partitions[id.Topic], id.Number)
	}
	for _, id := range copying {
		copied.Partitions[id.Topic] = append(copied.Partitions[id.Topic], id.Number)
	}
	return []kafka.Reading{decided, copied}
}

// held returns the partitions that sessions of this process have, and those of its
// copiers.
func (t *Transactor) held() (decided, copied []cluster.Partition) {
	t.slots.each(func(id cluster.Partition, at *slot) {
		if at.decides {
			decided = append(decided, id)
		}
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	return decided, slices.Collect(maps.Keys(t.copying))
}

// Gauges returns the gauges of pipeline.SourceTraits. Those of the state of an operator in
// each partition that this process has are the number of values, their bytes, and how far the
// watermark is behind the clock. Those of each table are its rows and its lag.
func (t *Transactor) Gauges(ctx context.Context) ([]pipeline.Gauge, error) {
	if !t.chain.HasState() && len(t.chain.Tables) == 0 {
		return nil, fmt.Errorf("kafka: no operator has a state, and there are no tables: %w", errors.ErrUnsupported)
	}
	list := t.tableGauges(ctx)
	t.slots.each(func(id cluster.Partition, at *slot) {
		watermark := at.watermark.Load()
		if !at.decides || watermark == 0 {
			return
		}
		labels := []string{id.Topic, strconv.Itoa(int(id.Number))}
		if open := t.chain.Gauge(); open != "" {
			list = append(list, pipeline.Gauge{Name: open, Labels: labels, Value: float64(at.open.Load())})
		}
		list = append(list, pipeline.Gauge{Name: "dedup.state.bytes", Labels: labels, Value: float64(at.size.Load())})
		if t.chain.Times.Closes {
			list = append(list, pipeline.Gauge{Name: "dedup.state.lag", Labels: labels, Value: float64(t.now()-watermark) / 1000})
		}
	})
	return list, nil
}

// tableGauges returns the number of rows of each table, and how many records of its topic
// are not read yet.
func (t *Transactor) tableGauges(ctx context.Context) (list []pipeline.Gauge) {
	t.mu.Lock()
	r := t.tables
	t.mu.Unlock()
	if r == nil {
		return nil
	}
	for _, size := range r.Sizes(ctx) {
		list = append(list, pipeline.Gauge{Name: "dedup.table.rows", Labels: []string{size.Table}, Value: float64(size.Rows)})
		if size.Lag >= 0 {
			list = append(list, pipeline.Gauge{Name: "dedup.table.lag", Labels: []string{size.Table}, Value: float64(size.Lag)})
		}
	}
	return list
}

// openTables begins to read the topics of the tables.
func (t *Transactor) openTables() error {
	if len(t.chain.Tables) == 0 {
		return nil
	}
	r, err := tables.New(tables.Options{
		Tables: t.chain.Tables, Topics: t.tableTopics, Admin: t.adm(), Now: t.now,
		Client: func(more ...kgo.Opt) []kgo.Opt { return t.clientOptions(more...) },
		Observe: func(reason string, err error) {
			t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: reason, Err: err})
		},
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tables = r
	return err
}

// Ready implements doctor.Readier. It returns nil or the reason why the Transactor does not work.
// Run has not started, a topic is missing, no broker answers, or a member has not worked since an
// error. Or a transaction without an end holds up a partition, or a right is missing on a topic
// with state (looked for every 10 seconds). Or the Transactor stalls (see pipeline.EventStalled)
// for another reason than a transaction that will end. It blocks until ctx
// ends at most and may be called at any time.
func (t *Transactor) Ready(ctx context.Context) error {
	client, looked, err := t.health.look()
	if err != nil {
		return err
	}
	if client == nil {
		return errors.New("kafka: Run has not started")
	}
	if still := t.stall.For(); still > 0 && !t.health.passes() {
		_, what, _ := t.health.work()
		return fmt.Errorf("kafka: stalled for %v, waiting for %s", still.Round(time.Second), what)
	}
	if err := client.Ping(ctx); err != nil {
		return fmt.Errorf("kafka: no broker answers: %w", err)
	}
	if lacks := t.lacks.Load(); lacks != nil && *lacks != nil {
		return *lacks
	}
	if !looked {
		return errors.New("kafka: it is checking brokers and topics")
	}
	return nil
}

// UnderWay returns the number of records in open transactions. Their size is not known,
// and bytes is 0. UnderWay may be called at any time.
func (t *Transactor) UnderWay() (count int, bytes int64) {
	count, _, _ = t.health.work() // only the number counts here
	return count, 0
}

// Workers returns how many transactions are open at a time. It may be called at any time.
func (t *Transactor) Workers() int { return t.member.Sessions }

// watch reports when the Transactor stalls and when it moves again, until stop is
// called. A transaction may be open for an interval.
func (t *Transactor) watch(ctx context.Context) (stop func()) {
	t.stall.Slow = t.limits.Interval
	return t.stall.Start(ctx, diagnose.Work{
		Look: t.health.progress,
		Stalled: func(_ context.Context, still time.Duration) {
			records, what, err := t.health.work()
			t.observe(pipeline.Event{Kind: pipeline.EventStalled, Count: records, Elapsed: still, Reason: what, Err: err})
		},
		Moves: func(still time.Duration) { t.observe(pipeline.Event{Kind: pipeline.EventMoves, Elapsed: still}) },
	})
}
