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
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keystate"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/marks"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/members"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/tables"
	"github.com/semel-dev/semel/internal/changes"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/coarse"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/vfs"
)

// Transactor moves records from topics to a topic so that each key takes effect once,
// for readers of the output with read_committed. Outputs, changelog and offsets are one
// transaction. The local state changes after the commit is known. If the result of a
// commit is unknown, the Transactor reads everything again from the brokers.
type Transactor struct {
	opts    TransactorOptions
	windows keystate.Windowing
	clock   *clock.Clock

	admin  *kgo.Client                 // not transactional: metadata, offsets, barriers
	topics map[string]keystate.TopicID // also of Inputs
	// identities are those of the inputs, by name, if the key needs a position.
	identities map[string]string
	// definition identifies the Aggregate or Keep.
	definition  changes.ID
	sizes       map[string]int32            // number of partitions by input topic
	origins     map[string]int32            // number of partitions by topic that is mixed
	changelog   map[string]keystate.TopicID // by input topic
	stateTopic  map[string]keystate.TopicID // of windows and held records, by input topic
	tableTopics kadm.TopicDetails

	// copyPartitions is the number of partitions of the topic between the stages.
	copyPartitions int32
	byID           bool                           // brokers answer requests for a topic by its id
	limits         atomic.Pointer[cluster.Limits] // of the topics that it writes
	health         members.Health
	contents       *coarse.Watch
	stall          diagnose.Stall
	lacks          atomic.Pointer[error] // for a missing right, see permitted

	mu      sync.Mutex // guards the fields below
	slots   map[cluster.Partition]*slot
	copying map[cluster.Partition]*copier // partitions of the first stage
	gone    map[keystate.TopicID]bool     // topics that no longer exist
	tables  *tables.Reader                // nil without Tables; set once, before members start
}

// NewTransactor returns a Transactor. It connects in Run. The error names all invalid
// options and wraps semel.ErrInvalidRequest.
func NewTransactor(opts *TransactorOptions) (*Transactor, error) {
	t := &Transactor{contents: coarse.New(), slots: map[cluster.Partition]*slot{}, copying: map[cluster.Partition]*copier{}}
	if opts != nil {
		t.opts = *opts
	}
	t.health.Observe, t.health.Silent = t.observe, silent
	t.opts.defaults()
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
	if t.opts.hasState() {
		t.definition = changes.Definition(t.opts.stateText())
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
	if err := t.prepare(ctx); err != nil {
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
	var damage error
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
		if damage = t.watchIntact(ctx); damage != nil {
			cancel(damage)
		}
	})
	if t.opts.State.Standby {
		running.Go(func() { newStandby(t).run(ctx) })
	}
	if t.windows.EventTime || t.opts.hasState() {
		running.Go(func() { t.trim(ctx) })
	}
	if t.opts.Repartition != nil {
		running.Go(func() { t.purge(ctx) })
	}
	running.Wait()
	for _, s := range t.slots {
		s.close()
	}
	return errors.Join(append(errs, damage)...)
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

// clientOptions returns the caller's options, those of every client here, and more.
func (t *Transactor) clientOptions(more ...kgo.Opt) []kgo.Opt {
	opts := append([]kgo.Opt{}, t.opts.Client...)
	// Each client needs its own option, because it changes the slice.
	opts = append(opts, kgo.ProducerBatchCompression(t.opts.Output.Compression))
	opts = append(opts, kgo.RetryBackoffFn(func(tries int) time.Duration {
		return min(20*time.Millisecond<<min(tries, 6), time.Second)
	}), kgo.MetadataMinAge(100*time.Millisecond))
	return append(opts, more...)
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

// now returns the time in milliseconds.
func (t *Transactor) now() int64 { return t.clock.Nanos() / int64(time.Millisecond) }

func (t *Transactor) observe(e pipeline.Event) {
	if t.opts.Observer != nil && (e.Count > 0 || e.Kind >= pipeline.EventPaused) {
		e.Pipeline = t.opts.Name
		t.opts.Observer.ObservePipeline(e)
	}
}

func (t *Transactor) adm() *kadm.Client { return kadm.NewClient(t.admin) }

// slot is the place of one partition's state in this process. A session that is
// assigned the partition takes the slot. It first asks another holder, a session or the
// standby, to release it.
type slot struct {
	holder  holder
	free    chan struct{}   // closed when the holder releases it
	waiting int             // sessions that wait for it
	state   *keystate.State // the holder's
	windows *windowState    // the holder's; nil without Aggregate and Keep
	// note is that of the committed offset, and the holder's. keysCut is the offset up to
	// which the changelog of keys no longer counts, which the next note says.
	note    marks.Note
	keysCut int64
	// cut and windowsCut are offsets up to which the changelogs of keys and windows may
	// be deleted, or 0.
	cut, windowsCut atomic.Int64
	// open, bytes and watermark are those of the committed windows.
	open, bytes, watermark atomic.Int64
}

// holder is a session or the standby.
type holder interface {
	// ask says that a session needs the partition. It does not block.
	ask(id cluster.Partition)
}

func (s *slot) close() {
	if s.state != nil && s.state.Log != nil {
		s.state.Log.Close() // the log is only a copy
	}
	if s.windows != nil && s.windows.log != nil {
		s.windows.log.Close() // so is this one
	}
	s.state, s.windows = nil, nil
}

// drop discards what the open transaction adds.
func (s *slot) drop() {
	s.state.Drop()
	if s.windows != nil {
		s.windows.Drop()
		s.windows.mix.Forget()
	}
}

// take makes a session the holder of a partition's slot. It waits until another holder
// releases it.
func (t *Transactor) take(ctx context.Context, id cluster.Partition, s *session) (*slot, error) {
	for {
		t.mu.Lock()
		at := t.slots[id]
		if at == nil {
			at = &slot{}
			t.slots[id] = at
		}
		if at.holder == nil || at.holder == holder(s) {
			if at.holder == nil {
				at.holder, at.free = s, make(chan struct{})
			}
			t.mu.Unlock()
			return at, nil
		}
		other, free := at.holder, at.free
		at.waiting++
		t.mu.Unlock()
		other.ask(id)
		var err error
		select {
		case <-free:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		t.mu.Lock()
		at.waiting--
		t.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// takeFree makes the standby the holder of a slot without a holder and waiting
// sessions, or returns nil.
func (t *Transactor) takeFree(id cluster.Partition, b *standby) *slot {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.slots[id]
	if at == nil {
		at = &slot{}
		t.slots[id] = at
	}
	if at.holder != nil || at.waiting > 0 {
		return nil
	}
	at.holder, at.free = b, make(chan struct{})
	return at
}

// free returns the partitions without a holder and waiting sessions.
func (t *Transactor) free() (list []cluster.Partition) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for topic, size := range t.sizes {
		for number := range size {
			id := cluster.Partition{Topic: topic, Number: number}
			if at := t.slots[id]; at == nil || at.holder == nil && at.waiting == 0 {
				list = append(list, id)
			}
		}
	}
	return list
}

// release gives up a partition. Without a standby its memory is freed.
func (t *Transactor) release(id cluster.Partition, h holder) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.slots[id]
	if at == nil || at.holder != h {
		return
	}
	if t.opts.State.Standby && at.state != nil {
		at.drop() // the next holder can use the committed entries
	} else {
		at.close()
	}
	at.holder = nil
	close(at.free)
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
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, at := range t.slots {
		if _, own := at.holder.(*session); own {
			decided = append(decided, id)
		}
	}
	return decided, slices.Collect(maps.Keys(t.copying))
}
