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

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keystate"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/tables"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/coarse"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/vfs"
)

var _ semel.Readier = (*Transactor)(nil)

// NewTransactor returns a Transactor. It connects in Run. The error names all invalid
// options and wraps semel.ErrInvalidRequest.
func NewTransactor(opts *TransactorOptions) (*Transactor, error) {
	t := &Transactor{contents: coarse.New(), slots: slots{list: map[cluster.Partition]*slot{}}, copying: map[cluster.Partition]string{}}
	if opts != nil {
		t.opts = *opts
	}
	t.health.Observe, t.health.Silent = t.observe, silent
	t.opts.defaults()
	t.slots.keep = t.opts.State.Standby
	if err := t.opts.validate(); err != nil {
		return nil, err
	}
	var grace time.Duration
	timing := t.opts.timing()
	if e := timing; e != nil {
		grace = e.Grace
	}
	var err error
	if t.windows, err = keystate.NewWindowing(t.opts.Window, timing != nil, grace); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	t.chain = t.opts.chain()
	if t.opts.Repartition != nil {
		t.inputs = keystate.AppendInputs(nil, t.opts.Inputs)
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
	t.clock = clock.New(t.opts.clock, time.Time{})
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
	t.health.Begin(t.admin)
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
	members := t.members()
	errs := make([]error, len(members)+1)
	var lost error
	if t.tables != nil {
		running.Go(func() {
			if errs[len(members)] = t.tables.Run(ctx); errs[len(members)] != nil {
				cancel(errs[len(members)])
			}
		})
	}
	for i, m := range members {
		running.Go(func() {
			if t.opts.hold != nil {
				select {
				case <-t.opts.hold:
				case <-ctx.Done():
				}
			}
			if errs[i] = m.run(ctx); errs[i] != nil {
				cancel(errs[i])
			}
		})
	}
	running.Go(func() { t.watchStalls(ctx) })
	running.Go(func() {
		if lost = (losses{t}).watchIntact(ctx); lost != nil {
			cancel(lost)
		}
	})
	if t.opts.State.Standby {
		running.Go(func() { newStandby(t).run(ctx) })
	}
	if t.windows.EventTime || t.chain.HasState() {
		running.Go(func() { trimmer{t}.trim(ctx) })
	}
	if t.opts.Repartition != nil {
		running.Go(func() { trimmer{t}.purge(ctx) })
	}
	running.Wait()
	t.slots.close()
	return errors.Join(append(errs, lost)...)
}

// groupMember is a member of a group. It works until ctx ends or it cannot continue.
type groupMember interface {
	run(ctx context.Context) error
}

// members returns the members of this process.
func (t *Transactor) members() (list []groupMember) {
	for i := range t.opts.Member.Sessions {
		list = append(list, newSession(t, i))
		if t.opts.Repartition != nil {
			list = append(list, newCopier(t, i))
		}
	}
	return list
}

func (t *Transactor) lockState() (io.Closer, error) {
	if t.opts.State.Dir == "" {
		return io.NopCloser(nil), nil
	}
	if err := t.opts.files.MkdirAll(t.opts.State.Dir); err != nil {
		return nil, fmt.Errorf("kafka: pipeline %s: state directory: %w", t.opts.Name, err)
	}
	lock, err := t.opts.files.Lock(filepath.Join(t.opts.State.Dir, "LOCK"), "process "+strconv.Itoa(os.Getpid()))
	if _, held := errors.AsType[*vfs.LockedError](err); held {
		return nil, fmt.Errorf("kafka: pipeline %s: state directory: %w: end that process, or give this one a state directory of its own", t.opts.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: pipeline %s: state directory: %w", t.opts.Name, err)
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
	fromEnd := t.opts.Reset == kafka.ResetEnd && t.opts.Repartition == nil // otherwise it is the first stage's
	adm := t.adm()                                                         // a member with partitions has created the client before
	list, err := cluster.Lag(ctx, adm, t.opts.Group, fromEnd, held)
	if err != nil || len(copied) == 0 {
		return list, err
	}
	more, err := cluster.Lag(ctx, adm, t.opts.copyGroup(), t.opts.Reset == kafka.ResetEnd, copied)
	return append(list, more...), err
}

// watchStalls looks for partitions that are held up, until ctx ends.
func (t *Transactor) watchStalls(ctx context.Context) {
	w := kafka.NewStallWatch(t.admin, min(t.opts.Timeouts.Transaction, 5*time.Second)) // with a look before and after, less than 10 s
	every := min(t.opts.Timeouts.Transaction/4, 2*time.Second)
	for retry.Sleep(ctx, every) == nil {
		patient, cancel := context.WithTimeout(ctx, every)
		stalled, err := w.Look(patient, t.readings())
		cancel()
		if err == nil {
			t.health.Stalls(stalled)
		}
		if ctx.Err() == nil {
			t.health.Answered(err)
		}
	}
}

// readings returns the partitions that the members of this process read.
func (t *Transactor) readings() []kafka.Reading {
	decided := kafka.Reading{Group: t.opts.Group, Partitions: map[string][]int32{}, Changelogs: t.opts.changelogsOf}
	copied := kafka.Reading{Group: t.opts.copyGroup(), Partitions: map[string][]int32{}}
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

// Gauges returns the gauges of pipeline.SourceTraits. It returns the number of open
// windows, or of held records or versions, of each partition that this process has, their
// bytes, and how far its watermark is behind the clock.
func (t *Transactor) Gauges(ctx context.Context) ([]pipeline.Gauge, error) {
	if !t.chain.HasState() && len(t.opts.Tables) == 0 {
		return nil, fmt.Errorf("kafka: there are no windows and tables: %w", errors.ErrUnsupported)
	}
	open := "dedup.windows.open"
	if t.opts.Keep != nil {
		open = "dedup.kept.open"
	}
	list := t.tableGauges(ctx)
	t.slots.each(func(id cluster.Partition, at *slot) {
		watermark := at.watermark.Load()
		if !at.decides || watermark == 0 {
			return
		}
		labels := []string{id.Topic, strconv.Itoa(int(id.Number))}
		list = append(list, pipeline.Gauge{Name: open, Labels: labels, Value: float64(at.open.Load())},
			pipeline.Gauge{Name: "dedup.state.bytes", Labels: labels, Value: float64(at.size.Load())})
		if t.opts.Keep == nil || t.opts.Keep.Holds() {
			list = append(list, pipeline.Gauge{Name: "dedup.windows.lag", Labels: labels, Value: float64(t.now()-watermark) / 1000})
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
	if len(t.opts.Tables) == 0 {
		return nil
	}
	r, err := tables.New(tables.Options{
		Tables: t.opts.Tables, Topics: t.tableTopics, Admin: t.adm(), Now: t.now,
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

// Ready implements semel.Readier. It returns nil or the reason why the Transactor does not work.
// Run has not started, a topic is missing, no broker answers, or a member has not worked since an
// error. Or a transaction without an end holds up a partition, a right is missing on a topic with
// keys or windows (looked for every 10 seconds), or the Transactor stalls (see
// pipeline.EventStalled) for another reason than a transaction that will end. It blocks until ctx
// ends at most and may be called at any time.
func (t *Transactor) Ready(ctx context.Context) error {
	client, looked, err := t.health.Look()
	if err != nil {
		return err
	}
	if client == nil {
		return errors.New("kafka: Run has not started")
	}
	if still := t.stall.For(); still > 0 && !t.health.Passes() {
		_, what, _ := t.health.Work()
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
	count, _, _ = t.health.Work() // only the number counts here
	return count, 0
}

// watch reports when the Transactor stalls and when it moves again, until stop is
// called. A transaction may be open for an interval.
func (t *Transactor) watch(ctx context.Context) (stop func()) {
	t.stall.Slow = t.opts.Limits.Interval
	return t.stall.Start(ctx, diagnose.Work{
		Look: t.health.Progress,
		Stalled: func(_ context.Context, still time.Duration) {
			records, what, err := t.health.Work()
			t.observe(pipeline.Event{Kind: pipeline.EventStalled, Count: records, Elapsed: still, Reason: what, Err: err})
		},
		Moves: func(still time.Duration) { t.observe(pipeline.Event{Kind: pipeline.EventMoves, Elapsed: still}) },
	})
}
